"""What a node's loop needs of the world: a clock, a transport, a runtime, GPUs, a journal.

All calls but `receive` and `sleep` return at once and are atomic for the loop: an agent may die between two of them,
never inside one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.book import Book, LeaseRecord
from events.ids import BlockId, GpuType, LeaseId, NodeId
from events.node import GpuSlot
from events.task import TaskEnd
from scheduler.link import FromAgent, Phase, StartTask, TailLog, ToAgent


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time on the node. Nothing else in the loop may know what time it is."""

    def now(self) -> float:
        """Seconds since the machine started, those it slept or was frozen included (CLOCK_BOOTTIME)."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call it once, after the delay."""
        ...

    async def sleep(self, delay_s: float) -> None: ...


class Stream(Protocol):
    """One session with one scheduler."""

    def send(self, message: FromAgent) -> None:
        """Queue a message. What cannot be delivered is lost; the end of the stream shows in `receive`."""
        ...

    async def receive(self) -> ToAgent | None:
        """The next message, in order. None, for ever, once the stream has ended or was closed."""
        ...

    def close(self) -> None:
        """Drop the stream and all messages not yet received."""
        ...


class Transport(Protocol):
    """The way to the schedulers."""

    def connect(self, address: str) -> Stream:
        """Open a stream. Failure shows as its end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStart:
    """What a runtime is to run. Both instants are of CLOCK_BOOTTIME.

    `exec_before`: not to be started after it (P-18), checked again right before exec. `limit_at`: SIGTERM comes
    grace_s before it, SIGKILL at it, kept by the runtime even while no agent runs (R-5).
    """

    message: StartTask
    exec_before: float
    limit_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint that a job reported (R-50)."""

    sequence: int
    uri: str
    size_bytes: int
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How a task stands. Saying it again changes nothing.

    `checkpoints`: new since the record's `read_to`, complete up to the new `read_to`. `unkillable`: some process of it
    survives SIGKILL (C-52). `end` is set with phase ENDED only.
    """

    lease_id: LeaseId
    phase: Phase
    end: TaskEnd | None = None
    exit_code: int | None = None
    finished: bool = False
    detail: str = ""
    checkpoints: tuple[Checkpoint, ...] = ()
    read_to: int = 0
    unkillable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A process that no lease covers, found and killed. `gpu_uuid` is empty where none is known."""

    gpu_uuid: str
    pid: int


class Runtime(Protocol):
    """Runs tasks. They outlive the agent."""

    def adopt(self, leases: Sequence[LeaseRecord]) -> tuple[Orphan, ...]:
        """Once, before all else: take over the tasks of these leases, kill every other one.

        A lease that turns out to be without a task is observed as ended: NEVER_STARTED where that is certain and
        made certain, else LOST.
        """
        ...

    def start(self, task: TaskStart) -> None:
        """Begin to run it, at most once per lease. What goes wrong is observed as START_FAILED; a command or
        directory that is not there as EXITED with 127 or 126, as a shell would have it."""
        ...

    def stop(self, lease: LeaseId, grace_s: int) -> None:
        """SIGTERM to all its processes, SIGKILL after the grace; again with a shorter one hastens it."""
        ...

    def extend(self, lease: LeaseId, limit_at: float | None) -> None:
        """The limit moved."""
        ...

    def renew(self, now: float) -> None:
        """A leader was heard: what counts isolation for `overlap: never` begins anew (P-22)."""
        ...

    def poll(self) -> list[Observed]:
        """What changed since the last poll, at least."""
        ...

    def next_poll(self, now: float) -> float | None:
        """Seconds until polling may find something new; None: nothing will change by itself."""
        ...

    def orphans(self) -> tuple[Orphan, ...]:
        """Processes that no lease covers, found now and then, and killed (R-63)."""
        ...

    def forget(self, lease: LeaseId) -> None:
        """Its end is in the log. Its captured output may stay for a while."""
        ...

    def disk_free_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of the node, in slot order."""

    gpu_type: GpuType
    gpu_memory_gb: int
    slots: tuple[GpuSlot, ...]


class Gpus(Protocol):
    """The node's GPUs."""

    def inventory(self) -> Inventory: ...

    def faults(self) -> int:
        """Mask of the slots that do not answer or are broken."""
        ...


class Journal(Protocol):
    """The agent's memory."""

    def load(self) -> Book:
        """As last saved; a new one, with an id of its own, where there is none. Raises on one it cannot read."""
        ...

    def save(self, book: Book) -> None:
        """Whole or not at all; on disk when it returns."""
        ...


class Tails(Protocol):
    """Streams captured output to an api."""

    def begin(self, request: TailLog) -> None:
        """In the background; what goes wrong is told to the api, or to nobody."""
        ...


@dataclass(frozen=True, slots=True)
class NoTails:
    """Where there is no output to stream."""

    def begin(self, request: TailLog) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who an agent says it is. See Register."""

    node_id: NodeId
    boot_id: str
    incarnation: str
    block: BlockId
    rack: str
    address: str
