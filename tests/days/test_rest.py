"""Once nothing is left to do nothing is done, and doing much leaves nothing behind (C-70); who serves is served."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from random import Random

import pytest

from commands import snapshot
from commands.decide.attempts import end_attempt
from commands.plan import Plan
from events.gang import GangEnding
from events.ids import TeamId
from events.job import EndReason, JobState, PriorityClass
from replay.generated import DAY_S, Fleet, shares
from replay.scenario import Work
from scheduler.planning.plan import Planner
from tests.builders import spec
from tests.days.arrivals import day
from tests.days.referee import Referee
from tests.days.world import World

HOUR_S = 3600
TEAMS = (TeamId("red"), TeamId("blue"), TeamId("green"))


def test_five_quiet_cycles_change_nothing() -> None:
    """In the middle of an overfull day, and after it, cycles that nothing came before find nothing to do, with indices
    that followed and with such as were made afresh."""
    fleet = Fleet(nodes=32, nodes_in_block=8)
    world = World(fleet, step_s=10, idle_s=60)
    Referee(world)
    world.play(day(5, fleet, jobs=400, load=1.2, teams=TEAMS, length_s=DAY_S // 4, giants=2))
    for hour in (2, 4, 6, 30):
        world.run(hour * HOUR_S)
        before = snapshot.digest(world.state)
        for _ in range(5):
            assert world.core.cycle() == ()
        assert Planner(world.state).plan(world.core.now).empty()
        assert snapshot.digest(world.state) == before
    assert not world.state.attempts.rows
    assert not world.state.jobs.rows


@pytest.mark.parametrize("seed", [5, 9])
def test_what_a_planner_remembers_changes_no_plan(seed: int) -> None:
    """Through an overfull day each cycle is planned alike by the planner that followed it and by one made afresh: also
    those in which one job's room makes room for another."""
    fleet = Fleet(nodes=32, nodes_in_block=8)
    world = World(fleet, step_s=20, idle_s=60, audit_every=1 << 30)
    world.play(day(seed, fleet, jobs=300, load=1.4, teams=TEAMS, length_s=DAY_S // 6, giants=2))
    rooms: list[int] = []

    def told(plan: Plan) -> None:
        assert Planner(world.state).plan(world.core.now) == plan, f"seed {seed}, {world.second} s"
        rooms.append(len(plan.rooms))

    world.core.before_plan.append(told)
    world.run(5 * HOUR_S)
    assert max(rooms) > 1


def test_thousands_of_cycles_leave_memory_as_it_was() -> None:
    """A full cluster in which somebody always has to begin anew: 1,500 cycles later the planner holds what it held."""
    world = World(Fleet(nodes=16, nodes_in_block=8), audit_every=1 << 30)
    for line in shares(world.fleet, list(TEAMS)):
        world.quota(line.team, line.guaranteed)
    draw = Random(3)
    for number in range(160):
        replicas, each = draw.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 8)))
        asked = spec(team=TEAMS[number % 3], replicas=replicas, gpus_per_replica=each, max_runtime_s=20 * DAY_S)
        world.submit(0, asked, Work(run_s=20 * DAY_S, start_s=1, save_s=1))
    world.run(60)

    def churn(cycles: int) -> int:
        target = world.core.cycles + cycles
        while world.core.cycles < target:
            running = sorted(key for key, row in world.state.attempts.rows.items() if row.ending is None)
            key = draw.choice(running)
            world.core.decide("given", partial(end_attempt, key=key, reason=EndReason.REQUEUED))
            world.run(world.second + 3)
        gc.collect()
        ours = [tracemalloc.Filter(True, f"*/{part}/*") for part in ("scheduler", "commands", "events")]
        return sum(line.size for line in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename"))

    tracemalloc.start()
    try:
        before = churn(500)
        after = churn(1_500)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000, f"{after - before} bytes more"


def test_serving_starts_at_once_and_is_never_stopped() -> None:
    """prod-serving comes to a cluster full of borrowers, inside its guarantee: it runs within 5 min each time, and
    stays for as long as it wants, whoever else comes."""
    fleet = Fleet(nodes=16, nodes_in_block=8)
    world = World(fleet, step_s=5, idle_s=30)
    world.play(day(6, fleet, jobs=300, load=1.5, teams=TEAMS, length_s=DAY_S // 4, giants=1))
    for line in shares(fleet, list(TEAMS)):
        world.quota(line.team, line.guaranteed * 3 // 4)
    world.quota("serve", 32)
    stopped: list[str] = []
    Referee(world)
    world.core.watchers.append(
        lambda events: stopped.extend(
            event.job_id for event in events if isinstance(event, GangEnding) and event.reason is EndReason.PREEMPTED
        )
    )
    serving = []
    for number in range(8):
        asked = spec(team="serve", gpus_per_replica=4, max_runtime_s=None, priority_class=PriorityClass.PROD_SERVING)
        serving.append((HOUR_S + 900 * number, world.submit(HOUR_S + 900 * number, asked, Work(run_s=6 * HOUR_S))))
    for at_s, job_id in serving:
        world.run(at_s + 330)
        assert world.state.jobs[job_id].state is JobState.RUNNING, world.second
    world.run(DAY_S // 4)
    assert stopped
    assert not {job_id for _, job_id in serving} & set(stopped)
