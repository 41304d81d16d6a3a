"""The port to the agents: what is said on it, in plain values, and the gateway that carries it.

The wire (agent/rpc) and the simulation both speak these messages. Rules: PROTOCOL P-15 to P-22. Nothing here does
I/O. Times that agents give are their own and are shown, never reckoned with (C-47).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from commands.reports import (
    CheckpointReport,
    Grant,
    Phase,
    Register,
    Report,
    Running,
    TaskEndedReport,
    TaskStartedReport,
    ZombieReport,
)
from events.ids import Epoch, JobId, LeaseId, NodeId

__all__ = [
    "CheckpointReport",
    "ExtendTask",
    "FromAgent",
    "Gateway",
    "Grant",
    "Heartbeat",
    "HeartbeatAck",
    "NotLeader",
    "Phase",
    "Register",
    "RegisterRefused",
    "Registered",
    "Report",
    "ReportAck",
    "Running",
    "StartTask",
    "StopTask",
    "TailLog",
    "TaskEndedReport",
    "TaskStartedReport",
    "ToAgent",
    "ZombieReport",
]

# From the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Every 5 s. `number` grows within the incarnation. `gpu_faults`: mask of GPUs that do not answer or are broken."""

    node_id: NodeId
    number: int
    running: tuple[Running, ...]
    gpu_faults: int = 0
    disk_free_bytes: int = 0


FromAgent = Register | Heartbeat | TaskStartedReport | TaskEndedReport | CheckpointReport | ZombieReport


# To the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The session is on: the node is known to this leader. `epoch` is fsynced before anything is obeyed (P-17)."""

    epoch: Epoch
    heartbeat_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRefused:
    """Another live incarnation has this node id, or the inventory cannot be taken now; try again later."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLeader:
    """Said by a standby: `address` of the leader where it is known, to dial instead."""

    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """Run one rank under its lease, at most once (P-17).

    `last_heartbeat`: number of the last heartbeat the leader had from this agent (0: only its Register); the agent
    refuses if it sent that one over 30 s ago (P-18). `limit_s`: seconds from now until the run-time limit, None =
    unlimited; SIGTERM comes `grace_s` before it, SIGKILL at it (R-5). `gpu_uuids` in slot order (P-21).
    """

    epoch: Epoch
    grant: Grant
    last_heartbeat: int
    lease_id: LeaseId
    job_id: JobId
    attempt: int
    rank: int
    replicas: int
    gpus_per_replica: int
    command: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    master_addr: str
    master_port: int
    limit_s: int | None
    grace_s: int
    image: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    checkpoint_uri: str | None = None
    resume_uri: str | None = None
    overlap_never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTask:
    """Stop the task of a lease and report it gone. If it overtakes its StartTask, the start never runs (P-17)."""

    epoch: Epoch
    grant: Grant
    lease_id: LeaseId
    grace_s: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendTask:
    """The run-time limit moved: it is now `limit_s` seconds from now."""

    epoch: Epoch
    lease_id: LeaseId
    limit_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAck:
    """The log holds what reports up to `number` said: the agent may forget them."""

    epoch: Epoch
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAck:
    """The leader's word that it leads. `disowned`: leases that no job holds: kill them (R-63)."""

    epoch: Epoch
    number: int
    disowned: tuple[LeaseId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLog:
    """Stream a rank's captured output to an api: the agent dials `url` with `token` (DESIGN 6)."""

    epoch: Epoch
    lease_id: LeaseId
    url: str
    token: str
    follow: bool
    from_byte: int = 0


ToAgent = (
    Registered | RegisterRefused | NotLeader | StartTask | StopTask | ExtendTask | ReportAck | HeartbeatAck | TailLog
)


class Gateway(Protocol):
    """The leader's end of all agent streams. Sessions are ordered within a stream; a new session of a node replaces
    the old, and nothing of the old comes after."""

    async def open(self, epoch: Epoch, deliver: Callable[[NodeId, FromAgent], None]) -> None:
        """Begin to lead: from now on messages of agents are delivered; the first of each session is its Register."""
        ...

    def send(self, node: NodeId, message: ToAgent) -> bool:
        """Queue a message on the node's session. False where there is none (best effort: the state repeats it)."""
        ...

    def live(self, node: NodeId) -> bool:
        """Is a registered session of the node connected now? (P-21)"""
        ...

    def drop(self, node: NodeId) -> None:
        """End the node's session; it may register anew."""
        ...

    async def close(self) -> None:
        """Stop leading: end all sessions."""
        ...
