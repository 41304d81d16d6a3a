"""An elastic job goes on without replicas that it lost, as long as its minimum is left (R-44). The one place for that.

Not without rank 0, at whose address the others meet; not before all of them run; and not after a failure of the job's
own, which is for the job to see (R-6).
"""

from collections.abc import Iterable

from commands.decide.attempts import Draft, end_attempt
from commands.entities import Attempt, AttemptKey, NodeState, RankPhase
from commands.state import State
from events.gang import GangResized, ResizeReason
from events.job import EndReason

LOSSES = {EndReason.NODE_LOST, EndReason.LEASE_MISSING, EndReason.START_FAILED, EndReason.START_TIMEOUT}
"""Ends of a rank that are not the job's own doing."""


def lose_ranks(draft: Draft, key: AttemptKey, ranks: Iterable[int], reason: EndReason) -> None:
    """Ranks of an attempt are lost: it shrinks, or it ends. Nothing where it is to do without them anyway."""
    state = draft.state
    attempt = state.attempts.get(key)
    if attempt is None or attempt.ending is not None:
        return
    lost = [rank for rank in ranks if rank not in attempt.stopping]
    if not lost:
        return
    if reason in LOSSES and _does_without(state, attempt, lost):
        job = state.jobs[attempt.job_id]
        draft.add(
            GangResized(
                job_id=attempt.job_id,
                attempt=attempt.number,
                because=ResizeReason.LOST,
                stopped=tuple(lost),
                grace_s=min(job.spec.checkpoint.grace_s, state.policy.grace_s_max),
            )
        )
        return
    end_attempt(draft, key, reason)


def _does_without(state: State, attempt: Attempt, lost: list[int]) -> bool:
    elastic = state.jobs[attempt.job_id].spec.elastic
    if elastic is None or attempt.running_at is None or 0 in lost:
        return False
    return len(staying(state, attempt).difference(lost)) >= elastic.min_replicas


def staying(state: State, attempt: Attempt) -> set[int]:
    """Ranks that run on: live, not being stopped, and not on a lost node."""
    return {
        rank
        for rank, (index, _) in enumerate(attempt.ranks)
        if attempt.stays(rank) and state.nodes[index].state is not NodeState.LOST
    }


def late_ranks(state: State, attempt: Attempt) -> list[int]:
    """Ranks of a growth that should run by now, and do not (R-30)."""
    latest = state.meta.at - state.policy.start_timeout_s * 1000
    return [
        rank
        for rank in range(attempt.first_size, len(attempt.ranks))
        if attempt.phases[rank] == RankPhase.GRANTED and (growth := attempt.growth_of(rank)) and growth.at <= latest
    ]
