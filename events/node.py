"""Nodes and their GPUs: the inventory and health on which decisions rest (I-9)."""

from dataclasses import dataclass

from events.catalogue import event
from events.ids import BlockId, GpuMask, GpuType, NodeId, NodeIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlot:
    """One GPU of a node generation; its place in the tuple is its gpu_index (P-21)."""

    uuid: str
    island: int = 0


@event("node.registered")
class NodeRegistered:
    """A node, or a new generation or agent of one.

    `incarnation`: of the agent process. `journal`: of its state directory; report numbers grow within it.
    `generation` rises when the inventory changed, which needs every lease on the node to have ended.
    """

    node: NodeIndex
    node_id: NodeId
    generation: int
    boot_id: str
    incarnation: str
    journal: str
    address: str
    block: BlockId
    rack: str
    gpu_type: GpuType
    gpu_memory_gb: int
    gpus: tuple[GpuSlot, ...]


@event("nodes.confirmed")
class NodesConfirmed:
    """These nodes reported what they run to the leader of this epoch; now they may be granted on (P-16)."""

    nodes: tuple[NodeIndex, ...]


@event("node.suspected")
class NodeSuspected:
    """No heartbeat for `silent_s`; nothing new is placed there (R-70)."""

    node: NodeIndex
    silent_s: int


@event("node.lost")
class NodeLost:
    """Declared down: its attempts fail, its claims stay until its orphans are confirmed dead (R-70, P-15)."""

    node: NodeIndex
    silent_s: int


@event("node.returned")
class NodeReturned:
    """Heard from again after suspicion or loss."""

    node: NodeIndex


@event("node.drained")
class NodeDrained:
    """Takes no new work. `now`: its attempts are stopped with grace as well."""

    node: NodeIndex
    reason: str
    now: bool = False


@event("node.undrained")
class NodeUndrained:
    """The drain is over: it takes work again."""

    node: NodeIndex


@event("node.wiped")
class NodeWiped:
    """An operator's word that nothing runs there any more: frees what was quarantined (P-15)."""

    node: NodeIndex
    reason: str


@event("node.removed")
class NodeRemoved:
    """Out of the inventory."""

    node: NodeIndex
    reason: str


@event("silence.massed")
class MassSilence:
    """So many nodes fell silent together that the fault is ours or the network's: none is declared lost (P-20)."""

    silent: int
    of: int


@event("silence.eased")
class SilenceEased:
    """The clocks of loss run again: few enough are silent, or (`operator`) an operator said they are down."""

    silent: int
    operator: bool = False


@event("gpu.faulted")
class GpuFaulted:
    """These GPUs leave the inventory (R-71)."""

    node: NodeIndex
    mask: GpuMask
    code: str


@event("gpu.repaired")
class GpuRepaired:
    """These GPUs are back in the inventory."""

    node: NodeIndex
    mask: GpuMask
