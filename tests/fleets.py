"""Small fleets as text pictures, in and out: what the planner's tests read best.

A line is `block rack node node ...`, a node one character per GPU: `.` free, `#` used, `x` broken, `p` pledged;
`|` divides islands. Numbers are ranks of a placement: `0` to `9`, then `a` to `z`.

    a r0  ....|.... ##..|....
    b r0  ####|####
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from string import ascii_lowercase, digits
from typing import Any

from commands.entities import Node
from commands.plan import Ranks
from commands.shape import count_node
from commands.state import State
from events.ids import BlockId, ClusterId, GpuType, NodeId, NodeIndex, TeamId
from events.job import JobSpec, Topology
from events.node import GpuSlot

H100 = GpuType("h100")
RANKS = digits + ascii_lowercase


def state_of(nodes: Iterable[Node]) -> State:
    """A state that has these nodes and nothing else."""
    state = State(ClusterId("c1"))
    for node in nodes:
        state.nodes.rows[node.index] = node
        count_node(state, node, 1)
    state.accept()
    return state


def fleet(picture: str, *, gpu_type: GpuType = H100, memory_gb: int = 80) -> State:
    """The state of a picture: nodes are numbered as they are read."""
    return state_of(nodes_of(picture, gpu_type=gpu_type, memory_gb=memory_gb))


def nodes_of(picture: str, *, first: int = 0, gpu_type: GpuType = H100, memory_gb: int = 80) -> list[Node]:
    """The nodes of a picture, numbered from `first`."""
    nodes: list[Node] = []
    for line in filter(None, map(str.strip, picture.splitlines())):
        block, rack, *drawn = line.split()
        for one in drawn:
            made = node(first + len(nodes), block, rack, one.split("|"), gpu_type=gpu_type, memory_gb=memory_gb)
            nodes.append(made)
    return nodes


def node(index: int, block: str, rack: str, islands: list[str], **more: Any) -> Node:
    """A node that is up and confirmed, with the GPUs drawn."""
    gpus = "".join(islands)
    slots = [island for island, drawn in enumerate(islands) for _ in drawn]
    return Node(
        index=NodeIndex(index),
        id=NodeId(f"n{index}"),
        generation=0,
        boot_id="boot",
        incarnation="agent",
        journal="journal",
        address="",
        block=BlockId(block),
        rack=rack,
        gpu_type=more.get("gpu_type", H100),
        gpu_memory_gb=more.get("memory_gb", 80),
        gpus=tuple(GpuSlot(uuid=f"{index}-{slot}", island=island) for slot, island in enumerate(slots)),
        used=_mask(gpus, "#"),
        broken=_mask(gpus, "x"),
        pledged=_mask(gpus, "p"),
    )


def job(replicas: int, gpus_per_replica: int, **more: Any) -> JobSpec:
    """A spec; `hint` is its topology."""
    return JobSpec(
        team=TeamId("ml"),
        command=("train",),
        gpu_type=more.pop("gpu_type", H100),
        max_runtime_s=3600,
        replicas=replicas,
        gpus_per_replica=gpus_per_replica,
        topology=more.pop("hint", Topology()),
        **more,
    )


def drawn(state: State, ranks: Ranks | None) -> str:
    """The picture of the state with a placement in it."""
    if ranks is None:
        return "no place"
    lines: dict[tuple[str, str], list[str]] = {}
    for index in sorted(state.nodes):
        one = state.nodes[index]
        gpus = [_gpu(one, slot) for slot in range(len(one.gpus))]
        for rank, (where, mask) in enumerate(ranks):
            for slot in range(len(gpus)):
                if where == index and mask >> slot & 1:
                    assert gpus[slot] == ".", f"rank {rank} takes gpu {slot} of {one.id}, which is {gpus[slot]}"
                    gpus[slot] = RANKS[rank]
        breaks = [slot for slot in range(1, len(gpus)) if one.gpus[slot].island != one.gpus[slot - 1].island]
        for slot in reversed(breaks):
            gpus.insert(slot, "|")
        lines.setdefault((one.block, one.rack), []).append("".join(gpus))
    return "\n".join(f"{block} {rack} {' '.join(nodes)}" for (block, rack), nodes in lines.items())


def same(picture: str) -> str:
    """A picture as `drawn` gives it: the spaces made even."""
    return "\n".join(" ".join(line.split()) for line in picture.splitlines() if line.strip())


def changed(state: State, index: int, /, **fields: Any) -> None:
    """Put another value of a node in the state, as an accepted commit does."""
    state.nodes.put(NodeIndex(index), replace(state.nodes[NodeIndex(index)], **fields))


def _mask(gpus: str, kind: str) -> int:
    return sum(1 << slot for slot, gpu in enumerate(gpus) if gpu == kind)


def _gpu(one: Node, slot: int) -> str:
    for kind, mask in (("x", one.broken), ("#", one.used), ("p", one.pledged)):
        if mask >> slot & 1:
            return kind
    return "."
