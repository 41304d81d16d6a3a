"""How many of which groups hold a gang: the arithmetic of fewest blocks and fewest racks (R-32). Numbers only.

Groups add up, so a greedy choice is exact for their number: the largest first. That the fewest blocks also have the
fewest racks is a knapsack, which `fewest_racks` solves within a budget of steps.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import ge

_Sum = tuple[int, int, int, "_Sum | None"]
"""(room, the block added last, how many of its racks, the sum before)."""


class StepsSpent(Exception):
    """The search would take more steps than it may."""


def cover(rooms: Sequence[int], wanted: int) -> list[tuple[int, int]]:
    """(place, how many of it) of the fewest rooms that hold `wanted`: those that are filled first, the largest first,
    then the smallest that holds the rest. Of equal ones the first. The rooms must suffice."""
    places = sorted(range(len(rooms)), key=lambda place: -rooms[place])
    chosen: list[tuple[int, int]] = []
    for at, place in enumerate(places):
        if rooms[place] < wanted:
            chosen.append((place, rooms[place]))
            wanted -= rooms[place]
            continue
        rest = [place for place in places[at:] if rooms[place] >= wanted]
        smallest = rooms[rest[-1]]
        chosen.append((next(place for place in rest if rooms[place] == smallest), wanted))
        return chosen
    raise AssertionError("the rooms do not suffice")


def fewest(rooms: Sequence[int], wanted: int) -> int:
    """How many rooms hold `wanted`. The rooms must suffice."""
    for number, total in enumerate(accumulate(sorted(rooms, reverse=True)), 1):
        if total >= wanted:
            return number
    raise AssertionError("the rooms do not suffice")


def fewest_racks(
    blocks: Sequence[Sequence[int]], wanted: int, most: int, below: int, steps_max: int
) -> list[tuple[int, int]] | None:
    """(block, how many of its largest racks): at most `most` blocks and fewer than `below` racks in all that hold
    `wanted`, and as few racks as can be; None where there are none. `blocks[b]`: rooms of its racks, largest first.

    First by prices for a rack (Lagrange), which give a choice, and a bound that mostly proves it the best; else by
    dynamic programming over (blocks, racks) -> most room. Raises StepsSpent.
    """
    priced, least = _priced(blocks, wanted, most)
    if priced is not None and len(priced) < below:
        below = len(priced)
    else:
        priced = None
    better = _searched(blocks, wanted, most, below, steps_max) if least < below else None
    if better is not None or priced is None:
        return better
    counts: dict[int, int] = {}
    for _, block in priced:
        counts[block] = counts.get(block, 0) + 1
    return sorted(counts.items())


def _priced(blocks: Sequence[Sequence[int]], wanted: int, most: int) -> tuple[list[tuple[int, int]] | None, int]:
    """A choice of racks as (room, block), None where no price gives one; and how many racks it takes at least.

    At a price for each rack the best blocks are those with the most room over price. What they have over the price,
    and the price times the number of racks, bounds the room of any choice of so many racks in so many blocks.
    """
    best: list[tuple[int, int]] | None = None
    least = 0
    for price in range(2 * max(racks[0] for racks in blocks) + 1):  # in halves
        worth = [sum(2 * room - price for room in racks if 2 * room > price) for racks in blocks]
        chosen = sorted(range(len(blocks)), key=lambda block: -worth[block])[:most]
        if price:
            least = max(least, -(-(2 * wanted - sum(worth[block] for block in chosen)) // price))
        racks = sorted(((room, block) for block in chosen for room in blocks[block]), key=lambda rack: -rack[0])
        sums = list(accumulate(room for room, _ in racks))
        if sums[-1] >= wanted:
            used = racks[: bisect_left(sums, wanted) + 1]
            if best is None or len(used) < len(best):
                best = used
    return best, least


def _searched(
    blocks: Sequence[Sequence[int]], wanted: int, most: int, below: int, steps_max: int
) -> list[tuple[int, int]] | None:
    sums = _that_matter([list(accumulate(racks)) for racks in blocks], wanted, most, steps_max)
    limit = below - 1
    steps = len(sums) * most * limit * max((len(rooms) for _, rooms in sums), default=0)
    if steps > steps_max:
        raise StepsSpent(f"{steps} steps")
    best: list[list[_Sum | None]] = [[None] * (limit + 1) for _ in range(most + 1)]
    best[0][0] = (0, -1, 0, None)
    for block, rooms in sums:
        for used in range(most - 1, -1, -1):
            row, following = best[used], best[used + 1]
            for racks in range(used, limit):
                if (here := row[racks]) is None:
                    continue
                total = racks
                for room in rooms:
                    total += 1
                    if total > limit:
                        break
                    there = following[total]
                    if there is None or here[0] + room > there[0]:
                        following[total] = (here[0] + room, block, total - racks, here)
    for racks in range(limit + 1):
        for row in best:
            if (end := row[racks]) is not None and end[0] >= wanted:
                return _traced(end)
    return None


def _traced(end: _Sum) -> list[tuple[int, int]]:
    chosen: list[tuple[int, int]] = []
    _, block, racks, before = end
    while before is not None:
        chosen.append((block, racks))
        _, block, racks, before = before
    return chosen


def _that_matter(sums: list[list[int]], wanted: int, most: int, steps_max: int) -> list[tuple[int, list[int]]]:
    """Leave out blocks that are too small to be among so few, and those than which `most` others are at least as good
    with any number of racks."""
    tops = sorted((rooms[-1] for rooms in sums), reverse=True)
    least = wanted - sum(tops[: most - 1])
    large = [block for block, rooms in enumerate(sums) if rooms[-1] >= least]
    kept: list[tuple[int, list[int]]] = []
    compared = 0
    for block in sorted(large, key=lambda block: -sums[block][-1]):
        rooms, better = sums[block], 0
        for _, others in kept:
            compared += 1
            better += _at_least(others, rooms)
            if better == most:
                break
        else:
            kept.append((block, rooms))
        if compared > steps_max:
            raise StepsSpent(f"{compared} comparisons")
    return kept


def _at_least(ours: list[int], theirs: list[int]) -> bool:
    """Have we at least their room with any number of racks? More racks than there are add nothing."""
    return ours[-1] >= theirs[-1] and all(map(ge, ours, theirs))
