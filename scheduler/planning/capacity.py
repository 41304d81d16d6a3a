"""Free capacity by GPU type, node size, memory, block, rack and free count: integers as bitsets of node indexes.

Kept in step by the changes of each accepted commit; costs what changed. `of` gives the same from the state alone.
Within a cycle the planner takes from it for trial, and puts everything back (`undo`). What is broken, pledged, drained,
suspect, lost or not yet confirmed is not in it.
"""

from collections.abc import Iterable

from commands.changed import News
from commands.entities import Node, NodeState
from commands.shape import replicas_min
from commands.state import State
from events.ids import GpuType, NodeIndex
from events.job import JobSpec
from events.node import GpuSlot
from scheduler.planning.islands import Islands
from scheduler.planning.pool import Block, Pool, PoolKey

Place = tuple[Pool, Block, int, Islands]
"""Where a schedulable node is counted, its bit, and its islands."""
_Inventory = tuple[GpuType, int, str, str, tuple[GpuSlot, ...]]
_Taken = tuple[NodeIndex, int] | tuple[Block, int, list[NodeIndex]]
"""A mask on one node, or all of these nodes of a block, which are also a bitset."""


class Capacity:
    """The index over all pools."""

    def __init__(self) -> None:
        self.pools: dict[PoolKey, Pool] = {}
        self.by_type: dict[GpuType, list[Pool]] = {}
        """Pools of a type, small nodes first."""
        self.free: dict[NodeIndex, int] = {}
        """Mask of free GPUs of each schedulable node: what the planner takes from."""
        self.at: dict[NodeIndex, Place] = {}
        self.freed: dict[GpuType, int] = {}
        """Rises whenever an accepted commit frees GPUs of a type, or lets a node or a policy in: what did not fit
        before may fit now. While it stands still, less is free than was (C-5)."""
        self.total_schedulable: dict[GpuType, int] = {}
        """GPUs of the nodes that may be granted on, free or not; broken ones are left out."""
        self._whole: dict[NodeIndex, int] = {}
        self._inventory: dict[NodeIndex, _Inventory] = {}
        self._islands: dict[tuple[int, ...], Islands] = {}
        self._taken: list[_Taken] = []
        self._last: tuple[object, NodeIndex, int] | None = None

    @classmethod
    def of(cls, state: State) -> "Capacity":
        """Built from the state alone."""
        made = cls()
        for node in sorted(state.nodes.rows.values(), key=lambda node: (node.block, node.index)):
            made._place(node, state.meta.epoch)
        return made

    def follow(self, state: State, news: News) -> None:
        """What is news of an accepted commit. A new epoch makes every node wait for its confirmation (P-16)."""
        assert not self._taken, "a plan is on trial"
        self._last = None
        for _, _, _, node in news.get("nodes", ()):
            if node is not None:
                self._place(node, state.meta.epoch)
        if "meta" in news:
            for index in sorted(state.nodes.rows):
                self._place(state.nodes[index], state.meta.epoch)
        if "policies" in news:
            for gpu_type in self.freed:
                self.freed[gpu_type] += 1

    # For trial

    def take(self, index: NodeIndex, mask: int, answers: object = None) -> None:
        """Take GPUs for trial; `undo` gives them back. Those that are not free stay so. `answers`: to which
        question the node was the answer, to be remembered."""
        free = self.free[index]
        mask &= free
        self._taken.append((index, mask))
        self.free[index] = left = free & ~mask
        pool, block, bit, _ = self.at[index]
        pool.move(block, bit, 1, free.bit_count(), left.bit_count())
        if answers is not None:
            self._last = (answers, index, len(self._taken))

    def take_whole(self, chunks: Iterable[int]) -> list[NodeIndex]:
        """Take all GPUs of these nodes, which are wholly free; each bitset is of one block. Returns the nodes."""
        nodes: list[NodeIndex] = []
        taken: dict[Block, list[NodeIndex]] = {}
        sums: dict[Block, int] = {}
        for bits in chunks:
            indexes = indexes_of(bits)
            nodes += indexes
            block = self.at[indexes[0]][1]
            taken.setdefault(block, []).extend(indexes)
            sums[block] = sums.get(block, 0) | bits
        for block, bits in sums.items():
            self._taken.append((block, bits, taken[block]))
            block.pool.move(block, bits, len(taken[block]), block.pool.node_gpus, 0)
        self.free.update(dict.fromkeys(nodes, 0))
        return nodes

    def mark(self) -> int:
        """A place in the trial to come back to."""
        return len(self._taken)

    def undo(self, mark: int = 0) -> None:
        """Give back what was taken since `mark`."""
        masks: dict[NodeIndex, int] = {}
        for entry in self._taken[mark:]:
            if len(entry) == 2:
                masks[entry[0]] = masks.get(entry[0], 0) | entry[1]
            else:
                block, bits, nodes = entry
                block.pool.move(block, bits, len(nodes), 0, block.pool.node_gpus)
                self.free.update(dict.fromkeys(nodes, (1 << block.pool.node_gpus) - 1))
        for index, mask in masks.items():
            before = self.free[index]
            self.free[index] = after = before | mask
            pool, block, bit, _ = self.at[index]
            pool.move(block, bit, 1, before.bit_count(), after.bit_count())
        del self._taken[mark:]
        self._last = None

    def last(self, asked: object) -> NodeIndex | None:
        """The node that answered the same question before, if nothing else was taken since."""
        last = self._last
        return last[1] if last is not None and last[2] == len(self._taken) and last[0] == asked else None

    # Questions

    def most_free(self, gpu_type: GpuType) -> int:
        """GPUs free on the node of a type with the most of them."""
        return max((pool.most_free() for pool in self.by_type.get(gpu_type, ()) if pool.free_gpus), default=0)

    def could_hold(self, spec: JobSpec, among: int | None = None) -> bool:
        """Might the smallest gang that will do fit on nodes of `among` (None: on any)? Costs next to nothing; False is
        certain."""
        for pool in self.by_type.get(spec.gpu_type, ()):
            if pool.could_hold(spec.gpus_per_replica, replicas_min(spec), among):
                return True
        return False

    def widest(self, gpu_type: GpuType, memory_gb_min: int, ranks_min: int) -> tuple[int, int]:
        """(GPUs of a rank, ranks): the widest of which so many would fit, were there no others, and how many of them
        would. (0, 0) where no so many would."""
        pools = [(pool, pool.with_memory_all(memory_gb_min)) for pool in self.by_type.get(gpu_type, ())]
        nodes: dict[int, int] = {}
        for each in range(pools[-1][0].node_gpus if pools else 0, 0, -1):
            alike = [pool.nodes[each] & usable for pool, usable in pools if pool.node_gpus >= each]
            nodes[each] = sum(map(int.bit_count, alike))
            ranks = sum([count * (free // each) for free, count in nodes.items()])
            if ranks >= ranks_min:
                return each, ranks
        return 0, 0

    def picture(self) -> dict[PoolKey, tuple[object, ...]]:
        """All that decisions rest on, to compare with another: equal states have equal pictures."""
        return {key: picture for key in sorted(self.pools) if (picture := self.pools[key].picture())[0]}

    # Following the state

    def _place(self, node: Node, epoch: int) -> None:
        index = node.index
        is_in = schedulable(node, epoch)
        inventory = (node.gpu_type, node.gpu_memory_gb, node.block, node.rack, node.gpus)
        if index in self.at:
            if is_in and self._inventory[index] == inventory:
                self._recount(node)
                return
            self._leave(index)
        if is_in:
            self._enter(node)
            self._inventory[index] = inventory

    def _recount(self, node: Node) -> None:
        """The same node with other GPUs free, or broken."""
        index = node.index
        before, after = self.free[index], node.free
        if before != after:
            self.free[index] = after
            pool, block, bit, _ = self.at[index]
            pool.move(block, bit, 1, before.bit_count(), after.bit_count())
            if after & ~before:
                self.freed[node.gpu_type] += 1
        whole = (node.all_gpus & ~node.broken).bit_count()
        if whole != self._whole[index]:
            self.total_schedulable[node.gpu_type] += whole - self._whole[index]
            self._whole[index] = whole

    def _enter(self, node: Node) -> None:
        index, gpu_type, free = node.index, node.gpu_type, node.free
        pool = self._pool(gpu_type, len(node.gpus))
        block = pool.enter(1 << index, node, free.bit_count())
        self.at[index] = (pool, block, 1 << index, self._islands_of(node.gpus))
        self.free[index] = free
        self._whole[index] = whole = (node.all_gpus & ~node.broken).bit_count()
        self.total_schedulable[gpu_type] = self.total_schedulable.get(gpu_type, 0) + whole
        self.freed[gpu_type] = self.freed.get(gpu_type, 0) + 1

    def _leave(self, index: NodeIndex) -> None:
        pool, block, bit, _ = self.at.pop(index)
        gpu_type, memory_gb, _, rack, _ = self._inventory.pop(index)
        pool.leave(block, bit, rack, memory_gb, self.free.pop(index).bit_count())
        self.total_schedulable[gpu_type] -= self._whole.pop(index)

    def _pool(self, gpu_type: GpuType, node_gpus: int) -> Pool:
        pool = self.pools.get((gpu_type, node_gpus))
        if pool is None:
            pool = self.pools[gpu_type, node_gpus] = Pool(node_gpus)
            self.by_type[gpu_type] = [self.pools[key] for key in sorted(self.pools) if key[0] == gpu_type]
        return pool

    def _islands_of(self, gpus: tuple[GpuSlot, ...]) -> Islands:
        key = tuple(gpu.island for gpu in gpus)
        if (islands := self._islands.get(key)) is None:
            islands = self._islands[key] = Islands(gpus)
        return islands


def schedulable(node: Node, epoch: int) -> bool:
    """May something be granted on the node, if it has room?"""
    return node.state is NodeState.UP and node.drained is None and node.confirmed == epoch and bool(node.gpus)


def indexes_of(bits: int) -> list[NodeIndex]:
    """Node indexes of a bitset, lowest first."""
    found: list[NodeIndex] = []
    if bits:
        base = (bits & -bits).bit_length() - 1
        bits >>= base  # neighbours make a small number, which is quick to take apart
        while bits:
            low = bits & -bits
            found.append(NodeIndex(base + low.bit_length() - 1))
            bits ^= low
    return found
