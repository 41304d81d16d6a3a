"""A log in memory that a test writes record by record, chained as a leader would, and what the fold makes of it."""

from __future__ import annotations

from typing import Any

from events import codec
from events.chain import START, Accepted, Head, admit
from events.envelope import Commit, Event, Input, Record, Term
from events.gang import GangAllocated
from events.ids import (
    BlockId,
    ClusterId,
    Epoch,
    GpuMask,
    GpuType,
    Instant,
    JobId,
    NodeId,
    NodeIndex,
    Nonce,
    Principal,
    TeamId,
)
from events.job import JobQueued, JobSpec, JobSubmitted, QueueReason
from events.memory import MemoryEventLog, MemoryStore
from events.node import GpuSlot, NodeRegistered
from projections.fold import fold
from projections.rows import R
from projections.store import Rows

T0 = 1_800_000_000_000
ADA = Principal("user:ada")
RESEARCH = TeamId("research")
H100 = GpuType("h100")


class Story:
    """Begins with a genesis and a first term. Every commit is 1 s after the one before, unless it says otherwise."""

    def __init__(self, cluster: str = "eu-1", store: MemoryStore | None = None) -> None:
        self.cluster = ClusterId(cluster)
        self.log = MemoryEventLog(store or MemoryStore(), self.cluster)
        self.head: Head = START
        self.at = T0
        self.records: list[Record] = []
        self.commands = 0

    async def begun(self) -> Story:
        """The log with its genesis and a term."""
        await self.log.open(create=True)
        (first,) = await self.log.read(-1, 1)
        self._admitted(first.offset, first.value)
        await self.term()
        return self

    async def term(self, holder: str = "") -> Term:
        """A new leadership."""
        epoch = Epoch(self.head.epoch + 1)
        term = Term(
            cluster=self.cluster,
            epoch=epoch,
            nonce=Nonce(f"nonce-{epoch}"),
            n=self.head.n + 1,
            prev=self.head.hash,
            at=Instant(self.at),
            rules=1,
            holder=holder or f"scheduler-{epoch}",
        )
        await self.write(codec.encode(term))
        return term

    async def commit(self, *events: Event, after_s: int = 1, **fields: Any) -> Commit:
        """Events in one accepted commit."""
        self.at += after_s * 1000
        made = Commit(
            **{
                "cluster": self.cluster,
                "epoch": self.head.epoch,
                "nonce": self.head.nonce,
                "n": self.head.n + 1,
                "at": Instant(self.at),
                "actor": ADA,
                "input": Input(kind="tick", id=f"tick-{self.head.n + 1}"),
                "policy": 0,
                "prev": self.head.hash,
                "seq": self.head.seq + 1,
                "events": events,
                **fields,
            }
        )
        await self.write(codec.encode(made))
        return made

    async def command(self, *events: Event, **command: Any) -> Commit:
        """Events in a commit that answers a command."""
        self.commands += 1
        number = self.commands
        body = {"id": f"c{number}", "key": f"k{number}", "body": "", "command": command}
        asked = Input(kind="command", id=f"c{number}", body=body, position=number, log_id=None)
        return await self.commit(*events, input=asked)

    async def fenced(self) -> None:
        """A record of a deposed leader lands: no reader takes it."""
        late = Commit(
            cluster=self.cluster,
            epoch=Epoch(self.head.epoch - 1),
            nonce=Nonce("deposed"),
            n=self.head.n + 1,
            at=Instant(self.at),
            actor=ADA,
            input=Input(kind="tick", id="late"),
            policy=0,
            prev=self.head.hash,
            seq=self.head.seq + 1,
            events=(queued(JobId("j_never"), 9),),
        )
        await self.write(codec.encode(late))

    async def write(self, raw: bytes) -> None:
        """Any bytes at the end of the log."""
        offset = await self.log.append(raw, self.head.offset + 1)
        self._admitted(offset, raw)

    def _admitted(self, offset: int, raw: bytes) -> None:
        outcome = admit(self.head, offset, raw)
        self.head = outcome.head
        if isinstance(outcome, Accepted):
            self.records.append(outcome.record())

    # What many tests begin with

    async def node(self, index: int, gpus: int = 8, **fields: Any) -> NodeId:
        """A node registers: n-<index> in block b<index // 2>."""
        await self.commit(registered(index, gpus, **fields))
        return NodeId(f"n-{index}")

    async def job(self, name: str, /, **spec: Any) -> JobId:
        """A job is submitted and queued for its first attempt."""
        job_id = JobId(f"j_{name}")
        made = JobSubmitted(job_id=job_id, spec=job_spec(**spec), principal=ADA)
        await self.command(made, queued(job_id, 1, QueueReason.SUBMITTED), type="submit_job", job_id=job_id)
        return job_id

    async def grant(self, job_id: JobId, attempt: int, *ranks: tuple[int, int], limit_at: int | None = None) -> None:
        """All ranks of an attempt are granted: (node, mask) each."""
        await self.commit(allocated(job_id, attempt, *ranks, limit_at=limit_at))

    # What the fold makes of it

    @property
    def rows(self) -> Rows:
        """All rows, folded in memory."""
        rows = Rows(self.cluster)
        for record in self.records:
            fold(rows, record)
        return rows

    def row(self, cls: type[R], *key: Any) -> R:
        """One of them."""
        found = self.rows.find(cls, *key)
        assert found is not None, f"there is no {cls.TABLE} {key}"
        return found


def job_spec(**fields: Any) -> JobSpec:
    """A spec with what a test does not care about filled in."""
    return JobSpec(
        **{"team": RESEARCH, "command": ("train",), "gpu_type": H100, "max_runtime_s": 3600, **fields},
    )


def queued(job_id: JobId, attempt: int, reason: QueueReason = QueueReason.REQUEUED, **fields: Any) -> JobQueued:
    return JobQueued(job_id=job_id, attempt=attempt, reason=reason, **fields)


def allocated(job_id: JobId, attempt: int, *ranks: tuple[int, int], limit_at: int | None = None) -> GangAllocated:
    return GangAllocated(
        job_id=job_id,
        attempt=attempt,
        ranks=tuple((NodeIndex(node), GpuMask(mask)) for node, mask in ranks),
        limit_at=None if limit_at is None else Instant(limit_at),
    )


def registered(index: int, gpus: int = 8, generation: int = 1, **fields: Any) -> NodeRegistered:
    """n-<index> in block b<index // 2>, an H100 node."""
    return NodeRegistered(
        **{
            "node": NodeIndex(index),
            "node_id": NodeId(f"n-{index}"),
            "generation": generation,
            "boot_id": "boot",
            "incarnation": "inc",
            "journal": f"journal-{index}",
            "address": f"10.0.0.{index}",
            "block": BlockId(f"b{index // 2}"),
            "rack": "r0",
            "gpu_type": H100,
            "gpu_memory_gb": 80,
            "gpus": tuple(GpuSlot(uuid=f"GPU-{index}-{generation}-{slot}") for slot in range(gpus)),
            **fields,
        }
    )
