"""The shapes on which other schedulers were measured, each as a whole decision: many small jobs and large gangs."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figure import Figure, latency
from bench.plan import fleets
from bench.plan.fleets import WHOLE, full
from bench.plan.sites import Site, cpu, decisions
from commands.entities import AttemptKey
from events.ids import JobId
from events.job import PriorityClass
from scheduler.planning.explain import Factor, explain
from tests.crowds import PREEMPTIBLE, RESEARCH, Crowd

Jobs = list[tuple[str, int, str, PriorityClass]]


def main() -> Iterator[Figure]:
    """Each case on a fleet of its own."""
    yield from many_small()
    yield from onto_empty(fleets.empty(), 1_024, f"8,192-GPU gang, {fleets.FLEET:,} empty nodes")
    yield from onto_empty(fleets.empty(1_000, in_block=10), 1_000, "gang of 1,000 ranks over 100 blocks")
    yield from by_victims("16-node gang with victims, 1,000 full nodes", 16, of_two_classes(), ms=10)
    yield from by_victims("500-node gang displaces 4,000 one-GPU jobs, 1,000 full nodes", 500, small_on_half(), ms=100)
    yield from by_victims("200-rank gang preempts 12 jobs, 1,000 full nodes", 200, all_but_twelve(), ms=10)
    for nodes in (100, 1_000, 3_000):
        yield refused(nodes)


def many_small() -> Iterator[Figure]:
    """Ten teams fill 4,000 nodes with jobs of one GPU."""
    crowd = fleets.empty(4_000, in_block=40)
    names = fleets.teams(10)
    for team in names:
        crowd.quota(team, 3_200)
    fleets.submit(crowd, ((f"j{number:05}", 1, 1, {"team": names[number % 10]}) for number in range(32_000)))
    case = "32,000 one-GPU jobs of 10 teams onto 4,000 empty nodes"
    yield from decisions(case, Site(crowd), lambda plan: len(plan.placements) == 32_000, times=7, whole_ms=400)


def onto_empty(crowd: Crowd, nodes: int, case: str) -> Iterator[Figure]:
    """One gang of whole nodes."""
    crowd.quota("red", 24_000)
    fleets.submit(crowd, [("wanted", nodes, 8, {"team": "red"})])
    yield from decisions(
        case, Site(crowd), lambda plan: len(plan.placements[0].ranks) == nodes, times=50, plan_ms=5, whole_ms=5
    )


def by_victims(case: str, nodes: int, crowd: Crowd, ms: float) -> Iterator[Figure]:
    """One gang for which others have to go."""
    fleets.submit(crowd, [("wanted", nodes, 8, {"team": "red"})])
    site = Site(crowd)
    yield from decisions(
        case, site, lambda plan: len(_victims(plan.rooms[0].victims)) > 0, times=30, whole_ms=ms, before=site.anew
    )


def _victims(keys: tuple[AttemptKey, ...]) -> set[JobId]:
    return {job_id for job_id, _ in keys}


def refused(nodes: int) -> Figure:
    """A gang for which nothing can make room on a full fleet waits, and is told why."""
    crowd = full(nodes, lambda index: [(f"j{index}", WHOLE, "blue", RESEARCH)])
    crowd.quota("blue", nodes * 8)
    fleets.submit(crowd, [("wanted", 10, 8, {"team": "red"})])
    site, seconds = Site(crowd), []
    for _ in range(30):
        site.abreast()
        watch = cpu()
        plan = site.plan()
        reasons = explain(site.planner, JobId("wanted"), site.now)
        seconds.append(watch.s)
        assert not plan.rooms
        assert Factor.CAPACITY in {reason.factor for reason in reasons}
    case = f"10-node gang that nothing can make room for, {nodes:,} full nodes: refused, and why"
    return latency("plan.cycle", case, seconds, target_ms=5)


# Fleets


def of_two_classes() -> Crowd:
    """Mixed work on each node: one, two or eight jobs, of two classes."""

    def on_node(index: int) -> Jobs:
        cls = (PREEMPTIBLE, RESEARCH)[index % 2]
        parts = ((255,), (15, 240), tuple(1 << slot for slot in range(8)))[index % 3]
        return [(f"j{index}.{mask}", mask, "blue", cls) for mask in parts]

    return full(1_000, on_node)


def small_on_half() -> Crowd:
    """One-GPU jobs on half of the nodes may be displaced; the others hold what may not."""

    def on_node(index: int) -> Jobs:
        if index % 2:
            return [(f"j{index}", WHOLE, "green", RESEARCH)]
        return [(f"j{index}.{slot}", 1 << slot, "blue", RESEARCH) for slot in range(8)]

    crowd = full(1_000, on_node)
    crowd.quota("green", 4_000)
    return crowd


def all_but_twelve() -> Crowd:
    """188 nodes are free, and 12 jobs of one node each have to go for the rest."""

    def on_node(index: int) -> Jobs:
        if index < 188:
            return []
        return [(f"j{index}", WHOLE, "blue" if index < 250 else "green", RESEARCH)]

    crowd = full(1_000, on_node)
    crowd.quota("green", 6_000)
    return crowd
