"""Seats for a gang of more than one node: which nodes of which racks and blocks (R-32, R-33). Takes nothing.

What is seated are units: whole nodes of a gang of a node's worth or more, ranks of a smaller one. A node has room for
so many units, a rack and a block for the sum of theirs, and for one where the hint spreads over them. So whether there
is a place is a matter of adding up, and is decided exactly.
"""

from dataclasses import dataclass

from events.job import Span, Topology
from scheduler.planning.capacity import indexes_of
from scheduler.planning.cover import cover, fewest, fewest_racks
from scheduler.planning.islands import lowest
from scheduler.planning.pool import Block, Pool

Chunk = tuple[int, int]
"""(bitset of nodes of one block, units on each of them), in the order of the ranks."""


@dataclass(slots=True, kw_only=True)
class Ask:
    """What is to be seated: `replicas` of `each` GPUs, `per_node` of them on a node of their own, 0: with others.

    `levels`: (nodes with room, units that each has room for), the least free GPUs first. `alike`: the same, those that
    have room for as many together.
    """

    pool: Pool
    each: int
    replicas: int
    per_node: int
    units: int
    hint: Topology
    levels: list[tuple[int, int]]
    alike: list[tuple[int, int]]
    prefer: int = 0

    def room(self, mask: int) -> int:
        """Units for which the nodes of `mask` have room."""
        room = 0
        for bits, units in self.alike:
            room += (bits & mask).bit_count() * units
        return room

    @property
    def enough(self) -> bool:
        """Would there be room if it did not matter where?"""
        wanted = self.units
        for bits, units in self.alike:
            wanted -= bits.bit_count() * units
        return wanted <= 0

    @property
    def charged(self) -> int:
        """GPUs that the gang is charged for here (R-32)."""
        return self.units * self.pool.node_gpus if self.per_node else self.replicas * self.each

    @property
    def blocks_max(self) -> int | None:
        """`pack: block` without max_blocks means one, and so do the narrower ones (R-33)."""
        hint = self.hint
        if hint.pack in (Span.NODE, Span.RACK):
            return 1
        return hint.max_blocks or (1 if hint.pack is Span.BLOCK else None)


def seats(ask: Ask, steps_max: int) -> list[Chunk] | None:
    """The best seats, None where there are none. Raises StepsSpent."""
    if not ask.enough:
        return None
    spread, most = ask.hint.spread, ask.blocks_max
    if ask.hint.pack is Span.NODE or (ask.hint.pack is Span.RACK and spread in (Span.RACK, Span.BLOCK)):
        return _in_one_node(ask) if ask.units == 1 else None
    if spread is Span.BLOCK:
        return _block_each(ask) if most is None or ask.units <= most else None
    if ask.hint.pack is Span.RACK:
        return _in_one_rack(ask)
    found: list[Chunk] = []
    for block, units in _blocks(ask, most, steps_max):
        found += _in_block(ask, block, units)
    return found or None


def _in_one_node(ask: Ask) -> list[Chunk] | None:
    for block in ask.pool.by_free():
        if ask.room(block.mask):
            return _nodes(ask, block.mask, 1)
    return None


def _block_each(ask: Ask) -> list[Chunk] | None:
    """One unit in each block, those first that have the fewest free GPUs."""
    roomy = [block for block in ask.pool.by_free() if ask.room(block.mask)]
    if len(roomy) < ask.units:
        return None
    return [chunk for block in roomy[: ask.units] for chunk in _nodes(ask, block.mask, 1)]


def _in_one_rack(ask: Ask) -> list[Chunk] | None:
    """The rack that it fills most, in the block with the fewest free GPUs that has one."""
    for block in ask.pool.by_free():
        if ask.room(block.mask) < ask.units:
            continue
        holding = [(room, rack) for rack in block.racks if (room := ask.room(rack)) >= ask.units]
        if holding:
            return _nodes(ask, min(holding, key=lambda item: item[0])[1], ask.units)
    return None


# Blocks


def _blocks(ask: Ask, most: int | None, steps_max: int) -> list[tuple[Block, int]]:
    """(block, units there): the fewest blocks, with the fewest racks, with the fewest free GPUs. Empty: none."""
    wanted = ask.units
    blocks: list[Block] = []
    rooms: list[int] = []
    best: tuple[int, Block] | None = None
    least = _racks_least(ask)
    for block in ask.pool.by_free():
        room = _room_of_block(ask, block) if block.free else 0
        if room >= wanted:
            racks = _racks_needed(ask, block)
            if racks <= least:
                return [(block, wanted)]
            best = (racks, block) if best is None or racks < best[0] else best
        elif room:
            blocks.append(block)
            rooms.append(room)
    if best is not None:
        return [(best[1], wanted)]
    if sum(rooms) < wanted:
        return []
    number = fewest(rooms, wanted)
    if most is not None and number > most:
        return []
    chosen = cover(rooms, wanted)
    if ask.hint.spread is not Span.RACK and any(len(block.racks) > 1 for block in blocks):
        in_racks = [sorted(_rack_rooms(ask, block), reverse=True) for block in blocks]
        used = sum(fewest(in_racks[place], units) for place, units in chosen)
        if used > fewest([room for racks_of_one in in_racks for room in racks_of_one], wanted):
            better = fewest_racks(in_racks, wanted, number, used, steps_max)
            chosen = chosen if better is None else _filled(in_racks, better, wanted)
    return [(blocks[place], units) for place, units in chosen]


def _filled(racks: list[list[int]], chosen: list[tuple[int, int]], wanted: int) -> list[tuple[int, int]]:
    """(block, units) from (block, racks): the last, which is the smallest, has what the others leave."""
    rooms = sorted(
        ((sum(racks[block][:number]), block) for block, number in chosen), key=lambda item: (-item[0], item[1])
    )
    filled = []
    for room, block in rooms:
        filled.append((block, min(room, wanted)))
        wanted -= min(room, wanted)
    return filled


def _room_of_block(ask: Ask, block: Block) -> int:
    if ask.hint.spread is Span.RACK:
        return sum(1 for rack in block.racks if ask.room(rack))
    return ask.room(block.mask)


def _rack_rooms(ask: Ask, block: Block) -> list[int]:
    return [room for rack in block.racks if (room := ask.room(rack))]


def _racks_least(ask: Ask) -> int:
    """No block needs fewer racks than so many."""
    if ask.hint.spread is Span.RACK:
        return ask.units
    return -(-ask.units // (ask.pool.rack_nodes_max * max(units for _, units in ask.levels)))


def _racks_needed(ask: Ask, block: Block) -> int:
    """By the units in a block that holds them all."""
    if ask.hint.spread is Span.RACK:
        return ask.units
    return fewest(_rack_rooms(ask, block), ask.units) if len(block.racks) > 1 else 1


# Racks and nodes


def _in_block(ask: Ask, block: Block, units: int) -> list[Chunk]:
    """In the fewest racks; with `spread: rack` one in each of those that have the fewest nodes with room."""
    if ask.hint.spread is Span.RACK:
        roomy = sorted((rack for rack in block.racks if ask.room(rack)), key=ask.room)
        return [chunk for rack in roomy[:units] for chunk in _nodes(ask, rack, 1)]
    if len(block.racks) == 1:
        return _nodes(ask, block.mask, units)
    found: list[Chunk] = []
    for place, number in cover([ask.room(rack) for rack in block.racks], units):
        found += _nodes(ask, block.racks[place], number)
    return found


def _nodes(ask: Ask, mask: int, units: int) -> list[Chunk]:
    """Seats on nodes of `mask`: the fewest nodes; among those alike the ones preferred, then the lowest."""
    levels = [(bits & mask, room) for bits, room in ask.levels if bits & mask]
    if len(levels) == 1 and levels[0][1] == 1:
        return [(bits, 1) for bits in _first(levels[0][0], units, ask.prefer)]
    nodes: list[tuple[int, int]] = []
    for bits, room in levels:
        for part in (bits & ask.prefer, bits & ~ask.prefer) if ask.prefer else (bits,):
            nodes += [(1 << index, room) for index in indexes_of(part)]
    return [(nodes[place][0], number) for place, number in cover([room for _, room in nodes], units)]


def _first(bits: int, number: int, prefer: int) -> list[int]:
    """Bitsets of `number` nodes in all: of those preferred first."""
    if not prefer or not bits & prefer:
        return [lowest(bits, number)]
    preferred = lowest(bits & prefer, number)
    rest = number - preferred.bit_count()
    return [preferred, lowest(bits & ~prefer, rest)] if rest else [preferred]
