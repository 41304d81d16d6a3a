"""Commands: imperatives by people, in the shape in which they lie in the commands log.

The api has checked form and identity before it appends one; whether it can be done is decided by the core alone.
"""

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from events.ids import CommandId, GpuType, Instant, JobId, NodeId, Principal, TeamId
from events.job import JobSpec, PriorityClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """`job_id` was bound to the idempotency key before (P-14)."""

    job_id: JobId
    spec: JobSpec
    type: Literal["submit_job"] = "submit_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    job_id: JobId
    type: Literal["cancel_job"] = "cancel_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldJob:
    job_id: JobId
    type: Literal["hold_job"] = "hold_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJob:
    job_id: JobId
    type: Literal["release_job"] = "release_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendJob:
    """More run time by `by_s` seconds (R-5)."""

    job_id: JobId
    by_s: int
    type: Literal["extend_job"] = "extend_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueJob:
    """Stop the attempt that runs, and queue the job again."""

    job_id: JobId
    type: Literal["requeue_job"] = "requeue_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJob:
    """New class or labels of a waiting job; None leaves as it is."""

    job_id: JobId
    priority_class: PriorityClass | None = None
    labels: dict[str, str] | None = None
    type: Literal["change_job"] = "change_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLine:
    """GPUs; or, where a percent is given, so much of the registered GPUs outside pools, as they are when it is set."""

    gpu_type: GpuType
    guaranteed: int = 0
    borrow_limit: int = 0
    guaranteed_percent: int | None = None
    borrow_limit_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """The named types get these values; types that are not named stay as they are (R-14)."""

    team: TeamId
    lines: tuple[QuotaLine, ...]
    classes: tuple[PriorityClass, ...] | None = None
    reason: str = ""
    type: Literal["set_quota"] = "set_quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPolicy:
    """The whole new policy, as commands.policy.Policy reads it."""

    policy: dict[str, Any]
    reason: str = ""
    type: Literal["set_policy"] = "set_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """No new work; with `now` its attempts are stopped with grace and queued again (R-73)."""

    node_id: NodeId
    reason: str
    now: bool = False
    type: Literal["drain_node"] = "drain_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainNode:
    node_id: NodeId
    type: Literal["undrain_node"] = "undrain_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeNode:
    """The operator's word that nothing of ours runs on a lost node any more (P-15)."""

    node_id: NodeId
    reason: str
    type: Literal["wipe_node"] = "wipe_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode:
    """Take a node out of the inventory; its leases end on the operator's word."""

    node_id: NodeId
    reason: str
    type: Literal["remove_node"] = "remove_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class EaseSilence:
    """The operator's word that nodes which are silent together are really down (P-20)."""

    reason: str
    type: Literal["ease_silence"] = "ease_silence"


JobCommand = CancelJob | HoldJob | ReleaseJob | ExtendJob | RequeueJob | ChangeJob
NodeCommand = DrainNode | UndrainNode | WipeNode | RemoveNode
Command = SubmitJob | JobCommand | SetQuota | SetPolicy | NodeCommand | EaseSilence


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """One record of the commands log.

    `key`, `body`: 16-byte hex digests of (principal, idempotency key) and of the command's content (P-14).
    `sent_at`: the api's clock, shown and never reckoned with.
    """

    id: CommandId
    principal: Principal
    key: str
    body: str
    sent_at: Instant
    command: Command


class NoCommand(Exception):
    """Bytes in the commands log that are no command of ours: answered by CommandUnreadable (P-13)."""


_record: TypeAdapter[CommandRecord] = TypeAdapter(CommandRecord)


def encode_command(record: CommandRecord) -> bytes:
    """The bytes of a command record."""
    return orjson.dumps(record)


def decode_command(raw: bytes) -> CommandRecord:
    """The command in `raw`. Raises NoCommand, saying why in at most 300 characters."""
    try:
        plain = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise NoCommand(f"not JSON: {error}"[:300]) from None
    return read_command(plain)


def read_command(plain: Any) -> CommandRecord:
    """The command in its parsed JSON, as a commit's input keeps it: what is decided is what is recorded (I-9). Raises
    NoCommand."""
    try:
        return _record.validate_python(plain)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise NoCommand(f"{error.error_count()} faults: {first}"[:300]) from None


UNREAD_BYTES_MAX = 64 * 1024


def unread(raw: bytes) -> dict[str, Any]:
    """What a commit's input keeps of a record that is no command: its bytes in base 64, of a long one only the hash."""
    kept = b64encode(raw).decode() if len(raw) <= UNREAD_BYTES_MAX else None
    return {"unreadable": {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "base64": kept}}
