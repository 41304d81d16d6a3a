"""Plain first fit: takes over where the search for the best seats fails or runs out of steps (R-35).

Shares no reasoning with it: nodes in order, block by block, the roomiest block first. Strict hints still hold, and a
place is still found where there is one.
"""

from collections.abc import Iterable

from commands.state import State
from events.ids import NodeIndex
from events.job import Span
from scheduler.planning.capacity import indexes_of
from scheduler.planning.seats import Ask, Chunk

Group = tuple[str, ...]
Seat = tuple[NodeIndex, int]
"""(node, units for which it has room)."""


def first_fit(state: State, ask: Ask) -> list[Chunk] | None:
    """Seats for all units, or None."""
    rooms = sorted((index, units) for bits, units in ask.levels for index in indexes_of(bits))
    pack, spread = ask.hint.pack, ask.hint.spread
    if pack in (Span.NODE, Span.RACK):
        regions = list(_grouped(state, rooms, pack).values())
    else:
        blocks = sorted(
            _grouped(state, rooms, Span.BLOCK).items(), key=lambda item: (-_room(state, item[1], spread), item[0])
        )
        regions = [[seat for _, nodes in blocks[: ask.blocks_max] for seat in nodes]]
    for region in regions:
        if (found := _fill(state, region, ask.units, spread)) is not None:
            return found
    return None


def _fill(state: State, rooms: Iterable[Seat], wanted: int, spread: Span | None) -> list[Chunk] | None:
    seats: list[Chunk] = []
    used: set[Group] = set()
    for index, room in rooms:
        if not wanted:
            break
        if spread is not None:
            if (group := _group(state, index, spread)) in used:
                continue
            used.add(group)
            room = 1
        seats.append((1 << index, min(room, wanted)))
        wanted -= min(room, wanted)
    return None if wanted else seats


def _room(state: State, rooms: list[Seat], spread: Span | None) -> int:
    return sum(room for _, room in rooms) if spread is None else len(_grouped(state, rooms, spread))


def _grouped(state: State, rooms: Iterable[Seat], span: Span) -> dict[Group, list[Seat]]:
    groups: dict[Group, list[Seat]] = {}
    for index, room in rooms:
        groups.setdefault(_group(state, index, span), []).append((index, room))
    return groups


def _group(state: State, index: NodeIndex, span: Span) -> Group:
    node = state.nodes[index]
    match span:
        case Span.NODE:
            return (node.id,)
        case Span.RACK:
            return (node.block, node.rack)
        case Span.BLOCK:
            return (node.block,)
