"""The queue as the planner walks it: jobs by shape, each shape in order, so that what does not fit is tried once (C-5).

Kept in step by the changes of each accepted commit. Held jobs, those that wait for another job, and arrays at their
throttle are not in it; an array is one entry, however many elements it has. Jobs that wait out a backoff come in when
their time is there.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush

from commands.changed import News
from commands.displace import starts_only_covered
from commands.entities import Job
from commands.policy import DEFAULT, Policy
from commands.shape import replicas_min
from commands.state import State
from events.ids import GpuType, Instant, JobId, TeamId
from events.job import CLASS_RANK, JobSpec, QueueReason, Topology
from scheduler.planning.order import HOUR_MS, EntryKey, entry_key

Entry = tuple[EntryKey, JobId]
NodesAsked = tuple[GpuType, int]
"""(type, least memory of a GPU in GB)."""
ELEMENT_RANKS = 3
"""The start of an array's element writes one event more: it counts as so many ranks more of what a commit holds."""
LIMIT_STEPS = 8
"""Classes of run-time limits in each doubling: a limit counts as at most 1/8 longer than it is."""


class Shape(tuple[object, ...]):
    """What makes queued jobs fit, or not fit, alike. Compared and hashed as a tuple."""

    __slots__ = ()


def limit_class_s(max_runtime_s: int | None) -> int:
    """A run-time limit rounded up to its class, in seconds; 0 for none. What backfill reckons with (R-23)."""
    if max_runtime_s is None:
        return 0
    shift = max(0, max_runtime_s.bit_length() - LIMIT_STEPS.bit_length())
    return -(-max_runtime_s >> shift) << shift


def shape_of(job: Job, policy: Policy = DEFAULT) -> Shape:
    """Under that policy."""
    spec = job.spec
    elastic = (spec.elastic.min_replicas, spec.elastic.max_replicas) if spec.elastic is not None else None
    return Shape(
        (
            spec.team,
            spec.gpu_type,
            CLASS_RANK[job.priority_class],
            spec.replicas,
            spec.gpus_per_replica,
            spec.gpu_memory_gb_min,
            limit_class_s(job.max_runtime_s),
            hint_key(spec.topology),
            elastic or (),
            spec.interactive,
            spec.checkpoint.preemptible,
            starts_only_covered(policy, job),
            spec.checkpoint.grace_s,
            job.queue_reason is QueueReason.FAULT,
            tuple(rule.open_to(spec, job.priority_class) for rule in policy.pools),
        )
    )


def _shapes_by(policy: Policy) -> tuple[object, ...]:
    """What of the policy makes shapes differ."""
    return (policy.pools, policy.borrow_runtime_max_s)


def hint_key(hint: Topology) -> tuple[object, ...]:
    return (hint.pack or "", hint.spread or "", hint.max_blocks or 0, hint.strict)


class Line:
    """The queued jobs of one shape, in order.

    `each`: GPUs of a rank; `gpus`: of the smallest gang that will do; `single`: one rank is all. `alone`: it starts
    only covered. `charge`: GPUs that each is charged for at least, 0: to be reckoned. `failed`: what the planner
    remembers of the last try (scheduler.planning.failures).
    """

    __slots__ = (
        *("alone", "charge", "class_rank", "each", "entries", "failed", "gpu_type", "gpus"),
        *("nodes", "share", "single", "spec", "team"),
    )

    def __init__(self, job: Job, policy: Policy) -> None:
        self.team: TeamId = job.spec.team
        self.gpu_type: GpuType = job.spec.gpu_type
        self.class_rank: int = CLASS_RANK[job.priority_class]
        self.spec: JobSpec = job.spec
        """Of one of its jobs: what all of them ask for."""
        self.share = (self.team, self.gpu_type)
        self.each = job.spec.gpus_per_replica
        self.gpus = replicas_min(job.spec) * self.each
        self.single = job.spec.replicas == 1 and job.spec.elastic is None
        self.nodes: NodesAsked = (self.gpu_type, job.spec.gpu_memory_gb_min)
        self.alone = starts_only_covered(policy, job)
        self.charge = 0
        self.failed: object = None
        self.entries: list[Entry] = []


class Queue:
    """Jobs that may be granted, by shape and order."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.lines: dict[Shape, Line] = {}
        self.moved: set[JobId] | None = None
        """Jobs that came, changed or went since somebody looked who takes note of it; None: nobody does."""
        self._of: dict[JobId, tuple[Shape, Entry]] = {}
        self._later: list[tuple[Instant, JobId]] = []
        self._hour = -1
        for job_id in sorted(state.jobs.rows):
            self._place(job_id, state.jobs[job_id])

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._of

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        for _, job_id, _, job in news.get("jobs", ()):
            self._place(job_id, job)
        for _, _, old, _ in news.get("policies", ()):
            self._hour = -1
            if old is None or _shapes_by(old) != _shapes_by(self._state.policy):
                for job_id in list(self._of):
                    self._place(job_id, self._state.jobs[job_id])

    def begin(self, now: Instant) -> None:
        """A cycle at `now`: let in the jobs whose backoff is over, and with each new hour put all in order anew."""
        while self._later and self._later[0][0] <= now:
            at, job_id = heappop(self._later)
            job = self._state.jobs.get(job_id)
            if job is not None and job.not_before_at == at and job.eligible and job_id not in self._of:
                self._insert(job)
        if now // HOUR_MS != self._hour:
            self._hour = now // HOUR_MS
            self._sort()

    def next_at(self) -> Instant | None:
        """When the next backoff is over; None: there is none."""
        return self._later[0][0] if self._later else None

    def shape(self, job_id: JobId) -> Shape | None:
        """The shape of a job that is in the queue."""
        known = self._of.get(job_id)
        return known[0] if known is not None else None

    def entry(self, job_id: JobId) -> tuple[Shape, Entry] | None:
        """Where a job stands that is in the queue."""
        return self._of.get(job_id)

    def _sort(self) -> None:
        for shape, line in self.lines.items():
            line.entries = sorted((self._key(self._state.jobs[job_id]), job_id) for _, job_id in line.entries)
            for entry in line.entries:
                self._of[entry[1]] = (shape, entry)

    def _key(self, job: Job) -> EntryKey:
        policy = self._state.policy
        hours = policy.ease_max_percent // policy.ease_per_hour_percent if policy.ease_per_hour_percent else 0
        return entry_key(job, Instant(self._hour * HOUR_MS), hours)

    def _place(self, job_id: JobId, job: Job | None) -> None:
        if (known := self._of.pop(job_id, None)) is not None:
            self._remove(*known)
        if job is None or not job.eligible:
            return
        if job.not_before_at is not None and job.not_before_at > self._state.meta.at:
            heappush(self._later, (job.not_before_at, job_id))
        else:
            self._insert(job)

    def _remove(self, shape: Shape, entry: Entry) -> None:
        if self.moved is not None:
            self.moved.add(entry[1])
        line = self.lines[shape]
        del line.entries[bisect_left(line.entries, entry)]
        if not line.entries:
            del self.lines[shape]

    def _insert(self, job: Job) -> None:
        if self.moved is not None:
            self.moved.add(job.id)
        shape, entry = shape_of(job, self._state.policy), (self._key(job), job.id)
        line = self.lines.get(shape)
        if line is None:
            line = self.lines[shape] = Line(job, self._state.policy)
        insort(line.entries, entry)
        self._of[job.id] = (shape, entry)
