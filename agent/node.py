"""The loop of one node's agent: what it says, what it obeys, what it reports.

Real agents, fleets and the simulation all run this. It touches the world through agent.ports only, and every step
between two awaits is atomic: whatever is decided is in the journal before it is done or said (P-15, P-17).
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from agent.book import LeaseRecord
from agent.fence import Fence, Verdict
from agent.ports import Clock, Gpus, Identity, Journal, Observed, Runtime, Tails, TaskStart, Timer, Transport
from agent.session import SILENCE_S, Dialer, Isolation, Session
from events.ids import LeaseId
from events.task import TaskEnd
from scheduler.link import (
    ExtendTask,
    Heartbeat,
    HeartbeatAck,
    NotLeader,
    Phase,
    Register,
    Registered,
    RegisterRefused,
    ReportAck,
    StartTask,
    StopTask,
    TailLog,
    ToAgent,
)

_log = structlog.get_logger(__name__)
IDLE_TICK_S = 5.0
_TICK_MIN_S = 0.001
"""Rounding must not make a timer fire at the same instant for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that an agent stands on."""

    transport: Transport
    runtime: Runtime
    journal: Journal
    clock: Clock
    gpus: Gpus
    tails: Tails
    chance: Callable[[], float]


@dataclass(slots=True)
class NodeAgent:
    """One agent: `await run()` until it is cancelled. Tasks go on without it.

    Cancelling it anywhere is as good as killing it: a new one over the same journal and runtime adopts what runs.
    """

    identity: Identity
    world: World
    schedulers: tuple[str, ...]
    fence: Fence = field(init=False)
    _dialer: Dialer = field(init=False)
    _isolation: Isolation = field(init=False)
    _session: Session | None = field(init=False, default=None)
    _waiting: dict[LeaseId, TaskStart] = field(init=False, default_factory=dict)
    _unkillable: set[LeaseId] = field(init=False, default_factory=set)
    _slots: dict[str, int] = field(init=False)
    _timer: Timer | None = field(init=False, default=None)
    _due: float = field(init=False)
    _beat: int = field(init=False, default=0)
    _failure: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.fence = Fence.open(self.world.journal)
        self._dialer = Dialer(self.schedulers, self.world.chance)
        self._isolation = Isolation(self.world.clock.now())
        self._slots = {slot.uuid: index for index, slot in enumerate(self.world.gpus.inventory().slots)}

    async def run(self) -> None:
        """Adopt, then talk to whoever leads. Ends by cancellation, or by an error of the journal or the runtime:
        an agent that cannot write or act must not pretend to."""
        self._adopt()
        self._arm()
        try:
            while True:
                session = self._dial()
                while not session.dropped and (message := await session.stream.receive()) is not None:
                    self._receive(session, message)
                session.drop()
                self._session = None
                if self._failure is not None:
                    raise self._failure
                await self.world.clock.sleep(self._dialer.pause_s())
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._session is not None:
                self._session.drop()

    def _adopt(self) -> None:
        """Before Register: every lease has its task, or its end is in the journal (P-19)."""
        for orphan in self.world.runtime.adopt(self.fence.book.live()):
            self.fence.zombie(self._slots.get(orphan.gpu_uuid, -1), orphan.pid)
        self.fence.save()
        for record in self.fence.book.live():
            if record.stop_grace_s is not None:
                self.world.runtime.stop(record.lease_id, record.stop_grace_s)
        self._poll()

    def _dial(self) -> Session:
        now = self.world.clock.now()
        address = self._dialer.next()
        session = Session(self.world.transport.connect(address), address, last_word=now)
        self._session = session
        self.fence.beat(0, now)
        session.stream.send(self._register())
        self._arm()
        return session

    def _register(self) -> Register:
        inventory, book, me = self.world.gpus.inventory(), self.fence.book, self.identity
        return Register(
            node_id=me.node_id,
            boot_id=me.boot_id,
            incarnation=me.incarnation,
            journal=book.journal,
            last_report=book.last_report,
            epoch_floor=book.epoch,
            block=me.block,
            rack=me.rack,
            address=me.address,
            gpu_type=inventory.gpu_type,
            gpu_memory_gb=inventory.gpu_memory_gb,
            gpus=inventory.slots,
            running=book.running(),
        )

    # Time

    def _arm(self) -> None:
        """Set the one timer to whatever is due first."""
        now = self.world.clock.now()
        dues = [now + IDLE_TICK_S]
        if (poll_s := self.world.runtime.next_poll(now)) is not None:
            dues.append(now + poll_s)
        if (session := self._session) is not None and not session.dropped:
            dues.append(session.last_word + SILENCE_S)
            if session.registered:
                dues.append(session.heartbeat_due)
        dues += [task.exec_before + _TICK_MIN_S for task in self._waiting.values()]
        if self._timer is not None:
            self._timer.cancel()
        self._due = max(now, min(dues))
        self._timer = self.world.clock.call_later(max(self._due - now, _TICK_MIN_S), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            now = self.world.clock.now()
            self._drop_if_frozen(now)
            self._poll()
            self._launch(now)
            self._keep_session(now)
            self._arm()
        except Exception as failure:
            # Nobody awaits a timer: the loop raises it.
            self._failure = failure
            if self._session is not None:
                self._session.drop()

    def _drop_if_frozen(self, now: float) -> None:
        """A gap in this loop: what waits in the socket is of a time when nobody listened (P-18)."""
        if now - self._due > SILENCE_S and self._session is not None:
            _log.warning("agent.gap", node=self.identity.node_id, gap_s=round(now - self._due, 1))
            self._session.drop()

    def _keep_session(self, now: float) -> None:
        session = self._session
        if session is None or session.dropped:
            return
        if now >= session.last_word + SILENCE_S:
            session.drop()
        elif session.registered and now >= session.heartbeat_due:
            self._heartbeat(session, now)

    def _heartbeat(self, session: Session, now: float) -> None:
        self._beat += 1
        for orphan in self.world.runtime.orphans():
            self.fence.zombie(self._slots.get(orphan.gpu_uuid, -1), orphan.pid)
            self.fence.save()
        self._flush()
        session.heartbeat_due = now + session.heartbeat_s
        self.fence.beat(self._beat, now)
        session.stream.send(
            Heartbeat(
                node_id=self.identity.node_id,
                number=self._beat,
                running=self.fence.book.running(),
                gpu_faults=self.world.gpus.faults() | self._unkillable_mask(),
                disk_free_bytes=self.world.runtime.disk_free_bytes(),
            )
        )

    def _unkillable_mask(self) -> int:
        """GPUs that a process holds which SIGKILL does not end: out of the pool until it does (C-52)."""
        mask = 0
        for lease in self._unkillable & self.fence.book.leases.keys():
            for uuid in self.fence.book.leases[lease].gpu_uuids:
                mask |= 1 << self._slots[uuid] if uuid in self._slots else 0
        return mask

    # Messages

    def _receive(self, session: Session, message: ToAgent) -> None:
        now = self.world.clock.now()
        self._drop_if_frozen(now)
        if session.dropped:
            return
        match message:
            case NotLeader():
                self._not_leader(session, message, now)
            case RegisterRefused():
                _log.warning("agent.refused", node=self.identity.node_id, reason=message.reason)
                self.fence.hear(message.epoch)
                session.drop()
            case Registered():
                self._registered(session, message, now)
            case _ if not session.registered or not self.fence.hear(message.epoch):
                _log.warning("agent.unheard", node=self.identity.node_id, message=type(message).__name__)
            case _:
                session.last_word = now
                self._obey(message, now)
        if not session.dropped:
            self._flush()
            self._arm()

    def _obey(
        self, message: StartTask | StopTask | ExtendTask | ReportAck | HeartbeatAck | TailLog, now: float
    ) -> None:
        match message:
            case HeartbeatAck():
                self._renewed(now)
                for lease in message.disowned:
                    self._disowned(lease)
            case ReportAck():
                for lease in self.fence.acknowledged(message.number):
                    self._unkillable.discard(lease)
                    self.world.runtime.forget(lease)
            case StartTask():
                self._start(message, now)
            case StopTask():
                if self.fence.stop(message) is Verdict.ACCEPTED:
                    self._stop(self.fence.book.leases[message.lease_id])
            case ExtendTask():
                limit_at = None if message.limit_s is None else now + message.limit_s
                if self.fence.extend(message.lease_id, limit_at):
                    self._extend(message.lease_id, limit_at)
            case TailLog():
                self.world.tails.begin(message)
            case _:
                assert_never(message)

    def _registered(self, session: Session, message: Registered, now: float) -> None:
        if not self.fence.hear(message.epoch):
            # A deposed leader: it has read our epoch_floor and steps down (P-12).
            session.drop()
            return
        session.registered, session.last_word = True, now
        session.heartbeat_s = message.heartbeat_s
        self._dialer.registered()
        self._renewed(now)
        self._heartbeat(session, now)

    def _not_leader(self, session: Session, message: NotLeader, now: float) -> None:
        session.drop()
        self._dialer.hinted(message.address)
        if message.address is not None and self._isolation.leader_said(now):
            for record in self.fence.book.live():
                self.fence.order_stop(record, record.grace_s, own=True)
                self._stop(record)

    def _renewed(self, now: float) -> None:
        self._isolation.renewed(now)
        self.world.runtime.renew(now)

    def _start(self, message: StartTask, now: float) -> None:
        verdict = self.fence.start(message, now, self._slots.keys())
        if verdict is not Verdict.ACCEPTED:
            _log.info("agent.start_refused", lease=message.lease_id, verdict=verdict)
            return
        self._waiting[message.lease_id] = TaskStart(
            message=message,
            exec_before=self.fence.exec_before(message.last_heartbeat),
            limit_at=self.fence.book.leases[message.lease_id].limit_at,
        )
        self._launch(now)

    def _stop(self, record: LeaseRecord) -> None:
        """Pass an order that is in the journal on to the runtime."""
        assert record.stop_grace_s is not None
        if self._waiting.pop(record.lease_id, None) is not None:
            self.fence.end(record, TaskEnd.NEVER_STARTED)
            self.fence.save()
            return
        self.world.runtime.stop(record.lease_id, record.stop_grace_s)

    def _disowned(self, lease: LeaseId) -> None:
        record = self.fence.book.leases.get(lease)
        if record is not None and record.live and record.stop_grace_s != 0:
            self.fence.order_stop(record, 0)
            self._stop(record)

    def _extend(self, lease: LeaseId, limit_at: float | None) -> None:
        task = self._waiting.get(lease)
        if task is None:
            self.world.runtime.extend(lease, limit_at)
        else:
            self._waiting[lease] = TaskStart(message=task.message, exec_before=task.exec_before, limit_at=limit_at)

    # Tasks

    def _launch(self, now: float) -> None:
        """Start what was accepted. A GPU is given on only when nothing of an older lease is left on it: a newer grant
        says that the log has ended the older lease, so that one is killed first."""
        for lease, task in list(self._waiting.items()):
            record = self.fence.book.leases[lease]
            if now > task.exec_before:
                del self._waiting[lease]
                self.fence.end(record, TaskEnd.NEVER_STARTED, detail="its GPUs did not become free in time")
                self.fence.save()
                continue
            holders = self._holders(record)
            for holder in holders:
                self._disowned(holder.lease_id)
            if not any(holder.live for holder in holders):
                del self._waiting[lease]
                record.phase = Phase.STARTING
                self.world.runtime.start(task)
                self._poll()

    def _holders(self, wanted: LeaseRecord) -> list[LeaseRecord]:
        """Other live leases on its GPUs."""
        uuids = set(wanted.gpu_uuids)
        return [r for r in self.fence.book.live() if r is not wanted and uuids.intersection(r.gpu_uuids)]

    def _poll(self) -> None:
        """Enter what the runtime has seen, save once, then say it."""
        before = self.fence.book.last_report
        for observed in self.world.runtime.poll():
            record = self.fence.book.leases.get(observed.lease_id)
            if record is not None and record.live:
                self._observe(record, observed)
        if self.fence.book.last_report != before:
            self.fence.save()
            self._flush()

    def _observe(self, record: LeaseRecord, seen: Observed) -> None:
        if seen.unkillable and record.lease_id not in self._unkillable:
            _log.error("agent.unkillable", lease=record.lease_id, detail=seen.detail)
            self._unkillable.add(record.lease_id)
        ran = seen.end in (TaskEnd.EXITED, TaskEnd.STOPPED, TaskEnd.TIMED_OUT)
        if ran or seen.phase in (Phase.RUNNING, Phase.STOPPING):
            self.fence.started(record)
        for checkpoint in seen.checkpoints:
            self.fence.checkpoint(
                record,
                sequence=checkpoint.sequence,
                uri=checkpoint.uri,
                size_bytes=checkpoint.size_bytes,
                step=checkpoint.step,
            )
        record.read_to = max(record.read_to, seen.read_to)
        if seen.end is None:
            stopping = record.stop_grace_s is not None and seen.phase is Phase.RUNNING
            record.phase = Phase.STOPPING if stopping else seen.phase
            return
        # An end that the agent itself ordered answers no StopTask: to the leader the task is lost.
        end = TaskEnd.LOST if record.own_stop and seen.end is TaskEnd.STOPPED else seen.end
        self.fence.end(record, end, exit_code=seen.exit_code, finished=seen.finished, detail=seen.detail)

    def _flush(self) -> None:
        """Send the reports that this session has not had yet."""
        session = self._session
        if session is None or session.dropped or not session.registered:
            return
        with contextlib.suppress(IndexError):
            if self.fence.book.reports[-1].number <= session.sent_report:
                return
        for report in self.fence.book.reports:
            if report.number > session.sent_report:
                session.stream.send(report)
                session.sent_report = report.number
