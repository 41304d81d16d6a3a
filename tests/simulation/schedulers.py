"""A scheduler process: the real service, its ports over the simulated network, and whoever starts it again."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.gateway import GrpcGateway
from events.ids import ClusterId, Epoch, NodeId
from events.log import READ_BATCH, LogUnavailable, Raw
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore, Mode, Produce
from scheduler.link import FromAgent, Register
from scheduler.measures import Measures
from scheduler.memory import MemoryClaims, MemoryControl, MemoryLeadership, MemorySnapshots, Statement
from scheduler.ports import UnknownOutcome
from scheduler.service import Ports, Service
from scheduler.tenure import Office, keep
from tests.simulation.loop import Process, ProcessEnded, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.streams import Streams
from tests.simulation.waiting import pause

DATABASE = "database"
BROKER = "log"
UNAVAILABLE_S = 4.0
"""A broker that does not answer a read for so long is unavailable."""
STATEMENT_S = 3.0
"""Without an answer for so long the outcome of a statement is unknown."""
BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 8.0


@dataclass(slots=True, kw_only=True)
class Site:
    """What schedulers share. `landed`: called after each record that lands in the events log. `registers`: told
    when a leader hears a node register. `failed`: told of a process that ended by an exception."""

    loop: VirtualLoop
    chance: random.Random
    cluster: ClusterId
    network: Network
    streams: Streams
    store: MemoryStore
    control: MemoryControl
    mode: Mode
    landed: Callable[[], None]
    registers: Callable[[str, Epoch], None]
    failed: Callable[[str, BaseException], None]
    trace: Callable[[str], None]
    measures: list[Measures] = field(default_factory=list)
    """Of every process there was."""


class SimulatedLog(MemoryEventLog):
    """The events log as one process reaches it."""

    def __init__(self, site: Site, process: Process) -> None:
        super().__init__(site.store, site.cluster, mode=site.mode, deliver=self._carry)
        self._site = site
        self._process = process

    async def _carry(self, produce: Produce) -> int:
        name = "term" if produce.value.startswith(b'{"kind":"term"') else "commit"

        def land() -> int:
            offset = produce.land()
            self._site.landed()
            return offset

        offset: int = await self._site.network.request(self._process, name, BROKER, land)
        return offset

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read."""
        await _reach(self._site, self._process, "log.read")
        return await super().read(after, limit)

    async def end(self) -> int:
        """As RecordLog.end."""
        await _reach(self._site, self._process, "log.end")
        return await super().end()

    async def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """As RecordLog.follow: over an outage too."""
        async for batch in _follow(self, after, self._partition.grown):
            yield batch


class SimulatedCommands(MemoryCommandLog):
    """The commands log as one process reads it."""

    def __init__(self, site: Site, process: Process) -> None:
        super().__init__(site.store, site.cluster)
        self._site = site
        self._process = process

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read."""
        await _reach(self._site, self._process, "commands.read")
        return await super().read(after, limit)

    async def end(self) -> int:
        """As RecordLog.end."""
        await _reach(self._site, self._process, "commands.end")
        return await super().end()

    async def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """As RecordLog.follow: over an outage too."""
        async for batch in _follow(self, after, self._partition.grown):
            yield batch


async def _reach(site: Site, process: Process, gate: str) -> None:
    """Pass to the broker and back. Raises LogUnavailable where it is cut off for too long."""
    await site.network.faults.gate(process, gate)
    await pause(site.network.faults.latency())
    if site.network.is_blocked(process.name, BROKER):
        await pause(UNAVAILABLE_S)
        if site.network.is_blocked(process.name, BROKER):
            raise LogUnavailable("the broker does not answer")


async def _follow(
    log: SimulatedLog | SimulatedCommands, after: int, grown: Callable[[], Awaitable[None]]
) -> AsyncIterator[Sequence[Raw]]:
    while True:
        try:
            batch = await log.read(after, READ_BATCH)
        except LogUnavailable:
            continue
        if batch:
            after = batch[-1].offset
            yield batch
        else:
            await grown()


class SimulatedGateway(GrpcGateway):
    """The real gateway, with a gate where it opens."""

    def __init__(self, site: Site, process: Process, service: "Service | None" = None) -> None:
        super().__init__(leader=lambda: self.service.leader_address if self.service is not None else None)
        self.service = service
        self._site = site
        self._process = process

    async def open(self, epoch: Epoch, deliver: Callable[[NodeId, FromAgent], None]) -> None:
        """As Gateway.open."""

        def told(node: NodeId, message: FromAgent) -> None:
            if isinstance(message, Register):
                self._site.registers(node, epoch)
            deliver(node, message)

        await self._site.network.faults.gate(self._process, "gateway.open")
        await super().open(epoch, told)


@dataclass(slots=True)
class Host:
    """A machine that runs a scheduler, again and again."""

    site: Site
    name: str
    process: Process | None = None
    service: Service | None = None
    stopped: bool = False
    starts: int = 0
    ends: list[str] = field(default_factory=list)
    _backoff_s: float = BACKOFF_MIN_S
    _began: float = 0.0

    def start(self) -> None:
        """Run it, unless it runs."""
        if self.stopped or (self.process is not None and not self.process.dead):
            return
        site = self.site
        self.starts += 1
        self._began = site.loop.now
        process = self.process = Process(site.loop, self.name, site.chance)
        process.on_end.append(lambda: self._ended(process))
        process.spawn(self._main(process))

    async def _main(self, process: Process) -> None:
        try:
            process.context().run(self._wire, process)
            assert self.service is not None
            await self.service.run()
        except ProcessEnded:
            raise
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not process.dead:
                self.site.failed(self.name, error)
            process.end(f"{type(error).__name__}: {error}")

    def _wire(self, process: Process) -> None:
        site = self.site
        began = site.loop.now
        keeper = MemoryLeadership(site.control, site.cluster, self._database(process, "keeper."))

        def start_keeper(office: Office) -> None:
            process.spawn(keep(office, keeper, process.leave), thread="keeper")

        gateway = SimulatedGateway(site, process)
        site.measures.append(Measures())
        self.service = Service(
            Ports(
                cluster=site.cluster,
                holder=self.name,
                address=self.name,
                log=SimulatedLog(site, process),
                commands=SimulatedCommands(site, process),
                leadership=MemoryLeadership(site.control, site.cluster, self._database(process, "")),
                claims=MemoryClaims(site.control, site.cluster, self._database(process, "")),
                snapshots=MemorySnapshots(site.control, site.cluster, self._database(process, "")),
                gateway=gateway,
                monotonic=lambda: site.loop.now - began,
                leave=process.leave,
                keep=start_keeper,
                measures=site.measures[-1],
            )
        )
        gateway.service = self.service
        site.streams.listen(process, gateway)

    def _database(self, process: Process, prefix: str) -> Callable[[Statement], Any]:
        network = self.site.network

        async def execute(statement: Statement) -> Any:
            asked = network.request(process, prefix + statement.name, DATABASE, statement.run)
            try:
                return await asyncio.wait_for(asked, STATEMENT_S)
            except TimeoutError:
                raise UnknownOutcome(f"{statement.name}: no answer") from None

        return execute

    def _ended(self, process: Process) -> None:
        """The supervisor: again, after a while that grows."""
        site = self.site
        site.trace(f"{self.name} ends: {process.why}")
        self.ends.append(process.why)
        if site.loop.now - self._began > 60.0:
            self._backoff_s = BACKOFF_MIN_S
        site.loop.call_outside(self._backoff_s * (0.5 + site.chance.random()), self.start)
        self._backoff_s = min(BACKOFF_MAX_S, self._backoff_s * 2)

    @property
    def leads(self) -> bool:
        """Does it think that it leads?"""
        running = self.process is not None and not self.process.dead
        return running and self.service is not None and self.service.leader is not None

    def is_leader(self, process: Process) -> bool:
        """Is that process this host's, and leading?"""
        return process is self.process and self.leads
