"""When running work is expected to end, node by node: what reservations and estimates rest on (C-3).

A lease is expected to hold its GPUs until its run-time limit, or while it is being stopped until its grace is over.
Kept in step by accepted commits; a block is reckoned again when something on it changed and somebody asks.
"""

from collections.abc import Iterable

from commands.entities import Attempt, Node, NodeState
from commands.state import Change, State
from events.ids import BlockId, GpuType, Instant, NodeIndex

UNLIMITED = 1 << 60
FREE = 0

SizeKey = tuple[GpuType, int, int]
"""(type, GPUs of a node, memory of a GPU in GB)."""


class Forecast:
    """Expected free times of whole nodes. Times are absolute: FREE, an instant, or UNLIMITED."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._members: dict[SizeKey, dict[BlockId, set[NodeIndex]]] = {}
        self._place: dict[NodeIndex, tuple[SizeKey, BlockId]] = {}
        self._known: dict[tuple[SizeKey, BlockId], list[tuple[int, NodeIndex]]] = {}
        self.version = 0
        """Rises whenever an end, or a node, may have changed."""
        for index in sorted(state.nodes.rows):
            self._enter(state.nodes[index])

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""
        for change in changes:
            if change.table == "nodes" and change.new is not None:
                self._enter(change.new)
            elif change.table == "attempts" and change.new is not None and _end_moved(change.old, change.new):
                for index, _ in change.new.ranks:
                    self._forget(index)

    def sizes(self, gpu_type: GpuType, memory_gb_min: int) -> list[SizeKey]:
        """Kinds of nodes that a job may use, small ones first."""
        return [key for key in sorted(self._members) if key[0] == gpu_type and key[2] >= memory_gb_min]

    def node_gpus(self, gpu_type: GpuType) -> list[int]:
        """Numbers of GPUs that nodes of the type have, in service or not."""
        return sorted({key[1] for key, blocks in self._members.items() if key[0] == gpu_type and any(blocks.values())})

    def blocks(self, size: SizeKey) -> dict[BlockId, list[tuple[int, NodeIndex]]]:
        """Per block its nodes with the time from which each is wholly free, earliest first. Nodes that take no work
        are left out."""
        return {block: self._ends(size, block) for block in sorted(self._members[size])}

    def ends_at(self, attempt: Attempt, now: Instant) -> Instant:
        """When an attempt is expected to have ended, never before `now`."""
        end = _expected_end(attempt)
        return Instant(now + self._state.policy.unlimited_horizon_s * 1000 if end == UNLIMITED else max(now, end))

    def _ends(self, size: SizeKey, block: BlockId) -> list[tuple[int, NodeIndex]]:
        known = self._known.get((size, block))
        if known is None:
            nodes = (self._state.nodes[index] for index in self._members[size][block])
            known = sorted((self._whole_at(node), node.index) for node in nodes if _in_service(node))
            self._known[size, block] = known
        return known

    def _whole_at(self, node: Node) -> int:
        end = UNLIMITED if node.pledged else FREE
        for job_id, number, _ in node.leases:
            end = max(end, _expected_end(self._state.attempts[job_id, number]))
        return end

    def _enter(self, node: Node) -> None:
        size = (node.gpu_type, len(node.gpus), node.gpu_memory_gb)
        old = self._place.get(node.index)
        if old is not None and old != (size, node.block):
            self._forget(node.index)
            self._members[old[0]][old[1]].discard(node.index)
        self._place[node.index] = (size, node.block)
        self._members.setdefault(size, {}).setdefault(node.block, set()).add(node.index)
        self._forget(node.index)

    def _forget(self, index: NodeIndex) -> None:
        self._known.pop(self._place[index], None)
        self.version += 1


def _in_service(node: Node) -> bool:
    """Will it take a gang once it is free? What is suspect may be heard again at any moment."""
    return node.state in (NodeState.UP, NodeState.SUSPECT) and node.drained is None and not node.broken


def _expected_end(attempt: Attempt) -> int:
    if attempt.ending_at is not None:
        return attempt.ending_at + attempt.grace_s * 1000
    return UNLIMITED if attempt.limit_at is None else attempt.limit_at


def _end_moved(old: Attempt | None, new: Attempt) -> bool:
    return old is None or (old.limit_at, old.ending_at) != (new.limit_at, new.ending_at)
