"""What reservations and pledges make of the rows: room that is held or made for a job, and whom it costs (C-62)."""

from collections.abc import Iterable
from typing import Any

from events.ids import NodeIndex
from events.preemption import PreemptionEnded, PreemptionOrdered
from events.reservation import BlocksFreed, BlocksMoved, BlocksReserved
from projections.fold.jobs import job_row
from projections.fold.moment import Moment, Rule
from projections.rows import AttemptRow, JobRow, NodeRow
from projections.store import Rows, Unprojectable


def reserved(rows: Rows, when: Moment, event: BlocksReserved) -> None:
    job_row(rows, when, event.job_id).reservation = {
        "nodes": _names(rows, event.nodes),
        "start_at": event.start_at,
        "since": when.at,
    }


def moved(rows: Rows, when: Moment, event: BlocksMoved) -> None:
    row = job_row(rows, when, event.job_id)
    if row.reservation is None:
        raise Unprojectable(f"job {event.job_id} has no reservation that could move")
    row.reservation = {**row.reservation, "nodes": _names(rows, event.nodes), "start_at": event.start_at}


def freed(rows: Rows, when: Moment, event: BlocksFreed) -> None:
    job_row(rows, when, event.job_id).reservation = None


def ordered(rows: Rows, when: Moment, event: PreemptionOrdered) -> None:
    """The cause stands with the victim's attempt; the end of the attempt itself is GangEnding's."""
    job_row(rows, when, event.job_id).pledge = {
        "rule": event.rule.value,
        "gpus": sum(mask.bit_count() for _, mask in event.ranks),
        "nodes": _names(rows, (index for index, _ in event.ranks)),
        "victims": [list(key) for key in event.victims],
        "awaited": [list(key) for key in event.awaited],
        "since": when.at,
    }
    for job_id, number in event.victims:
        attempt = rows.change(AttemptRow, job_id, number)
        attempt.preempted_by, attempt.preempted_rule = event.job_id, event.rule.value
        rows.change(JobRow, job_id).preempted = {
            "by": event.job_id,
            "rule": event.rule.value,
            "attempt": number,
            "at": when.at,
        }


def ended(rows: Rows, when: Moment, event: PreemptionEnded) -> None:
    job_row(rows, when, event.job_id).pledge = None


def _names(rows: Rows, nodes: Iterable[NodeIndex]) -> list[str]:
    """Node ids, by index. Raises Unprojectable for a node that never registered."""
    found = []
    for index in sorted(set(nodes)):
        node = rows.find(NodeRow, index)
        if node is None:
            raise Unprojectable(f"node {index} is held, and never registered")
        found.append(node.node_id)
    return found


RULES: dict[type[Any], Rule] = {
    BlocksReserved: reserved,
    BlocksMoved: moved,
    BlocksFreed: freed,
    PreemptionOrdered: ordered,
    PreemptionEnded: ended,
}
