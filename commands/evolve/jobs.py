"""What the facts about jobs mean."""

from collections.abc import Callable
from typing import Any

from commands.entities import Checkpoint, Elements, Ended, Job, Team
from commands.following import reindex
from commands.rows import maker, replace, replacer
from commands.state import State
from events.checkpoint import CheckpointRecorded
from events.ids import Instant, JobId, TeamId
from events.job import (
    ENDS,
    JobCancelRequested,
    JobExtended,
    JobFinished,
    JobHeld,
    JobLabelsChanged,
    JobPriorityChanged,
    JobQueued,
    JobRejected,
    JobReleased,
    JobState,
    JobSubmitted,
    QueueReason,
)

DAY_MS = 86_400_000
_checkpoint, _ended, _submitted = maker(Checkpoint), maker(Ended), maker(Job)
_in_queue = replacer(Team, "queued")
_queued = replacer(
    Job,
    *("state", "queued_at", "waits_since", "waits_on", "queue_reason", "preempted_at", "front", "not_before_at"),
    *("faults", "setbacks", "retried", "preemptions"),
)
_finished = replacer(Job, "state", "waits_on")
_saved = replacer(Job, "checkpoint", "faults", "consumed_s")


def put_job(state: State, job: Job) -> None:
    """Put a job in its place, and count its team's queue."""
    old = state.jobs.get(job.id)
    state.jobs.put(job.id, job)
    if by := _longer(state, old, job):
        count_queued(state, job.spec.team, by)


def put_jobs(state: State, jobs: dict[JobId, Job]) -> None:
    """The same for many at once."""
    more: dict[TeamId, int] = {}
    for old, job in zip(state.jobs.put_all(jobs), jobs.values(), strict=True):
        if by := _longer(state, old, job):
            more[job.spec.team] = more.get(job.spec.team, 0) + by
    for team, by in more.items():
        if by:
            count_queued(state, team, by)


def _longer(state: State, old: Job | None, job: Job) -> int:
    """A job came into the place of `old`. By how much its team's queue is longer."""
    reindex(state, old, job)
    was = old is not None and old.state is JobState.QUEUED
    return (job.state is JobState.QUEUED) - was


def count_queued(state: State, team_id: TeamId, by: int) -> None:
    team = state.teams.get(team_id) or Team(id=team_id)
    state.teams.put(team_id, _in_queue(team, queued=team.queued + by))


def retire(state: State, job_id: JobId) -> None:
    """A job that has ended and holds nothing is only remembered by its end."""
    job = state.jobs.get(job_id)
    if job is None or job.state not in ENDS or job.open_attempts:
        return
    state.jobs.drop(job_id)
    state.ended.put(job_id, _ended(id=job_id, state=job.state, team=job.spec.team, day=state.meta.day))


def submitted(state: State, event: JobSubmitted) -> None:
    job = _submitted(
        id=event.job_id,
        spec=event.spec,
        principal=event.principal,
        priority_class=event.spec.priority_class,
        labels=event.spec.labels,
        submitted_at=state.meta.at,
        submit_seq=state.meta.seq,
        state=JobState.SUBMITTED,
        max_runtime_s=event.spec.max_runtime_s,
        elements=Elements() if event.spec.array is not None else None,
    )
    put_job(state, job)


def rejected(state: State, event: JobRejected) -> None:
    team = event.spec.team
    state.ended.put(event.job_id, Ended(id=event.job_id, state=JobState.REJECTED, team=team, day=state.meta.day))


def queued(state: State, event: JobQueued) -> None:
    job = state.jobs[event.job_id]
    reason = event.reason
    put_job(
        state,
        _queued(
            job,
            state=JobState.QUEUED,
            queued_at=state.meta.at,
            waits_since=None if event.waits_on else event.not_before_at or state.meta.at,
            waits_on=event.waits_on,
            queue_reason=reason,
            preempted_at=_preempted_at(state, job, reason),
            front=event.front,
            not_before_at=event.not_before_at,
            faults=job.faults + (reason in (QueueReason.FAULT, QueueReason.START_FAILED)),
            setbacks=job.setbacks + (reason is QueueReason.START_FAILED),
            retried=job.retried + (reason is QueueReason.RETRY),
            preemptions=job.preemptions + (reason is QueueReason.PREEMPTED),
        ),
    )


def _preempted_at(state: State, job: Job, reason: QueueReason) -> tuple[Instant, ...]:
    """Preemptions of the last 24 h (R-42)."""
    recent = tuple(at for at in job.preempted_at if at > state.meta.at - DAY_MS)
    return (*recent, state.meta.at) if reason is QueueReason.PREEMPTED else recent


def stop_waiting(state: State, job: Job) -> Job:
    """The present wait ends, and is added up."""
    return replace(job, waited_ms=waited_ms(state.meta.at, job), waits_since=None)


def waited_ms(now: Instant, job: Job) -> int:
    """How long it has waited in all, were the present wait to end now."""
    if job.waits_since is None or job.waits_since > now:
        return job.waited_ms
    return job.waited_ms + now - job.waits_since


def held(state: State, event: JobHeld) -> None:
    put_job(state, replace(stop_waiting(state, state.jobs[event.job_id]), held=True))


def released(state: State, event: JobReleased) -> None:
    """Its waiting counts again: at once, or from where it would have begun."""
    job = state.jobs[event.job_id]
    begins_at = max(state.meta.at, job.not_before_at or state.meta.at)
    put_job(state, replace(job, held=False, waits_since=None if job.waits_on else begins_at))


def priority_changed(state: State, event: JobPriorityChanged) -> None:
    put_job(state, replace(state.jobs[event.job_id], priority_class=event.priority_class))


def labels_changed(state: State, event: JobLabelsChanged) -> None:
    put_job(state, replace(state.jobs[event.job_id], labels=event.labels))


def extended(state: State, event: JobExtended) -> None:
    """The newest attempt's limit moves with the job's."""
    job = state.jobs[event.job_id]
    put_job(state, replace(job, max_runtime_s=event.max_runtime_s))
    attempt = state.attempts.get((job.id, job.attempt))
    if attempt is None or attempt.limit_at is None or job.max_runtime_s is None:
        return
    moved = Instant(attempt.limit_at + (event.max_runtime_s - job.max_runtime_s) * 1000)
    state.attempts.put(attempt.key, replace(attempt, limit_at=moved))


def cancel_requested(state: State, event: JobCancelRequested) -> None:
    """What was not granted of an array is gone with this."""
    job = state.jobs[event.job_id]
    stops = job.elements is not None and job.elements.open > 0
    put_job(state, replace(job, cancel_requested=True, state=JobState.CANCELLING if stops else job.state))
    _count_element(state, job, cancelled=1)


def finished(state: State, event: JobFinished) -> None:
    job = state.jobs[event.job_id]
    put_job(state, _finished(job, state=event.state, waits_on=()))
    well = event.state is JobState.SUCCEEDED
    _count_element(state, job, cancelled=-1 if job.cancel_requested else 0, ended=1, succeeded=1 if well else 0)
    retire(state, event.job_id)


def _count_element(state: State, job: Job, cancelled: int, ended: int = 0, succeeded: int = 0) -> None:
    """What happened to an element shows in its array."""
    array = state.jobs.get(job.element_of) if job.element_of is not None else None
    if array is None or array.elements is None:
        return
    now = array.elements
    elements = replace(
        now, open=now.open - ended, cancelled=now.cancelled + cancelled, succeeded=now.succeeded + succeeded
    )
    put_job(state, replace(array, elements=elements))


def checkpoint_recorded(state: State, event: CheckpointRecorded) -> None:
    """A new resume point is progress: faults are counted anew (R-6), and run time is spent up to here (R-5)."""
    job = state.jobs[event.job_id]
    checkpoint = _checkpoint(
        sequence=event.sequence, uri=event.uri, attempt=event.attempt, at=state.meta.at, step=event.step
    )
    consumed_s = _consumed_s(state, job, event.attempt)
    state.jobs.put(job.id, _saved(job, checkpoint=checkpoint, faults=0, consumed_s=consumed_s))  # it queues as before


def _consumed_s(state: State, job: Job, number: int) -> int:
    """What the job has had of its run time: all that its attempt has not left. Never less than before."""
    limit_at = state.attempts[job.id, number].limit_at
    if limit_at is None or job.max_runtime_s is None:
        return job.consumed_s
    left_s = -((state.meta.at - limit_at) // 1000)
    return max(job.consumed_s, job.max_runtime_s - max(0, left_s))


RULES: dict[type, Callable[[State, Any], None]] = {
    JobSubmitted: submitted,
    JobRejected: rejected,
    JobQueued: queued,
    JobHeld: held,
    JobReleased: released,
    JobPriorityChanged: priority_changed,
    JobLabelsChanged: labels_changed,
    JobExtended: extended,
    JobCancelRequested: cancel_requested,
    JobFinished: finished,
}
