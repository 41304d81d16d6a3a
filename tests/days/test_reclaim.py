"""An owner returns to a full cluster of borrowers (R-12, R-41, R-45)."""

from __future__ import annotations

import pytest

from events.job import JobState
from replay.generated import Fleet
from replay.scenario import Work
from tests.builders import spec
from tests.days.ledger import Ledger
from tests.days.referee import Referee
from tests.days.world import World

HOUR_S = 3600


def borrowers(fleet: Fleet, *, save_s: int, grace_s: int) -> World:
    """Every GPU is borrowed by blue, in jobs of one to sixteen GPUs; half of the fleet is red's."""
    world = World(fleet)
    world.quota("red", fleet.gpus // 2)
    world.quota("blue", 0)
    left, number = fleet.gpus, 0
    while left:
        replicas, each = ((2, 8), (1, 8), (1, 4), (1, 4))[number % 4]
        asked = spec(team="blue", replicas=replicas, gpus_per_replica=each, max_runtime_s=20 * HOUR_S, grace_s=grace_s)
        world.submit(number % 60, asked, Work(run_s=4 * HOUR_S + 7 * number, save_s=save_s))
        left -= min(left, replicas * each)
        number += 1
    world.run(HOUR_S)
    assert sum(line.charged for line in world.state.usage.rows.values()) > 0.95 * fleet.gpus
    return world


@pytest.mark.parametrize(("save_s", "grace_s"), [(20, 60), (60, 60), (240, 240)])
def test_an_owner_has_its_gpus_back_within_five_minutes(save_s: int, grace_s: int) -> None:
    """Each covered job runs within 5 min of virtual time; victims save, wait, and go on from where they saved."""
    world = borrowers(Fleet(nodes=32, nodes_in_block=8), save_s=save_s, grace_s=grace_s)
    ledger, referee = Ledger(world), Referee(world)
    asked = spec(team="red", replicas=4, gpus_per_replica=8, max_runtime_s=2 * HOUR_S)
    jobs = [world.submit(HOUR_S, asked, Work(run_s=HOUR_S)) for _ in range(4)]
    world.run(HOUR_S + 300)
    assert [world.state.jobs[job_id].state for job_id in jobs] == [JobState.RUNNING] * 4
    assert ledger.evicted_ratio() <= 1.1
    assert referee.preempted
    world.run_while(lambda: bool(world.state.jobs.rows), 12 * HOUR_S)
    assert ledger.stopped
    for (job_id, attempt), done_ms in ledger.stopped.items():
        assert ledger.resumed[job_id, attempt + 1] == done_ms
        assert world.state.ended[job_id].state is JobState.SUCCEEDED
    assert ledger.lost_gpu_s == 0
    assert {job_id: len(times) for job_id, times in referee.preempted.items() if len(times) > 1} == {}


def test_what_is_borrowed_comes_back_to_borrowers() -> None:
    """When the owner is done the victims run again: nobody had to ask for it."""
    world = borrowers(Fleet(nodes=16, nodes_in_block=8), save_s=20, grace_s=60)
    asked = spec(team="red", replicas=8, gpus_per_replica=8, max_runtime_s=HOUR_S)
    world.submit(HOUR_S, asked, Work(run_s=600))
    world.run(HOUR_S + 400)
    waiting = len(world.core.planner.queue)
    assert waiting > 0
    world.run(HOUR_S + 900)
    assert len(world.core.planner.queue) == 0
