"""Commands about jobs."""

from commands.admission import admit, class_refusal
from commands.decide.attempts import Draft, end_attempt, waits_again
from commands.decide.following import cancel_now, end_of, suits
from commands.entities import Job
from commands.messages import (
    CancelJob,
    ChangeJob,
    ExtendJob,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    SubmitJob,
)
from commands.refusal import Refusal, RefusalCode
from commands.rows import maker
from commands.state import State
from events.ids import JobId, Principal
from events.job import (
    ENDS,
    EndReason,
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
    PriorityClass,
    QueueReason,
)

_submitted, _queued = maker(JobSubmitted), maker(JobQueued)


def submit(draft: Draft, command: SubmitJob, principal: Principal) -> Refusal | None:
    """Accepted and queued, rejected for ever, or refused for now."""
    state, spec = draft.state, command.spec
    if command.job_id in state.jobs or command.job_id in state.ended:
        return Refusal(RefusalCode.JOB_EXISTS, "job_id", command.job_id, "an id of its own")
    if (impossible := admit(state, spec)) is not None:
        draft.add(
            JobRejected(
                job_id=command.job_id,
                spec=spec,
                principal=principal,
                code=impossible.code,
                field=impossible.field,
                value=impossible.value,
                limit=impossible.limit,
            )
        )
        return None
    team = state.teams.get(spec.team)
    limit = state.policy.queued_jobs_max
    if team is not None and team.queued >= limit:
        return Refusal(RefusalCode.QUEUE_FULL, "team", f"{team.queued} queued jobs", str(limit))
    draft.add(_submitted(job_id=command.job_id, spec=spec, principal=principal))
    _queue_first(draft, command)
    return None


def _queue_first(draft: Draft, command: SubmitJob) -> None:
    """Into the queue, or outside it until the jobs that it depends on have ended: those that have are judged now."""
    ends = {each.job: end_of(draft.state, each.job) for each in command.spec.depends_on}
    waits_on = tuple(job_id for job_id, ended in ends.items() if ended is None)
    draft.add(_queued(job_id=command.job_id, attempt=1, reason=QueueReason.SUBMITTED, waits_on=waits_on))
    for dependency in command.spec.depends_on:
        ended = ends[dependency.job]
        if ended is not None and not suits(dependency, ended):
            draft.add(JobFinished(job_id=command.job_id, state=JobState.CANCELLED, reason=EndReason.DEPENDENCY))
            return


def find_job(state: State, job_id: JobId) -> Job | Refusal:
    """The job, if it has not ended."""
    job = state.jobs.get(job_id)
    ended = state.ended.get(job_id)
    if job is not None and job.state not in ENDS:
        return job
    if job is None and ended is None:
        return Refusal(RefusalCode.UNKNOWN_JOB, "job_id", job_id, "a job of this cluster")
    shown = job.state if job is not None else ended.state if ended is not None else ""
    return Refusal(RefusalCode.JOB_ENDED, "job_id", shown, "a job that has not ended")


def waiting_job(state: State, job_id: JobId) -> Job | Refusal:
    """The job, if it waits in the queue."""
    job = find_job(state, job_id)
    if isinstance(job, Job) and job.state is not JobState.QUEUED:
        return Refusal(RefusalCode.WRONG_STATE, "state", job.state, JobState.QUEUED)
    return job


def cancel(draft: Draft, command: CancelJob) -> Refusal | None:
    """A job that waits is cancelled at once; one that runs when its tasks are gone (R-3). Twice is as good as once."""
    job = find_job(draft.state, command.job_id)
    if isinstance(job, Refusal):
        return job
    if job.cancel_requested:
        return None
    cancel_now(draft, job)
    return None


def hold(draft: Draft, command: HoldJob) -> Refusal | None:
    job = waiting_job(draft.state, command.job_id)
    if isinstance(job, Refusal):
        return job
    if not job.held:
        draft.add(JobHeld(job_id=job.id))
    return None


def release(draft: Draft, command: ReleaseJob) -> Refusal | None:
    job = waiting_job(draft.state, command.job_id)
    if isinstance(job, Refusal):
        return job
    if job.held:
        draft.add(JobReleased(job_id=job.id))
    return None


def extend(draft: Draft, command: ExtendJob) -> Refusal | None:
    """More run time for a job that has a limit, up to the longest that may be asked for; not where another job is to
    start on its nodes before the new end (R-5)."""
    state = draft.state
    job = find_job(state, command.job_id)
    if isinstance(job, Refusal):
        return job
    if job.elements is not None and job.unmade == 0:
        return Refusal(RefusalCode.WRONG_STATE, "state", job.state, "an array of which elements wait")
    if job.max_runtime_s is None:
        return Refusal(RefusalCode.WRONG_STATE, "max_runtime", "unlimited", "a job with a limit")
    if job.state in (JobState.CANCELLING, JobState.PREEMPTING) or _comes_to_its_end(state, job):
        return Refusal(RefusalCode.WRONG_STATE, "state", job.state, "a job that is not being stopped")
    asked, longest = job.max_runtime_s + command.by_s, state.policy.max_runtime_max_s
    if asked > longest:
        return Refusal(RefusalCode.MAX_RUNTIME_TOO_LONG, "by", f"{asked}s in all", f"{longest}s")
    if (promised := _promised_to_another(state, job, command.by_s)) is not None:
        return promised
    draft.add(JobExtended(job_id=job.id, max_runtime_s=asked))
    return None


def _promised_to_another(state: State, job: Job, by_s: int) -> Refusal | None:
    """Does a reservation, or a pledge that awaits this end, depend on it (R-5, R-23, R-43)? `value`: the job that is to
    start there; `limit`: when, in ms."""
    attempt = state.attempts.get((job.id, job.attempt))
    if attempt is None or attempt.limit_at is None or job.state is JobState.QUEUED:
        return None
    nodes = {index for rank, (index, _) in enumerate(attempt.ranks) if attempt.live(rank)}
    for key in sorted(state.reservations):
        held = state.reservations[key]
        ends_late = attempt.limit_at + by_s * 1000 > held.start_at
        if held.job_id != job.id and ends_late and not nodes.isdisjoint(held.nodes):
            return Refusal(RefusalCode.PROMISED, "by", held.job_id, str(held.start_at))
    for job_id in sorted(state.pledges):
        if attempt.key in state.pledges[job_id].awaited:
            return Refusal(RefusalCode.PROMISED, "by", job_id, str(attempt.limit_at))
    return None


def requeue(draft: Draft, command: RequeueJob) -> Refusal | None:
    job = find_job(draft.state, command.job_id)
    if isinstance(job, Refusal):
        return job
    if job.elements is not None:
        return Refusal(RefusalCode.WRONG_STATE, "array", "an array", "one of its elements")
    if job.state not in (JobState.STARTING, JobState.RUNNING):
        return Refusal(RefusalCode.WRONG_STATE, "state", job.state, "STARTING or RUNNING")
    if _comes_to_its_end(draft.state, job):
        return Refusal(RefusalCode.WRONG_STATE, "state", job.state, "a job that is not being stopped")
    end_attempt(draft, (job.id, job.attempt), EndReason.REQUEUED)
    return None


def _comes_to_its_end(state: State, job: Job) -> bool:
    """Is its attempt being stopped, and the job not to wait again after it?"""
    attempt = state.attempts.get((job.id, job.attempt))
    if attempt is None or attempt.ending is None or job.state is JobState.QUEUED:
        return False
    return job.cancel_requested or waits_again(state, job, attempt, attempt.ending) is None


def change(draft: Draft, command: ChangeJob) -> Refusal | None:
    """New class or labels while it waits (R-4)."""
    job = waiting_job(draft.state, command.job_id)
    if isinstance(job, Refusal):
        return job
    wanted = command.priority_class
    if wanted is not None and wanted != job.priority_class:
        if (refusal := class_refusal(draft.state, job.spec.team, wanted)) is not None:
            return refusal
        if job.max_runtime_s is None and wanted is not PriorityClass.PROD_SERVING:
            return Refusal(RefusalCode.NO_MAX_RUNTIME, "priority_class", wanted, PriorityClass.PROD_SERVING)
        draft.add(JobPriorityChanged(job_id=job.id, priority_class=wanted))
    if command.labels is not None and command.labels != job.labels:
        draft.add(JobLabelsChanged(job_id=job.id, labels=command.labels))
    return None
