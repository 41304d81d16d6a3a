"""Free capacity by GPU type, node size, block and free count: integer bitsets of node indexes.

Kept in step by the changes of each accepted commit; costs what changed. `of` gives the same from the state alone.
Within a cycle the planner takes from it for trial, and puts everything back (`undo`).
"""

from collections.abc import Iterable, Iterator

from commands.entities import Node, NodeState
from commands.state import Change, PoolKey, State
from events.ids import BlockId, GpuType, NodeIndex


class Pool:
    """The schedulable nodes of one PoolKey. `blocks[block][free count]` = bitset of node indexes."""

    def __init__(self, node_gpus: int) -> None:
        self.node_gpus = node_gpus
        self.blocks: dict[BlockId, list[int]] = {}
        self.free_gpus = 0

    def move(self, block: BlockId, bit: int, old: int | None, new: int | None) -> None:
        """A node's free count changed; None: it is not schedulable."""
        buckets = self.blocks.setdefault(block, [0] * (self.node_gpus + 1))
        if old is not None:
            buckets[old] &= ~bit
            self.free_gpus -= old
        if new is not None:
            buckets[new] |= bit
            self.free_gpus += new

    def free_in(self, block: BlockId) -> int:
        """Free GPUs of a block, on nodes that are partly used too."""
        return sum(count * bits.bit_count() for count, bits in enumerate(self.blocks[block]))


class Capacity:
    """The index over all pools."""

    def __init__(self) -> None:
        self.pools: dict[PoolKey, Pool] = {}
        self.free: dict[NodeIndex, int] = {}
        """Mask of free GPUs of each schedulable node: what the planner takes from."""
        self._where: dict[NodeIndex, tuple[PoolKey, BlockId]] = {}
        self._taken: list[tuple[NodeIndex, int]] = []

    @classmethod
    def of(cls, state: State) -> "Capacity":
        """Built from the state alone."""
        made = cls()
        for index in sorted(state.nodes.rows):
            made._place(state.nodes[index], state.meta.epoch)
        return made

    def feed(self, state: State, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit. A new epoch makes every node wait for its confirmation (P-16)."""
        assert not self._taken, "a plan is on trial"
        for change in changes:
            if change.table == "nodes" and change.new is not None:
                self._place(change.new, state.meta.epoch)
            elif change.table == "meta" and change.old.epoch != change.new.epoch:
                for index in sorted(state.nodes.rows):
                    self._place(state.nodes[index], state.meta.epoch)

    def take(self, index: NodeIndex, mask: int) -> None:
        """Take GPUs for trial; `undo` gives them back."""
        self._taken.append((index, mask))
        self._set(index, self.free[index] & ~mask)

    def mark(self) -> int:
        """A place in the trial to come back to."""
        return len(self._taken)

    def undo(self, mark: int = 0) -> None:
        """Give back what was taken since `mark`."""
        while len(self._taken) > mark:
            index, mask = self._taken.pop()
            self._set(index, self.free[index] | mask)

    def pools_of(self, gpu_type: GpuType, memory_gb_min: int) -> list[Pool]:
        """Pools that a job may use, small nodes first, then little memory."""
        return [self.pools[key] for key in sorted(self.pools) if key[0] == gpu_type and key[2] >= memory_gb_min]

    def _set(self, index: NodeIndex, mask: int) -> None:
        key, block = self._where[index]
        old, new = self.free[index].bit_count(), mask.bit_count()
        self.free[index] = mask
        if old != new:
            self.pools[key].move(block, 1 << index, old, new)

    def _place(self, node: Node, epoch: int) -> None:
        where = (node.gpu_type, len(node.gpus), node.gpu_memory_gb), node.block
        bit = 1 << node.index
        if (known := self._where.pop(node.index, None)) is not None:
            self.pools[known[0]].move(known[1], bit, self.free.pop(node.index).bit_count(), None)
        if schedulable(node, epoch):
            pool = self.pools.setdefault(where[0], Pool(len(node.gpus)))
            pool.move(node.block, bit, None, node.free.bit_count())
            self._where[node.index] = where
            self.free[node.index] = node.free


def schedulable(node: Node, epoch: int) -> bool:
    """May something be granted on the node, if it has room?"""
    return node.state is NodeState.UP and node.drained is None and node.confirmed == epoch and bool(node.gpus)


def nodes_in(bits: int) -> Iterator[NodeIndex]:
    """Node indexes of a bitset, lowest first."""
    while bits:
        low = bits & -bits
        yield NodeIndex(low.bit_length() - 1)
        bits ^= low
