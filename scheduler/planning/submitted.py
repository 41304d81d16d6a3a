"""The queue in order of submission, as the plain presets walk it: whole, and parted by what fits alike and ends alike.

Follows the planner's queue: what moved there is only noted, and reckoned in when a preset plans. Decides nothing.
"""

from bisect import bisect_left, insort

from commands.entities import Job
from commands.state import State
from events.ids import GpuType, JobId
from events.job import JobSpec
from scheduler.planning.queue import Queue, hint_key, limit_class_s

Entry = tuple[int, JobId]
"""(seq of submission, job): the order."""
FIRST = (-1, JobId(""))
"""Before every entry."""


class Alike:
    """Queued jobs that fit, or do not fit, alike. `spec`: of one of them. `lines`: in order, by the class of what is
    left of their run-time limits, 0 for those without."""

    __slots__ = ("key", "lines", "spec")

    def __init__(self, key: tuple[object, ...], spec: JobSpec) -> None:
        self.key = key
        self.spec = spec
        self.lines: dict[int, list[Entry]] = {}


class OfType:
    """What waits for GPUs of one type. `order`: all of it."""

    __slots__ = ("alike", "order")

    def __init__(self) -> None:
        self.order: list[Entry] = []
        self.alike: dict[tuple[object, ...], Alike] = {}


class Submitted:
    """The queue of each type."""

    def __init__(self, state: State, queue: Queue) -> None:
        self._state = state
        self._queue = queue
        self._types: dict[GpuType, OfType] = {}
        self._of: dict[JobId, tuple[Alike, int, Entry]] = {}
        queue.moved = {job_id for line in queue.lines.values() for _, job_id in line.entries}

    def types(self) -> list[tuple[GpuType, OfType]]:
        """The types that anybody waits for, and who does."""
        moved, self._queue.moved = self._queue.moved, set()
        for job_id in moved or ():
            if (known := self._of.pop(job_id, None)) is not None:
                self._remove(*known)
            if job_id in self._queue:
                self._insert(self._state.jobs[job_id])
        return sorted(self._types.items())

    def alike(self, job_id: JobId) -> Alike:
        """What a job that waits is alike to."""
        return self._of[job_id][0]

    def _insert(self, job: Job) -> None:
        entry, limit_s, key = (job.submit_seq, job.id), limit_class_s(job.left_s), _fits_by(job.spec)
        of_type = self._types.setdefault(job.spec.gpu_type, OfType())
        alike = of_type.alike.get(key)
        if alike is None:
            alike = of_type.alike[key] = Alike(key, job.spec)
        insort(alike.lines.setdefault(limit_s, []), entry)
        insort(of_type.order, entry)
        self._of[job.id] = (alike, limit_s, entry)

    def _remove(self, alike: Alike, limit_s: int, entry: Entry) -> None:
        of_type, line = self._types[alike.spec.gpu_type], alike.lines[limit_s]
        del of_type.order[bisect_left(of_type.order, entry)]
        del line[bisect_left(line, entry)]
        if not line:
            del alike.lines[limit_s]
        if not alike.lines:
            del of_type.alike[alike.key]
        if not of_type.order:
            del self._types[alike.spec.gpu_type]


def _fits_by(spec: JobSpec) -> tuple[object, ...]:
    """All that `fit.find` looks at, beside the type."""
    return (spec.replicas, spec.gpus_per_replica, spec.gpu_memory_gb_min, hint_key(spec.topology))
