"""The policy at 24,000 GPUs, one core: how long a decision takes.

The figures called `fit` are of the search for a place alone, without order, quota and the building of events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice

from bench.figure import Figure, Stopwatch, latency
from commands.entities import Node
from commands.state import State
from events.ids import BlockId, ClusterId, GpuType, NodeId, NodeIndex, TeamId
from events.job import JobSpec, Topology
from events.node import GpuSlot
from scheduler.planning.capacity import Capacity
from scheduler.planning.fit import find, find_many
from scheduler.planning.fragmentation import stranded

H100 = GpuType("h100")
NODES_IN_BLOCK = 32
NODES_IN_RACK = 4
FLEET = 3000
MIXED = ((1, 1),) * 50 + ((1, 2),) * 15 + ((1, 4),) * 15 + ((1, 8),) * 10 + ((4, 8),) * 5 + ((2, 1), (16, 8), (3, 4))
"""(replicas, GPUs of each): what 10,000 queued jobs ask for, 90% of them 8 GPUs or fewer."""


def main() -> Iterator[Figure]:
    """All cases."""
    yield from of_index()
    yield from of_gangs()
    yield from of_small_jobs()
    yield from of_full_fleets()


def fleet(nodes: int = FLEET, used: Callable[[int], int] = lambda _: 0, in_block: int = NODES_IN_BLOCK) -> State:
    """Nodes of eight H100 in two islands; `used(index)`: mask of the GPUs that are taken."""
    state = State(ClusterId("bench"))
    gpus = tuple(GpuSlot(uuid=f"gpu-{slot}", island=slot // 4) for slot in range(8))
    for number in range(nodes):
        index = NodeIndex(number)
        state.nodes.rows[index] = Node(
            index=index,
            id=NodeId(f"n{number:05}"),
            generation=0,
            boot_id="boot",
            incarnation="agent",
            journal="journal",
            address="",
            block=BlockId(f"b{number // in_block:04}"),
            rack=f"r{number // NODES_IN_RACK:05}",
            gpu_type=H100,
            gpu_memory_gb=80,
            gpus=gpus,
            used=used(number),
        )
    return state


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
        watch = Stopwatch()
        action()
        seconds.append(watch.s)
        after()
    return seconds


def of_index() -> Iterator[Figure]:
    """The index of free capacity."""
    state = fleet(used=scattered)
    capacity = Capacity.of(state)
    yield latency("plan.index", f"built for {FLEET} nodes", timed(20, partial(Capacity.of, state)), target_ms=50)
    yield latency("plan.index", f"gpus stranded, {FLEET} nodes", timed(50, partial(stranded, capacity)))


def of_gangs() -> Iterator[Figure]:
    """Large gangs on an empty fleet, and on one that is partly used."""
    for case, state, spec in (
        (f"8,192 gpus on {FLEET} empty nodes", fleet(), asks(1024, 8)),
        (f"8,192 gpus on {FLEET} nodes, half of them used in part", fleet(used=half), asks(1024, 8)),
        (f"1,024 gpus on {FLEET} nodes, half of them used in part", fleet(used=half), asks(128, 8)),
        (f"1,024 gpus in at most 8 blocks, {FLEET} nodes", fleet(used=half), asks(128, 8, Topology(max_blocks=8))),
        ("1,000 ranks over 100 blocks", fleet(1000, in_block=10), asks(1000, 8)),
    ):
        capacity = Capacity.of(state)
        assert find(state, capacity, spec) is not None
        capacity.undo()
        yield latency("plan.fit", case, timed(100, partial(find, state, capacity, spec), capacity.undo), target_ms=5)


def of_small_jobs() -> Iterator[Figure]:
    """Many jobs at once onto an empty fleet."""
    state, one = fleet(4000), asks(1, 1)
    capacity = Capacity.of(state)

    def singly() -> None:
        for _ in range(32_000):
            find(state, capacity, one)

    def together() -> None:
        assert len(find_many(state, capacity, one, 32_000)) == 32_000

    case = "32,000 one-gpu jobs onto 4,000 empty nodes"
    yield latency("plan.fit", f"{case}, one by one", timed(10, singly, capacity.undo), target_ms=200)
    yield latency("plan.fit", f"{case}, as one run", timed(10, together, capacity.undo), target_ms=100)
    state = fleet()
    capacity = Capacity.of(state)
    queued = list(islice(cycle([asks(*shape) for shape in MIXED]), 10_000))
    figures = timed(10, partial(fill, state, capacity, queued), capacity.undo)
    yield latency("plan.fit", f"{FLEET} empty nodes filled from 10,000 queued", figures, target_ms=60)
    state = fleet(used=scattered)
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
        state = fleet(nodes, used=lambda _: 0xFF)
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


def half(index: int) -> int:
    """Every other node is used in part, by no pattern that the blocks share."""
    return 0x0F if (index * 2654435761 >> 7) & 1 else 0


def scattered(index: int) -> int:
    """Nodes with none to eight GPUs used."""
    return (1 << (index * 2654435761 >> 7) % 9) - 1
