"""What a spec asks of nodes: the arithmetic that admission, planning and charging share (R-11, R-32)."""

from dataclasses import dataclass

from commands.entities import NodeState
from commands.state import State
from events.ids import GpuType
from events.job import JobSpec


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """Registered hardware of one GPU type that has the memory asked for.

    `gpus`: in all; `node_gpus`: the largest node; `nodes`: how many; `blocks`, `racks`: how many distinct.
    """

    gpus: int
    node_gpus: int
    nodes: int
    blocks: int
    racks: int
    block_gpus: int
    rack_gpus: int


def type_facts(state: State, gpu_type: GpuType, memory_gb_min: int) -> TypeFacts | None:
    """Facts of a type over all registered nodes, lost and drained ones too; None where there are none."""
    per_block: dict[str, int] = {}
    per_rack: dict[tuple[str, str], int] = {}
    nodes = largest = 0
    for node in state.nodes.rows.values():
        if node.gpu_type != gpu_type or node.state is NodeState.REMOVED or node.gpu_memory_gb < memory_gb_min:
            continue
        size = len(node.gpus)
        nodes += 1
        largest = max(largest, size)
        per_block[node.block] = per_block.get(node.block, 0) + size
        per_rack[node.block, node.rack] = per_rack.get((node.block, node.rack), 0) + size
    if not nodes:
        return None
    return TypeFacts(
        gpus=sum(per_block.values()),
        node_gpus=largest,
        nodes=nodes,
        blocks=len(per_block),
        racks=len(per_rack),
        block_gpus=max(per_block.values()),
        rack_gpus=max(per_rack.values()),
    )


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
