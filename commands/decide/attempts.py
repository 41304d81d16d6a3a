"""What follows from the end of a rank, an attempt or a node: shared by reports, ticks and commands.

Fate comes in two steps. When an attempt is to stop it is *ended* (GangEnding). When nothing of it can run any more
on a node that answers it is *settled*: the job waits again, or has come to its end. Only a fault queues the job
again at once, before the rest of the attempt is gone (P-22); all others let it save its work first.
Its leases end one by one, as each is confirmed (P-15).
"""

from collections.abc import Sequence
from dataclasses import replace

from commands.entities import Attempt, AttemptKey, Job, NodeState, RankPhase
from commands.evolve import evolve, evolve_all
from commands.policy import Policy
from commands.rows import maker
from commands.state import State
from events.envelope import Event
from events.gang import GangEnding, GangReleased
from events.ids import Instant
from events.job import ENDS, EndReason, JobFinished, JobQueued, JobState, Overlap, QueueReason

FAULTS = {
    EndReason.NODE_LOST: QueueReason.FAULT,
    EndReason.LEASE_MISSING: QueueReason.FAULT,
    EndReason.START_FAILED: QueueReason.START_FAILED,
    EndReason.START_TIMEOUT: QueueReason.START_FAILED,
}
"""Ends that are not the job's own doing."""

BACK_IN_QUEUE = {
    EndReason.REQUEUED: QueueReason.REQUEUED,
    EndReason.PREEMPTED: QueueReason.PREEMPTED,
    EndReason.DRAINED: QueueReason.DRAINED,
}
"""Ends after which the job always waits again."""

JOB_END = {
    EndReason.CANCELLED: JobState.CANCELLED,
    EndReason.TIMED_OUT: JobState.TIMED_OUT,
    EndReason.COMPLETED: JobState.SUCCEEDED,
}
"""State of a job whose last attempt ended so; FAILED for all others."""

NOT_ITS_END = {EndReason.CANCELLED, EndReason.TIMED_OUT, EndReason.NONZERO_EXIT, EndReason.COMPLETED}
"""Ends that hold even where all ranks ended well; with any other such an attempt succeeded after all (P-22)."""


WELL = {RankPhase.ENDED_OK, RankPhase.GIVEN_BACK}
"""Ranks that are gone without harm."""

TOGETHER = 500
"""Decisions that are folded at once: so many that what they are about is still at hand, in the processor's own memory.
"""

_ending, _finished, _released = maker(GangEnding), maker(JobFinished), maker(GangReleased)


class Draft:
    """The facts of one decision, each folded as it is found, so that the next is decided on what it left."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        evolve(self.state, event)
        self.events.append(event)

    def add_all(self, events: Sequence[Event]) -> None:
        """Facts none of which was decided on what another of them left."""
        evolve_all(self.state, events)
        self.events += events


def end_attempt(draft: Draft, key: AttemptKey, reason: EndReason) -> None:
    """An attempt is to stop. Nothing if it is stopping already: the first reason stands (C-62)."""
    attempt = draft.state.attempts.get(key)
    if attempt is None or attempt.ending is not None:
        return
    job = draft.state.jobs[attempt.job_id]
    draft.add(ending_of(draft.state, attempt, reason))
    if job.cancel_requested or reason not in FAULTS:
        return
    if (again := waits_again(draft.state, job, attempt, reason)) is not None:
        draft.add(again)


def ending_of(state: State, attempt: Attempt, reason: EndReason) -> GangEnding:
    """The fact that it is to stop, which it was not before."""
    job, policy = state.jobs.rows[attempt.job_id], state.policy
    grace_s = limit_grace_s(policy, job, attempt) if reason is EndReason.TIMED_OUT else stop_grace_s(policy, job)
    return _ending(job_id=attempt.job_id, attempt=attempt.number, reason=reason, grace_s=grace_s)


def settle(draft: Draft, key: AttemptKey) -> None:
    """Draw the consequences of ranks that ended: release of the gang, and the job's end where this was its fate."""
    state = draft.state
    attempt = state.attempts[key]
    if _could_run(state, attempt):
        return
    job = state.jobs[attempt.job_id]
    if job.state not in ENDS:
        _settle_job(draft, job, attempt)
    if min(attempt.phases) >= RankPhase.ENDED_OK:
        draft.add(_released(job_id=attempt.job_id, attempt=attempt.number))


def _settle_job(draft: Draft, job: Job, attempt: Attempt) -> None:
    all_well = RankPhase.ENDED_OK in attempt.phases and all(phase in WELL for phase in attempt.phases)
    if all_well and attempt.ending not in NOT_ITS_END and not job.cancel_requested:
        _stop_others(draft, job, attempt)
        draft.add(_finished(job_id=job.id, state=JobState.SUCCEEDED, reason=EndReason.COMPLETED, exit_code=0))
    elif job.attempt == attempt.number and job.state is not JobState.QUEUED and attempt.ending is not None:
        again = waits_again(draft.state, job, attempt, attempt.ending)
        if again is None:
            draft.add(_end_of(job, attempt, attempt.ending))
        elif job.cancel_requested:
            draft.add(_end_of(job, attempt, EndReason.CANCELLED))
        else:
            draft.add(again)


def _end_of(job: Job, attempt: Attempt, reason: EndReason) -> JobFinished:
    state = JOB_END.get(reason, JobState.FAILED)
    return _finished(job_id=job.id, state=state, reason=reason, exit_code=attempt.exit_code)


def _stop_others(draft: Draft, job: Job, succeeded: Attempt) -> None:
    """The older attempt's success came before the job's end: a newer one is stopped (P-22)."""
    for number in job.open_attempts:
        if number != succeeded.number:
            end_attempt(draft, (job.id, number), EndReason.COMPLETED)


def _could_run(state: State, attempt: Attempt) -> bool:
    """Is there a live lease on a node that is not lost? Gone ranks come first as a rule: the last one may know."""
    ranks, nodes = attempt.ranks, state.nodes
    return any(
        attempt.live(rank) and nodes[ranks[rank][0]].state is not NodeState.LOST for rank in reversed(range(len(ranks)))
    )


def waits_again(state: State, job: Job, attempt: Attempt, reason: EndReason) -> JobQueued | None:
    """The job's return to the queue, were it not cancelled; None where this end is its own."""
    if job.attempt != attempt.number or job.state in ENDS:
        return None
    again, alone_at = _again(state, job, reason), _alone_at(state, job, attempt)
    if again is None or alone_at is None:
        return again
    return replace(again, not_before_at=max(alone_at, again.not_before_at or alone_at))


def _again(state: State, job: Job, reason: EndReason) -> JobQueued | None:
    """How an end of that kind brings the job back, if it does."""
    if reason in BACK_IN_QUEUE:
        front = reason is EndReason.DRAINED
        return JobQueued(job_id=job.id, attempt=job.attempt + 1, reason=BACK_IN_QUEUE[reason], front=front)
    if reason in FAULTS:
        return _after_fault(state, job, FAULTS[reason])
    if reason is EndReason.NONZERO_EXIT and job.retried < job.spec.retries:
        backoff = _backoff_until(state, job.retried)
        return JobQueued(job_id=job.id, attempt=job.attempt + 1, reason=QueueReason.RETRY, not_before_at=backoff)
    return None


def _after_fault(state: State, job: Job, reason: QueueReason) -> JobQueued | None:
    """Restarted without limit as long as it progresses; a number of faults in a row without any end it (R-6)."""
    if job.faults + 1 >= state.policy.fault_restarts_without_progress_max:
        return None
    return JobQueued(
        job_id=job.id,
        attempt=job.attempt + 1,
        reason=reason,
        front=reason is QueueReason.FAULT,
        not_before_at=_backoff_until(state, job.faults),
    )


def _alone_at(state: State, job: Job, attempt: Attempt) -> Instant | None:
    """When a job with `overlap: never` is alone at the latest: a rank that is not known to be gone may be cut off, and
    ends itself (P-22). None where nothing of the attempt is left, or it may overlap."""
    if job.spec.overlap is not Overlap.NEVER or not any(map(attempt.live, range(len(attempt.ranks)))):
        return None
    policy = state.policy
    alone_s = policy.isolation_s + stop_grace_s(policy, job) + policy.isolation_margin_s
    return Instant(state.meta.at + alone_s * 1000)


def _backoff_until(state: State, tries: int) -> Instant | None:
    """The first retry is at once, each later one waits twice as long as the one before (R-6)."""
    if tries == 0:
        return None
    wait_s = min(state.policy.retry_backoff_s << min(tries - 1, 16), state.policy.retry_backoff_max_s)
    return Instant(state.meta.at + wait_s * 1000)


def stop_grace_s(policy: Policy, job: Job) -> int:
    return min(job.spec.checkpoint.grace_s, policy.grace_s_max)


def limit_grace_s(policy: Policy, job: Job, attempt: Attempt) -> int:
    """The grace before the run-time limit: at most half of the run, or a short job would be stopped as it begins."""
    grace_s = stop_grace_s(policy, job)
    if attempt.limit_at is None:
        return grace_s
    return min(grace_s, (attempt.limit_at - attempt.granted_at) // 2000)
