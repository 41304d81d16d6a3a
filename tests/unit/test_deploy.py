"""What deploy/ hands to a site: units and a site file that the program of this tree takes."""

import configparser
import shlex
from pathlib import Path

import pytest

from signalboxd.main import parser
from signalboxd.site import read_site

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
LONG_RUNNING = {"scheduler", "api", "projector", "agent"}


def _service(unit: Path) -> configparser.SectionProxy:
    read = configparser.ConfigParser(interpolation=None, strict=True)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(unit.read_text())
    return read["Service"]


def test_every_long_running_process_has_a_unit() -> None:
    """And nothing else has one."""
    assert {unit.stem.removeprefix("signalbox-") for unit in UNITS} == LONG_RUNNING


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_what_the_program_takes(unit: Path) -> None:
    """The verb is the unit's name, and each of its options exists."""
    program, *argv = shlex.split(_service(unit)["ExecStart"])
    assert program.endswith("/.venv/bin/signalboxd")
    assert parser().parse_args(argv).verb == unit.stem.removeprefix("signalbox-")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_process_is_started_again_unless_a_person_has_to_look(unit: Path) -> None:
    """70 is ordinary, 74 is not; wrong usage does not mend itself."""
    service = _service(unit)
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"].split() == ["2", "74"]


def test_tasks_outlive_their_agent() -> None:
    """Stopping the agent's unit stops the agent alone."""
    assert _service(DEPLOY / "systemd" / "signalbox-agent.service")["KillMode"] == "process"


def test_the_example_site_can_be_read() -> None:
    """With a partition for its cluster."""
    site = read_site(DEPLOY / "site.toml")
    assert site.log.kind == "kafka"
    assert site.schedulers
