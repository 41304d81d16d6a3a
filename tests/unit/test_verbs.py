"""The verbs of the service program."""

from __future__ import annotations

import subprocess
import sys

import pytest

from signalboxd.main import VERBS, parser

HEAVY = {"fastapi", "plotly", "pyarrow"}


def loaded(verb: str) -> set[str]:
    """What a process that is about to run the verb has loaded."""
    code = f"import sys; from signalboxd.main import parser; parser(['{verb}']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("verb", ["agent", "scheduler", "projector"])
def test_a_process_loads_what_its_verb_needs(verb: str) -> None:
    """What serves and draws is not for each node's agent to load."""
    assert not HEAVY & loaded(verb)


def test_an_api_loads_what_serves() -> None:
    """Else the test above would see nothing."""
    assert "fastapi" in loaded("api")


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_each_verb_says_what_it_takes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for help it names its options, and ends well."""
    with pytest.raises(SystemExit) as ended:
        parser([verb]).parse_args([verb, "--help"])
    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out
