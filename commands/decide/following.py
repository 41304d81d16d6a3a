"""What follows from the end of jobs for others: dependents become eligible or are cancelled, arrays end (R-7).

A bounded piece at a time: a record of the log must not grow with the number of jobs that wait for one. What is left
over is drawn at the next tick. Cycles cannot be: a job can only wait for jobs that were there before it.
"""

from commands.decide.attempts import Draft, end_attempt
from commands.entities import Job
from commands.state import State
from events.ids import JobId, element_id
from events.job import (
    ENDS,
    Dependency,
    DependsWhen,
    EndReason,
    JobCancelRequested,
    JobDependencyEnded,
    JobFinished,
    JobState,
)

FACTS_MAX = 1_000
"""A decision of so many facts draws no more of this: at some 200 bytes each it stays well within a record."""


def follow(draft: Draft) -> None:
    """All that is to be drawn now, in the order of the jobs' ids, until nothing is left or the decision is large."""
    while draft.state.follow_ups.rows and len(draft.events) < FACTS_MAX:
        before = len(draft.events)
        for job_id in sorted(draft.state.follow_ups.rows):
            if len(draft.events) >= FACTS_MAX:
                return
            if job_id not in draft.state.follow_ups:
                continue  # what it was to be drawn for was drawn from another's end
            ended = end_of(draft.state, job_id)
            if ended is None:
                _settle_array(draft, draft.state.jobs[job_id])
            else:
                _settle_dependents(draft, job_id, ended)
        assert len(draft.events) > before, f"nothing follows from {sorted(draft.state.follow_ups.rows)[:3]}"


def end_of(state: State, job_id: JobId) -> JobState | None:
    """How a job ended, as far as it is remembered; None while it has not."""
    job = state.jobs.get(job_id)
    if job is not None:
        return job.state if job.state in ENDS else None
    known = state.ended.get(job_id)
    return known.state if known is not None else None


def suits(dependency: Dependency, ended: JobState) -> bool:
    """Is this the end that the dependency asks for?"""
    return dependency.when is DependsWhen.AFTER_ANY or ended is JobState.SUCCEEDED


def _settle_dependents(draft: Draft, job_id: JobId, ended: JobState) -> None:
    for dependent in draft.state.dependents[job_id][: FACTS_MAX - len(draft.events)]:
        job = draft.state.jobs[dependent]
        asked = [each for each in job.spec.depends_on if each.job == job_id]
        if all(suits(each, ended) for each in asked):
            draft.add(JobDependencyEnded(job_id=dependent, on=job_id))
        else:
            draft.add(JobFinished(job_id=dependent, state=JobState.CANCELLED, reason=EndReason.DEPENDENCY))


def _settle_array(draft: Draft, array: Job) -> None:
    """Cancel the elements of a cancelled array; end it once none is left: well if every element ended well."""
    assert array.elements is not None
    if array.elements.open:
        _cancel_elements(draft, array)
    elif array.cancel_requested:
        draft.add(JobFinished(job_id=array.id, state=JobState.CANCELLED, reason=EndReason.CANCELLED))
    elif array.elements.succeeded == array.elements.made:
        draft.add(JobFinished(job_id=array.id, state=JobState.SUCCEEDED, reason=EndReason.COMPLETED, exit_code=0))
    else:
        draft.add(JobFinished(job_id=array.id, state=JobState.FAILED, reason=EndReason.ELEMENT_FAILED))


def _cancel_elements(draft: Draft, array: Job) -> None:
    assert array.elements is not None
    assert array.spec.array is not None
    for index in range(array.spec.array.first, array.spec.array.first + array.elements.made):
        element = draft.state.jobs.get(element_id(array.id, index))
        if element is not None and element.state not in ENDS and not element.cancel_requested:
            cancel_now(draft, element)
        if len(draft.events) >= FACTS_MAX:
            return


def cancel_now(draft: Draft, job: Job) -> None:
    """A job that waits ends at once; one that runs when its tasks are gone (R-3). An array: see `_settle_array`."""
    draft.add(JobCancelRequested(job_id=job.id))
    if job.elements is not None:
        return
    if job.state is JobState.QUEUED:
        draft.add(JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=EndReason.CANCELLED))
    else:
        end_attempt(draft, (job.id, job.attempt), EndReason.CANCELLED)
