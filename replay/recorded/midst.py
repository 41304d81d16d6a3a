"""How things stood as a window began: what of the work there was is submitted anew, and as what. Pure.

The replay knows nothing of what came before. So a job asks for what it asks for by then, an array for the elements that
it had not started, and nobody waits for a job that had ended.
"""

from dataclasses import replace

from commands.entities import Job
from events.job import ENDS, JobSpec


def goes_on(job: Job) -> bool:
    """Is there work of its own left to do? Not where it had ended, was being cancelled, or all its elements had begun:
    these are jobs of their own."""
    return job.state not in ENDS and not job.cancel_requested and (job.elements is None or job.unmade > 0)


def spec_by_then(job: Job) -> JobSpec:
    """With what was changed since it was submitted, and without what was done."""
    spec, array = job.spec, job.spec.array
    if array is not None and job.elements is not None:
        array = replace(array, first=array.first + job.elements.made)
    return replace(
        spec,
        priority_class=job.priority_class,
        max_runtime_s=job.max_runtime_s,
        labels=job.labels,
        array=array,
        depends_on=tuple(each for each in spec.depends_on if each.job in job.waits_on),
    )
