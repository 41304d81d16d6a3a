"""What an agent may obey: P-17, P-18 and the at-most-once of a lease, over a book that is saved before it acts.

The only place where these rules are. The real agent, the fleet and the simulation all use it. No clock: `now` comes
in, of CLOCK_BOOTTIME.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from agent.book import SETTLED_MAX, Book, LeaseRecord, Settled
from agent.ports import Journal
from events.ids import Epoch, LeaseId
from events.task import TaskEnd
from scheduler.link import (
    CheckpointReport,
    Phase,
    Report,
    StartTask,
    StopTask,
    TaskEndedReport,
    TaskStartedReport,
    ZombieReport,
)

START_WITHIN_S = 30.0
"""A start is refused when the heartbeat it names is older (P-18)."""
_BEATS_KEPT = 32


class Verdict(StrEnum):
    """What became of a command."""

    ACCEPTED = "accepted"
    """On disk; to be done now."""
    KNOWN = "known"
    """The lease is known: its stored status is the answer. Nothing is to be done."""
    GPU_MISSING = "gpu_missing"
    """On disk as an end (P-21): it never starts."""
    NEVER_STARTED = "never_started"
    """On disk as an end: this stop overtook its start, which will be refused (P-17)."""
    OLD_EPOCH = "old_epoch"
    """From a deposed leader. Unheard."""
    OLD_HEARTBEAT = "old_heartbeat"
    """The leader had not heard of this agent for too long (P-18). Unheard: it says it again, or gives the node up."""
    OLD_GRANT = "old_grant"
    """Of a lease that is long over, or was stopped before. Unheard."""


@dataclass(slots=True)
class Fence:
    """Decides over one agent's book. Whatever a method accepts is on disk when it returns."""

    journal: Journal
    book: Book
    _beats: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, journal: Journal) -> "Fence":
        """With what the journal remembers."""
        return cls(journal, journal.load())

    def save(self) -> None:
        """Write the book. Returns when it is on disk."""
        self.journal.save(self.book)

    # Epochs and heartbeats

    def hear(self, epoch: Epoch) -> bool:
        """Whether a message of that epoch may be obeyed; a newer one is remembered first (P-17)."""
        if epoch < self.book.epoch:
            return False
        if epoch > self.book.epoch:
            self.book.epoch = epoch
            self.save()
        return True

    def beat(self, number: int, now: float) -> None:
        """A heartbeat is being sent; number 0 is the Register of a session."""
        self._beats[number] = now
        while len(self._beats) > _BEATS_KEPT:
            del self._beats[min(self._beats, key=lambda known: self._beats[known])]

    def exec_before(self, last_heartbeat: int) -> float:
        """Until when a task may be started on the strength of that heartbeat; for ever past if it was never sent."""
        return self._beats.get(last_heartbeat, float("-inf")) + START_WITHIN_S

    # Commands

    def start(self, message: StartTask, now: float, present: Collection[str]) -> Verdict:
        """May this task be started? ACCEPTED: its lease and the grants of its GPUs are on disk."""
        book, lease = self.book, message.lease_id
        if not self.hear(message.epoch):
            return Verdict.OLD_EPOCH
        if lease in book.leases:
            return Verdict.KNOWN
        if (settled := book.settled.get(lease)) is not None:
            self._report_settled(lease, settled)
            self.save()
            return Verdict.KNOWN
        if now > self.exec_before(message.last_heartbeat):
            return Verdict.OLD_HEARTBEAT
        highest = max((book.grants.get(uuid, (0, 0)) for uuid in message.gpu_uuids), default=(0, 0))
        if message.grant <= max(highest, book.grant_floor):
            return Verdict.OLD_GRANT
        record = LeaseRecord(
            lease_id=lease,
            grant=message.grant,
            phase=Phase.ACCEPTED,
            gpu_uuids=message.gpu_uuids,
            grace_s=message.grace_s,
            limit_at=None if message.limit_s is None else now + message.limit_s,
            overlap_never=message.overlap_never,
        )
        book.leases[lease] = record
        if absent := [uuid for uuid in message.gpu_uuids if uuid not in present]:
            self.end(record, TaskEnd.START_FAILED, detail=f"no such GPU: {', '.join(absent)}")
            self.save()
            return Verdict.GPU_MISSING
        book.grants |= dict.fromkeys(message.gpu_uuids, message.grant)
        self.save()
        return Verdict.ACCEPTED

    def stop(self, message: StopTask) -> Verdict:
        """ACCEPTED: the order is on disk, to be passed to the runtime. Otherwise the end was, or is now, reported."""
        if not self.hear(message.epoch):
            return Verdict.OLD_EPOCH
        record = self.book.leases.get(message.lease_id)
        if record is None:
            return self._stop_unknown(message)
        if not record.live:
            return Verdict.KNOWN
        self.order_stop(record, message.grace_s)
        return Verdict.ACCEPTED

    def _stop_unknown(self, message: StopTask) -> Verdict:
        settled = self.book.settled.get(message.lease_id)
        if settled is not None:
            self._report_settled(message.lease_id, settled)
            self.save()
            return Verdict.KNOWN
        record = LeaseRecord(lease_id=message.lease_id, grant=message.grant, phase=Phase.ACCEPTED)
        self.book.leases[message.lease_id] = record
        self.end(record, TaskEnd.NEVER_STARTED, detail=message.reason)
        self.save()
        return Verdict.NEVER_STARTED

    def order_stop(self, record: LeaseRecord, grace_s: int, *, own: bool = False) -> None:
        """Remember that it is to stop, so that the agent's death does not undo the order."""
        record.stop_grace_s = grace_s if record.stop_grace_s is None else min(grace_s, record.stop_grace_s)
        record.own_stop = own
        if record.phase is not Phase.ACCEPTED:
            record.phase = Phase.STOPPING
        self.save()

    def extend(self, lease: LeaseId, limit_at: float | None) -> bool:
        """Whether the limit of a live lease moved."""
        record = self.book.leases.get(lease)
        if record is None or not record.live:
            return False
        record.limit_at = limit_at
        self.save()
        return True

    # Reports. They enter the book; the caller saves once for all that it enters.

    def started(self, record: LeaseRecord) -> None:
        """Its process runs; said once."""
        if not record.started:
            record.started = True
            self._add(TaskStartedReport(number=self._next(), lease_id=record.lease_id))

    def end(
        self,
        record: LeaseRecord,
        end: TaskEnd,
        *,
        exit_code: int | None = None,
        finished: bool = False,
        detail: str = "",
    ) -> None:
        """Nothing of it is left, or ever will be (P-15)."""
        assert record.live, record
        record.phase = Phase.ENDED
        record.end, record.exit_code, record.finished, record.detail = end, exit_code, finished, detail
        record.end_report = number = self._next()
        self._add(
            TaskEndedReport(
                number=number,
                lease_id=record.lease_id,
                end=end,
                exit_code=exit_code,
                finished=finished,
                detail=detail,
            )
        )

    def checkpoint(self, record: LeaseRecord, *, sequence: int, uri: str, size_bytes: int, step: int | None) -> None:
        """The job has completed one."""
        self._add(
            CheckpointReport(
                number=self._next(),
                lease_id=record.lease_id,
                sequence=sequence,
                uri=uri,
                size_bytes=size_bytes,
                step=step,
            )
        )

    def zombie(self, gpu: int, pid: int) -> None:
        """A process that no lease covers was killed."""
        self._add(ZombieReport(number=self._next(), gpu=gpu, pid=pid))

    def acknowledged(self, number: int) -> list[LeaseId]:
        """The log holds the reports up to `number`. Returns the leases that are settled with it."""
        book = self.book
        if not book.reports or book.reports[0].number > number:
            return []
        book.reports = [report for report in book.reports if report.number > number]
        over = [r for r in book.leases.values() if r.end_report is not None and r.end_report <= number]
        for record in over:
            del book.leases[record.lease_id]
            assert record.end is not None
            book.settled[record.lease_id] = Settled(
                grant=record.grant, end=record.end, exit_code=record.exit_code, finished=record.finished
            )
        self._trim()
        self.save()
        return [record.lease_id for record in over]

    def _trim(self) -> None:
        """Forget the oldest ends. From then on anything up to their grants is refused for the whole node: a start that
        is so late is of a lease that is over, and a StopTask would be answered as for one that never started."""
        settled = self.book.settled
        while len(settled) > SETTLED_MAX:
            oldest = next(iter(settled))
            self.book.grant_floor = max(self.book.grant_floor, settled.pop(oldest).grant)

    def _report_settled(self, lease: LeaseId, settled: Settled) -> None:
        self._add(
            TaskEndedReport(
                number=self._next(),
                lease_id=lease,
                end=settled.end,
                exit_code=settled.exit_code,
                finished=settled.finished,
            )
        )

    def _next(self) -> int:
        return self.book.last_report + 1

    def _add(self, report: Report) -> None:
        self.book.last_report = report.number
        self.book.reports.append(report)
