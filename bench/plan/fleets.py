"""Fleets to plan on, with work on them and work that waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from commands.state import State
from events.envelope import Event
from events.job import PriorityClass
from tests.crowds import Crowd, queued

FLEET = 3_000
"""Nodes of eight GPUs that make 24,000."""
NODES_IN_BLOCK = 32
NODES_IN_RACK = 4
WHOLE = 0xFF
DAY_S = 86_400
SMALL_MOSTLY = (
    *(((1, 1),) * 50 + ((1, 2),) * 15 + ((1, 4),) * 15 + ((1, 8),) * 10 + ((4, 8),) * 5),
    *((2, 1), (16, 8), (3, 4)),
)
"""(replicas, GPUs of each): what queued jobs ask for, 90% of them 8 GPUs or fewer."""

Asked = tuple[str, int, int, dict[str, Any]]
"""(name, replicas, GPUs of each, other fields) of a job that waits."""
OnNode = Callable[[int], list[tuple[str, int, str, PriorityClass]]]
"""Jobs on the node of an index: (name, mask, team, class)."""


def empty(nodes: int = FLEET, in_block: int = NODES_IN_BLOCK) -> Crowd:
    """So many nodes of eight GPUs in racks and blocks, and nobody on them."""
    crowd = Crowd()
    for number, first in enumerate(range(0, nodes, in_block)):
        last = min(first + in_block, nodes)
        for rack in range(first, last, NODES_IN_RACK):
            crowd.nodes(*[8] * min(NODES_IN_RACK, last - rack), block=f"b{number:04}", rack=f"r{rack:05}")
    return crowd


def used(mask_of: Callable[[int], int], nodes: int = FLEET, in_block: int = NODES_IN_BLOCK) -> State:
    """The same with these GPUs taken, by nobody in particular: for searches that look at nothing else."""
    state = empty(nodes, in_block).state
    rows = state.nodes.rows
    for index in rows:
        rows[index] = replace(rows[index], used=mask_of(index))
    return state


def full(nodes: int, on_node: OnNode) -> Crowd:
    """A fleet with work on it that began an hour ago. Team red is guaranteed half of it, team blue nothing."""
    crowd = empty(nodes)
    crowd.quota("red", nodes * 4)
    crowd.quota("blue", 0)
    for index in range(nodes):
        crowd.commit(*(event for job in on_node(index) for event in _running(crowd, index, *job)))
    crowd.pass_time(3_600)
    return crowd


def _running(crowd: Crowd, index: int, name: str, mask: int, team: str, cls: PriorityClass) -> list[Event]:
    return crowd.running(name, (index, mask), team=team, cls=cls)


def submit(crowd: Crowd, jobs: Iterable[Asked]) -> None:
    """Let jobs wait, some thousand in a commit."""
    left: Iterator[Asked] = iter(jobs)
    while some := list(islice(left, 2_000)):
        crowd.commit(*(event for name, replicas, each, more in some for event in queued(name, replicas, each, **more)))


def teams(count: int) -> list[str]:
    """Names of so many teams."""
    return [f"t{number:02}" for number in range(count)]
