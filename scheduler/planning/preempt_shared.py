"""Room for a job of less than a node's worth on one node: one victim where one is enough, else as few as it takes."""

from collections.abc import Iterator
from functools import partial
from itertools import combinations

from events.ids import NodeIndex
from scheduler.planning.capacity import indexes_of
from scheduler.planning.preempt_ask import Ask, Found, Step
from scheduler.planning.preempt_ground import VIEWS, Item, Rank, Ranking

NODES_TRIED_MAX = 64
"""Nodes on which sets of several victims are looked for, of those that need the fewest GPUs freed."""
SETS_MAX = 500
"""Sets of equal size that are compared on one node."""


def on_one_node(ask: Ask, number: int, step: Step) -> Found | None:
    """The cheapest victims on one node that hold the whole job; None where there are none in this step."""
    need = ask.need
    nodes = ask.nodes_with(step, need)
    if not nodes:
        return None
    for count in range(need, ask.ground.node_gpus + 1):
        if idle := nodes & ask.ground.views[0][count]:
            return ask.found(number, indexes_of(idle)[:1], ())
    one = _one_victim(ask, number, step, nodes)
    if one is not None and not one.cost.wasteful:
        return one
    several = _several(ask, number, step, nodes)
    if one is None or several is None:
        return several or one
    return min(one, several, key=lambda found: found[:2])


# One victim


def _one_victim(ask: Ask, number: int, step: Step, nodes: int) -> Found | None:
    """The best single victim: few GPUs, little work lost, of the team that is furthest over its share, begun late, by
    job id (R-40)."""
    firsts: list[tuple[Rank, NodeIndex]] = []
    least = (0, 0)
    for _, ranking, there in rankings(ask, step, nodes):
        found = ranking.first(there)
        if found is None:
            continue
        harm = found[0][:2]
        if not firsts or harm < least:
            firsts, least = [found], harm
        elif harm == least:
            firsts.append(found)
    if not firsts:
        return None
    rank, index = firsts[0] if len(firsts) == 1 else min(firsts, key=partial(_tie, ask))
    return Found(number, ask.cost((rank,)), [index], [rank])


def rankings(ask: Ask, step: Step, nodes: int) -> Iterator[tuple[int, Ranking, int]]:
    """Those of which one may be enough: a level, a ranking in it, and on which of the nodes (a bitset) it is."""
    need, ground, own_team, others = ask.need, ask.ground, ask.spec.team, VIEWS[step.view]
    for (level, size), by_team in ground.ranked.items():
        if not by_team or not (level in others or level in step.own):
            continue
        there = nodes & ground.at_least(0, need - size)
        if not there:
            continue
        for team, ranking in by_team.items():
            if level in (step.own if team == own_team else others):
                yield level, ranking, there


def _tie(ask: Ask, found: tuple[Rank, NodeIndex]) -> tuple[object, ...]:
    """Between victims with as few GPUs and as little work lost."""
    rank, index = found
    return (-ask.index.over_share(rank.team, ask.spec.gpu_type), rank[3:], index)


# Several victims


def _several(ask: Ask, number: int, step: Step, nodes: int) -> Found | None:
    """The best set on one of the nodes that need the fewest GPUs freed."""
    best: Found | None = None
    for index in _least_short(ask, nodes):
        place = ask.index.places[index]
        need = ask.need - place.counts[0]
        victims = _fewest(ask, ask.items(step, place), need)
        found = ask.found(number, [index], victims)
        if best is None or found[:2] < best[:2]:
            best = found
    return best


def _least_short(ask: Ask, nodes: int) -> list[NodeIndex]:
    found: list[NodeIndex] = []
    for count in range(ask.ground.node_gpus, -1, -1):
        found += indexes_of(nodes & ask.ground.views[0][count])
        if len(found) >= NODES_TRIED_MAX:
            break
    return found[:NODES_TRIED_MAX]


def _fewest(ask: Ask, items: list[Item], need: int) -> list[Rank]:
    """Of the sets that free enough the one that costs least; all of them together do."""
    best = None
    least = _least_number(items, need)
    for number in range(least, len(items) + 1):
        for tried, chosen in enumerate(combinations(sorted(items, key=lambda item: item.rank), number)):
            if tried >= SETS_MAX:
                break
            if sum(item.mask.bit_count() for item in chosen) >= need:
                ranks = [item.rank for item in chosen]
                key = (ask.cost(ranks), ranks)
                best = key if best is None or key < best else best
        if best is not None and not best[0].wasteful:
            break
    return best[1] if best is not None else _largest(items, least)


def _least_number(items: list[Item], need: int) -> int:
    total = 0
    for number, size in enumerate(sorted((item.mask.bit_count() for item in items), reverse=True), 1):
        total += size
        if total >= need:
            return number
    raise AssertionError("they do not free enough")


def _largest(items: list[Item], number: int) -> list[Rank]:
    return [item.rank for item in sorted(items, key=lambda item: (-item.mask.bit_count(), item.rank))[:number]]
