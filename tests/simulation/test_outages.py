"""Outages: what cannot be led is not led, and one poisonous input stops nobody else (PROTOCOL 10, 12 to 15)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import run, seeds
from tests.simulation.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("name", ["truncated-events", "truncated-commands"])
def test_a_truncated_log_is_not_led_on(name: str, seed: int) -> None:
    """Records that were accepted or taken and are gone are noticed before anything is decided (10)."""
    run(SCENARIOS[name], seed)


@pytest.mark.parametrize("seed", seeds(2))
def test_poison_is_refused_at_once(seed: int) -> None:
    """A command on which deciding raises is refused in the same leadership; the others are served (12)."""
    assert run(SCENARIOS["poison"], seed).events["InputRefused"] == 1


@pytest.mark.parametrize("seed", seeds(3))
def test_poison_that_kills_ends_two_leaderships(seed: int) -> None:
    """A command that ends the process that decides it is refused by the third leader (12)."""
    assert run(SCENARIOS["poison-crash"], seed).events["InputRefused"] == 1


@pytest.mark.parametrize("seed", seeds(2))
def test_an_error_in_planning_stops_starts_alone(seed: int) -> None:
    """The leader stays, takes commands and reports, and starts what waited once planning succeeds (C-46)."""
    run(SCENARIOS["unplanned"], seed)


@pytest.mark.parametrize("seed", seeds(2))
def test_clocks_may_jump(seed: int) -> None:
    """The database's clock may be hours off: `at` goes on, a dead leader is replaced in 10 s, no node is lost (13)."""
    assert "NodeLost" not in run(SCENARIOS["clocks"], seed).events


def test_an_hour_without_schedulers_fails_no_job() -> None:
    """Jobs run on without any scheduler, and their ends are taken when one is back (13, C-48)."""
    assert run(SCENARIOS["long-outage"], 1).events["ClockGap"] == 1


@pytest.mark.parametrize("what", ["agents", "half", "database", "log"])
def test_a_leader_may_be_cut_off(what: str) -> None:
    """A leader that reaches only some of the world loses no nodes for it, and gives way where it cannot lead (14)."""
    run(SCENARIOS[f"cut-off-{what}"], 1)


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("name", ["storm", "storm-postgres"])
def test_anything_may_go_wrong(name: str, seed: int) -> None:
    """Processes stop and die at any await, requests are late, lost and doubled, and still all comes to rest."""
    outcome = run(SCENARIOS[name], seed)
    assert outcome.terms > 3
    assert outcome.events["TaskEnded"] > 50


@pytest.mark.parametrize("seed", seeds(4))
def test_bad_weather_passes(seed: int) -> None:
    """Power, cables, clocks and processes fail for three minutes, and afterwards every job ends."""
    assert run(SCENARIOS["weather"], seed).events["NodeReturned"] > 0


def test_nothing_happens_where_nothing_goes_wrong() -> None:
    """Without faults there is one term, no record is dropped and no node is doubted."""
    outcome = run(SCENARIOS["quiet"], 1)
    assert (outcome.terms, outcome.dropped) == (1, 0)
    assert not {"NodeSuspected", "NodeLost", "ReportDropped", "ClaimConflictFound"} & outcome.events.keys()


def test_a_seed_gives_one_history() -> None:
    """The same seed gives the same log, byte for byte, in another process with another order of its sets (15)."""
    code = (
        "from tests.simulation.run import run; from tests.simulation.scenarios import SCENARIOS;"
        "print(run(SCENARIOS['storm'], 1).head.hash)"
    )
    heads = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for order in ("1", "2")
    }
    assert heads == {run(SCENARIOS["storm"], 1).head.hash + "\n"}
