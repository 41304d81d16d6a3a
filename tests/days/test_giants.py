"""A giant among an endless flood of small jobs starts when it was told that it would (R-23, C-1)."""

from __future__ import annotations

from random import Random

from events.gang import GangAllocated
from events.ids import JobId
from replay.generated import MIDNIGHT, Fleet
from replay.scenario import Work
from tests.builders import spec
from tests.days.ledger import Ledger
from tests.days.referee import Referee
from tests.days.world import World

HOUR_S = 3600
RUNS_S = (120, 300, 600, 900, 1800)


def flood(
    world: World, teams: tuple[str, ...], *, sizes: tuple[int, ...], load: float, until_s: int, seed: int
) -> None:
    """Small jobs of two minutes to half an hour, more than the fleet holds, without an end."""
    draw = Random(seed)
    mean_gpu_s = sum(sizes) / len(sizes) * sum(RUNS_S) / len(RUNS_S)
    for _ in range(int(load * world.fleet.gpus * until_s / mean_gpu_s)):
        run_s = draw.choice(RUNS_S)
        asked = spec(
            team=draw.choice(teams),
            gpus_per_replica=draw.choice(sizes),
            max_runtime_s=round(run_s * draw.choice((1.1, 1.5, 2))),
        )
        world.submit(draw.randrange(until_s), asked, Work(run_s=run_s))


def started_at(world: World) -> dict[JobId, int]:
    """First start of each job (ms), told by events from now on."""
    found: dict[JobId, int] = {}

    def see(events: tuple[object, ...]) -> None:
        for event in events:
            if isinstance(event, GangAllocated):
                found.setdefault(event.job_id, world.core.now)

    world.core.watchers.append(see)
    return found


def giant_among(world: World, hours: float) -> tuple[Ledger, JobId, dict[JobId, int]]:
    """A gang of 1,024 GPUs comes after an hour; what happened."""
    ledger, starts = Ledger(world), started_at(world)
    Referee(world)
    asked = spec(team="red", replicas=128, gpus_per_replica=8, max_runtime_s=2 * HOUR_S)
    giant = world.submit(HOUR_S, asked, Work(run_s=HOUR_S))
    world.run(int(hours * HOUR_S))
    return ledger, giant, starts


def test_a_giant_starts_at_its_first_estimate() -> None:
    """Everybody borrows, and the fleet is over-full: the gang of 1,024 is reserved within a cycle, and starts no later
    than was first said; small jobs go on meanwhile, inside the hole too."""
    world = World(Fleet(nodes=256), step_s=10)
    for team in ("red", "blue", "green"):
        world.quota(team, 0)
    flood(world, ("blue", "green"), sizes=(1, 2, 4, 4), load=1.1, until_s=2 * HOUR_S, seed=1)
    ledger, giant, starts = giant_among(world, 2)
    reserved_at, first = ledger.estimates[giant][0]
    assert reserved_at == MIDNIGHT + HOUR_S * 1000
    assert starts[giant] <= first
    moved = [start_at for _, start_at in ledger.estimates[giant]]
    assert moved == sorted(moved, reverse=True)
    meanwhile = [at for job_id, at in starts.items() if job_id != giant and reserved_at < at < starts[giant]]
    assert len(meanwhile) > 100
    assert not any(one.victims for one in ledger.preemptions)
    assert ledger.allocated_share(60) > 0.85


def test_a_covered_giant_does_not_wait_for_ends() -> None:
    """Half of the fleet is red's, and all of it is in small pieces of blue's: the gang has it within 5 min, and as
    many GPUs are stopped as it asked for."""
    world = World(Fleet(nodes=256), step_s=10)
    world.quota("red", 1024)
    world.quota("blue", 0)
    flood(world, ("blue",), sizes=(1, 2, 4, 8), load=1.1, until_s=HOUR_S + 600, seed=2)
    ledger, giant, starts = giant_among(world, 1.2)
    submitted = [start for start in ledger.starts if start.job_id == giant]
    assert submitted[0].wait_s <= 300
    assert starts[giant] > 0
    assert ledger.evicted_ratio() < 1.2
