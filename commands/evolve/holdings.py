"""What reservations and pledges mean. A pledge marks its GPUs on their nodes: nothing else may take them (R-45)."""

from collections.abc import Callable, Iterable
from typing import Any

from commands.entities import Node, Pledge, Reservation
from commands.rows import maker, replace, replacer
from commands.state import State
from events.ids import JobId, NodeIndex
from events.preemption import PreemptionEnded, PreemptionOrdered
from events.reservation import BlocksFreed, BlocksMoved, BlocksReserved


def reserved(state: State, event: BlocksReserved) -> None:
    made = Reservation(
        job_id=event.job_id,
        gpu_type=event.gpu_type,
        pool=event.pool,
        nodes=event.nodes,
        start_at=event.start_at,
    )
    assert made.key not in state.reservations, f"{made.key} is reserved already"
    state.reservations.put(made.key, made)


def moved(state: State, event: BlocksMoved) -> None:
    old = reservation_of(state, event.job_id)
    state.reservations.put(old.key, replace(old, nodes=event.nodes, start_at=event.start_at))


def freed(state: State, event: BlocksFreed) -> None:
    state.reservations.drop(reservation_of(state, event.job_id).key)


def reservation_of(state: State, job_id: JobId) -> Reservation:
    """The reservation of a job. KeyError where it has none."""
    for key in sorted(state.reservations.rows):
        if state.reservations[key].job_id == job_id:
            return state.reservations[key]
    raise KeyError(job_id)


def ordered(state: State, event: PreemptionOrdered) -> None:
    all_ordered(state, (event,))


def all_ordered(state: State, events: Iterable[PreemptionOrdered]) -> None:
    """Orders of one commit. The victims are stopped by GangEnding events of their own."""
    jobs, pledges, marks = state.jobs.rows, dict[JobId, Pledge](), dict[NodeIndex, int]()
    at, n = state.meta.at, state.meta.n
    for event in events:
        job_id, spec = event.job_id, jobs[event.job_id].spec
        assert job_id not in state.pledges.rows, f"{job_id} has a pledge already"
        assert job_id not in pledges, f"{job_id} gets two pledges"
        _mark(state, marks, event.ranks)
        pledges[job_id] = _made(
            job_id=job_id,
            team=spec.team,
            gpu_type=spec.gpu_type,
            ranks=event.ranks,
            victims=event.victims,
            awaited=event.awaited,
            rule=event.rule,
            at=at,
            ordered_n=n,
        )
    nodes = state.nodes.rows
    state.nodes.put_all({index: _pledged(nodes[index], pledged=mask) for index, mask in marks.items()})
    state.pledges.put_all(pledges)


def _mark(state: State, marks: dict[NodeIndex, int], ranks: Iterable[tuple[NodeIndex, int]]) -> None:
    """More GPUs are pledged. `marks`: all that are, of each node on which it is not as in the state."""
    for index, mask in ranks:
        before = marks.get(index)
        if before is None:
            before = state.nodes.rows[index].pledged
        assert not before & mask, f"{state.nodes[index].id}: gpus {before & mask:#x} are pledged already"
        marks[index] = before | mask


def ended(state: State, event: PreemptionEnded) -> None:
    pledge = state.pledges[event.job_id]
    for index, mask in pledge.ranks:
        node = state.nodes[index]
        state.nodes.put(index, _pledged(node, pledged=node.pledged & ~mask))
    state.pledges.drop(event.job_id)


_made = maker(Pledge)
_pledged = replacer(Node, "pledged")


RULES: dict[type, Callable[[State, Any], None]] = {
    BlocksReserved: reserved,
    BlocksMoved: moved,
    BlocksFreed: freed,
    PreemptionOrdered: ordered,
    PreemptionEnded: ended,
}
