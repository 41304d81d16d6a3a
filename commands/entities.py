"""What the state is made of: one frozen value per thing. Changing one means putting a new value in its place.

Every value here is written to snapshots (commands.snapshot): plain fields only. Times in ms, durations in s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from events.ids import BlockId, Epoch, GpuType, Instant, JobId, NodeId, NodeIndex, Principal, TeamId
from events.job import ENDS, EndReason, JobSpec, JobState, PriorityClass, QueueReason
from events.node import GpuSlot
from events.preemption import PreemptionRule

NO_INSTANT = Instant(0)
NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The resume point: the accepted report with the highest sequence of any attempt (R-50)."""

    sequence: int
    uri: str
    attempt: int
    at: Instant
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """How far an array is (R-7). Elements are made, in the order of their indexes, when they are granted.

    `made`: how many are jobs of their own, or were; `open`: of those, how many have not ended; `cancelled`: of the
    open ones, how many were asked to be cancelled; `succeeded`: how many of those that ended.
    """

    made: int = 0
    open: int = 0
    cancelled: int = 0
    succeeded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that has not ended, or whose attempts still hold GPUs.

    `attempt`: number of the newest one, 0 before the first. `submit_seq`: seq of JobSubmitted, the tie-break of the
    queue. `faults`: infrastructure faults since the last progress; `retried`: own failures; `setbacks`: failed
    starts in a row (C-8). `open_attempts`: those with leases that have not ended. `max_runtime_s` may have been
    extended; `consumed_s`: time up to the last checkpoint (R-5). `waited_ms`: time QUEUED before the present wait,
    without held, dependency or backoff time (R-21); `waits_since`: when that began, None while it does not count.
    `preempted_at`: when it was preempted, in the last 24 h (R-42). `waits_on`: jobs that have to end first (R-7).
    `elements`: of an array, which stays one record for all that were not granted yet; `element_of`: the array that
    this was element `element` of.
    """

    id: JobId
    spec: JobSpec
    principal: Principal
    priority_class: PriorityClass
    labels: dict[str, str]
    submitted_at: Instant
    submit_seq: int
    state: JobState
    max_runtime_s: int | None
    attempt: int = 0
    held: bool = False
    front: bool = False
    queued_at: Instant = NO_INSTANT
    not_before_at: Instant | None = None
    cancel_requested: bool = False
    faults: int = 0
    retried: int = 0
    setbacks: int = 0
    preemptions: int = 0
    preempted_at: tuple[Instant, ...] = ()
    waited_ms: int = 0
    waits_since: Instant | None = None
    queue_reason: QueueReason = QueueReason.SUBMITTED
    consumed_s: int = 0
    checkpoint: Checkpoint | None = None
    open_attempts: tuple[int, ...] = ()
    waits_on: tuple[JobId, ...] = ()
    elements: Elements | None = None
    element_of: JobId | None = None
    element: int = 0

    @property
    def unmade(self) -> int:
        """Elements of an array that were not granted yet; 0 for any other job."""
        array = self.spec.array
        return array.last - array.first + 1 - self.elements.made if array is not None and self.elements else 0

    @property
    def grants_max(self) -> int:
        """How often it may be granted at once: 1, or as many elements as its array's throttle leaves."""
        array = self.spec.array
        if array is None or self.elements is None:
            return 1
        return self.unmade if array.throttle is None else min(self.unmade, array.throttle - self.elements.open)

    @property
    def left_s(self) -> int | None:
        """What is left of its run-time limit, were it granted now (R-5); None: it has none."""
        if self.max_runtime_s is None:
            return None
        left_s = self.max_runtime_s - self.consumed_s
        return left_s if left_s > 0 else 1

    @property
    def eligible(self) -> bool:
        """Does it wait for GPUs alone (and its backoff)? Not while it is held, waits for a job, is throttled, or is an
        array whose cancellation is still to be drawn."""
        waits = self.state is JobState.QUEUED and not self.held and not self.waits_on and not self.cancel_requested
        return waits and (self.elements is None or self.grants_max > 0)

    @property
    def settles(self) -> bool:
        """Is it an array whose end, or whose elements' cancellation, is still to be drawn from what is?"""
        elements = self.elements
        if elements is None or self.state in ENDS:
            return False
        over = elements.open == 0 and (self.unmade == 0 or self.cancel_requested)
        return over or (self.cancel_requested and elements.open > elements.cancelled)


class RankPhase:
    """Values of Attempt.phases, one byte a rank: how far its lease is. From ENDED_OK on it holds no GPU."""

    GRANTED = 0
    RUNNING = 1
    ENDED_OK = 2
    ENDED_BAD = 3
    GIVEN_BACK = 4
    """Stopped because the attempt went on without it (R-44): neither well nor badly."""


AttemptKey = tuple[JobId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Ranks from `first` on were granted later than the attempt (R-44). `grant`: (epoch, n) of that commit."""

    first: int
    grant: tuple[int, int]
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A numbered try of a job, until its last lease has ended.

    `ranks[r]` = (node index, mask of claimed GPUs); `phases[r]` a RankPhase. `grant`: (epoch, n) of the granting
    commit (P-17). `ending`: why it is to stop, None while it is to run. `exit_code`: the first that was not 0.
    `charged`: GPUs charged to the team: those of live leases on nodes that are not lost. `after_preemption`: the
    attempt before it was preempted (R-42). `advance_s`: seconds charged in advance to the fair share (R-21).
    `growths`: ranks that came later, in order; `stopping`: ranks that it goes on without, since `stopping_at` (R-44).
    `promised_n`: the commit that pledged its GPUs to it, None where no pledge did.
    """

    job_id: JobId
    number: int
    team: TeamId
    gpu_type: GpuType
    ranks: tuple[tuple[NodeIndex, int], ...]
    phases: bytes
    grant: tuple[int, int]
    granted_at: Instant
    limit_at: Instant | None
    running_at: Instant | None = None
    ending: EndReason | None = None
    ending_at: Instant | None = None
    grace_s: int = 0
    exit_code: int | None = None
    charged: int = 0
    after_preemption: bool = False
    advance_s: int = 0
    growths: tuple[Growth, ...] = ()
    stopping: tuple[int, ...] = ()
    stopping_at: Instant | None = None
    promised_n: int | None = None

    @property
    def key(self) -> AttemptKey:
        return (self.job_id, self.number)

    @property
    def first_size(self) -> int:
        """Ranks that were granted with the attempt."""
        return self.growths[0].first if self.growths else len(self.ranks)

    def growth_of(self, rank: int) -> Growth | None:
        """With which growth the rank came; None: with the attempt."""
        return next((growth for growth in reversed(self.growths) if growth.first <= rank), None)

    def size_with(self, rank: int) -> int:
        """How many ranks the attempt had when this one came."""
        return next((growth.first for growth in self.growths if growth.first > rank), len(self.ranks))

    def stays(self, rank: int) -> bool:
        """Does the rank run on, as far as is known?"""
        return self.live(rank) and rank not in self.stopping

    @property
    def held(self) -> Sequence[tuple[NodeIndex, int]]:
        """(node, mask) of the leases that still hold their GPUs."""
        if max(self.phases) < RankPhase.ENDED_OK:
            return self.ranks
        return [held for rank, held in enumerate(self.ranks) if self.live(rank)]

    def live(self, rank: int) -> bool:
        """Does the rank's lease still hold its GPUs?"""
        return self.phases[rank] < RankPhase.ENDED_OK


class NodeState(StrEnum):
    UP = "up"
    SUSPECT = "suspect"
    LOST = "lost"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the fleet. Masks are over gpu slots.

    `used`: claimed by live leases; `broken`: out of the inventory; `pledged`: held for a job that room is made for.
    `leases`: live ones, as (job, attempt, rank). `confirmed`: newest epoch in which it reported what it runs (P-16).
    `last_report`: newest number taken of `journal`.
    """

    index: NodeIndex
    id: NodeId
    generation: int
    boot_id: str
    incarnation: str
    journal: str
    address: str
    block: BlockId
    rack: str
    gpu_type: GpuType
    gpu_memory_gb: int
    gpus: tuple[GpuSlot, ...]
    state: NodeState = NodeState.UP
    drained: str | None = None
    confirmed: Epoch = NO_EPOCH
    last_report: int = 0
    used: int = 0
    broken: int = 0
    pledged: int = 0
    leases: tuple[tuple[JobId, int, int], ...] = ()

    @property
    def all_gpus(self) -> int:
        """Mask of every slot."""
        return (1 << len(self.gpus)) - 1

    @property
    def free(self) -> int:
        """Mask of the GPUs that are whole, hold no lease and are pledged to nobody."""
        return (1 << len(self.gpus)) - 1 & ~(self.used | self.broken | self.pledged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    team: TeamId
    gpu_type: GpuType
    guaranteed: int
    borrow_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """`queued`: its jobs in the queue (R-13). `classes`: those it may use, None: the policy's default."""

    id: TeamId
    queued: int = 0
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Ledger line: GPUs charged to a team on a type, now (I-11)."""

    team: TeamId
    gpu_type: GpuType
    charged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FairUse:
    """What a team has used of a type, for its fair share (R-21). Integer GPU-seconds.

    `settled`: of leases that ended, decayed up to `settled_hour` (hours since 1970). `running`: GPUs that run, and
    `since`: the sum over them of when each was granted (s), so that what they have accrued is running x now - since.
    `advance`: charged in advance for those that run.
    """

    team: TeamId
    gpu_type: GpuType
    settled: int = 0
    settled_hour: int = 0
    running: int = 0
    since: int = 0
    advance: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledge:
    """Room that is made for a job, held until it starts (R-45). `ranks`: its coming placement; `ordered_n`: the commit
    that ordered it."""

    job_id: JobId
    team: TeamId
    gpu_type: GpuType
    ranks: tuple[tuple[NodeIndex, int], ...]
    victims: tuple[AttemptKey, ...]
    awaited: tuple[AttemptKey, ...]
    rule: PreemptionRule
    at: Instant
    ordered_n: int = 0

    @property
    def gpus(self) -> int:
        return sum([mask.bit_count() for _, mask in self.ranks])


ReservationKey = tuple[GpuType, str]
"""(type, pool): at most one reservation each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes held for the first blocked job of a type and pool (R-23)."""

    job_id: JobId
    gpu_type: GpuType
    pool: str
    nodes: tuple[NodeIndex, ...]
    start_at: Instant

    @property
    def key(self) -> ReservationKey:
        return (self.gpu_type, self.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """An idempotency key that was used (P-14): digest of (principal, key) -> what it made.
    `day`: of `at`, in days since 1970: the bucket by which it expires."""

    key: str
    body: str
    job_id: str
    seq: int
    day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that ended and holds nothing: remembered for a while, for dependencies and late questions."""

    id: JobId
    state: JobState
    team: TeamId
    day: int


class MassSilenceState(StrEnum):
    """HELD: nobody is declared lost. OVERRIDDEN: an operator said that they are really down (P-20)."""

    NONE = "none"
    HELD = "held"
    OVERRIDDEN = "overridden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Scalars of the cluster. `command_position`, `command_log`: how far the commands log was taken (I-7, P-13)."""

    seq: int = 0
    n: int = 0
    epoch: Epoch = NO_EPOCH
    at: Instant = NO_INSTANT
    policy_version: int = 0
    command_position: int = 0
    command_id: str = ""
    command_log: str = ""
    mass_silence: MassSilenceState = MassSilenceState.NONE
    day: int = 0
    quiet_until_at: Instant = NO_INSTANT
