"""Find GPUs for one gang, all of it or none, on the capacity that is left (R-30 to R-33).

From a node's worth of GPUs up whole nodes are claimed; smaller jobs go to nodes that are partly used already.
Strict hints are never broken. Every choice is by an explicit key, so that equal states give equal placements.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from commands.shape import NO_HINT, block_limit, charged_gpus, nodes_wanted, ranks_per_node, takes_whole_nodes
from commands.state import State
from events.ids import BlockId, NodeIndex
from events.job import JobSpec, Span, Topology
from scheduler.planning.capacity import Capacity, Pool, nodes_in

K = TypeVar("K")
Ranks = tuple[tuple[NodeIndex, int], ...]


def find(state: State, capacity: Capacity, spec: JobSpec, room: int) -> Ranks | None:
    """GPUs for every rank, at most `room` in all, taken from `capacity` for trial; None where the gang does not fit."""
    for hint in _hints(spec):
        for pool in capacity.pools_of(spec.gpu_type, spec.gpu_memory_gb_min):
            if pool.node_gpus < spec.gpus_per_replica or charged_gpus(spec, pool.node_gpus, hint) > room:
                continue
            ranks = _find_in(state, capacity, pool, spec, hint)
            if ranks is not None:
                return ranks
    return None


def _hints(spec: JobSpec) -> list[Topology]:
    """As asked for; and without any, where the hint is only a wish. One replica alone is always spread."""
    hint = spec.topology if spec.replicas > 1 else replace(spec.topology, spread=None)
    return [hint] if hint.strict else [hint, NO_HINT]


def _find_in(state: State, capacity: Capacity, pool: Pool, spec: JobSpec, hint: Topology) -> Ranks | None:
    if takes_whole_nodes(spec, pool.node_gpus):
        return _whole_nodes(state, capacity, pool, spec, hint)
    if spec.gpus > pool.free_gpus:
        return None
    return _shared_nodes(state, capacity, pool, spec, hint)


def _fewest(
    room: Mapping[K, int], order: Callable[[K], tuple[Any, ...]], wanted: int, limit: int | None
) -> list[tuple[K, int]] | None:
    """As few groups as hold `wanted`, and how many to take of each; None where it would be over `limit` groups.

    The roomiest are used up first, until one group holds the rest: then the first in `order` that does.
    """
    if sum(room.values()) < wanted:
        return None
    left = sorted((key for key in room if room[key]), key=lambda key: (-room[key], order(key)))
    chosen: list[tuple[K, int]] = []
    while wanted:
        if limit is not None and len(chosen) == limit:
            return None
        holding = [key for key in left if room[key] >= wanted]
        key = min(holding, key=order) if holding else left[0]
        left.remove(key)
        taken = min(wanted, room[key])
        chosen.append((key, taken))
        wanted -= taken
    return chosen


# From a node's worth up


def _whole_nodes(state: State, capacity: Capacity, pool: Pool, spec: JobSpec, hint: Topology) -> Ranks | None:
    wanted = nodes_wanted(spec, pool.node_gpus, hint)
    if hint.pack is Span.NODE and wanted > 1:
        return None
    free = {block: buckets[pool.node_gpus] for block, buckets in pool.blocks.items() if buckets[pool.node_gpus]}
    if sum(bits.bit_count() for bits in free.values()) < wanted:
        return None
    nodes = _pick_nodes(state, pool, free, wanted, hint)
    if nodes is None:
        return None
    return _lay_ranks(capacity, nodes, spec, ranks_per_node(spec, pool.node_gpus, hint), pool.node_gpus)


def _pick_nodes(
    state: State, pool: Pool, free: dict[BlockId, int], wanted: int, hint: Topology
) -> list[NodeIndex] | None:
    """Fewest blocks; among blocks that hold it all the one with the fewest free nodes. The same for racks in it."""
    if hint.pack is Span.RACK:
        racks = {(block, rack): bits for block in free for rack, bits in _racks(state, free[block]).items()}
        usable = {key: _usable(state, bits, hint.spread) for key, bits in racks.items()}
        return _take(usable, _fewest(_counts(usable), lambda key: (usable[key].bit_count(), key), wanted, 1))
    usable_of = {block: _usable(state, bits, hint.spread) for block, bits in free.items()}
    blocks = _fewest(
        _counts(usable_of),
        lambda block: (free[block].bit_count(), pool.free_in(block), block),
        wanted,
        block_limit(hint),
    )
    if blocks is None:
        return None
    nodes: list[NodeIndex] = []
    for block, count in blocks:
        of_racks = _racks(state, usable_of[block])
        nodes += _take(of_racks, _fewest(_counts(of_racks), _by_count(of_racks), count, None)) or []
    return nodes


def _by_count(groups: dict[str, int]) -> Callable[[str], tuple[Any, ...]]:
    return lambda key: (groups[key].bit_count(), key)


def _counts(groups: dict[K, int]) -> dict[K, int]:
    return {key: bits.bit_count() for key, bits in groups.items()}


def _usable(state: State, bits: int, spread: Span | None) -> int:
    """The nodes of a block, or of a rack, that one gang may use: one in each rack, or one, where it is spread so."""
    if spread is Span.BLOCK:
        return bits & -bits
    if spread is Span.RACK:
        return sum(rack & -rack for rack in _racks(state, bits).values())
    return bits


def _racks(state: State, bits: int) -> dict[str, int]:
    """Nodes of one block, by rack."""
    racks: dict[str, int] = {}
    for index in nodes_in(bits):
        rack = state.nodes[index].rack
        racks[rack] = racks.get(rack, 0) | 1 << index
    return racks


def _take(groups: dict[K, int], chosen: list[tuple[K, int]] | None) -> list[NodeIndex] | None:
    if chosen is None:
        return None
    return [index for key, count in chosen for index in _first(groups[key], count)]


def _first(bits: int, count: int) -> list[NodeIndex]:
    nodes: list[NodeIndex] = []
    for index in nodes_in(bits):
        if len(nodes) == count:
            break
        nodes.append(index)
    return nodes


def _lay_ranks(capacity: Capacity, nodes: Iterable[NodeIndex], spec: JobSpec, per_node: int, node_gpus: int) -> Ranks:
    """Ranks in order over the nodes; the last rank of each node claims what is left of it (R-32)."""
    ranks: list[tuple[NodeIndex, int]] = []
    left = spec.replicas
    for index in nodes:
        here = min(per_node, left)
        left -= here
        whole = (1 << node_gpus) - 1
        capacity.take(index, whole)
        for place in range(here):
            mask = ((1 << spec.gpus_per_replica) - 1) << place * spec.gpus_per_replica
            ranks.append((index, whole if place == here - 1 else mask))
            whole &= ~mask
    return tuple(ranks)


# Less than a node's worth


def _shared_nodes(state: State, capacity: Capacity, pool: Pool, spec: JobSpec, hint: Topology) -> Ranks | None:
    """On one node where one holds it, which keeps every hint but a spread; else over several."""
    if hint.spread is None:
        one = _one_node(state, capacity, pool, spec.gpus)
        if one is not None:
            return _cut(state, capacity, one, spec)
    if hint.pack is Span.NODE or spec.replicas == 1:
        return None
    return _scattered(state, capacity, pool, spec, hint)


def _one_node(state: State, capacity: Capacity, pool: Pool, gpus: int) -> NodeIndex | None:
    """Best fit: the node with the fewest free GPUs that holds it; in the block with the fewest free ones."""
    for count in range(gpus, pool.node_gpus + 1):
        best: tuple[int, BlockId] | None = None
        for block, buckets in pool.blocks.items():
            if buckets[count]:
                key = (pool.free_in(block), block)
                best = key if best is None or key < best else best
        if best is not None:
            bits = pool.blocks[best[1]][count]
            return NodeIndex((bits & -bits).bit_length() - 1)
    return None


def _cut(state: State, capacity: Capacity, index: NodeIndex, spec: JobSpec) -> Ranks:
    ranks = []
    for _ in range(spec.replicas):
        mask = pick_gpus(state, index, capacity.free[index], spec.gpus_per_replica)
        capacity.take(index, mask)
        ranks.append((index, mask))
    return tuple(ranks)


def pick_gpus(state: State, index: NodeIndex, free: int, count: int) -> int:
    """GPUs of one node: of the island with the fewest free ones that holds them all, else lowest slots first."""
    islands: dict[int, int] = {}
    for slot, gpu in enumerate(state.nodes[index].gpus):
        if free >> slot & 1:
            islands[gpu.island] = islands.get(gpu.island, 0) | 1 << slot
    holding = [(bits.bit_count(), island) for island, bits in islands.items() if bits.bit_count() >= count]
    bits = islands[min(holding)[1]] if holding else free
    mask = 0
    for _ in range(count):
        low = bits & -bits
        mask |= low
        bits ^= low
    return mask


def _scattered(state: State, capacity: Capacity, pool: Pool, spec: JobSpec, hint: Topology) -> Ranks | None:
    """In as few blocks as it takes, or in one rack; among those that hold it all the one with the fewest free GPUs."""
    regions: dict[tuple[str, ...], list[NodeIndex]] = {}
    for block, buckets in pool.blocks.items():
        for bits in buckets[spec.gpus_per_replica :]:
            for index in nodes_in(bits):
                rack = (state.nodes[index].rack,) if hint.pack is Span.RACK else ()
                regions.setdefault((block, *rack), []).append(index)
    room = {key: _ranks_in(state, capacity, nodes, spec, hint.spread) for key, nodes in regions.items()}
    limit = 1 if hint.pack is Span.RACK else block_limit(hint)
    chosen = _fewest(room, lambda key: (_free_gpus(capacity, regions[key]), key), spec.replicas, limit)
    if chosen is None:
        return None
    ranks: list[tuple[NodeIndex, int]] = []
    for key, count in chosen:
        ranks += _fill(state, capacity, regions[key], spec.gpus_per_replica, count, hint.spread)
    return tuple(ranks)


def _ranks_in(state: State, capacity: Capacity, nodes: list[NodeIndex], spec: JobSpec, spread: Span | None) -> int:
    """How many ranks the nodes hold, each of which holds one at least."""
    if spread is None:
        return sum(capacity.free[index].bit_count() // spec.gpus_per_replica for index in nodes)
    return len({_group(state, index, spread) for index in nodes})


def _free_gpus(capacity: Capacity, nodes: list[NodeIndex]) -> int:
    return sum(capacity.free[index].bit_count() for index in nodes)


def _fill(
    state: State, capacity: Capacity, nodes: list[NodeIndex], gpus: int, count: int, spread: Span | None
) -> Ranks:
    """Rank by rank onto the fullest node that fits and that the spread allows; `_ranks_in` has counted them."""
    ranks: list[tuple[NodeIndex, int]] = []
    used: set[object] = set()
    for _ in range(count):
        _, index = min(
            (capacity.free[index].bit_count(), index)
            for index in nodes
            if capacity.free[index].bit_count() >= gpus and _group(state, index, spread) not in used
        )
        mask = pick_gpus(state, index, capacity.free[index], gpus)
        capacity.take(index, mask)
        ranks.append((index, mask))
        if spread is not None:
            used.add(_group(state, index, spread))
    return tuple(ranks)


def _group(state: State, index: NodeIndex, spread: Span | None) -> object:
    node = state.nodes[index]
    match spread:
        case Span.BLOCK:
            return node.block
        case Span.RACK:
            return (node.block, node.rack)
        case _:
            return index
