"""Jobs: what a user submits, and what becomes of it. Facts only; times in ms (`_at`), durations in s (`_s`)."""

from dataclasses import dataclass, field
from enum import StrEnum

from events.catalogue import event
from events.ids import GpuType, Instant, JobId, Principal, TeamId


class PriorityClass(StrEnum):
    """From high to low (R-20)."""

    PROD_SERVING = "prod-serving"
    PROD_BATCH = "prod-batch"
    RESEARCH = "research"
    PREEMPTIBLE = "preemptible"

    __hash__ = str.__hash__
    """As quick as a string's: every turn of a job asks for the rank of its class."""


CLASS_RANK = {name: rank for rank, name in enumerate(PriorityClass)}
"""0 is the highest class."""


class JobState(StrEnum):
    """R-3. SUBMITTED is known to the api alone: the command is durable and not yet answered."""

    SUBMITTED = "SUBMITTED"
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PREEMPTING = "PREEMPTING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"
    TIMED_OUT = "TIMED_OUT"

    __hash__ = str.__hash__


ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.REJECTED, JobState.TIMED_OUT})


class Span(StrEnum):
    """A level of the fleet's tree that a hint names."""

    NODE = "node"
    RACK = "rack"
    BLOCK = "block"


class Overlap(StrEnum):
    """May an old copy run beside its successor during a partition? (P-22)"""

    ALLOWED = "allowed"
    NEVER = "never"


class DependsWhen(StrEnum):
    AFTER_OK = "after_ok"
    AFTER_ANY = "after_any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Placement hints (R-33)."""

    pack: Span | None = None
    spread: Span | None = None
    max_blocks: int | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """How the job saves its work (R-41, R-50). `uri` is a prefix; each lease writes below it."""

    preemptible: bool = True
    grace_s: int = 60
    interval_s: int = 1800
    uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRange:
    """`first`..`last` inclusive, at most `throttle` at a time (None: no limit)."""

    first: int
    last: int
    throttle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    job: JobId
    when: DependsWhen


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLocation:
    cluster: str
    size_gb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as submitted, well formed (R-1). `max_runtime_s` None means unlimited (prod-serving only)."""

    team: TeamId
    command: tuple[str, ...]
    gpu_type: GpuType
    max_runtime_s: int | None
    replicas: int = 1
    gpus_per_replica: int = 1
    priority_class: PriorityClass = PriorityClass.RESEARCH
    image: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    gpu_memory_gb_min: int = 0
    topology: Topology = Topology()
    checkpoint: CheckpointPlan = CheckpointPlan()
    elastic: Elastic | None = None
    deadline_at: Instant | None = None
    data: DataLocation | None = None
    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    interactive: bool = False
    overlap: Overlap = Overlap.ALLOWED
    retries: int = 0
    array: ArrayRange | None = None
    depends_on: tuple[Dependency, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs asked for by the whole gang (what is charged may be more: R-32)."""
        return self.replicas * self.gpus_per_replica


class QueueReason(StrEnum):
    """Why a job came (back) into the queue."""

    SUBMITTED = "submitted"
    REQUEUED = "requeued"
    FAULT = "fault"
    START_FAILED = "start_failed"
    RETRY = "retry"
    PREEMPTED = "preempted"
    DRAINED = "drained"


class EndReason(StrEnum):
    """Why an attempt, or a job with it, came to an end."""

    COMPLETED = "completed"
    NONZERO_EXIT = "nonzero_exit"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    NODE_LOST = "node_lost"
    LEASE_MISSING = "lease_missing"
    REQUEUED = "requeued"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    NO_PROGRESS = "no_progress"
    IMPOSSIBLE = "impossible"
    POISON = "poison"
    DEPENDENCY = "dependency"
    """A job that it was to follow did not end as it asked (R-7)."""
    ELEMENT_FAILED = "element_failed"
    """An array of which not every element succeeded."""

    __hash__ = str.__hash__


@event("job.submitted")
class JobSubmitted:
    """A job was accepted. Its idempotency key is in the commit's input."""

    job_id: JobId
    spec: JobSpec
    principal: Principal


@event("job.rejected")
class JobRejected:
    """A well-formed job that can never run here: an end (R-3, R-11). `code` is a RefusalCode."""

    job_id: JobId
    spec: JobSpec
    principal: Principal
    code: str
    field: str
    value: str
    limit: str


@event("job.queued")
class JobQueued:
    """The job waits for attempt number `attempt`; `front`: before its class (hit by a fault or a drain, R-21).
    It is not tried before `not_before_at` (backoff), nor while jobs of `waits_on` have not ended (R-7)."""

    job_id: JobId
    attempt: int
    reason: QueueReason
    front: bool = False
    not_before_at: Instant | None = None
    waits_on: tuple[JobId, ...] = ()


@event("job.dependency_ended")
class JobDependencyEnded:
    """A job that this one waited for, `on`, has ended as it asked. With the last one it is eligible: its waiting time
    begins (R-7, R-21). Where one ends otherwise the job is cancelled: JobFinished."""

    job_id: JobId
    on: JobId


@event("job.element_made")
class JobElementMade:
    """Element `index` of the array `array` is granted now, and from here on a job of its own: `job_id`. It has the
    array's spec, class and labels, and its place in the queue (R-7). Its GangAllocated follows in the same commit."""

    job_id: JobId
    array: JobId
    index: int


@event("job.held")
class JobHeld:
    """It waits, and is not to be started, until it is released."""

    job_id: JobId


@event("job.released")
class JobReleased:
    """The hold ended: the job waits again."""

    job_id: JobId


@event("job.priority_changed")
class JobPriorityChanged:
    """A waiting job has another class."""

    job_id: JobId
    priority_class: PriorityClass


@event("job.labels_changed")
class JobLabelsChanged:
    """A waiting job has these labels, and no others."""

    job_id: JobId
    labels: dict[str, str]


@event("job.extended")
class JobExtended:
    """The run-time limit is now `max_runtime_s` in all."""

    job_id: JobId
    max_runtime_s: int


@event("job.cancel_requested")
class JobCancelRequested:
    """Somebody wants it gone: at once where it waits, else when its tasks are (R-3)."""

    job_id: JobId


@event("job.finished")
class JobFinished:
    """The end, written once (R-3). `exit_code`: of the first rank that failed, else 0; None where none ran."""

    job_id: JobId
    state: JobState
    reason: EndReason
    exit_code: int | None = None
