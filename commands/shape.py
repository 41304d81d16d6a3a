"""What a spec asks of nodes: the arithmetic that admission, planning and charging share (R-11, R-32)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import is_not

from commands.entities import Node, NodeState
from commands.pools import closed, pool_of
from commands.state import PoolKey, State
from events.ids import NodeIndex
from events.job import JobSpec, Span, Topology

ANYWHERE = Topology()
TYPE_FACTS_MAX = 200
"""How many facts of types are kept: one for each memory that anybody asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFacts:
    """Registered nodes of one size. `racks`: for each block, how many nodes each of its racks has."""

    node_gpus: int
    racks: tuple[tuple[int, ...], ...]
    _rooms: dict[tuple[object, ...], int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def gpus(self) -> int:
        return self.node_gpus * sum(map(sum, self.racks))

    def room(self, each: int, hint: Topology) -> int:
        """How many replicas of `each` GPUs the empty nodes hold, with the hint kept."""
        asked = (each, hint.pack, hint.spread, hint.max_blocks)
        known = self._rooms.get(asked)
        if known is None:
            known = self._rooms[asked] = self._room(each, hint)
        return known

    def _room(self, each: int, hint: Topology) -> int:
        if each > self.node_gpus:
            return 0
        on_node = 1 if hint.spread is not None else self.node_gpus // each
        apart = {Span.RACK: {Span.RACK, Span.BLOCK}, Span.BLOCK: {Span.BLOCK}}
        in_racks = [
            [1 if hint.spread in apart[Span.RACK] else nodes * on_node for nodes in block] for block in self.racks
        ]
        in_blocks = [1 if hint.spread in apart[Span.BLOCK] else sum(racks) for racks in in_racks]
        if hint.pack is Span.NODE:
            return on_node
        if hint.pack is Span.RACK:
            return max(map(max, in_racks))
        most = hint.max_blocks or (1 if hint.pack is Span.BLOCK else len(in_blocks))
        return sum(sorted(in_blocks, reverse=True)[:most])


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """Registered hardware of one GPU type that has the memory asked for, by size of node, small ones first."""

    sizes: tuple[SizeFacts, ...]

    def gpus(self, each: int) -> int:
        """Of the node size of which there are the most GPUs, of those that hold a rank of `each`: a gang is placed on
        nodes of one size."""
        return max(size.gpus for size in self.sizes if size.node_gpus >= each)

    @property
    def node_gpus(self) -> int:
        """Of the largest node."""
        return self.sizes[-1].node_gpus

    def holding(self, spec: JobSpec, hint: Topology) -> list[SizeFacts]:
        """Sizes on whose nodes, were they empty, the job would fit with that hint."""
        return [size for size in self.sizes if size.room(spec.gpus_per_replica, hint) >= replicas_min(spec)]


def type_facts(state: State, spec: JobSpec, memory_gb_min: int) -> TypeFacts | None:
    """Facts of the spec's type over all registered nodes, lost and drained ones too; None where there are none.
    Nodes of pools that the job may never use are left out."""
    if state.policy.pools:
        return _facts(_node_by_node(state, spec, memory_gb_min))
    rows = tuple(state.pools[key] for key in sorted(state.pools))
    known = state.type_facts.get((spec.gpu_type, memory_gb_min))
    if known is None or len(known[0]) != len(rows) or any(map(is_not, known[0], rows)):
        if len(state.type_facts) > TYPE_FACTS_MAX:
            state.type_facts.clear()
        known = (rows, _facts(_counted(state, spec, memory_gb_min)))
        state.type_facts[spec.gpu_type, memory_gb_min] = known
    facts: TypeFacts | None = known[1]
    return facts


def pool_facts(state: State, spec: JobSpec) -> TypeFacts | None:
    """The same over the nodes of the pools that are there for such a job; None where there are none."""
    pools, found = state.policy.pools, []
    for node in _nodes(state, spec) if pools else ():
        pool = pool_of(pools, node)
        if pool is not None and pool.is_for(spec, spec.priority_class) and node.gpu_memory_gb >= spec.gpu_memory_gb_min:
            found.append((len(node.gpus), node.block, node.rack, 1))
    return _facts(iter(found))


def _facts(counted: Iterator[tuple[int, str, str, int]]) -> TypeFacts | None:
    sizes: dict[int, dict[str, dict[str, int]]] = {}
    for size, block, rack, count in counted:
        racks = sizes.setdefault(size, {}).setdefault(block, {})
        racks[rack] = racks.get(rack, 0) + count
    if not sizes:
        return None
    return TypeFacts(
        sizes=tuple(
            SizeFacts(node_gpus=size, racks=tuple(tuple(racks.values()) for racks in sizes[size].values()))
            for size in sorted(sizes)
        )
    )


def _node_by_node(state: State, spec: JobSpec, memory_gb_min: int) -> Iterator[tuple[int, str, str, int]]:
    """(GPUs of a node, block, rack, how many such nodes), where pools are declared, which may be closed to the job."""
    for node in _nodes(state, spec):
        if node.gpu_memory_gb >= memory_gb_min and node.gpus:
            yield len(node.gpus), node.block, node.rack, 1


def _counted(state: State, spec: JobSpec, memory_gb_min: int) -> Iterator[tuple[int, str, str, int]]:
    """The same from the counts that are kept."""
    for key in sorted(state.pools):
        if key[0] == spec.gpu_type and key[1] and key[2] >= memory_gb_min:
            for block, racks in state.pools[key].items():
                for rack, count in racks.items():
                    yield key[1], block, rack, count


def count_node(state: State, node: Node, by: int) -> None:
    """Keep `state.pools` in step: the node came (1) or went (-1). One that is removed counts nowhere."""
    if node.state is NodeState.REMOVED:
        return
    key: PoolKey = (node.gpu_type, len(node.gpus), node.gpu_memory_gb)
    pool = dict(state.pools.get(key) or {})
    racks = dict(pool.get(node.block, {}))
    racks[node.rack] = racks.get(node.rack, 0) + by
    pool[node.block] = {rack: count for rack, count in racks.items() if count}
    pool = {block: racks for block, racks in pool.items() if racks}
    if pool:
        state.pools.put(key, pool)
    else:
        state.pools.drop(key)


def demanded(spec: JobSpec) -> Topology:
    """The hint that may not be broken: none where it is only a wish."""
    return spec.topology if spec.topology.strict else ANYWHERE


def block_limit(hint: Topology) -> int | None:
    """`pack: block` without max_blocks means one (R-33)."""
    if hint.max_blocks is not None:
        return hint.max_blocks
    return 1 if hint.pack is Span.BLOCK else None


def breaks_hint(state: State, hint: Topology, ranks: Iterable[tuple[NodeIndex, int]]) -> bool:
    """Do ranks on these nodes break the hint? (R-33)"""
    if hint is ANYWHERE or hint == ANYWHERE:
        return False
    nodes = [state.nodes[index] for index, _ in ranks]
    places: dict[Span, list[tuple[object, ...]]] = {
        Span.NODE: [(node.block, node.rack, node.index) for node in nodes],
        Span.RACK: [(node.block, node.rack) for node in nodes],
        Span.BLOCK: [(node.block,) for node in nodes],
    }
    if hint.pack in (Span.NODE, Span.RACK) and len(set(places[hint.pack])) > 1:
        return True
    limit = block_limit(hint)
    if limit is not None and len(set(places[Span.BLOCK])) > limit:
        return True
    return hint.spread is not None and len(set(places[hint.spread])) < len(nodes)


def memories(state: State, spec: JobSpec) -> list[int]:
    """GB that a GPU has, of each registered node that the job may use."""
    return [node.gpu_memory_gb for node in _nodes(state, spec)]


def _nodes(state: State, spec: JobSpec) -> Iterator[Node]:
    pools = state.policy.pools
    for node in state.nodes.rows.values():
        if node.gpu_type == spec.gpu_type and node.state is not NodeState.REMOVED:
            if pools and closed(pools, node, spec, spec.priority_class):
                continue
            yield node


def replicas_min(spec: JobSpec) -> int:
    """The smallest gang that will do."""
    return spec.replicas if spec.elastic is None else spec.elastic.min_replicas


def takes_whole_nodes(spec: JobSpec, node_gpus: int, replicas: int | None = None) -> bool:
    """A job of a node's worth of GPUs or more never shares a node (R-32). `replicas`: so many instead of the spec's."""
    return (spec.replicas if replicas is None else replicas) * spec.gpus_per_replica >= node_gpus


def ranks_per_node(spec: JobSpec, node_gpus: int) -> int:
    """How many ranks a node of this size holds that is the job's alone: one where the hint strictly spreads them; at
    least one (whether it fits at all is another question)."""
    if spec.topology.spread is not None and spec.topology.strict:
        return 1
    return max(1, node_gpus // spec.gpus_per_replica)


def charged_gpus(spec: JobSpec, node_gpus: int, replicas: int | None = None) -> int:
    """GPUs that are claimed and charged on nodes of this size: whole nodes from a node's worth up (R-32)."""
    count = spec.replicas if replicas is None else replicas
    if count * spec.gpus_per_replica < node_gpus:
        return count * spec.gpus_per_replica
    return -(-count // ranks_per_node(spec, node_gpus)) * node_gpus


def least_charge(state: State, spec: JobSpec) -> int:
    """GPUs that the smallest gang that will do is charged for, on the size of node that charges least for it."""
    count, each = replicas_min(spec), spec.gpus_per_replica
    if count == 1:
        return each
    sizes = {
        size
        for gpu_type, size, memory_gb in state.pools
        if gpu_type == spec.gpu_type and size >= each and memory_gb >= spec.gpu_memory_gb_min
    }
    return min((charged_gpus(spec, size, count) for size in sizes), default=count * each)
