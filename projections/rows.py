"""The rows of schema `read`, one class per table, fields = columns (see migrations/ for what each means).

Mutable on purpose: the fold changes them in place, and whoever holds the store saves what was changed.
Values are plain: what goes through JSON and Postgres and comes back equal.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar


class Row:
    """`TABLE`: name in schema read; `KEY`: primary key without `cluster`, which comes first in each."""

    __slots__ = ()
    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]


R = TypeVar("R", bound=Row)


@dataclass(slots=True, kw_only=True)
class PositionRow(Row):
    TABLE: ClassVar[str] = "positions"
    KEY: ClassVar[tuple[str, ...]] = ()
    cluster: str
    log_id: str
    offset: int
    accepted: int
    epoch: int
    nonce: str
    n: int
    seq: int
    at: int
    hash: str


@dataclass(slots=True, kw_only=True)
class ClusterRow(Row):
    TABLE: ClassVar[str] = "clusters"
    KEY: ClassVar[tuple[str, ...]] = ()
    cluster: str
    log_id: str
    epoch: int = 0
    holder: str = ""
    elected_at: int | None = None
    policy_version: int = 0
    commands_log_id: str | None = None
    commands_position: int | None = None
    silence: str = "none"
    silent: int = 0
    silent_of: int = 0
    silence_changed_at: int | None = None
    quiet_until_at: int | None = None


@dataclass(slots=True, kw_only=True)
class LeaderRow(Row):
    TABLE: ClassVar[str] = "leaders"
    KEY: ClassVar[tuple[str, ...]] = ("epoch",)
    cluster: str
    epoch: int
    nonce: str
    holder: str
    rules: int
    term_n: int
    term_at: int
    elected_at: int | None = None
    elected_seq: int | None = None


@dataclass(slots=True, kw_only=True)
class PolicyRow(Row):
    TABLE: ClassVar[str] = "policies"
    KEY: ClassVar[tuple[str, ...]] = ("version",)
    cluster: str
    version: int
    policy: dict[str, Any]
    at: int
    seq: int
    actor: str
    reason: str


@dataclass(slots=True, kw_only=True)
class JobRow(Row):
    TABLE: ClassVar[str] = "jobs"
    KEY: ClassVar[tuple[str, ...]] = ("job_id",)
    cluster: str
    job_id: str
    team: str
    principal: str
    name: str
    labels: dict[str, str]
    spec: dict[str, Any]
    gpu_type: str
    gpus: int
    priority_class: str
    state: str
    held: bool = False
    submitted_at: int
    submit_seq: int
    attempt: int = 0
    class_rank: int
    front: bool = False
    queued_at: int | None = None
    queue_reason: str | None = None
    not_before_at: int | None = None
    granted_at: int | None = None
    started_at: int | None = None
    limit_at: int | None = None
    max_runtime_s: int | None
    cancel_requested_at: int | None = None
    ended_at: int | None = None
    end_reason: str | None = None
    exit_code: int | None = None
    preemptions: int = 0
    faults: int = 0
    retried: int = 0
    checkpoint_sequence: int | None = None
    checkpoint_uri: str | None = None
    checkpoint_step: int | None = None
    checkpoint_attempt: int | None = None
    checkpoint_at: int | None = None
    rejected_code: str | None = None
    rejected_field: str | None = None
    rejected_value: str | None = None
    rejected_limit: str | None = None
    made_seq: int
    waits_on: list[str] = field(default_factory=list)
    element_of: str | None = None
    element: int | None = None
    elements_made: int = 0
    elements_open: int = 0
    elements_cancelled: int = 0
    elements_succeeded: int = 0
    reservation: dict[str, Any] | None = None
    pledge: dict[str, Any] | None = None
    preempted: dict[str, Any] | None = None
    changed_at: int
    changed_seq: int


@dataclass(slots=True, kw_only=True)
class AttemptRow(Row):
    TABLE: ClassVar[str] = "attempts"
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "attempt")
    cluster: str
    job_id: str
    attempt: int
    team: str
    queued_at: int | None
    granted_at: int
    granted_seq: int
    granted_n: int
    granted_epoch: int
    cycle: int | None
    limit_at: int | None
    fallback: bool
    ranks: int
    gpus: int
    nodes: list[str]
    blocks: list[str]
    running_at: int | None = None
    ending_at: int | None = None
    ending_reason: str | None = None
    grace_s: int | None = None
    released_at: int | None = None
    exit_code: int | None = None
    failed_rank: int | None = None
    preempted_by: str | None = None
    preempted_rule: str | None = None


@dataclass(slots=True, kw_only=True)
class LeaseRow(Row):
    TABLE: ClassVar[str] = "leases"
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "attempt", "rank")
    cluster: str
    job_id: str
    attempt: int
    rank: int
    node_index: int
    node_id: str
    generation: int
    block: str
    team: str
    gpu_type: str
    gpus: list[int]
    gpu_count: int
    phase: str = "granted"
    granted_at: int
    granted_seq: int
    started_at: int | None = None
    ended_at: int | None = None
    end_how: str | None = None
    exit_code: int | None = None
    finished: bool = False
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class CheckpointRow(Row):
    TABLE: ClassVar[str] = "checkpoints"
    KEY: ClassVar[tuple[str, ...]] = ("seq",)
    cluster: str
    seq: int
    job_id: str
    attempt: int
    node_index: int
    sequence: int
    uri: str
    size_bytes: int
    step: int | None
    at: int


@dataclass(slots=True, kw_only=True)
class NodeRow(Row):
    TABLE: ClassVar[str] = "nodes"
    KEY: ClassVar[tuple[str, ...]] = ("node_index",)
    cluster: str
    node_index: int
    node_id: str
    generation: int
    boot_id: str
    incarnation: str
    journal: str
    address: str
    block: str
    rack: str
    gpu_type: str
    gpu_memory_gb: int
    gpu_count: int
    gpus: list[dict[str, Any]]
    faults: dict[str, str] = field(default_factory=dict)
    state: str = "up"
    silent_s: int | None = None
    drained: bool = False
    drain_reason: str | None = None
    drain_now: bool = False
    registered_at: int
    confirmed_at: int | None = None
    confirmed_epoch: int | None = None
    state_changed_at: int
    changed_at: int
    changed_seq: int


@dataclass(slots=True, kw_only=True)
class QuotaRow(Row):
    TABLE: ClassVar[str] = "quotas"
    KEY: ClassVar[tuple[str, ...]] = ("team", "gpu_type")
    cluster: str
    team: str
    gpu_type: str
    guaranteed: int
    borrow_limit: int
    changed_at: int
    changed_seq: int
    actor: str
    reason: str
    guaranteed_percent: int | None = None
    borrow_limit_percent: int | None = None


@dataclass(slots=True, kw_only=True)
class TeamRow(Row):
    TABLE: ClassVar[str] = "teams"
    KEY: ClassVar[tuple[str, ...]] = ("team",)
    cluster: str
    team: str
    classes: list[str]
    changed_at: int
    changed_seq: int


@dataclass(slots=True, kw_only=True)
class TimelineRow(Row):
    TABLE: ClassVar[str] = "timeline"
    KEY: ClassVar[tuple[str, ...]] = ("seq",)
    cluster: str
    seq: int
    at: int
    n: int
    type: str
    v: int
    job_id: str | None
    attempt: int | None
    node_id: str | None
    gpus: list[int] | None
    team: str | None
    actor: str
    cause: str
    input_kind: str
    input_id: str
    body: Any


FOLDED: tuple[type[Row], ...] = (
    ClusterRow,
    LeaderRow,
    PolicyRow,
    QuotaRow,
    TeamRow,
    NodeRow,
    JobRow,
    AttemptRow,
    LeaseRow,
    CheckpointRow,
    TimelineRow,
)
"""Every table but `positions`, which the worker itself moves."""
