"""What a spec asks of nodes: the arithmetic that admission, planning and charging share (R-11, R-32)."""

from collections.abc import Iterable
from dataclasses import dataclass

from commands.entities import Node, NodeState
from commands.state import PoolKey, Racks, State
from events.ids import GpuType
from events.job import JobSpec, Span, Topology

NO_HINT = Topology()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """Registered nodes of one type, size and memory: a gang is placed within one such pool.

    `racks[block][rack]` = how many nodes.
    """

    node_gpus: int
    memory_gb: int
    racks: Racks

    @property
    def nodes(self) -> int:
        return sum(sum(racks.values()) for racks in self.racks.values())

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus


def pool_facts(state: State, gpu_type: GpuType, memory_gb_min: int) -> list[PoolFacts]:
    """The pools of a type, over all registered nodes, lost and drained ones too; small nodes first."""
    keys = sorted(key for key in state.pools if key[0] == gpu_type and key[2] >= memory_gb_min)
    return [PoolFacts(node_gpus=key[1], memory_gb=key[2], racks=state.pools[key]) for key in keys]


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


def takes_whole_nodes(spec: JobSpec, node_gpus: int) -> bool:
    """A job of a node's worth of GPUs or more never shares a node (R-32)."""
    return spec.gpus >= node_gpus


def demanded(spec: JobSpec) -> Topology:
    """The hint that may not be broken: none where it is only a wish."""
    return spec.topology if spec.topology.strict else NO_HINT


def ranks_per_node(spec: JobSpec, node_gpus: int, hint: Topology) -> int:
    """How many ranks go on an empty node of this size, which holds one at least."""
    apart = hint.spread is not None and spec.replicas > 1
    return 1 if apart else node_gpus // spec.gpus_per_replica


def nodes_wanted(spec: JobSpec, node_gpus: int, hint: Topology) -> int:
    """How many empty nodes of this size the gang takes."""
    return -(-spec.replicas // ranks_per_node(spec, node_gpus, hint))


def charged_gpus(spec: JobSpec, node_gpus: int, hint: Topology) -> int:
    """GPUs that are claimed and charged on nodes of this size: whole nodes from a node's worth up (R-32)."""
    if not takes_whole_nodes(spec, node_gpus):
        return spec.gpus
    return nodes_wanted(spec, node_gpus, hint) * node_gpus


def block_limit(hint: Topology) -> int | None:
    """`pack: block` without max_blocks means one (R-33)."""
    if hint.max_blocks is not None:
        return hint.max_blocks
    return 1 if hint.pack is Span.BLOCK else None


def nodes_within(pool: PoolFacts, hint: Topology) -> int:
    """The most nodes of a pool that one gang can use under a hint."""
    if hint.pack is Span.NODE:
        return min(1, pool.nodes)
    apart = hint.spread in (Span.RACK, Span.BLOCK)
    if hint.pack is Span.RACK:
        return max(min(1, nodes) if apart else nodes for racks in pool.racks.values() for nodes in racks.values())
    blocks = sorted((_usable(racks, hint.spread) for racks in pool.racks.values()), reverse=True)
    return sum(blocks[: block_limit(hint)])


def _usable(racks: dict[str, int], spread: Span | None) -> int:
    """Nodes of a block that one gang may use: one in each rack, or one, where it is spread so."""
    if spread is Span.BLOCK:
        return 1
    return len(racks) if spread is Span.RACK else sum(racks.values())


def breaks_hint(state: State, hint: Topology, ranks: Iterable[tuple[int, int]]) -> bool:
    """Do ranks on these nodes break the hint? (R-33)"""
    nodes = [state.nodes[index] for index, _ in ranks]  # type: ignore[index]
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
