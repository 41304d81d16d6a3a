"""Find GPUs for one gang, all of it or none, on the capacity that is left (R-30 to R-33).

From a node's worth of GPUs up whole nodes are claimed; smaller jobs go to nodes that are partly used already.
Strict hints are never broken. Every choice is by an explicit key, so that equal states give equal placements.
"""

from collections.abc import Iterable, Sequence

from commands.shape import takes_whole_nodes
from commands.state import State
from events.ids import BlockId, NodeIndex
from events.job import JobSpec, Span, Topology
from scheduler.planning.capacity import Capacity, Pool, nodes_in

Ranks = tuple[tuple[NodeIndex, int], ...]


def find(state: State, capacity: Capacity, spec: JobSpec) -> Ranks | None:
    """GPUs for every rank, taken from `capacity` for trial; None where the gang does not fit now."""
    for hint in _hints(spec.topology):
        for _, pool in capacity.pools_of(spec.gpu_type, spec.gpu_memory_gb_min):
            if pool.node_gpus < spec.gpus_per_replica:
                continue
            ranks = _find_in(state, capacity, pool, spec, hint)
            if ranks is not None:
                return ranks
    return None


def _hints(hint: Topology) -> list[Topology]:
    """As asked for; and without any, where the hint is only a wish."""
    return [hint] if hint.strict else [hint, Topology()]


def _find_in(state: State, capacity: Capacity, pool: Pool, spec: JobSpec, hint: Topology) -> Ranks | None:
    if takes_whole_nodes(spec, pool.node_gpus):
        return _whole_nodes(state, capacity, pool, spec, hint)
    if spec.gpus > pool.free_gpus:
        return None
    return _shared_nodes(state, capacity, pool, spec, hint)


# From a node's worth up


def _whole_nodes(state: State, capacity: Capacity, pool: Pool, spec: JobSpec, hint: Topology) -> Ranks | None:
    """Fewest blocks; among blocks that hold it all the one with the fewest free nodes, else the fullest first."""
    per_node = 1 if hint.spread is not None else max(1, pool.node_gpus // spec.gpus_per_replica)
    wanted = -(-spec.replicas // per_node)
    free = {block: buckets[pool.node_gpus] for block, buckets in pool.blocks.items() if buckets[pool.node_gpus]}
    nodes = _pick_nodes(state, free, wanted, hint)
    if nodes is None:
        return None
    return _lay_ranks(capacity, nodes, spec, per_node, pool.node_gpus)


def _pick_nodes(state: State, free: dict[BlockId, int], wanted: int, hint: Topology) -> list[NodeIndex] | None:
    if hint.spread is Span.BLOCK:
        return _one_each(sorted(free.items(), key=lambda item: (-item[1].bit_count(), item[0])), wanted)
    if hint.spread is Span.RACK:
        return _one_each(_by_rack(state, free), wanted)
    if hint.pack is Span.NODE and wanted > 1:
        return None
    if hint.pack is Span.RACK:
        racks = [(key, bits) for key, bits in _by_rack(state, free) if bits.bit_count() >= wanted]
        racks.sort(key=lambda item: (item[1].bit_count(), item[0]))
        return _first(racks[0][1], wanted) if racks else None
    return _fewest_blocks(free, wanted, _block_limit(hint))


def _block_limit(hint: Topology) -> int | None:
    """`pack: block` without max_blocks means one (R-33)."""
    if hint.max_blocks is not None:
        return hint.max_blocks
    return 1 if hint.pack is Span.BLOCK else None


def _fewest_blocks(free: dict[BlockId, int], wanted: int, limit: int | None) -> list[NodeIndex] | None:
    """Whole blocks first, the largest, until one block holds the rest: then the smallest that does."""
    left = sorted(free.items(), key=lambda item: (-item[1].bit_count(), item[0]))
    if sum(bits.bit_count() for _, bits in left) < wanted:
        return None
    chosen: list[NodeIndex] = []
    blocks = 0
    while wanted:
        blocks += 1
        if limit is not None and blocks > limit:
            return None
        holding = [item for item in left if item[1].bit_count() >= wanted]
        block = min(holding, key=lambda item: (item[1].bit_count(), item[0])) if holding else left[0]
        left.remove(block)
        taken = _first(block[1], min(wanted, block[1].bit_count()))
        chosen += taken
        wanted -= len(taken)
    return chosen


def _by_rack(state: State, free: dict[BlockId, int]) -> list[tuple[tuple[BlockId, str], int]]:
    racks: dict[tuple[BlockId, str], int] = {}
    for block in sorted(free):
        for index in nodes_in(free[block]):
            key = (block, state.nodes[index].rack)
            racks[key] = racks.get(key, 0) | 1 << index
    return sorted(racks.items(), key=lambda item: (-item[1].bit_count(), item[0]))


def _one_each(groups: Sequence[tuple[object, int]], wanted: int) -> list[NodeIndex] | None:
    return [_first(bits, 1)[0] for _, bits in groups[:wanted]] if len(groups) >= wanted else None


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
    if hint.spread is None and hint.pack is not Span.RACK and hint.max_blocks is None:
        one = _one_node(state, capacity, pool, spec.gpus)
        if one is not None or hint.pack is Span.NODE or spec.replicas == 1:
            return _cut(state, capacity, one, spec) if one is not None else None
    elif hint.spread is None:
        one = _one_node(state, capacity, pool, spec.gpus)
        if one is not None:
            return _cut(state, capacity, one, spec)
    return _scattered(state, capacity, pool, spec, hint)


def _one_node(state: State, capacity: Capacity, pool: Pool, gpus: int) -> NodeIndex | None:
    """Best fit: the node with the fewest free GPUs that holds it; in the block with the fewest free ones."""
    for count in range(gpus, pool.node_gpus + 1):
        best: tuple[int, BlockId] | None = None
        for block, buckets in pool.blocks.items():
            if buckets[count]:
                key = (sum(n * bits.bit_count() for n, bits in enumerate(buckets)), block)
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
    """Rank by rank onto the fullest node that fits and that the hint allows; in as few blocks as it takes.

    A gang of less than a node's worth that no single node holds: tried in each block, then over all of them.
    """
    regions = _regions(state, capacity, pool, hint)
    for region in regions:
        mark = capacity.mark()
        ranks = _fill(state, capacity, region, spec, hint)
        if ranks is not None:
            return ranks
        capacity.undo(mark)
    return None


def _regions(state: State, capacity: Capacity, pool: Pool, hint: Topology) -> list[list[NodeIndex]]:
    """Sets of nodes, each of which keeps the hint: racks, blocks, or the k blocks with the most room, and all."""
    per_block = {
        block: [index for bits in buckets[1:] for index in nodes_in(bits)] for block, buckets in pool.blocks.items()
    }
    if hint.pack is Span.RACK:
        racks: dict[tuple[BlockId, str], list[NodeIndex]] = {}
        for block, nodes in sorted(per_block.items()):
            for index in nodes:
                racks.setdefault((block, state.nodes[index].rack), []).append(index)
        return [racks[key] for key in sorted(racks)]
    fullest = sorted(per_block, key=lambda block: (_free_gpus(capacity, per_block[block]), block))
    regions = [per_block[block] for block in fullest] if hint.spread is not Span.BLOCK else []
    limit = _block_limit(hint)
    if limit == 1:
        return regions
    roomy = list(reversed(fullest))[: limit or len(fullest)]
    return [*regions, [index for block in roomy for index in per_block[block]]]


def _free_gpus(capacity: Capacity, nodes: list[NodeIndex]) -> int:
    return sum(capacity.free[index].bit_count() for index in nodes)


def _fill(state: State, capacity: Capacity, region: list[NodeIndex], spec: JobSpec, hint: Topology) -> Ranks | None:
    ranks: list[tuple[NodeIndex, int]] = []
    used: set[object] = set()
    while len(ranks) < spec.replicas:
        fitting = [
            (capacity.free[index].bit_count(), index)
            for index in region
            if capacity.free[index].bit_count() >= spec.gpus_per_replica
            and _group(state, index, hint.spread) not in used
        ]
        if not fitting:
            return None
        _, index = min(fitting)
        mask = pick_gpus(state, index, capacity.free[index], spec.gpus_per_replica)
        capacity.take(index, mask)
        ranks.append((index, mask))
        if hint.spread is not None:
            used.add(_group(state, index, hint.spread))
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
