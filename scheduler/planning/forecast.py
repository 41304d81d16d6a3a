"""When running work is expected to end, node by node: what reservations and estimates rest on (C-3).

A lease is expected to hold its GPUs until its run-time limit, or while it is being stopped until its grace is over.
Kept in step by accepted commits; a block is reckoned again when something on it changed and somebody asks.
"""

from bisect import bisect_right

from commands.changed import News
from commands.entities import Attempt, Node, NodeState
from commands.state import State
from events.ids import BlockId, GpuType, Instant, NodeIndex

UNLIMITED = 1 << 60
FREE = 0
OUT = -1

SizeKey = tuple[GpuType, int, int]
"""(type, GPUs of a node, memory of a GPU in GB)."""
Place = tuple[SizeKey, BlockId, str]
"""A node's kind, block and rack."""
Ends = tuple[list[tuple[int, NodeIndex]], int]
"""Nodes of one block with the time from which each is free, earliest first; and their bitset."""


class Forecast:
    """Expected free times of whole nodes. Times are absolute: FREE, an instant, or UNLIMITED."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._members: dict[SizeKey, dict[BlockId, set[NodeIndex]]] = {}
        self._place: dict[NodeIndex, Place] = {}
        self._ends: dict[NodeIndex, int] = {}
        """When each node is wholly free; OUT: it takes no work."""
        self._out = 0
        self._dirty: set[NodeIndex] = set()
        self._known: dict[SizeKey, dict[BlockId, Ends]] = {}
        """By block, in order; a block that moved is reckoned anew when somebody asks."""
        self._stale: dict[SizeKey, set[BlockId]] = {}
        self._counted: dict[tuple[SizeKey, BlockId], tuple[Ends, int, int, int]] = {}
        self._version = 0
        for index in sorted(state.nodes.rows):
            self._enter(state.nodes[index])

    @property
    def version(self) -> int:
        """Rises whenever a node is expected to be wholly free at another time, or a node came, went or moved."""
        self._refresh()
        return self._version

    def follow(self, news: News) -> None:
        """What is news of an accepted commit: only noted, and reckoned in when somebody asks."""
        for _, _, _, node in news.get("nodes", ()):
            if node is not None:
                self._enter(node)
        for _, _, old, new in news.get("attempts", ()):
            if new is not None and _end_moved(old, new):
                self._dirty.update([index for index, _ in new.ranks])

    def sizes(self, gpu_type: GpuType, memory_gb_min: int) -> list[SizeKey]:
        """Kinds of nodes that a job may use, small ones first."""
        return [key for key in sorted(self._members) if key[0] == gpu_type and key[2] >= memory_gb_min]

    def node_gpus(self, gpu_type: GpuType) -> list[int]:
        """Numbers of GPUs that nodes of the type have, in service or not."""
        return sorted({key[1] for key, blocks in self._members.items() if key[0] == gpu_type and any(blocks.values())})

    def blocks(self, size: SizeKey) -> dict[BlockId, Ends]:
        """Per block its nodes with the time from which each is wholly free, earliest first, and their bitset. Nodes
        that take no work are left out. Not to be changed."""
        self._refresh()
        known, stale = self._known.get(size), self._stale.setdefault(size, set())
        if known is None or len(known) != len(self._members[size]):
            known = self._known[size] = {block: self._of_block(size, block) for block in sorted(self._members[size])}
        else:
            for block in stale:
                known[block] = self._of_block(size, block)
        stale.clear()
        return known

    def out(self) -> int:
        """Bitset of the nodes that take no work."""
        self._refresh()
        return self._out

    def free_by(self, size: SizeKey, time: int, shut: int) -> dict[BlockId, int]:
        """Per block how many nodes are wholly free by then, those of the bitset `shut` left out. What was counted last
        is kept."""
        found: dict[BlockId, int] = {}
        for block, ends in self.blocks(size).items():
            hidden = ends[1] & shut
            known = self._counted.get((size, block))
            if known is None or known[0] is not ends or known[1] != time or known[2] != hidden:
                known = self._counted[size, block] = (ends, time, hidden, _free_by(ends[0], time, hidden))
            found[block] = known[3]
        return found

    def ends_at(self, attempt: Attempt, now: Instant) -> Instant:
        """When an attempt is expected to have ended, never before `now`."""
        end = expected_end(attempt)
        return Instant(now + self._state.policy.unlimited_horizon_s * 1000 if end == UNLIMITED else max(now, end))

    def _of_block(self, size: SizeKey, block: BlockId) -> Ends:
        ends, bits = self._ends, 0
        nodes = sorted([(ends[index], index) for index in self._members[size][block] if ends[index] != OUT])
        for _, index in nodes:
            bits |= 1 << index
        return nodes, bits

    def _refresh(self) -> None:
        ends, rows = self._ends, self._state.nodes.rows
        for index in self._dirty:
            end, before = self._whole_at(rows[index]), ends.get(index)
            if end != before:
                ends[index] = end
                if OUT in (end, before):
                    self._out ^= 1 << index
                self._moved(self._place[index])
        self._dirty.clear()

    def _whole_at(self, node: Node) -> int:
        if not _in_service(node):
            return OUT
        if node.pledged:
            return UNLIMITED
        attempts = self._state.attempts.rows
        return max([expected_end(attempts[job_id, number]) for job_id, number, _ in node.leases], default=FREE)

    def _enter(self, node: Node) -> None:
        place = ((node.gpu_type, len(node.gpus), node.gpu_memory_gb), node.block, node.rack)
        old = self._place.get(node.index)
        if old != place:
            if old is not None:
                self._members[old[0]][old[1]].discard(node.index)
                self._moved(old)
            self._place[node.index] = place
            self._members.setdefault(place[0], {}).setdefault(place[1], set()).add(node.index)
            self._moved(place)
        self._dirty.add(node.index)

    def _moved(self, place: Place) -> None:
        self._stale.setdefault(place[0], set()).add(place[1])
        self._version += 1


def _free_by(nodes: list[tuple[int, NodeIndex]], time: int, hidden: int) -> int:
    by = bisect_right(nodes, (time, NodeIndex(1 << 60)))
    return sum(not hidden >> index & 1 for _, index in nodes[:by]) if hidden else by


def _in_service(node: Node) -> bool:
    """Will it take a gang once it is free? What is suspect may be heard again at any moment."""
    return node.state in (NodeState.UP, NodeState.SUSPECT) and node.drained is None and not node.broken


def expected_end(attempt: Attempt) -> int:
    """When an attempt is expected to have ended, were that not over yet; UNLIMITED."""
    if attempt.ending_at is not None:
        return attempt.ending_at + attempt.grace_s * 1000
    return UNLIMITED if attempt.limit_at is None else attempt.limit_at


def _end_moved(old: Attempt | None, new: Attempt) -> bool:
    return old is None or (old.limit_at, old.ending_at) != (new.limit_at, new.ending_at)
