"""What the facts about dependencies and arrays mean (R-7). How the end of an element counts is in `jobs.finished`."""

from collections.abc import Callable
from typing import Any

from commands.evolve.jobs import put_job
from commands.rows import replace
from commands.state import State
from events.job import JobDependencyEnded, JobElementMade, JobState


def dependency_ended(state: State, event: JobDependencyEnded) -> None:
    """One less to wait for; after the last one the job's waiting time begins."""
    job = state.jobs[event.job_id]
    left = tuple(each for each in job.waits_on if each != event.on)
    waits_since = state.meta.at if not left and not job.held else job.waits_since
    put_job(state, replace(job, waits_on=left, waits_since=waits_since))


def element_made(state: State, event: JobElementMade) -> None:
    """The element is a job in the array's place; of the array one less is to be granted."""
    array = state.jobs[event.array]
    assert array.elements is not None, f"{array.id} is no array"
    assert array.unmade > 0, f"all elements of {array.id} are made"
    element = replace(
        array,
        id=event.job_id,
        spec=replace(array.spec, array=None, depends_on=()),
        elements=None,
        element_of=array.id,
        element=event.index,
    )
    elements = replace(array.elements, made=array.elements.made + 1, open=array.elements.open + 1)
    array = replace(array, elements=elements)
    put_job(state, element)
    put_job(state, array if array.unmade else replace(array, state=JobState.RUNNING, waits_since=None))


RULES: dict[type, Callable[[State, Any], None]] = {
    JobDependencyEnded: dependency_ended,
    JobElementMade: element_made,
}
