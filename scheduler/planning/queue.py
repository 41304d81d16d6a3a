"""The queue as the planner walks it: jobs in order, by shape, so that what does not fit is tried once (C-5).

Kept in step by the changes of each accepted commit. Held jobs are not in it; jobs that wait out a backoff come in
when their time is there.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from commands.entities import Job
from commands.state import Change, State
from events.ids import GpuType, Instant, JobId, TeamId
from events.job import CLASS_RANK, JobState, Topology

OrderKey = tuple[int, bool, int]
"""(class rank, not in front, seq of submission): the plain order. Lower goes first."""
Shape = tuple[TeamId, GpuType, int, int, int, tuple[object, ...]]
"""Jobs of one shape fit or do not fit alike: team, type, replicas, GPUs per replica, memory floor, hints."""
Entry = tuple[OrderKey, JobId]


def order_key(job: Job) -> OrderKey:
    return (CLASS_RANK[job.priority_class], not job.front, job.submit_seq)


def shape_of(job: Job) -> Shape:
    spec = job.spec
    return (
        spec.team,
        spec.gpu_type,
        spec.replicas,
        spec.gpus_per_replica,
        spec.gpu_memory_gb_min,
        hint_key(spec.topology),
    )


def hint_key(hint: Topology) -> tuple[object, ...]:
    return (hint.pack or "", hint.spread or "", hint.max_blocks or 0, hint.strict)


class Queue:
    """Jobs that may be granted, by shape and order."""

    def __init__(self) -> None:
        self.shapes: dict[Shape, list[Entry]] = {}
        self._of: dict[JobId, tuple[Shape, Entry]] = {}
        self._later: list[tuple[Instant, JobId]] = []

    @classmethod
    def of(cls, state: State) -> "Queue":
        made = cls()
        for job_id in sorted(state.jobs.rows):
            made._place(job_id, state.jobs[job_id])
        return made

    def __len__(self) -> int:
        return len(self._of)

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""
        for change in changes:
            if change.table == "jobs":
                self._place(change.key, change.new)

    def wake(self, state: State, now: Instant) -> None:
        """Let in the jobs whose backoff is over."""
        while self._later and self._later[0][0] <= now:
            at, job_id = heappop(self._later)
            job = state.jobs.get(job_id)
            if job is not None and job.not_before_at == at and _waits(job) and job_id not in self._of:
                self._insert(job)

    def walk(self) -> "Walk":
        return Walk(self)

    def _place(self, job_id: JobId, job: Job | None) -> None:
        if (known := self._of.pop(job_id, None)) is not None:
            shape, entry = known
            entries = self.shapes[shape]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self.shapes[shape]
        if job is None or not _waits(job):
            return
        if job.not_before_at is not None:
            heappush(self._later, (job.not_before_at, job_id))
        else:
            self._insert(job)

    def _insert(self, job: Job) -> None:
        shape, entry = shape_of(job), (order_key(job), job.id)
        insort(self.shapes.setdefault(shape, []), entry)
        self._of[job.id] = (shape, entry)


class Walk:
    """One walk through the queue in order. Shapes that failed are left out for the rest of it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._heads = [(entries[0], 0, shape) for shape, entries in queue.shapes.items()]
        heapify(self._heads)

    def __iter__(self) -> Iterator[tuple[JobId, Shape]]:
        """Yields (job, shape), best first; call `failed` to skip the shape of the job just yielded."""
        while self._heads:
            (_, job_id), place, shape = self._heads[0]
            self._skip = False
            yield job_id, shape
            entries = self._queue.shapes[shape]
            if self._skip or place + 1 == len(entries):
                heappop(self._heads)
            else:
                heapreplace(self._heads, (entries[place + 1], place + 1, shape))

    def failed(self) -> None:
        """The job just yielded does not fit: nor do the others of its shape."""
        self._skip = True


def _waits(job: Job) -> bool:
    return job.state is JobState.QUEUED and not job.held
