"""Nodes: each lease runs once, is freed once it is gone, and outlives partitions and agents (PROTOCOL 5 to 9)."""

import pytest

from tests.simulation.nodes import AGENT_GATES
from tests.simulation.run import run, seeds
from tests.simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("name", ["hostile", "hostile-any-session"])
def test_a_lease_runs_once(name: str, seed: int) -> None:
    """StartTask and StopTask may come twice, late and in any order, also when the agent has forgotten the lease (5)."""
    assert run(SCENARIOS[name], seed).events["TaskStarted"] > 50


@pytest.mark.parametrize("seed", seeds(4))
def test_nothing_starts_after_its_node_was_lost(seed: int) -> None:
    """An agent that stood still with a StartTask in its socket does not obey it when it is too late (6)."""
    assert run(SCENARIOS["frozen-agents"], seed).events["NodeLost"] > 0


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("name", ["partition-60s", "partition-60s-agent-dies"])
def test_a_short_partition_loses_nothing(name: str, seed: int) -> None:
    """A minute without a word ends no task and starts none again, with or without a live agent (7, C-40)."""
    assert "NodeLost" not in run(SCENARIOS[name], seed).events


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize(
    "name", ["partition-300s", "partition-300s-agent-dies", "partition-1200s", "partition-overlap-never"]
)
def test_a_long_partition_moves_jobs(name: str, seed: int) -> None:
    """Jobs of a lost node go on elsewhere from their checkpoint; what must not overlap waits; each ends once (7)."""
    assert run(SCENARIOS[name], seed).events["NodeLost"] > 0


def test_a_slow_start_is_given_up_but_not_forgotten() -> None:
    """A gang that does not start in time is stopped, and its GPUs are free only when that is confirmed (8)."""
    assert run(SCENARIOS["slow-starts"], 1).events["GangEnding"] > 0


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("gate", AGENT_GATES)
def test_agents_may_die_anywhere(gate: str, seed: int) -> None:
    """An agent that dies around a write or a start finds its tasks again, or says that they are gone (9)."""
    assert run(SCENARIOS[f"agent-dies-{gate}"], seed).passed[gate] > 0


@pytest.mark.parametrize("seed", seeds(2))
def test_machines_may_lose_power(seed: int) -> None:
    """What ran on a machine that went out is known to be gone when it is back, and runs again (9)."""
    assert run(SCENARIOS["power-cuts"], seed).events["TaskEnded"] > 0


@pytest.mark.parametrize("seed", seeds(2))
def test_an_agent_may_lose_its_memory(seed: int) -> None:
    """An agent whose disk was replaced kills what it finds running, and the log lets those leases go (9, P-19)."""
    assert run(SCENARIOS["lost-journals"], seed).events["LeaseReleased"] > 0


@pytest.mark.parametrize("seed", seeds(3))
def test_gpus_may_change_places(seed: int) -> None:
    """Tasks keep the GPUs they were given by UUID; the node waits for its leases to end, or for a wipe (15, P-21)."""
    assert run(SCENARIOS["renumbered"], seed).events["NodeRegistered"] > 6
