"""Leaders: wherever they are stopped, no GPU is given twice and nothing is done but by the log (PROTOCOL 1 to 4)."""

import pytest

from tests.simulation.leaders import LEADER_GATES, TAKEOVER_GATES
from tests.simulation.run import run, seeds
from tests.simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("gate", LEADER_GATES)
def test_a_leader_may_stand_still_anywhere(gate: str, seed: int) -> None:
    """Wherever a leader stands still while a successor acts, one process runs on a GPU and all comes to rest (1)."""
    assert run(SCENARIOS[f"frozen-{gate}"], seed).passed[gate] > 0


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("gate", TAKEOVER_GATES)
def test_whoever_takes_over_may_stand_still_anywhere(gate: str, seed: int) -> None:
    """Wherever a candidate stands still on its way into office, another may take it, and one leads in the end (1)."""
    assert run(SCENARIOS[f"takeover-{gate}"], seed).terms >= 2


@pytest.mark.parametrize("seed", seeds(6))
def test_late_appends_have_no_effect(seed: int) -> None:
    """Appends that land after a successor's term are dropped by all readers, and nobody acts on them (2)."""
    assert run(SCENARIOS["late-appends"], seed).dropped > 0


@pytest.mark.parametrize("seed", seeds(6))
def test_an_acknowledged_append_may_not_count(seed: int) -> None:
    """A leader that does not know of its successor finds out by the place of its record, before it acts (2)."""
    assert run(SCENARIOS["early-successors"], seed).dropped > 0


@pytest.mark.parametrize("seed", seeds(3))
def test_postgres_refuses_late_appends(seed: int) -> None:
    """Where the log refuses an append that is not at its end, late ones are not even stored (2)."""
    assert run(SCENARIOS["late-appends-postgres"], seed).terms > 2


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("name", ["terms", "terms-postgres"])
def test_one_term_is_in_force_at_a_time(name: str, seed: int) -> None:
    """Terms that come late, twice or with an epoch given twice leave one leader; the others stop first (3)."""
    assert run(SCENARIOS[name], seed).terms > 2


@pytest.mark.parametrize("seed", seeds(6))
def test_late_statements_leave_claims_whole(seed: int) -> None:
    """A claim, release or reconciliation of a deposed leader that comes late changes nothing (4)."""
    assert run(SCENARIOS["late-statements"], seed).terms > 2
