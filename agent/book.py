"""What an agent remembers over its own death: epochs, grants, leases, reports. Values and their bytes, no files."""

from dataclasses import dataclass, field

import orjson
from pydantic import TypeAdapter

from events.ids import Epoch, LeaseId
from events.task import TaskEnd
from scheduler.link import Grant, Phase, Report, Running

_NO_EPOCH = Epoch(0)
SETTLED_MAX = 64
"""Ended leases remembered one by one. Of those forgotten, the highest grant stays as a floor (see Fence)."""


@dataclass(slots=True, kw_only=True)
class LeaseRecord:
    """One lease, from the moment its StartTask (or the StopTask that overtook it) is on disk.

    `limit_at` is of CLOCK_BOOTTIME, and so means something in this boot only. `stop_grace_s`: a stop was ordered; the
    order survives the agent. `own_stop`: the order was the agent's own (R-64), so that the end is no answer to a
    StopTask. `read_to`: how far the job's report file was taken. `end_report`: number of the report of its end.
    """

    lease_id: LeaseId
    grant: Grant
    phase: Phase
    gpu_uuids: tuple[str, ...] = ()
    grace_s: int = 0
    limit_at: float | None = None
    overlap_never: bool = False
    started: bool = False
    stop_grace_s: int | None = None
    own_stop: bool = False
    read_to: int = 0
    end: TaskEnd | None = None
    exit_code: int | None = None
    finished: bool = False
    detail: str = ""
    end_report: int | None = None

    @property
    def live(self) -> bool:
        """Whether something of it may run, or come to run."""
        return self.phase is not Phase.ENDED

    def running(self) -> Running:
        """As the heartbeats list it."""
        return Running(lease_id=self.lease_id, grant=self.grant, phase=self.phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A lease whose end the log holds, kept for commands that come late."""

    grant: Grant
    end: TaskEnd
    exit_code: int | None = None
    finished: bool = False


@dataclass(slots=True, kw_only=True)
class Book:
    """All of it. `grants`: highest grant accepted per GPU. `grant_floor`: see SETTLED_MAX. `reports`: those not yet
    acknowledged, by number; `last_report`: the newest number written, ever."""

    journal: str
    epoch: Epoch = _NO_EPOCH
    grants: dict[str, Grant] = field(default_factory=dict)
    grant_floor: Grant = (0, 0)
    leases: dict[LeaseId, LeaseRecord] = field(default_factory=dict)
    settled: dict[LeaseId, Settled] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    last_report: int = 0

    def live(self) -> list[LeaseRecord]:
        """Leases that may have processes."""
        return [record for record in self.leases.values() if record.live]

    def running(self) -> tuple[Running, ...]:
        """What Register and Heartbeat list."""
        return tuple(record.running() for record in self.leases.values())


_BOOK = TypeAdapter(Book)


def encode(book: Book) -> bytes:
    """The book as JSON."""
    return orjson.dumps(book)


def decode(raw: bytes) -> Book:
    """The book of `encode`. Raises ValueError where it is not one."""
    return _BOOK.validate_json(raw)
