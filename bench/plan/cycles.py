"""Cycles of a fleet of 24,000 GPUs: filled, saturated, full, and with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from bench.figure import Figure, latency
from bench.plan import fleets
from bench.plan.sites import Site, cpu, decisions, end
from events.task import TaskEnd
from tests.crowds import RESEARCH, Crowd


def main() -> Iterator[Figure]:
    """Each case on a fleet of its own."""
    yield from filled()
    yield from saturated()
    yield from one_ends(50, list(fleets.SMALL_MOSTLY))
    yield from one_ends(150, [(replicas, each) for each in (1, 2, 4, 8) for replicas in (1, 2, 3, 4)][:15])
    yield from reserved()
    yield from nothing_to_do()
    yield from adversarial()
    yield from reclaims()


def filled() -> Iterator[Figure]:
    """Ten teams with 1,000 jobs each come to an empty fleet."""
    crowd = fleets.empty()
    _guarantee_all(crowd, 10)
    fleets.submit(crowd, _mixed(10_000, 10))
    case = "24,000 GPUs filled from empty, 10,000 queued"
    yield from decisions(
        case, Site(crowd), lambda plan: len(plan.placements) > 4_000, times=15, plan_ms=100, whole_ms=100
    )


def saturated() -> Iterator[Figure]:
    """Nothing that waits fits, and nothing changed; then one more is queued each time."""
    site = _packed(10)
    shapes = [(1, 1), (1, 2), (1, 4), (1, 8), (4, 8)]
    names = fleets.teams(10)
    fleets.submit(
        site.crowd,
        ((f"p{number:05}", *shapes[number // 10 % 5], {"team": names[number % 10]}) for number in range(10_000)),
    )
    site = Site(site.crowd)
    site.settle()
    assert len(site.planner.queue) == 10_000
    assert len(site.planner.queue.lines) == 50
    case = "saturated, 10,000 pending of 50 shapes"
    yield from decisions(case, site, lambda plan: plan.empty(), times=100, plan_ms=2, whole_ms=2)
    yield from decisions(f"{case}, cold", site, lambda plan: plan.tries == 50, times=30, before=site.anew)


def one_ends(shapes: int, asked: list[tuple[int, int]]) -> Iterator[Figure]:
    """One job of a full fleet ends, its end is folded, and the next cycle is planned and made facts."""
    site = _packed(10, halves=True)
    names = fleets.teams(10)
    kinds = list(dict.fromkeys(asked))
    jobs = (
        (f"p{number:05}", *kinds[number // 10 % len(kinds)], {"team": names[number % 10]}) for number in range(10_000)
    )
    fleets.submit(site.crowd, jobs)
    site = Site(site.crowd)
    site.settle()
    lines = len(site.planner.queue.lines)
    draw, planned, whole = Random(1), [], []
    for _ in range(200):
        key = draw.choice(sorted(site.state.attempts.rows))
        watch = cpu()
        end(site.draft(), key, TaskEnd.EXITED)
        site.keep()
        planning = cpu()
        plan = site.plan()
        planned.append(planning.s)
        site.decide(plan)
        site.keep()
        whole.append(watch.s)
    case = f"one of a full fleet ends, 10,000 pending of {lines} shapes"
    assert lines >= shapes, lines
    yield latency("plan.cycle", f"{case}: plan", planned, target_ms=1, target_p99_ms=5)
    yield latency("plan.cycle", f"{case}: both commits folded and followed too", whole, target_p99_ms=5)


def reserved() -> Iterator[Figure]:
    """A planner that has just begun meets a full fleet and a long queue of gangs."""
    site = _packed(50)
    names = fleets.teams(50)
    sizes = [(1, 1), (1, 4), (2, 8), (4, 8), (12, 8), (32, 8)]
    fleets.submit(
        site.crowd,
        ((f"p{number:05}", *sizes[number // 50 % 6], {"team": names[number % 50]}) for number in range(2_000)),
    )
    site = Site(site.crowd)
    assert len(site.planner.queue.lines) == 300
    case = "reservation pass over 2,000 pending of 300 shapes, full, cold"
    yield from decisions(
        case, site, lambda plan: len(plan.holds) == 1, times=30, plan_ms=50, whole_ms=50, before=site.anew
    )


def nothing_to_do() -> Iterator[Figure]:
    """A fleet of 1,000 nodes is full, and 32,000 jobs of one GPU wait."""
    crowd = fleets.empty(1_000)
    crowd.quota("red", 8_000)
    fleets.submit(crowd, ((f"j{number:05}", 1, 1, {"max_runtime_s": fleets.DAY_S}) for number in range(40_000)))
    site = Site(crowd)
    site.settle()
    assert len(site.planner.queue) == 32_000
    case = "1,000 full nodes, 32,000 queued, nothing to do"
    yield from decisions(case, site, lambda plan: plan.empty(), times=100, plan_ms=2, whole_ms=2)


def adversarial() -> Iterator[Figure]:
    """One team queues no two jobs alike, beside others that queue nothing."""
    site = _packed(50)
    limits = [(8 + step % 8) << 6 + step // 8 for step in range(25)]
    fleets.submit(
        site.crowd,
        (
            (
                f"p{number:05}",
                1 + number % 25,
                1 + number // 25 % 8,
                {"team": "t07", "max_runtime_s": limits[number // 200]},
            )
            for number in range(5_000)
        ),
    )
    site = Site(site.crowd)
    assert len(site.planner.queue.lines) == 5_000
    case = "one team queues 5,000 shapes, full fleet"
    yield from decisions(
        f"{case}, cold", site, lambda plan: plan.tries > 0, times=15, plan_ms=50, whole_ms=50, before=site.anew
    )
    yield from decisions(f"{case}, again", site, lambda plan: plan.tries > 0, times=30, plan_ms=50, whole_ms=50)


def reclaims() -> Iterator[Figure]:
    """Every GPU of 500 nodes is borrowed by ten teams, and each is wanted back."""
    names = fleets.teams(10)
    crowd = fleets.full(
        500, lambda index: [(f"j{index}.{slot}", 1 << slot, names[slot], RESEARCH) for slot in range(8)]
    )
    crowd.quota("red", 4_000)
    fleets.submit(crowd, ((f"w{number:04}", 1, 1, {"team": "red"}) for number in range(4_000)))
    site = Site(crowd)
    case = "4,000 reclaims against 4,000 running on 500 nodes"
    yield from decisions(case, site, lambda plan: len(plan.rooms) == 4_000, times=9, plan_ms=150, whole_ms=150)


# Set-ups


def _guarantee_all(crowd: Crowd, teams: int) -> None:
    """The whole fleet is shared out in equal guarantees."""
    for team in fleets.teams(teams):
        crowd.quota(team, fleets.FLEET * 8 // teams)


def _mixed(jobs: int, teams: int) -> Iterator[fleets.Asked]:
    names, kinds = fleets.teams(teams), fleets.SMALL_MOSTLY
    for number in range(jobs):
        yield (f"j{number:05}", *kinds[number % len(kinds)], {"team": names[number % teams]})


def _packed(teams: int, *, halves: bool = False) -> Site:
    """The whole fleet runs jobs of a node each, inside the guarantees; `halves`: of which every other one is two."""
    crowd = fleets.empty()
    _guarantee_all(crowd, teams)
    numbers, names = count(), fleets.teams(teams)
    jobs: list[fleets.Asked] = []
    for node in range(fleets.FLEET):
        more = {"team": names[node % teams], "max_runtime_s": fleets.DAY_S + node % 97 * 600}
        for _ in range(2 if halves and node % 2 else 1):
            jobs.append((f"j{next(numbers):05}", 1, 4 if halves and node % 2 else 8, more))
    fleets.submit(crowd, jobs)
    site = Site(crowd)
    site.settle()
    assert not any(site.planner.capacity.free.values()), "the fleet is not full"
    return site
