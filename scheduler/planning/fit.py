"""Find GPUs for one gang, all of it or none, on the capacity that is left (R-30 to R-33, R-35).

From a node's worth of GPUs up whole nodes are claimed; smaller jobs go to nodes that are partly used already. A gang
is placed on nodes of one size, that which charges the fewest GPUs first. Strict hints are never broken; a placement is
found if and only if there is one. Every choice is by an explicit key, so that equal states give equal placements.

In this order: as hinted; fewest GPUs charged; smallest nodes; least memory; fewest blocks; fewest racks; fewest nodes;
in the block, the rack, the node and the island with the fewest free GPUs that hold it; preferred nodes; lowest index.
"""

from itertools import repeat
from typing import NamedTuple

from commands.plan import Ranks
from commands.shape import charged_gpus
from commands.state import State
from events.ids import NodeIndex
from events.job import JobSpec, Span, Topology
from scheduler.planning.capacity import Capacity, indexes_of
from scheduler.planning.cover import StepsSpent
from scheduler.planning.first_fit import first_fit
from scheduler.planning.pool import Pool
from scheduler.planning.seats import Ask, Chunk, seats

__all__ = ["STEPS_MAX", "Found", "Ranks", "find", "find_many", "find_with_fallback", "one_rank"]

STEPS_MAX = 150_000
"""Steps of the search for the fewest racks, some 20 ns each; first fit takes over where it would need more (R-35).
0: always."""
_SPREADS = {None: (), Span.NODE: (Span.NODE,), Span.RACK: (Span.RACK, Span.NODE), Span.BLOCK: tuple(Span)[::-1]}
_ANYWHERE = Topology()


class Found(NamedTuple):
    """A placement, taken for trial. `fallback`: plain first fit found it (R-35)."""

    ranks: Ranks
    fallback: bool


def find(
    state: State,
    capacity: Capacity,
    spec: JobSpec,
    *,
    among: int | None = None,
    replicas: int | None = None,
    prefer: int = 0,
) -> Ranks | None:
    """GPUs for every rank, taken from `capacity` for trial; None where the gang does not fit now.

    `among`: bitset of the nodes that may be used, None: all. `replicas`: so many instead of the spec's. `prefer`:
    bitset of nodes to prefer among equal ones, such as those that have the image (R-38).
    """
    if (spec.replicas if replicas is None else replicas) == 1:
        return one_rank(capacity, spec, among, prefer)
    found = find_with_fallback(state, capacity, spec, among=among, replicas=replicas, prefer=prefer)
    return None if found is None else found.ranks


def find_with_fallback(
    state: State,
    capacity: Capacity,
    spec: JobSpec,
    *,
    among: int | None = None,
    replicas: int | None = None,
    prefer: int = 0,
    gpus_max: int | None = None,
    steps_max: int = STEPS_MAX,
) -> Found | None:
    """As `find`, and whether first fit had to take over. `gpus_max`: what the gang may be charged at most."""
    count = spec.replicas if replicas is None else replicas
    if count == 1:
        ranks = one_rank(capacity, spec, among, prefer)
        return None if ranks is None else Found(ranks, False)
    for hint in _wishes(spec.topology):
        for pool, usable in _places(capacity, spec, count, among):
            ask = _ask(pool, spec.gpus_per_replica, count, hint=hint, usable=usable, prefer=prefer)
            if gpus_max is not None and ask.charged > gpus_max:
                continue
            found = _gang(state, capacity, ask, usable, steps_max)
            if found is not None:
                return found
    return None


def find_many(
    state: State,
    capacity: Capacity,
    spec: JobSpec,
    count: int,
    *,
    among: int | None = None,
    prefer: int = 0,
) -> list[Ranks]:
    """What `find` would give one after the other for up to `count` equal jobs, but quicker for jobs of one rank: what
    fits best once fits best again, as long as the node has room."""
    found: list[Ranks] = []
    if spec.replicas > 1:
        while len(found) < count and (ranks := find(state, capacity, spec, among=among, prefer=prefer)) is not None:
            found.append(ranks)
        return found
    each = spec.gpus_per_replica
    while len(found) < count and (index := _best_node(capacity, spec, among, prefer)) is not None:
        free = capacity.free[index]
        times = min(free.bit_count() // each, count - len(found))
        masks = capacity.at[index][3].pick_many(free, each, times)
        capacity.take(index, sum(masks))
        found += [((index, mask),) for mask in masks]
    return found


def one_rank(capacity: Capacity, spec: JobSpec, among: int | None, prefer: int = 0) -> Ranks | None:
    """On one node every hint holds. A rank of a whole node's size takes one that is wholly free. What fitted best a
    moment ago fits best again, as long as it has room: nothing is as full that has."""
    each = spec.gpus_per_replica
    asked = (spec.gpu_type, each, spec.gpu_memory_gb_min, among, prefer)
    index = capacity.last(asked)
    if index is None or capacity.free[index].bit_count() < each:
        index = _best_node(capacity, spec, among, prefer)
        if index is None:
            return None
    mask = capacity.at[index][3].pick(capacity.free[index], each)
    capacity.take(index, mask, asked)
    return ((index, mask),)


def _best_node(capacity: Capacity, spec: JobSpec, among: int | None, prefer: int) -> NodeIndex | None:
    """The node on which one rank fits best."""
    each = spec.gpus_per_replica
    for pool in capacity.by_type.get(spec.gpu_type, ()):
        if pool.node_gpus < each or pool.free_gpus < each:
            continue
        for has_memory in pool.with_memory(spec.gpu_memory_gb_min):
            usable = among if has_memory is None else _both(among, has_memory)
            bit = pool.best_node(each, usable, prefer)
            if bit:
                return NodeIndex(bit.bit_length() - 1)
    return None


def _wishes(hint: Topology) -> list[Topology]:
    """As asked for. Where it is only a wish, then ever looser: without a limit (what is placed is packed anyway), then
    spread over less, then anywhere."""
    if hint.strict:
        return [hint]
    return [hint, *(Topology(spread=spread) for spread in _SPREADS[hint.spread]), _ANYWHERE]


def _places(capacity: Capacity, spec: JobSpec, count: int, among: int | None) -> list[tuple[Pool, int | None]]:
    """Pools and the nodes of them that may be used: the fewest GPUs charged, then small nodes, then little memory."""
    each = spec.gpus_per_replica
    pools = [pool for pool in capacity.by_type.get(spec.gpu_type, ()) if pool.node_gpus >= each]
    if len(pools) > 1:
        pools.sort(key=lambda pool: charged_gpus(spec, pool.node_gpus, count))
    return [
        (pool, _both(among, has_memory)) for pool in pools for has_memory in pool.with_memory(spec.gpu_memory_gb_min)
    ]


def _both(some: int | None, others: int | None) -> int | None:
    """Nodes of both bitsets; None: all."""
    if some is None:
        return others
    return some if others is None else some & others


# Gangs of several ranks


def _ask(pool: Pool, each: int, replicas: int, *, hint: Topology, usable: int | None, prefer: int) -> Ask:
    size, spread = pool.node_gpus, hint.spread is not None
    if each * replicas >= size:
        per_node = 1 if spread else size // each
        whole = pool.nodes[size] if usable is None else pool.nodes[size] & usable
        levels = alike = [(whole, 1)] if whole else []
        units = -(-replicas // per_node)
    else:
        per_node, units = 0, replicas
        levels = []
        for free in range(each, size + 1):
            bits = pool.nodes[free] if usable is None else pool.nodes[free] & usable
            if bits:
                levels.append((bits, 1 if spread else free // each))
        alike = _together(levels)
    return Ask(
        pool=pool,
        each=each,
        replicas=replicas,
        per_node=per_node,
        units=units,
        hint=hint,
        levels=levels,
        alike=alike,
        prefer=prefer,
    )


def _together(levels: list[tuple[int, int]]) -> list[tuple[int, int]]:
    bits_of: dict[int, int] = {}
    for bits, units in levels:
        bits_of[units] = bits_of.get(units, 0) | bits
    return [(bits, units) for units, bits in bits_of.items()]


def _gang(state: State, capacity: Capacity, ask: Ask, usable: int | None, steps_max: int) -> Found | None:
    """The gang on nodes of one pool."""
    gpus = ask.each * ask.replicas
    if ask.pool.free_gpus < gpus or not ask.enough:
        return None
    fallback = False
    try:
        if steps_max <= 0:
            raise StepsSpent
        chosen = _on_one_node(ask, gpus, usable) or seats(ask, steps_max)
    except Exception:  # out of steps, or our bug: either way the gang is not to wait for it
        chosen, fallback = first_fit(state, ask), True
    if chosen is None:
        return None
    lay = _lay_whole if ask.per_node else _lay_shared
    return Found(lay(capacity, ask, chosen), fallback)


def _on_one_node(ask: Ask, gpus: int, usable: int | None) -> list[Chunk] | None:
    """A gang that one node holds goes to the one that it fits best, unless it is to be spread."""
    if ask.hint.spread is not None or (ask.units > 1 and ask.per_node):
        return None
    bit = ask.pool.best_node(ask.pool.node_gpus if ask.per_node else gpus, usable, ask.prefer)
    return [(bit, ask.units)] if bit else None


def _lay_whole(capacity: Capacity, ask: Ask, chosen: list[Chunk]) -> Ranks:
    """Ranks in order over the nodes; the last rank of each node claims what is left of it (R-32)."""
    nodes = capacity.take_whole([bits for bits, _ in chosen])
    masks = _masks(ask.pool.node_gpus, ask.each, ask.per_node)
    if len(masks) == 1:
        return tuple(zip(nodes, repeat(masks[0])))
    last = ask.replicas - ask.per_node * (len(nodes) - 1)
    ranks = [(index, mask) for index in nodes[:-1] for mask in masks]
    ranks += [(nodes[-1], mask) for mask in _masks(ask.pool.node_gpus, ask.each, last)]
    return tuple(ranks)


def _masks(node_gpus: int, each: int, ranks: int) -> list[int]:
    """GPUs of each of so many ranks on a node that is theirs alone."""
    masks = [((1 << each) - 1) << rank * each for rank in range(ranks)]
    masks[-1] = (1 << node_gpus) - 1 & ~sum(masks[:-1])
    return masks


def _lay_shared(capacity: Capacity, ask: Ask, chosen: list[Chunk]) -> Ranks:
    """Each rank on GPUs of as few islands as can be."""
    ranks: list[tuple[NodeIndex, int]] = []
    for bits, number in chosen:
        for index in indexes_of(bits):
            masks = capacity.at[index][3].pick_many(capacity.free[index], ask.each, number)
            capacity.take(index, sum(masks))
            ranks += [(index, mask) for mask in masks]
    return tuple(ranks)
