"""What the facts about nodes and their GPUs make of read.nodes."""

from typing import Any

import orjson

from events.leadership import ClaimConflictFound
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
    SilenceEased,
)
from projections.fold.moment import Moment, Rule, slots_of
from projections.rows import ClusterRow, NodeRow
from projections.store import Rows


def node_row(rows: Rows, when: Moment, index: int) -> NodeRow:
    """The node's row, to be changed by the event at `when`."""
    row = rows.change(NodeRow, index)
    row.changed_at, row.changed_seq = when.at, when.seq
    return row


def _show(row: NodeRow, when: Moment, state: str, silent_s: int | None = None) -> None:
    row.state, row.silent_s, row.state_changed_at = state, silent_s, when.at


def registered(rows: Rows, when: Moment, event: NodeRegistered) -> None:
    """A new node, a new agent of it, or a new generation. Its state and its drain outlive all three."""
    row = NodeRow(
        cluster=rows.cluster,
        node_index=event.node,
        node_id=event.node_id,
        generation=event.generation,
        boot_id=event.boot_id,
        incarnation=event.incarnation,
        journal=event.journal,
        address=event.address,
        block=event.block,
        rack=event.rack,
        gpu_type=event.gpu_type,
        gpu_memory_gb=event.gpu_memory_gb,
        gpu_count=len(event.gpus),
        gpus=orjson.loads(orjson.dumps(event.gpus)),
        registered_at=when.at,
        state_changed_at=when.at,
        changed_at=when.at,
        changed_seq=when.seq,
    )
    old = rows.find(NodeRow, event.node)
    if old is not None:
        row.drained, row.drain_reason, row.drain_now = old.drained, old.drain_reason, old.drain_now
        if old.generation == event.generation:
            row.faults = old.faults
        if old.state != "removed":
            row.state, row.silent_s, row.state_changed_at = old.state, old.silent_s, old.state_changed_at
    rows.put(row)


def confirmed(rows: Rows, when: Moment, event: NodesConfirmed) -> None:
    """Nothing that a person would call a change."""
    for index in event.nodes:
        row = rows.change(NodeRow, index)
        row.confirmed_at, row.confirmed_epoch = when.at, when.commit.epoch


def suspected(rows: Rows, when: Moment, event: NodeSuspected) -> None:
    _show(node_row(rows, when, event.node), when, "suspect", event.silent_s)


def lost(rows: Rows, when: Moment, event: NodeLost) -> None:
    """Its leases live on and are charged to nobody: the view read.quota_use looks at this state."""
    _show(node_row(rows, when, event.node), when, "lost", event.silent_s)


def returned(rows: Rows, when: Moment, event: NodeReturned) -> None:
    _show(node_row(rows, when, event.node), when, "up")


def removed(rows: Rows, when: Moment, event: NodeRemoved) -> None:
    """Out of the inventory, with its GPUs; the row stays for those who look back."""
    row = node_row(rows, when, event.node)
    _show(row, when, "removed")
    row.gpus, row.gpu_count, row.faults = [], 0, {}


def drained(rows: Rows, when: Moment, event: NodeDrained) -> None:
    row = node_row(rows, when, event.node)
    row.drained, row.drain_reason, row.drain_now = True, event.reason, event.now


def undrained(rows: Rows, when: Moment, event: NodeUndrained) -> None:
    row = node_row(rows, when, event.node)
    row.drained, row.drain_reason, row.drain_now = False, None, False


def faulted(rows: Rows, when: Moment, event: GpuFaulted) -> None:
    row = node_row(rows, when, event.node)
    row.faults = {**row.faults, **{str(slot): event.code for slot in slots_of(event.mask)}}


def repaired(rows: Rows, when: Moment, event: GpuRepaired) -> None:
    row = node_row(rows, when, event.node)
    whole = {str(slot) for slot in slots_of(event.mask)}
    row.faults = {slot: code for slot, code in row.faults.items() if slot not in whole}


def conflict_found(rows: Rows, when: Moment, event: ClaimConflictFound) -> None:
    """A GPU whose claim nobody can explain is out of the inventory once it is quarantined (P-8)."""
    if not event.quarantined:
        return
    for node in rows.rows_of(NodeRow):
        if node.node_id == event.node_id:
            row = node_row(rows, when, node.node_index)
            row.faults = {**row.faults, str(event.gpu): "claim_conflict"}


def massed(rows: Rows, when: Moment, event: MassSilence) -> None:
    row = rows.change(ClusterRow)
    row.silence, row.silence_changed_at = "held", when.at
    row.silent, row.silent_of = event.silent, event.of


def eased(rows: Rows, when: Moment, event: SilenceEased) -> None:
    row = rows.change(ClusterRow)
    row.silence, row.silence_changed_at = ("overridden" if event.operator else "none"), when.at
    row.silent = event.silent


RULES: dict[type[Any], Rule] = {
    NodeRegistered: registered,
    NodesConfirmed: confirmed,
    NodeSuspected: suspected,
    NodeLost: lost,
    NodeReturned: returned,
    NodeRemoved: removed,
    NodeDrained: drained,
    NodeUndrained: undrained,
    GpuFaulted: faulted,
    GpuRepaired: repaired,
    ClaimConflictFound: conflict_found,
    MassSilence: massed,
    SilenceEased: eased,
}
