"""Room for a gang of a node's worth or more: the nodes that can be emptied with the fewest victims.

A victim that lies on several nodes counts once. Which nodes are cheapest together is a covering problem; it is solved
greedily, nodes that share a victim together, and exactly where few attempts come into question (preempt_exact).
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from events.ids import NodeIndex
from events.job import Span
from scheduler.planning.capacity import indexes_of
from scheduler.planning.preempt_ask import Ask, Found, Step
from scheduler.planning.preempt_exact import CANDIDATES_MAX, candidates, cheaper, emptied_by
from scheduler.planning.preempt_ground import Place, Rank

ONE = 1 << 20
"""A victim, in fixed point: a node's part of one that lies on several."""


def wanted_nodes(ask: Ask) -> int:
    """How many whole nodes the gang takes: with a spread each replica has one of its own."""
    each, size = ask.spec.gpus_per_replica, ask.ground.node_gpus
    per_node = 1 if ask.hint.spread is not None else max(1, size // each)
    return -(-ask.spec.replicas // per_node)


def enough(ask: Ask, bits: int, wanted: int) -> bool:
    """Do these nodes hold the gang, as its hint wants it?"""
    if bits.bit_count() < wanted or (ask.hint.pack is Span.NODE and wanted > 1):
        return False
    if ask.hint.pack is Span.RACK:
        return any(rack.bit_count() >= wanted for rack in ask.racks(bits))
    most = ask.blocks_max()
    if most is None:
        return True
    return sum(sorted((block.bit_count() for block in ask.blocks(bits)), reverse=True)[:most]) >= wanted


def emptied(ask: Ask, number: int, step: Step, wanted: int) -> Found | None:
    """The cheapest set in this step that is found greedily; None where there is none at all."""
    bits = ask.nodes_with(step, ask.ground.node_gpus)
    if not enough(ask, bits, wanted):
        return None
    best: Found | None = None
    for region in _regions(ask, bits, wanted):
        found = _cheapest(ask, number, step, region, wanted)
        if best is None or found[:2] < best[:2]:
            best = found
    assert best is not None
    ranks = candidates(ask, step, bits) if best.cost.jobs else []
    if not 0 < len(ranks) <= CANDIDATES_MAX:
        return best
    fits = emptied_by(ask, step, bits, wanted, lambda nodes: _chosen(ask, nodes, wanted))
    return cheaper(ask, number, ranks, best, fits)


def _chosen(ask: Ask, bits: int, wanted: int) -> list[NodeIndex] | None:
    """Of nodes that are empty those that the gang would use; None where they do not hold it."""
    if not enough(ask, bits, wanted):
        return None
    region = _regions(ask, bits, wanted)[0]
    order, places = _block_order(ask, region, wanted), ask.index.places
    return sorted(indexes_of(region), key=lambda index: (order[places[index].block], index))[:wanted]


def _regions(ask: Ask, bits: int, wanted: int) -> list[int]:
    """Sets of nodes of which any that are enough will do, as far as the hint goes."""
    if ask.hint.pack is Span.RACK:
        return [rack for rack in ask.racks(bits) if rack.bit_count() >= wanted]
    most = ask.blocks_max()
    if most is None:
        return [bits]
    blocks = ask.blocks(bits)
    if most == 1:
        return [block for block in blocks if block.bit_count() >= wanted]
    idle = ask.ground.views[0][ask.ground.node_gpus]
    orders = (
        sorted(blocks, key=lambda block: -block.bit_count()),
        sorted(blocks, key=lambda block: (-min(wanted, (block & idle).bit_count()), -block.bit_count())),
    )
    regions = {_union(order[:most]) for order in orders}
    return sorted(region for region in regions if region.bit_count() >= wanted)


def _union(sets: Iterable[int]) -> int:
    bits = 0
    for nodes in sets:
        bits |= nodes
    return bits


def _cheapest(ask: Ask, number: int, step: Step, region: int, wanted: int) -> Found:
    """Nodes of the region one by one, each the one that adds the least to the victims so far."""
    idle = indexes_of(region & ask.ground.views[0][ask.ground.node_gpus])
    order = _block_order(ask, region, wanted)
    places = ask.index.places
    nodes = sorted(idle, key=lambda index: (_patience(places[index]), order[places[index].block], index))[:wanted]
    if len(nodes) == wanted:
        return ask.found(number, nodes, ())
    picker = _Picker(ask, step, region & ~_bits(idle), wanted - len(nodes), order)
    picked = picker.pick(wanted - len(nodes))
    return ask.found(number, *_pruned(ask, step, region, nodes + picked, picker.victims))


def _patience(place: Place) -> int:
    """What is free first, then what elastic jobs give back, then what is about to end (R-43)."""
    return 2 if place.awaited else 1 if place.lent else 0


def _block_order(ask: Ask, region: int, wanted: int) -> dict[str, int]:
    """Blocks as they are to be used: the smallest that holds it all, else the largest first (R-32)."""
    sizes = {name: (nodes & region).bit_count() for name, nodes in ask.ground.blocks.items()}
    names = sorted(sizes, key=lambda name: (sizes[name] < wanted, abs(sizes[name] - wanted), name))
    return {name: place for place, name in enumerate(names)}


Key = tuple[bool, int, int, int, int, int, int, NodeIndex]


class _Picker:
    """Picks nodes by what each would add: (wasteful, victims, their GPUs, block, work lost, use of their teams over
    their shares, latest start, index)."""

    def __init__(self, ask: Ask, step: Step, nodes: int, wanted: int, order: dict[str, int]) -> None:
        self._ask = ask
        self._order = order
        self._wanted = wanted_nodes(ask)
        self.victims: set[Rank] = set()
        self._on: dict[NodeIndex, list[Rank]] = {}
        self._nodes_of: dict[Rank, list[NodeIndex]] = {}
        self._parts: dict[Rank, int] = {}
        places = ask.index.places
        for index in indexes_of(nodes):
            ranks = self._on[index] = [item.rank for item in ask.items(step, places[index])]
            for rank in ranks:
                self._nodes_of.setdefault(rank, []).append(index)
        for rank, lies_on in self._nodes_of.items():
            self._parts[rank] = min(len(lies_on), wanted)

    def pick(self, wanted: int) -> list[NodeIndex]:
        """So many nodes."""
        heap = [self._key(index) for index in self._on]
        heapify(heap)
        chosen: dict[NodeIndex, None] = {}
        while len(chosen) < wanted:
            key = heappop(heap)
            index = key[-1]
            if index in chosen or key != self._key(index):
                continue
            chosen[index] = None
            new = [rank for rank in self._on[index] if rank not in self.victims]
            self.victims.update(new)
            for rank in new:
                if len(self._nodes_of[rank]) > 1:
                    for other in self._nodes_of[rank]:
                        if other not in chosen:
                            heappush(heap, self._key(other))
        return list(chosen)

    def _key(self, index: NodeIndex) -> Key:
        ask, parts, victims = self._ask, self._parts, self.victims
        now, gpu_type, jobs, gpus, lost, over, granted = ask.trial.now, ask.spec.gpu_type, 0, 0, 0, 0, 0
        for rank in self._on[index]:
            if rank not in victims:
                part = parts[rank]
                jobs += ONE // part
                gpus += rank.gpus * ONE // part
                lost += rank.gpus * (now + rank.minus_saved_at)
                over -= ask.index.over_share(rank.team, gpu_type)
                granted += rank.minus_granted_at
        wasteful = gpus * self._wanted > ask.gpus_max * ONE
        return (wasteful, jobs, gpus, self._order[ask.index.places[index].block], lost, over, granted, index)


def _pruned(
    ask: Ask, step: Step, region: int, nodes: list[NodeIndex], victims: set[Rank]
) -> tuple[list[NodeIndex], set[Rank]]:
    """Without the victims that turn out not to be needed: those that were chosen may empty more nodes than are used."""
    by_node = {index: _victims_on(ask, step, index) for index in _touched(ask, region, victims)}
    cleared = {index: ranks for index, ranks in by_node.items() if ranks <= victims}
    idle = [index for index in nodes if index not in by_node]
    spare = len(cleared) + len(idle) - len(nodes)
    if spare <= 0:
        return nodes, victims
    kept = set(victims)
    for rank in sorted(victims, key=lambda rank: (-rank.gpus, rank)):
        lost = [index for index, ranks in cleared.items() if rank in ranks]
        if len(lost) <= spare:
            spare -= len(lost)
            kept.discard(rank)
            for index in lost:
                del cleared[index]
    before = [index for index in nodes if index in cleared]
    others = [index for index in sorted(cleared) if index not in before]
    return (idle + before + others)[: len(nodes)], kept


def _touched(ask: Ask, region: int, victims: set[Rank]) -> list[NodeIndex]:
    """Nodes of the region on which a victim lies that could be emptied."""
    bits = 0
    for rank in victims:
        for index in ask.index.entries[rank.key].nodes:
            bits |= 1 << index
    return indexes_of(bits & region)


def _victims_on(ask: Ask, step: Step, index: NodeIndex) -> set[Rank]:
    return {item.rank for item in ask.items(step, ask.index.places[index])}


def _bits(indexes: Iterable[NodeIndex]) -> int:
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return bits
