"""The schedulable nodes of one GPU type and size: how many GPUs are free, where, and which block to break into next.

Bitsets of node indexes by free count, and by block, rack and memory; their intersections are what is asked for. Each
block keeps its number of nodes by free count, and the blocks stand in order of their free GPUs, so that best fit asks
a few integers and does not look through the blocks.
"""

from bisect import bisect_left, insort

from commands.entities import Node
from events.ids import BlockId, GpuType

PoolKey = tuple[GpuType, int]
"""(type, GPUs of a node)."""

_SHIFT = 20
_NUMBER = (1 << _SHIFT) - 1


class Block:
    """A block's nodes of one pool. `count[c]`: nodes with c free GPUs. `free`: free GPUs in all. `number`: its place
    by name among the blocks of the pool. `racks`: bitsets, by name; empty ones may be among them."""

    __slots__ = ("count", "free", "mask", "name", "number", "pool", "rack_names", "racks")

    def __init__(self, pool: "Pool", name: BlockId) -> None:
        self.pool = pool
        self.name = name
        self.number = 0
        self.mask = 0
        self.free = 0
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
        """free GPUs << _SHIFT | number of each block, ascending."""

    # Changes

    def move(self, block: Block, bit: int, old: int, new: int) -> None:
        """A node of the block has `new` free GPUs, and had `old`."""
        if old != new:
            self.move_many(block, bit, 1, old, new)

    def move_many(self, block: Block, bits: int, size: int, old: int, new: int) -> None:
        """The same for `size` nodes at once."""
        nodes, count, held, order = self.nodes, block.count, self._held, self._order
        nodes[old] ^= bits
        nodes[new] ^= bits
        number = block.number
        count[old] -= size
        if not count[old]:
            held[old] ^= 1 << number
        if not count[new]:
            held[new] ^= 1 << number
        count[new] += size
        free = block.free
        block.free = now = free + (new - old) * size
        self.free_gpus += now - free
        del order[bisect_left(order, free << _SHIFT | number)]
        insort(order, now << _SHIFT | number)

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
        number, order = block.number, self._order
        self.nodes[free] ^= bit
        was_held = block.count[free] > 0
        block.count[free] += sign
        if was_held != (block.count[free] > 0):
            self._held[free] ^= 1 << number
        del order[bisect_left(order, block.free << _SHIFT | number)]
        block.free += sign * free
        self.free_gpus += sign * free
        insort(order, block.free << _SHIFT | number)

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
        self._order = sorted(block.free << _SHIFT | block.number for block in blocks)
        for count in range(self.node_gpus + 1):
            self._held[count] = sum(1 << block.number for block in blocks if block.count[count])

    # Questions

    def by_free(self) -> list[Block]:
        """The blocks, those with the fewest free GPUs first."""
        blocks = self.blocks
        return [blocks[key & _NUMBER] for key in self._order]

    def with_memory(self, memory_gb_min: int) -> list[int | None]:
        """Bitsets of the nodes with the memory asked for: those with the least of it, then with more let in as well.
        None: every node of the pool."""
        memory = self.memory
        if len(memory) == 1:
            return [None] if memory_gb_min <= next(iter(memory)) else []
        found: list[int | None] = []
        bits = 0
        for size in sorted(memory):
            if size >= memory_gb_min:
                bits |= memory[size]
                found.append(bits)
        return found

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
        blocks, held, order = self.blocks, self._held[count], self._order
        if not held & (held - 1):
            return blocks[held.bit_length() - 1]
        for place in range(bisect_left(order, count << _SHIFT), len(order)):
            number = order[place] & _NUMBER
            if held >> number & 1:
                block = blocks[number]
                if bits & block.mask:
                    return block
        raise AssertionError("nodes of no block")
