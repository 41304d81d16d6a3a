"""The main loop of a leadership: take commands, hear agents, watch time, plan.

One thing after another, in one task: nothing reads the state while a decision is on trial. Effects follow from
accepted commits alone (I-8).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from commands import snapshot
from commands.apply import apply
from commands.changed import by_table
from commands.decide import decide_conflict, decide_messages, decide_tick
from commands.decide.attempts import Draft
from commands.plan import Plan, Planned
from commands.reports import ClaimSeen, FromNode, Register, Tick
from events.envelope import Input
from events.ids import ClusterId, Epoch, Instant, JobId, LogId, NodeId, Principal
from events.log import CommandLog
from events.node import MassSilence
from events.task import ReportDropped
from scheduler import effects
from scheduler.intake import Intake
from scheduler.link import FromAgent, Gateway, Heartbeat, Registered, RegisterRefused, ReportAck, StartTask, StopTask
from scheduler.measures import Measures
from scheduler.planning.plan import Planner
from scheduler.ports import Exit, Leadership, Snapshots
from scheduler.takeover import SCHEDULER
from scheduler.timers import Timers
from scheduler.watch import Watch
from scheduler.writer import ClaimsTaken, Made, Poison, Writer

_log = structlog.get_logger(__name__)

TICK_S = 1.0
MESSAGES_A_COMMIT = 256
SNAPSHOT_EVERY = 5_000


@dataclass(slots=True, kw_only=True)
class World:
    """What a leader is wired to."""

    cluster: ClusterId
    commands: CommandLog
    command_log_id: LogId
    leadership: Leadership
    snapshots: Snapshots
    gateway: Gateway
    monotonic: Callable[[], float]
    leave: Exit
    expired: Callable[[], bool]
    measures: Measures = field(default_factory=Measures)


class Leader:
    """One tenure at work. `progress_at`: when the loop last came round, for the keeper of the tenure (P-9)."""

    def __init__(self, writer: Writer, world: World) -> None:
        self._writer = writer
        self._world = world
        self.state = writer.state
        self.planner = Planner(writer.state)
        self._timers = Timers(writer.state)
        self._watch = Watch(writer.state, world.monotonic, writer.now)
        self._intake = Intake(self, writer, world)
        self._wake = asyncio.Event()
        self._agents: deque[tuple[NodeId, FromAgent]] = deque()
        self._to_plan = True
        self._next_tick = world.monotonic()
        self._batches = 0
        self._cycles = 0
        self._snapshot_n = writer.head.n
        self._conflicts: set[tuple[NodeId, int]] = set()
        self.progress_at = world.monotonic()

    async def run(self) -> None:
        """Lead until the process ends. Any exception that comes out ends it."""
        await self._world.gateway.open(self.state.meta.epoch, self._deliver)
        reader = asyncio.create_task(self._intake.read(self._wake))
        try:
            while True:
                await self._round(reader)
        finally:
            reader.cancel()

    async def _round(self, reader: "asyncio.Task[None]") -> None:
        """The steps of one round. Commands first: an operator's word holds for what is planned after it (C-6)."""
        self.progress_at = self._world.monotonic()
        if self._world.expired():
            self._world.leave("the tenure was not renewed in time")
        if reader.done():
            reader.result()
        self._wake.clear()
        await self._intake.take()
        await self._hear()
        await self._tick()
        await self._plan()
        await self._snapshot()
        if not self._agents and not self._intake.waiting():
            await self._sleep()

    async def _sleep(self) -> None:
        wait_s = max(0.0, self._next_tick - self._world.monotonic())
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except TimeoutError:
            pass

    # Agents

    def _deliver(self, node: NodeId, message: FromAgent) -> None:
        """Called by the gateway, on this loop. Only queued: the state may be on trial now."""
        self._agents.append((node, message))
        self._wake.set()

    async def _hear(self) -> None:
        """Heartbeats are answered at once; registrations and reports become facts, many in one commit."""
        batch: list[FromNode] = []
        for _ in range(min(len(self._agents), 4_096)):
            node, message = self._agents.popleft()
            if isinstance(message, Heartbeat):
                self._beat(node, message)
                continue
            live = isinstance(message, Register) and self._world.gateway.live(node)
            batch.append(FromNode(node_id=node, message=message, other_live=live))
            if len(batch) >= MESSAGES_A_COMMIT:
                break
        if batch:
            await self._take_messages(batch)

    def _beat(self, node: NodeId, beat: Heartbeat) -> None:
        self._world.measures.heartbeats.inc()
        for message in self._watch.heartbeat(beat):
            self._world.gateway.send(node, message)

    async def _take_messages(self, batch: list[FromNode]) -> None:
        """One commit for the batch; message by message where that fails, so that one alone is set aside (P-7)."""
        await self._mind_floors(batch)
        try:
            await self._commit_messages(batch)
        except Poison as poison:
            if len(batch) > 1:
                for said in batch:
                    await self._take_messages([said])
                return
            _log.error("report.poisonous", node=batch[0].node_id, why=str(poison))
            await self._set_aside(batch[0], str(poison))

    async def _mind_floors(self, batch: list[FromNode]) -> None:
        """An agent has heard of a later epoch than ours: note it, and go (P-12)."""
        floors = [said.message.epoch_floor for said in batch if isinstance(said.message, Register)]
        if floors and max(floors) > self.state.meta.epoch:
            await self._world.leadership.raise_floor(Epoch(max(floors)))
            self._world.leave(f"an agent has heard of epoch {max(floors)}, we lead in {self.state.meta.epoch}")

    async def _commit_messages(self, batch: list[FromNode]) -> None:
        refused: dict[NodeId, str] = {}

        def decide(draft: Draft) -> None:
            refused.clear()
            refused.update(decide_messages(draft, batch))

        self._batches += 1
        made_by = Input(kind="reports", id=f"reports-{self.state.meta.epoch}-{self._batches}", body=batch)
        await self.make(made_by, SCHEDULER, decide)
        self._answer(batch, refused)

    def _answer(self, batch: list[FromNode], refused: dict[NodeId, str]) -> None:
        """What is durable is acknowledged; a node that registered is told so, and then what it should run (I-8)."""
        for said in batch:
            if isinstance(said.message, Register):
                self._answer_register(said.message, refused.get(said.node_id))
        for node_id in dict.fromkeys(said.node_id for said in batch):
            node = self.state.node_by_id(node_id)
            if node is not None and node_id not in refused:
                self._world.gateway.send(node_id, ReportAck(epoch=self.state.meta.epoch, number=node.last_report))

    def _answer_register(self, said: Register, refused: str | None) -> None:
        epoch, gateway = self.state.meta.epoch, self._world.gateway
        if refused is not None:
            gateway.send(said.node_id, RegisterRefused(epoch=epoch, reason=refused))
            return
        gateway.send(said.node_id, Registered(epoch=epoch))
        node = self.state.node_by_id(said.node_id)
        assert node is not None
        self._watch.registered(node.index, said.last_report)
        now = self._writer.now()
        for job_id, number, rank in node.leases:
            attempt = self.state.attempts[job_id, number]
            message = effects.of_lease(self.state, attempt, rank, 0, now)
            message = message or effects.of_limit(self.state, attempt, rank, now)
            if message is not None:
                self._send(said.node_id, message)

    async def _set_aside(self, said: FromNode, why: str) -> None:
        """A message on which deciding fails is passed over, on record, so that it does not come for ever."""
        message = said.message
        if isinstance(message, Register):
            reason = f"could not be decided: {why}"
            self._world.gateway.send(said.node_id, RegisterRefused(epoch=self.state.meta.epoch, reason=reason))
            return
        node = self.state.node_by_id(said.node_id)
        if node is None:
            return
        dropped = ReportDropped(node=node.index, report=message.number, reason=f"poison: {why}"[:300])
        self._batches += 1
        made_by = Input(kind="reports", id=f"reports-{self.state.meta.epoch}-{self._batches}", body=[said])
        await self.make(made_by, SCHEDULER, lambda draft: draft.add(dropped))
        self._world.gateway.send(said.node_id, ReportAck(epoch=self.state.meta.epoch, number=message.number))

    # Time

    async def _tick(self) -> None:
        """Once a second: silence, absences, limits. A tick without facts leaves no trace (P-23)."""
        now = self._world.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        self._to_plan = True
        tick = self._watch.tick(self._timers.due(self._writer.now()))
        for node in self._watch.lost_but_alive():
            self._world.gateway.drop(node)
        if tick == Tick() and not self.state.follow_ups:
            return
        made_by = Input(kind="tick", id=f"tick-{self.state.meta.epoch}-{self._writer.head.n + 1}", body=tick)
        try:
            made = await self.make(made_by, SCHEDULER, lambda draft: decide_tick(draft, tick))
        except Poison as poison:
            _log.error("tick.poisonous", why=str(poison))
            return
        if made is not None and any(isinstance(event, MassSilence) for event in made.events):
            # Perhaps it is we who are cut off. A successor holds from the start, and does not step down again.
            self._world.leave("so many nodes fell silent together that another leader should try (P-20)")

    # Plans

    async def _plan(self) -> None:
        """Cycles until nothing more comes of them: each is one commit."""
        while self._to_plan:
            self._to_plan = False
            self.progress_at = self._world.monotonic()
            at = self._writer.now()
            plan = self._planned(at)
            if plan is None:
                return
            if not plan.empty() and await self._apply(plan, Planned(at=at)) and plan.last:
                self._to_plan = False
            if self._intake.waiting():
                return

    def _planned(self, at: Instant) -> Plan | None:
        """The plan of a cycle. Where an error ends it, one that is made of the state alone may do better than the one
        that followed along; where that fails too nothing is started for now, and everything else goes on (C-46)."""
        for _ in range(2):
            try:
                with self._world.measures.cycle_s.time():
                    return self.planner.plan(at)
            except Exception:  # our bug must not end the leadership: the next one would have it too
                _log.exception("plan.failed", at=at)
                self._world.measures.failed_cycles.inc()
                self.planner = Planner(self.state)
        return None

    async def _apply(self, plan: Plan, planned: Planned) -> bool:
        """Commit what `planned` takes of a plan. Did all of that come about?"""
        self._cycles += 1
        made_by = Input(kind="cycle", id=f"cycle-{self.state.meta.epoch}-{self._cycles}", body=planned)
        stale: list[tuple[JobId, str]] = []

        def decide(draft: Draft) -> None:
            stale[:] = apply(draft, plan.taken(planned))  # as of the newest try
            for job_id, why in stale:
                _log.warning("plan.stale", job=job_id, why=why)

        try:
            made = await self.make(made_by, SCHEDULER, decide, cycle=self._cycles, planned_at_n=plan.n)
            return made is not None and not stale
        except ClaimsTaken as taken:
            await self._on_conflict(taken, plan, planned)
        except Poison as poison:  # too large is one as well: less at once may do
            await self._apply_parts(plan, planned, str(poison))
        return False

    async def _apply_parts(self, plan: Plan, planned: Planned, why: str) -> None:
        """Half of the jobs, then the other half; down to the one that makes a state that must not be, or a record over
        the limit: the others go on, it is held (C-46)."""
        taken = plan.taken(planned)
        jobs = taken.jobs()
        if len(jobs) > 1:
            middle = len(jobs) // 2
            for part in (jobs[:middle], jobs[middle:]):
                await self._apply(plan, replace(planned, part=tuple(part)))
            return
        _log.error("plan.poisonous", jobs=jobs, why=why)
        if not jobs or taken.poisoned:
            return
        await self._apply(plan, Planned(at=planned.at, held=jobs[0], why=why))

    async def _on_conflict(self, taken: ClaimsTaken, plan: Plan, planned: Planned) -> None:
        """A claim that the log does not know: on record; seen twice, the GPU is quarantined (P-8)."""
        seen = [
            ClaimSeen(
                node_id=conflict.node_id,
                gpu=conflict.gpu,
                held_by=conflict.held_by,
                again=(conflict.node_id, conflict.gpu) in self._conflicts,
            )
            for conflict in taken.conflicts
        ]
        self._conflicts.update((conflict.node_id, conflict.gpu) for conflict in taken.conflicts)
        body = {"claims": seen, "planned": planned}  # the plan too: its other parts may come after this commit
        made_by = Input(kind="conflict", id=f"conflict-{self.state.meta.epoch}-{self._writer.head.n + 1}", body=body)
        await self.make(made_by, SCHEDULER, lambda draft: decide_conflict(draft, seen), planned_at_n=plan.n)
        await self._writer.reconcile()

    # Commits and what follows from them

    async def make(
        self,
        made_by: Input,
        actor: Principal,
        decide: Callable[[Draft], None],
        cycle: int | None = None,
        planned_at_n: int | None = None,
        when_tried: Callable[[], Awaitable[None]] | None = None,
    ) -> Made | None:
        """Commit, then let the indices follow, then tell the agents. Raises Poison, ClaimsTaken."""
        with self._world.measures.commit_s.time():
            made = await self._writer.commit(
                made_by, actor, decide, cycle=cycle, planned_at_n=planned_at_n, when_tried=when_tried
            )
        self.progress_at = self._world.monotonic()
        if made is None:
            return None
        self._world.measures.commits.inc()
        news = by_table(made.changes)
        self.planner.follow(news)
        self._timers.follow(news)
        self._to_plan = self._to_plan or any(change.table in PLANNED_ON for change in made.changes)
        for node, message in effects.of_events(self.state, made.events, self._watch.last_heartbeat):
            self._send(node, message)
        return made

    def _send(self, node_id: NodeId, message: effects.Message) -> None:
        node = self.state.node_by_id(node_id)
        if (
            self._world.gateway.send(node_id, message)
            and node is not None
            and isinstance(message, StartTask | StopTask)
        ):
            self._watch.sent(node.index, message.lease_id)

    async def _snapshot(self) -> None:
        head = self._writer.head
        if head.n - self._snapshot_n < SNAPSHOT_EVERY:
            return
        self._snapshot_n = head.n
        await self._world.snapshots.save(head, snapshot.fingerprint(), snapshot.dump(self.state))


PLANNED_ON = {"jobs", "attempts", "nodes", "quotas", "policies"}
"""Tables whose changes may let something start."""
