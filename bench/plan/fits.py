"""The search for a place alone, without order, quota and the building of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice

from bench.figure import Figure, latency
from bench.plan.fleets import FLEET, SMALL_MOSTLY, WHOLE, used
from bench.plan.sites import cpu
from commands.state import State
from events.ids import TeamId
from events.job import JobSpec, Topology
from scheduler.planning.capacity import Capacity
from scheduler.planning.fit import find, find_many
from scheduler.planning.fragmentation import stranded
from tests.crowds import H100


def main() -> Iterator[Figure]:
    """All cases."""
    yield from of_index()
    yield from of_gangs()
    yield from of_small_jobs()
    yield from of_full_fleets()


def asks(replicas: int, each: int, hint: Topology | None = None) -> JobSpec:
    """A job of so many replicas."""
    return JobSpec(
        team=TeamId("ml"),
        command=("train",),
        gpu_type=H100,
        max_runtime_s=3600,
        replicas=replicas,
        gpus_per_replica=each,
        topology=hint or Topology(),
    )


def timed(times: int, action: Callable[[], object], after: Callable[[], object] = lambda: None) -> list[float]:
    """Seconds of each of so many runs; what comes after a run is not measured."""
    seconds = []
    for _ in range(times):
        watch = cpu()
        action()
        seconds.append(watch.s)
        after()
    return seconds


def of_index() -> Iterator[Figure]:
    """The index of free capacity."""
    state = used(scattered)
    capacity = Capacity.of(state)
    yield latency("plan.index", f"built for {FLEET} nodes", timed(20, partial(Capacity.of, state)), target_ms=50)
    yield latency("plan.index", f"gpus stranded, {FLEET} nodes", timed(50, partial(stranded, capacity)))


def of_gangs() -> Iterator[Figure]:
    """Large gangs on an empty fleet, and on one that is partly used."""
    for case, state, spec in (
        (f"8,192 gpus on {FLEET} empty nodes", used(none), asks(1024, 8)),
        (f"8,192 gpus on {FLEET} nodes, half of them used in part", used(half), asks(1024, 8)),
        (f"1,024 gpus on {FLEET} nodes, half of them used in part", used(half), asks(128, 8)),
        (f"1,024 gpus in at most 8 blocks, {FLEET} nodes", used(half), asks(128, 8, Topology(max_blocks=8))),
        ("1,000 ranks over 100 blocks", used(none, 1000, in_block=10), asks(1000, 8)),
    ):
        capacity = Capacity.of(state)
        assert find(state, capacity, spec) is not None
        capacity.undo()
        yield latency("plan.fit", case, timed(100, partial(find, state, capacity, spec), capacity.undo), target_ms=5)


def of_small_jobs() -> Iterator[Figure]:
    """Many jobs at once onto an empty fleet."""
    state, one = used(none, 4000), asks(1, 1)
    capacity = Capacity.of(state)

    def singly() -> None:
        for _ in range(32_000):
            find(state, capacity, one)

    def together() -> None:
        assert len(find_many(state, capacity, one, 32_000)) == 32_000

    case = "32,000 one-gpu jobs onto 4,000 empty nodes"
    yield latency("plan.fit", f"{case}, one by one", timed(10, singly, capacity.undo), target_ms=200)
    yield latency("plan.fit", f"{case}, as one run", timed(10, together, capacity.undo), target_ms=100)
    state = used(none)
    capacity = Capacity.of(state)
    queued = list(islice(cycle([asks(*shape) for shape in SMALL_MOSTLY]), 10_000))
    figures = timed(10, partial(fill, state, capacity, queued), capacity.undo)
    yield latency("plan.fit", f"{FLEET} empty nodes filled from 10,000 queued", figures, target_ms=60)
    state = used(scattered)
    capacity = Capacity.of(state)
    figures = timed(2000, partial(find, state, capacity, one))
    capacity.undo()
    yield latency("plan.fit", f"one gpu, {FLEET} nodes used in part", figures, target_ms=0.02)
    hidden = ~sum(1 << index for index in range(0, FLEET, 3))
    figures = timed(2000, partial(find, state, capacity, one, among=hidden))
    yield latency("plan.fit", f"one gpu, {FLEET} nodes used in part, a third of them held", figures, target_ms=0.05)


def of_full_fleets() -> Iterator[Figure]:
    """A gang for which nothing is free."""
    for nodes in (100, 1000, 3000):
        state = used(all_eight, nodes)
        capacity = Capacity.of(state)
        figures = timed(2000, partial(find, state, capacity, asks(10, 8)))
        yield latency("plan.fit", f"ten nodes asked for, {nodes} full nodes", figures, target_ms=1)


def fill(state: State, capacity: Capacity, queued: list[JobSpec]) -> int:
    """Place what fits, in order; a shape that does not fit is not tried again."""
    failed: set[tuple[int, int]] = set()
    placed = 0
    for spec in queued:
        shape = (spec.replicas, spec.gpus_per_replica)
        if shape in failed:
            continue
        if find(state, capacity, spec) is None:
            failed.add(shape)
        else:
            placed += 1
    return placed


def none(_: int) -> int:
    """Nodes that are free."""
    return 0


def all_eight(_: int) -> int:
    """Nodes that are not."""
    return WHOLE


def half(index: int) -> int:
    """Every other node is used in part, by no pattern that the blocks share."""
    return 0x0F if (index * 2654435761 >> 7) & 1 else 0


def scattered(index: int) -> int:
    """Nodes with none to eight GPUs used."""
    return (1 << (index * 2654435761 >> 7) % 9) - 1
