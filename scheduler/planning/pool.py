"""The schedulable nodes of one GPU type and size: how many GPUs are free, where, and which block to break into next.

Bitsets of node indexes by free count, and by block, rack and memory; their intersections are what is asked for. Each
block keeps its number of nodes by free count, and the blocks stand in order of their free GPUs, so that best fit asks
a few integers and does not look through the blocks.
"""

from bisect import bisect_left, insort
from itertools import accumulate
from operator import or_

from commands.entities import Node
from events.ids import BlockId, GpuType

PoolKey = tuple[GpuType, int]
"""(type, GPUs of a node)."""

_SHIFT = 20
_NUMBER = (1 << _SHIFT) - 1
_FLOORS_MAX = 1000


class Block:
    """A block's nodes of one pool. `count[c]`: nodes with c free GPUs. `free`: free GPUs in all. `number`: its place
    by name among the blocks of the pool. `racks`: bitsets, by name; empty ones may be among them. `ordered`: the free
    GPUs by which it stands in the pool's order, `stale`: that is to be looked at."""

    __slots__ = ("count", "free", "mask", "name", "number", "ordered", "pool", "rack_names", "racks", "stale")

    def __init__(self, pool: "Pool", name: BlockId) -> None:
        self.pool = pool
        self.name = name
        self.number = 0
        self.mask = 0
        self.free = self.ordered = 0
        self.stale = False
        self.count = [0] * (pool.node_gpus + 1)
        self.rack_names: list[str] = []
        self.racks: list[int] = []


class Pool:
    """`nodes[c]`: bitset of the nodes with c free GPUs. `memory[gb]`: of those with GPUs of that memory."""

    def __init__(self, node_gpus: int) -> None:
        self.node_gpus = node_gpus
        self.free_gpus = 0
        self.nodes = [0] * (node_gpus + 1)
        self.blocks: list[Block] = []
        self.memory: dict[int, int] = {}
        self.rack_nodes_max = 0
        """Nodes of the largest rack there was."""
        self._names: list[BlockId] = []
        self._held = [0] * (node_gpus + 1)
        """Bitsets of block numbers: blocks that have nodes with c free GPUs."""
        self._order: list[int] = []
        """ordered << _SHIFT | number of each block, ascending; in order but for the stale ones."""
        self._stale: list[Block] = []
        self._floors: dict[int, tuple[int | None, ...]] = {}

    # Changes

    def move(self, block: Block, bits: int, size: int, old: int, new: int) -> None:
        """The `size` nodes `bits` of the block have `new` free GPUs each, and had `old`."""
        if old == new:
            return
        nodes, count = self.nodes, block.count
        nodes[old] ^= bits
        nodes[new] ^= bits
        count[old] = left = count[old] - size
        if not left:
            self._held[old] ^= 1 << block.number
        there = count[new]
        if not there:
            self._held[new] ^= 1 << block.number
        count[new] = there + size
        more = (new - old) * size
        block.free += more
        self.free_gpus += more
        if not block.stale:
            block.stale = True
            self._stale.append(block)

    def enter(self, bit: int, node: Node, free: int) -> Block:
        """A node became schedulable."""
        block = self._block(node.block)
        block.mask |= bit
        place = bisect_left(block.rack_names, node.rack)
        if place == len(block.racks) or block.rack_names[place] != node.rack:
            block.rack_names.insert(place, node.rack)
            block.racks.insert(place, 0)
        block.racks[place] |= bit
        self.rack_nodes_max = max(self.rack_nodes_max, block.racks[place].bit_count())
        self.memory[node.gpu_memory_gb] = self.memory.get(node.gpu_memory_gb, 0) | bit
        self._join(block, bit, free, 1)
        return block

    def leave(self, block: Block, bit: int, rack: str, memory_gb: int, free: int) -> None:
        """A node is schedulable no more."""
        block.mask ^= bit
        block.racks[bisect_left(block.rack_names, rack)] ^= bit
        self.memory[memory_gb] ^= bit
        if not self.memory[memory_gb]:
            del self.memory[memory_gb]
        self._join(block, bit, free, -1)

    def _join(self, block: Block, bit: int, free: int, sign: int) -> None:
        self.nodes[free] ^= bit
        was_held = block.count[free] > 0
        block.count[free] += sign
        if was_held != (block.count[free] > 0):
            self._held[free] ^= 1 << block.number
        block.free += sign * free
        self.free_gpus += sign * free
        self._floors.clear()
        if not block.stale:
            block.stale = True
            self._stale.append(block)

    def _block(self, name: BlockId) -> Block:
        place = bisect_left(self._names, name)
        if place == len(self._names) or self._names[place] != name:
            self._names.insert(place, name)
            self.blocks.insert(place, Block(self, name))
            self._number(place)
        return self.blocks[place]

    def _number(self, first: int) -> None:
        """Number the blocks from `first` on, which is new."""
        blocks = self.blocks
        blocks[first].number = first
        if first == len(blocks) - 1:
            insort(self._order, first)
            return
        for number in range(first, len(blocks)):
            blocks[number].number = number
        self._order = sorted(block.ordered << _SHIFT | block.number for block in blocks)
        for count in range(self.node_gpus + 1):
            self._held[count] = sum(1 << block.number for block in blocks if block.count[count])

    # Questions

    def picture(self) -> tuple[object, ...]:
        """What is counted, without the blocks, racks and memories that have no node any more."""
        blocks = {
            block.name: (block.mask, block.free, tuple(block.count), tuple(rack for rack in block.racks if rack))
            for block in self.by_free()
            if block.mask
        }
        held = [[block.name for block in self.blocks if bits >> block.number & 1] for bits in self._held]
        return (blocks, list(blocks), self.nodes, held, self.free_gpus, self.memory)

    def by_free(self) -> list[Block]:
        """The blocks, those with the fewest free GPUs first."""
        blocks = self.blocks
        return [blocks[key & _NUMBER] for key in self._in_order()]

    def with_memory(self, memory_gb_min: int) -> tuple[int | None, ...]:
        """Bitsets of the nodes with the memory asked for: those with the least of it, then with more let in as well.
        None: every node of the pool."""
        known = self._floors.get(memory_gb_min)
        if known is None:
            memory = self.memory
            sums = tuple(accumulate((memory[size] for size in sorted(memory) if size >= memory_gb_min), or_))
            known = (None,) if len(memory) == 1 and sums else sums
            if len(self._floors) < _FLOORS_MAX:
                self._floors[memory_gb_min] = known
        return known

    def with_memory_all(self, memory_gb_min: int) -> int:
        """Bitset of all nodes with the memory asked for."""
        bits = 0
        for size, nodes in self.memory.items():
            if size >= memory_gb_min:
                bits |= nodes
        return bits

    def _in_order(self) -> list[int]:
        order = self._order
        for block in self._stale:
            block.stale = False
            if block.free != block.ordered:
                del order[bisect_left(order, block.ordered << _SHIFT | block.number)]
                block.ordered = block.free
                insort(order, block.free << _SHIFT | block.number)
        self._stale.clear()
        return order

    def most_free(self) -> int:
        """GPUs free on the node with the most of them."""
        nodes = self.nodes
        for count in range(self.node_gpus, 0, -1):
            if nodes[count]:
                return count
        return 0

    def could_hold(self, each: int, replicas: int) -> bool:
        """Might a gang fit, were it not for its hint, memory, and who may use what? False is certain."""
        size = self.node_gpus
        if each > size or self.free_gpus < each * replicas:
            return False
        if each * replicas >= size:
            return self.nodes[size].bit_count() * (size // each) >= replicas
        return any(self.nodes[each:])

    def best_node(self, gpus: int, usable: int | None, prefer: int) -> int:
        """Bit of the node on which `gpus` GPUs fit best, 0 where there is none: the fewest free GPUs that hold them,
        in the block with the fewest free ones; then one of `prefer`, then the lowest."""
        nodes = self.nodes
        for count in range(gpus, self.node_gpus + 1):
            bits = nodes[count]
            if usable is not None:
                bits &= usable
            if not bits:
                continue
            bits &= self.fewest_free(bits, count).mask
            if prefer and bits & prefer:
                bits &= prefer
            return bits & -bits
        return 0

    def fewest_free(self, bits: int, count: int) -> Block:
        """Of the blocks with nodes of `bits`, which all have `count` free GPUs, the one with the fewest free GPUs."""
        blocks, held = self.blocks, self._held[count]
        if not held & (held - 1):
            return blocks[held.bit_length() - 1]
        order = self._in_order()
        for place in range(bisect_left(order, count << _SHIFT), len(order)):
            number = order[place] & _NUMBER
            if held >> number & 1:
                block = blocks[number]
                if bits & block.mask:
                    return block
        raise AssertionError("nodes of no block")
