"""What the facts about nodes mean."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from commands.entities import MassSilenceState, Node, NodeState
from commands.evolve import fair
from commands.evolve.gangs import charge
from commands.shape import count_node
from commands.state import State
from events.node import (
    GpuFaulted,
    GpuRepaired,
    MassSilence,
    NodeDrained,
    NodeLost,
    NodeRegistered,
    NodeRemoved,
    NodeReturned,
    NodesConfirmed,
    NodeSuspected,
    NodeUndrained,
    NodeWiped,
    SilenceEased,
)


def registered(state: State, event: NodeRegistered) -> None:
    """A new node, a new agent of it, or a new generation. What it holds and its drain outlive all three."""
    old = state.nodes.get(event.node)
    if old is not None and old.generation != event.generation:
        assert not old.leases, f"{old.id}: a new generation while leases live"
        for gpu in old.gpus:
            state.uuids.drop(gpu.uuid)
    same_journal = old is not None and old.journal == event.journal
    node = Node(
        index=event.node,
        id=event.node_id,
        generation=event.generation,
        boot_id=event.boot_id,
        incarnation=event.incarnation,
        journal=event.journal,
        address=event.address,
        block=event.block,
        rack=event.rack,
        gpu_type=event.gpu_type,
        gpu_memory_gb=event.gpu_memory_gb,
        gpus=event.gpus,
        state=NodeState.UP if old is None or old.state is NodeState.REMOVED else old.state,
        drained=old.drained if old is not None else None,
        last_report=old.last_report if old is not None and same_journal else 0,
        used=old.used if old is not None else 0,
        pledged=old.pledged if old is not None and old.generation == event.generation else 0,
        broken=old.broken if old is not None and old.generation == event.generation else 0,
        leases=old.leases if old is not None else (),
    )
    if old is not None:
        count_node(state, old, -1)
    count_node(state, node, 1)
    state.nodes.put(node.index, node)
    if old is None:
        state.node_index.put(node.id, node.index)
    if old is None or old.generation != event.generation:
        for gpu in event.gpus:
            state.uuids.put(gpu.uuid, node.index)


def confirmed(state: State, event: NodesConfirmed) -> None:
    for index in event.nodes:
        state.nodes.put(index, replace(state.nodes[index], confirmed=state.meta.epoch))


def suspected(state: State, event: NodeSuspected) -> None:
    state.nodes.put(event.node, replace(state.nodes[event.node], state=NodeState.SUSPECT))


def lost(state: State, event: NodeLost) -> None:
    """Its GPUs stay claimed and are charged to nobody (P-15)."""
    node = state.nodes[event.node]
    _recharge(state, node, -1)
    state.nodes.put(event.node, replace(node, state=NodeState.LOST))


def returned(state: State, event: NodeReturned) -> None:
    """What still runs there is charged again until it is gone."""
    node = state.nodes[event.node]
    if node.state is NodeState.LOST:
        _recharge(state, node, 1)
    state.nodes.put(event.node, replace(node, state=NodeState.UP))


def _recharge(state: State, node: Node, sign: int) -> None:
    for job_id, number, rank in node.leases:
        attempt = state.attempts[job_id, number]
        gpus = sign * attempt.ranks[rank][1].bit_count()
        charge(state, attempt.team, attempt.gpu_type, gpus)
        if gpus < 0:
            fair.ended(state, attempt, -gpus)
        else:
            fair.returned(state, attempt, gpus)
        state.attempts.put(attempt.key, replace(attempt, charged=attempt.charged + gpus))


def drained(state: State, event: NodeDrained) -> None:
    state.nodes.put(event.node, replace(state.nodes[event.node], drained=event.reason))


def undrained(state: State, event: NodeUndrained) -> None:
    state.nodes.put(event.node, replace(state.nodes[event.node], drained=None))


def wiped(state: State, event: NodeWiped) -> None:
    """The leases end by LeaseReleased events of their own."""


def removed(state: State, event: NodeRemoved) -> None:
    """Out of the inventory; its index stays its own, should it ever come back."""
    node = state.nodes[event.node]
    assert not node.leases, f"{node.id} is removed while leases live"
    for gpu in node.gpus:
        state.uuids.drop(gpu.uuid)
    count_node(state, node, -1)
    state.nodes.put(event.node, replace(node, state=NodeState.REMOVED, gpus=(), broken=0))


def faulted(state: State, event: GpuFaulted) -> None:
    node = state.nodes[event.node]
    state.nodes.put(event.node, replace(node, broken=node.broken | event.mask))


def repaired(state: State, event: GpuRepaired) -> None:
    node = state.nodes[event.node]
    state.nodes.put(event.node, replace(node, broken=node.broken & ~event.mask))


def massed(state: State, event: MassSilence) -> None:
    state.meta = replace(state.meta, mass_silence=MassSilenceState.HELD)


def eased(state: State, event: SilenceEased) -> None:
    shown = MassSilenceState.OVERRIDDEN if event.operator else MassSilenceState.NONE
    state.meta = replace(state.meta, mass_silence=shown)


RULES: dict[type, Callable[[State, Any], None]] = {
    NodeRegistered: registered,
    NodesConfirmed: confirmed,
    NodeSuspected: suspected,
    NodeLost: lost,
    NodeReturned: returned,
    NodeDrained: drained,
    NodeUndrained: undrained,
    NodeWiped: wiped,
    NodeRemoved: removed,
    GpuFaulted: faulted,
    GpuRepaired: repaired,
    MassSilence: massed,
    SilenceEased: eased,
}
