"""What one replay came to: rows for the report. Made by replay.engine from the events alone; read by replay.report.

Times are Instants (ms), durations seconds, amounts GPUs and GPU-seconds, all integers. Rows are sorted by time and id.
"""

from dataclasses import dataclass, field

from events.ids import GpuType, Instant, JobId, TeamId
from events.job import EndReason, JobState, PriorityClass
from events.preemption import PreemptionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """One job. `gpus`: asked for; `charged`: of its first grant (0: never granted). `waited_s`: QUEUED over all
    attempts, without held, dependency and backoff time; `first_wait_s`: up to the first grant, or to the end of the
    replay. `kept_gpu_s`: running time whose work was kept; `lost_gpu_s`: that had to be done again, or was thrown away
    with a preemption or fault. `state`: None while it had not ended."""

    job_id: JobId
    team: TeamId
    user: str
    name: str
    priority_class: PriorityClass
    gpu_type: GpuType
    gpus: int
    charged: int
    submitted_at: Instant
    first_start_at: Instant | None
    ended_at: Instant | None
    state: JobState | None
    reason: EndReason | None
    waited_s: int
    first_wait_s: int
    run_s: int
    """What its work needs in all: for the bounded slowdown."""
    kept_gpu_s: int
    lost_gpu_s: int
    preemptions: int
    faults: int
    refused: str = ""
    """Why its submission was refused, where it was: the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One attempt's hold on its GPUs: from grant to release. `gpus`: charged at the grant; `running_at`: None where it
    never ran; `released_at`: None where it still holds them at the end of the replay."""

    job_id: JobId
    attempt: int
    team: TeamId
    gpu_type: GpuType
    gpus: int
    nodes: int
    blocks: int
    granted_at: Instant
    running_at: Instant | None
    released_at: Instant | None
    reason: EndReason | None
    borrowed: bool
    """Outside its team's guarantee when it was granted."""
    gpu_ms: int = 0
    """GPUs that were charged, times time, exactly: ranks may go one by one, and an elastic gang changes its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """One victim. `ordered_at`: the decision; `freed_at`: its GPUs were there; `started_at`: the preemptor started."""

    victim: JobId
    victim_attempt: int
    victim_team: TeamId
    preemptor: JobId
    preemptor_team: TeamId
    rule: PreemptionRule
    gpus: int
    lost_gpu_s: int
    ordered_at: Instant
    freed_at: Instant | None
    started_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The fleet's use of one type over one interval that ends at `at`, in GPU-seconds so that they add up. What waits
    is that of the end, and so is `stranded`: size of job -> free GPUs that no job of that size could use (R-36)."""

    at: Instant
    gpu_type: GpuType
    seconds: int
    healthy_gpu_s: int
    allocated_gpu_s: int
    held_gpu_s: int
    """Idle under a reservation or a pledge."""
    waiting_jobs: int
    waiting_gpus: int
    stranded: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSample:
    """One team on one type over the same interval. `entitled_gpu_s`: the integral of min(demand, guarantee), demand
    being what it holds and what it has waiting (R-22)."""

    at: Instant
    team: TeamId
    gpu_type: GpuType
    guaranteed: int
    delivered_gpu_s: int
    entitled_gpu_s: int
    demand_gpu_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One scenario under one policy. `policy_name`: for people. `cycles`, `commits`, `events`: how much was decided."""

    scenario: str
    policy_name: str
    gpus: int
    start_at: Instant
    end_at: Instant
    jobs: tuple[JobOutcome, ...]
    stretches: tuple[Stretch, ...]
    displacements: tuple[Displacement, ...]
    samples: tuple[Sample, ...]
    team_samples: tuple[TeamSample, ...]
    cycles: int = 0
    commits: int = 0
    events: int = 0
