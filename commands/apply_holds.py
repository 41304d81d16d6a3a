"""Reservations of a plan as facts (R-23), each checked against the newest state."""

from commands.decide.attempts import Draft
from commands.plan import Hold
from commands.state import State
from events.ids import JobId
from events.job import JobState
from events.reservation import BlocksFreed, BlocksMoved, BlocksReserved, FreedBecause


def end_holds(draft: Draft, over: tuple[tuple[JobId, FreedBecause], ...]) -> None:
    """Reservations that end; one that has ended already is passed over."""
    for job_id, because in over:
        if any(held.job_id == job_id for held in draft.state.reservations.rows.values()):
            draft.add(BlocksFreed(job_id=job_id, because=because))


def make_holds(draft: Draft, holds: tuple[Hold, ...]) -> list[tuple[JobId, str]]:
    """New and moved reservations; those that may not be made, with why."""
    stale: list[tuple[JobId, str]] = []
    for hold in holds:
        why = _objection(draft.state, hold)
        if why is not None:
            stale.append((hold.job_id, why))
        elif hold.key in draft.state.reservations:
            draft.add(BlocksMoved(job_id=hold.job_id, nodes=hold.nodes, start_at=hold.start_at))
        else:
            draft.add(
                BlocksReserved(
                    job_id=hold.job_id,
                    gpu_type=hold.key[0],
                    pool=hold.key[1],
                    nodes=hold.nodes,
                    start_at=hold.start_at,
                )
            )
    return stale


def _objection(state: State, hold: Hold) -> str | None:
    job = state.jobs.get(hold.job_id)
    if job is None or job.state is not JobState.QUEUED or job.held:
        return "job_not_queued"
    held = state.reservations.get(hold.key)
    if held is not None and held.job_id != hold.job_id:
        return "reserved_for_another"
    if held is None and any(other.job_id == hold.job_id for other in state.reservations.rows.values()):
        return "reserved_elsewhere"
    if any(index not in state.nodes for index in hold.nodes):
        return "no_such_node"
    return None
