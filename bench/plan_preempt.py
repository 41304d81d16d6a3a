"""Making room: who has to go, and the whole decision about it. One core.

A decision is the search for the victims, the plan, and its facts: every rule checked again, every event made and
folded. The figure is of all that, on indices that have followed the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.figure import Figure, Stopwatch, latency
from commands.apply import apply
from commands.decide.attempts import Draft
from commands.evolve import begin
from commands.plan import Plan, Room
from events.envelope import Event
from events.ids import Epoch, Instant
from events.job import PriorityClass
from scheduler.planning.preempt import make_room
from tests.crowds import PREEMPTIBLE, RESEARCH, Crowd, queued

NAME = "plan_preempt"
SAMPLES = 30
WHOLE = 255


def main() -> Iterator[Figure]:
    """Each case on a fleet of its own."""
    yield decision("16-node gang, victims on 1,000 full nodes", gang_on_full(), ["wanted"], target_ms=10)
    yield decision("500-node gang displaces 4,000 one-GPU jobs on 1,000 nodes", big_over_small(), ["wanted"], 100)
    yield decision("4,000 reclaims against 4,000 running on 500 nodes", *reclaims(), target_ms=150, samples=7)
    yield decision("200-rank gang preempts 12 jobs on 1,000 nodes", twelve(), ["wanted"], target_ms=10)
    for nodes in (100, 1_000, 3_000):
        yield refusal(f"10-node gang that nothing makes room for on {nodes:,} nodes", nodes, target_ms=5)
    yield index_step()


def decision(case: str, crowd: Crowd, names: list[str], target_ms: float, samples: int = SAMPLES) -> Figure:
    """From the question to the facts; put back each time."""
    seconds = []
    for _ in range(samples):
        watch = Stopwatch()
        rooms = ask(crowd, names)
        events = facts(crowd, rooms)
        seconds.append(watch.s)
        crowd.state.discard()
        assert len(rooms) == len(names), f"{len(rooms)} rooms"
        assert len(events) > len(rooms)
    return latency(NAME, case, seconds, target_ms=target_ms)


def ask(crowd: Crowd, names: list[str]) -> list[Room]:
    """One cycle's rooms."""
    trial = crowd.trial()
    try:
        found = (
            make_room(trial, crowd.forecast, crowd.job(name), crowd.covered(name), crowd.victims) for name in names
        )
        return [room for room in found if room is not None]
    finally:
        crowd.undo()


def facts(crowd: Crowd, rooms: list[Room]) -> list[Event]:
    """The commit that a plan with these rooms makes, on trial."""
    n = crowd.state.meta.n
    begin(crowd.state, Epoch(1), n + 1, Instant(crowd.at + 1000))
    draft = Draft(crowd.state)
    stale = apply(draft, Plan(n=n, rooms=tuple(rooms)))
    assert stale == []
    return draft.events


def refusal(case: str, nodes: int, target_ms: float) -> Figure:
    """Nothing that runs may be displaced; asked anew each time."""
    crowd = full(nodes, lambda index: [(f"j{index}", WHOLE, "blue", RESEARCH)])
    crowd.quota("blue", nodes * 8)
    crowd.queue("wanted", 10, 8, team="red")
    seconds = []
    ask(crowd, ["wanted"])
    for _ in range(SAMPLES):
        crowd.victims.failed.clear()
        watch = Stopwatch()
        assert ask(crowd, ["wanted"]) == []
        seconds.append(watch.s)
    return latency(NAME, case, seconds, target_ms=target_ms)


def index_step() -> Figure:
    """The index follows a job that starts on a full fleet of 3,000 nodes, and a room is sought that is not there."""
    crowd = full(3_000, lambda index: [(f"j{index}", WHOLE if index else 15, "blue", RESEARCH)])
    crowd.quota("blue", 24_000)
    crowd.queue("wanted", 10, 8, team="red")
    ask(crowd, ["wanted"])
    seconds = []
    for number in range(SAMPLES):
        if number % 2:
            crowd.commit(*crowd.gone(crowd.state.attempts[f"s{number - 1}", 1]))  # type: ignore[index]
        else:
            crowd.run(f"s{number}", (0, 16), team="blue")
        watch = Stopwatch()
        assert ask(crowd, ["wanted"]) == []
        seconds.append(watch.s)
    return latency(NAME, "index follows a start or an end, 3,000 full nodes", seconds, target_ms=1)


# Fleets

Jobs = Callable[[int], list[tuple[str, int, str, PriorityClass]]]
"""Jobs on one node: (name, mask, team, class)."""


def full(count: int, jobs: Jobs) -> Crowd:
    """So many nodes of 8 GPUs, 32 to a block, with work on them."""
    crowd = Crowd()
    for block in range(0, count, 32):
        crowd.nodes(*[8] * min(32, count - block), block=f"b{block // 32:03}")
    crowd.quota("red", count * 4)
    crowd.quota("blue", 0)
    for index in range(count):
        crowd.commit(*(event for job in jobs(index) for event in _running(crowd, index, *job)))
    crowd.pass_time(3_600)
    return crowd


def _running(crowd: Crowd, index: int, name: str, mask: int, team: str, cls: PriorityClass) -> list[Event]:
    return crowd.running(name, (index, mask), team=team, cls=cls)


def gang_on_full() -> Crowd:
    """Mixed work on each node: one, two or eight jobs, of two classes."""

    def jobs(index: int) -> list[tuple[str, int, str, PriorityClass]]:
        cls = (PREEMPTIBLE, RESEARCH)[index % 2]
        parts = ((255,), (15, 240), tuple(1 << slot for slot in range(8)))[index % 3]
        return [(f"j{index}.{mask}", mask, "blue", cls) for mask in parts]

    crowd = full(1_000, jobs)
    crowd.queue("wanted", 16, 8, team="red")
    return crowd


def big_over_small() -> Crowd:
    """One-GPU jobs on half of the nodes may be displaced; the others hold what may not."""

    def jobs(index: int) -> list[tuple[str, int, str, PriorityClass]]:
        if index % 2:
            return [(f"j{index}", WHOLE, "green", RESEARCH)]
        return [(f"j{index}.{slot}", 1 << slot, "blue", RESEARCH) for slot in range(8)]

    crowd = full(1_000, jobs)
    crowd.quota("green", 4_000)
    crowd.queue("wanted", 500, 8, team="red")
    return crowd


def reclaims() -> tuple[Crowd, list[str]]:
    """Every GPU of the fleet is borrowed, and wanted back."""
    teams = [f"t{number}" for number in range(10)]
    crowd = full(500, lambda index: [(f"j{index}.{slot}", 1 << slot, teams[slot], RESEARCH) for slot in range(8)])
    names = [f"w{number}" for number in range(4_000)]
    crowd.quota("red", 4_000)
    for name in names:
        crowd.commit(*queued(name, 1, 1, team="red"))
    return crowd, names


def twelve() -> Crowd:
    """188 nodes are free, and 12 gangs of one node each may go."""

    def jobs(index: int) -> list[tuple[str, int, str, PriorityClass]]:
        if index < 188:
            return []
        return [(f"j{index}", WHOLE, "blue" if index < 250 else "green", RESEARCH)]

    crowd = full(1_000, jobs)
    crowd.quota("green", 6_000)
    crowd.queue("wanted", 200, 8, team="red")
    return crowd
