"""The cheapest set of victims where few attempts come into question: every set is looked at, small ones first.

Below CANDIDATES_MAX a legal set is found if there is one, and none is cheaper. What is asked of a set of victims is
only whether the job would fit without them, so that the same search serves every kind of job and hint.
"""

from collections.abc import Callable
from itertools import combinations

from events.ids import NodeIndex
from scheduler.planning.capacity import indexes_of
from scheduler.planning.preempt_ask import Ask, Found, Step
from scheduler.planning.preempt_ground import Rank

CANDIDATES_MAX = 12

Fits = Callable[[frozenset[Rank]], list[NodeIndex] | None]
"""The nodes that a job would use if these were stopped; None where it would not fit."""


def candidates(ask: Ask, step: Step, nodes: int) -> list[Rank]:
    """Attempts on the nodes that may be displaced; no more than one too many."""
    found: set[Rank] = set()
    for index in indexes_of(nodes):
        found.update(item.rank for item in ask.items(step, ask.index.places[index]))
        if len(found) > CANDIDATES_MAX:
            break
    return sorted(found)


def cheaper(ask: Ask, number: int, ranks: list[Rank], found: Found, fits: Fits, sets_max: int = 1 << 12) -> Found:
    """The cheapest of all sets of `ranks`, if it is cheaper than what was found."""
    best, tried = found, 0
    for size in range(1, len(ranks) + 1):
        if not best.cost.wasteful and size > best.cost.jobs:
            break
        priced = sorted((ask.cost(chosen), chosen) for chosen in combinations(ranks, size))
        for cost, chosen in priced:
            if cost >= best.cost or tried >= sets_max:
                break
            tried += 1
            nodes = fits(frozenset(chosen))
            if nodes is not None:
                best = Found(number, cost, nodes, list(chosen))
                break
    return best


def emptied_by(ask: Ask, step: Step, nodes: int, wanted: int, enough: Callable[[int], list[NodeIndex] | None]) -> Fits:
    """`Fits` for a gang of whole nodes: by what has to go from which nodes."""
    groups: dict[frozenset[Rank], int] = {}
    for index in indexes_of(nodes):
        needed = frozenset(item.rank for item in ask.items(step, ask.index.places[index]))
        groups[needed] = groups.get(needed, 0) | 1 << index
    listed = list(groups.items())

    def fits(chosen: frozenset[Rank]) -> list[NodeIndex] | None:
        bits = 0
        for needed, there in listed:
            if needed <= chosen:
                bits |= there
        return enough(bits) if bits.bit_count() >= wanted else None

    return fits
