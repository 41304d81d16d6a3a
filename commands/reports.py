"""What agents report, and what a tick observes: the inputs of the core that are no commands.

Plain values, as the log keeps them. scheduler.link adds what only the link needs.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from events.ids import BlockId, Epoch, GpuType, JobId, LeaseId, NodeId, NodeIndex
from events.node import GpuSlot
from events.task import TaskEnd

Grant = tuple[int, int]
"""(epoch, n) of the commit that granted a lease, compared in that order (P-17)."""


class Phase(StrEnum):
    """How far a lease is on its node. Listed from the moment its StartTask is on the agent's disk (P-16)."""

    ACCEPTED = "accepted"
    PULLING = "pulling"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    """Gone, and its report not yet acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One lease as its agent has it."""

    lease_id: LeaseId
    grant: Grant
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """First message of a session, sent after adoption (P-19).

    `incarnation`: this agent process. `journal`: its state directory, within which reports are numbered without
    a gap; `last_report` is the newest number written. `epoch_floor`: newest epoch it has heard from (P-12).
    `address`: host name or IP under which other nodes reach this one (rank 0 serves MASTER_PORT there).
    """

    node_id: NodeId
    boot_id: str
    incarnation: str
    journal: str
    last_report: int
    epoch_floor: Epoch
    block: BlockId
    rack: str
    address: str
    gpu_type: GpuType
    gpu_memory_gb: int
    gpus: tuple[GpuSlot, ...]
    running: tuple[Running, ...] = ()
    type: Literal["register"] = "register"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStartedReport:
    number: int
    lease_id: LeaseId
    type: Literal["task_started"] = "task_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEndedReport:
    """Nothing of the task is left; written to the agent's disk before it is sent (P-15)."""

    number: int
    lease_id: LeaseId
    end: TaskEnd
    exit_code: int | None
    finished: bool = False
    detail: str = ""
    type: Literal["task_ended"] = "task_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    number: int
    lease_id: LeaseId
    sequence: int
    uri: str
    size_bytes: int
    step: int | None = None
    type: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZombieReport:
    """A process on a GPU that no lease covers was killed (R-63)."""

    number: int
    gpu: int
    pid: int
    type: Literal["zombie"] = "zombie"


Report = TaskStartedReport | TaskEndedReport | CheckpointReport | ZombieReport
"""Kept on the agent's disk until acknowledged; may come twice, late, or in any order over sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromNode:
    """One message of a batch. `other_live`: another incarnation of the node has a live session (P-21)."""

    node_id: NodeId
    message: Register | Report
    other_live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What the shell observed since the last one: facts about time and silence, which the core cannot see (I-9).

    `silent`: (node, seconds without a heartbeat) of those past a threshold that their state does not show yet;
    `heard`: suspected or lost nodes whose heartbeats came again in their session; `missing`: leases absent from
    their node's heartbeats for too long after their start was sent; `faults`: (node, mask) of broken GPUs;
    `due`: attempts (job, number) whose limit or start timeout may have come; `confirmed`: nodes that could not be
    confirmed when they registered, and now have told all that they run (P-16).
    """

    silent: tuple[tuple[NodeIndex, int], ...] = ()
    heard: tuple[NodeIndex, ...] = ()
    missing: tuple[LeaseId, ...] = ()
    faults: tuple[tuple[NodeIndex, int], ...] = ()
    due: tuple[tuple[JobId, int], ...] = ()
    confirmed: tuple[NodeIndex, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """A GPU that Postgres holds for a lease which the log does not know (P-8). `again`: seen before in this term."""

    node_id: NodeId
    gpu: int
    held_by: LeaseId
    again: bool
