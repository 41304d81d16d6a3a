"""A scenario: all that a replay is given. What came, and what the work really took; never what was decided about it.

Recorded days (replay.recorded), public traces (replay.traces) and generated days (replay.generated) all become one of
these; replay.engine lets the production core schedule it. Plain values; nothing here knows where they came from.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from commands.messages import Command
from commands.policy import DEFAULT, Policy
from commands.reports import Register, Tick
from events.ids import GpuType, Instant, JobId, NodeId, TeamId
from events.job import JobSpec, PriorityClass
from events.task import TaskEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was reported of one rank of an attempt, as it was recorded.

    `after_ms`: since the rank was granted; with `stopped`, since it was told to stop. `end`: None: it started, or with
    `saved` a checkpoint was accepted, or with `missing` its node registered without it; else how it ended.
    """

    rank: int
    after_ms: int
    stopped: bool = False
    saved: bool = False
    missing: bool = False
    end: TaskEnd | None = None
    exit_code: int | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """An attempt as it was recorded. Whatever happens, its ranks take as long to start, and to go when they are told
    to. Only where it is granted when it was granted then do they also save and end as they did then. `told`: ranks that
    were told to stop. `ran_ms`: since the grant, for how long it is known not to have ended by itself."""

    granted_at: Instant
    said: tuple[Said, ...]
    told: frozenset[int] = frozenset()
    ran_ms: int = 0


QUEUED_MAX = 1_000_000
"""No policy allows more queued jobs of a team (commands.policy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job really does, whenever it is let.

    `run_s`: running time that it needs in all, at the size it asked for, from its task's start to its end. `start_s`:
    from each grant to running (pull, start, restart from a checkpoint). `save_s`: from SIGTERM to its exit with a
    checkpoint written. `exit_code`: at its end; `cancelled`: it ends by its user's cancel, after `run_s`, instead.
    Checkpoints come each `spec.checkpoint.interval_s`; what was done since the last is lost with a fault.
    `tries`: its attempts as they were recorded, by number; what they do not tell is as above.
    """

    run_s: int
    start_s: int = 20
    save_s: int = 20
    exit_code: int = 0
    cancelled: bool = False
    tries: dict[int, Tried] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One submission. `user`: who submitted it, for the report; "" where that is not known. `elements`: of an array,
    what those do that do not do as `work` says."""

    at: Instant
    job_id: JobId
    spec: JobSpec
    work: Work
    user: str = ""
    elements: dict[JobId, Work] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuota:
    """A team's share of one type, in GPUs, and the classes that it may use."""

    team: TeamId
    gpu_type: GpuType
    guaranteed: int
    borrow_limit: int
    classes: tuple[PriorityClass, ...] = tuple(PriorityClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A node is not heard from `at` to `until` (None: it never comes back). `wiped`: nothing that ran on it is left
    when it comes back; `confirmed` False: it has then yet to tell what runs on it."""

    node_id: NodeId
    at: Instant
    until: Instant | None
    wiped: bool = False
    confirmed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """What a leader noticed beside silence and time: broken GPUs, leases that were missing on their nodes."""

    at: Instant
    tick: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node registers for the first time, in the course of the day."""

    at: Instant
    node: Register


@dataclass(frozen=True, slots=True, kw_only=True)
class Anew:
    """A node's agent began anew: nothing is granted on it until it has told all that runs there, at `confirmed_at`
    (None: never). `new_disk`: it knows of nothing that ran there."""

    node_id: NodeId
    at: Instant
    confirmed_at: Instant | None
    new_disk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """Another leader: each node may be granted on again once it has registered with it. `gone_at`: the last that was
    heard of the one before."""

    gone_at: Instant
    at: Instant
    confirmed: tuple[tuple[Instant, NodeId], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """When the recorded leader looked: a cycle that decided something, planned for `at` and committed at `made_at`; or,
    with `plans` False, a tick that did. `first`: nothing that came in that very ms was known to it."""

    at: Instant
    made_at: Instant
    plans: bool
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A command other than a submission, as people or operators gave it: cancel, hold, drain, a change of quota."""

    at: Instant
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`name`: for people. Time goes from `start_at`; arrivals, commands and silences are sorted by time, and none is
    before it. The replay ends when all jobs have ended, or at `end_at`. `beats`: to look at the very times at which the
    recorded leader did, and not in between; only then do the recorded decisions come out to the millisecond.
    `refuses`: the bounds of a policy on what may be submitted hold, as they did when it was recorded; else they are as
    wide as what came needs."""

    name: str
    start_at: Instant
    nodes: tuple[Register, ...]
    quotas: tuple[TeamQuota, ...]
    arrivals: tuple[Arrival, ...]
    commands: tuple[Timed, ...] = ()
    silences: tuple[Silence, ...] = ()
    policy: Policy = field(default=DEFAULT)
    end_at: Instant | None = None
    noticed: tuple[Noticed, ...] = ()
    joined: tuple[Joined, ...] = ()
    anew: tuple[Anew, ...] = ()
    taken_over: tuple[TakenOver, ...] = ()
    beats: tuple[Beat, ...] = ()
    refuses: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the whole fleet."""
        return sum(len(node.gpus) for node in self.nodes)

    @property
    def least_s(self) -> int:
        """Seconds that it lasts at least: the last job comes, and each runs its time."""
        at, end_at = self.start_at, self.end_at
        over_at = max((each.at + each.work.run_s * 1000 for each in self.arrivals), default=at)
        return ((over_at if end_at is None else min(end_at, over_at)) - at) // 1000


def widened(policy: Policy, arrivals: Sequence[Arrival]) -> Policy:
    """The policy, with its bounds on run-time limits and on queued jobs as wide as these arrivals need: a replay of
    what happened refuses none of it."""
    limit_s = max((each.spec.max_runtime_s or 0 for each in arrivals), default=0)
    queued = max(Counter(each.spec.team for each in arrivals).values(), default=0)
    return policy.model_copy(
        update={
            "max_runtime_max_s": max(policy.max_runtime_max_s, limit_s),
            "queued_jobs_max": min(QUEUED_MAX, max(policy.queued_jobs_max, queued)),
        }
    )
