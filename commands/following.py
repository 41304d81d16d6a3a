"""The two tables that follow from the jobs alone: who waits for whose end, and what is still to be drawn from ends.

`dependents`: job -> the jobs that wait for its end. `follow_ups`: ended jobs that have dependents, and arrays that
settle. Kept in step by commands.evolve; drawn from by commands.decide.following, a bounded piece at a time.
"""

from commands.entities import Job
from commands.state import State
from events.ids import JobId
from events.job import ENDS


def reindex(state: State, old: Job | None, new: Job) -> None:
    """A job was put in the place of `old`."""
    before = old.waits_on if old is not None else ()
    if before != new.waits_on:
        for job_id in before:
            if job_id not in new.waits_on:
                _no_longer(state, job_id, new.id)
        for job_id in new.waits_on:
            if job_id not in before:
                state.dependents.put(job_id, (*(state.dependents.get(job_id) or ()), new.id))
    if new.elements is not None or new.state in ENDS:
        _mark(state, new.id, new.settles or (new.state in ENDS and new.id in state.dependents))


def derived(state: State) -> tuple[dict[JobId, tuple[JobId, ...]], dict[JobId, bool]]:
    """Rows of both tables, from the jobs alone: for a snapshot that was loaded, and to check those that were kept."""
    waiting: dict[JobId, list[JobId]] = {}
    follow_ups = {job.id: True for job in state.jobs.rows.values() if job.settles}
    for job in sorted(state.jobs.rows.values(), key=lambda job: job.submit_seq):
        for job_id in job.waits_on:
            waiting.setdefault(job_id, []).append(job.id)
    for job_id in waiting:
        before = state.jobs.get(job_id)
        if before is None or before.state in ENDS:
            follow_ups[job_id] = True
    return {job_id: tuple(jobs) for job_id, jobs in waiting.items()}, follow_ups


def _no_longer(state: State, job_id: JobId, dependent: JobId) -> None:
    left = tuple(each for each in state.dependents[job_id] if each != dependent)
    if left:
        state.dependents.put(job_id, left)
        return
    state.dependents.drop(job_id)
    job = state.jobs.get(job_id)
    _mark(state, job_id, job is not None and job.settles)  # an array may settle, whoever waits for it


def _mark(state: State, job_id: JobId, wanted: bool) -> None:
    if wanted and job_id not in state.follow_ups:
        state.follow_ups.put(job_id, True)
    elif not wanted and job_id in state.follow_ups:
        state.follow_ups.drop(job_id)
