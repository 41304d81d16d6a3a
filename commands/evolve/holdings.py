"""What reservations and pledges mean. A pledge marks its GPUs on their nodes: nothing else may take them (R-45)."""

from collections.abc import Callable
from typing import Any

from commands.entities import Node, Pledge, Reservation
from commands.rows import maker, replace, replacer
from commands.state import State
from events.ids import GpuMask, JobId, NodeIndex
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
    """The victims are stopped by GangEnding events of their own."""
    job = state.jobs[event.job_id]
    assert job.id not in state.pledges, f"{job.id} has a pledge already"
    _mark(state, event.ranks, 1)
    pledge = _made(
        job_id=job.id,
        team=job.spec.team,
        gpu_type=job.spec.gpu_type,
        ranks=event.ranks,
        victims=event.victims,
        awaited=event.awaited,
        rule=event.rule,
        at=state.meta.at,
        ordered_n=state.meta.n,
    )
    state.pledges.put(job.id, pledge)


def ended(state: State, event: PreemptionEnded) -> None:
    pledge = state.pledges[event.job_id]
    _mark(state, pledge.ranks, -1)
    state.pledges.drop(event.job_id)


def _mark(state: State, ranks: tuple[tuple[NodeIndex, int | GpuMask], ...], sign: int) -> None:
    for index, mask in ranks:
        node = state.nodes[index]
        if sign > 0:
            assert not node.pledged & mask, f"{node.id}: gpus {node.pledged & mask:#x} are pledged already"
        pledged = node.pledged | mask if sign > 0 else node.pledged & ~mask
        state.nodes.put(index, _pledged(node, pledged=pledged))


_made = maker(Pledge)
_pledged = replacer(Node, "pledged")


RULES: dict[type, Callable[[State, Any], None]] = {
    BlocksReserved: reserved,
    BlocksMoved: moved,
    BlocksFreed: freed,
    PreemptionOrdered: ordered,
    PreemptionEnded: ended,
}
