"""An agent in memory: time that moves when the test says so, and a scheduler that is the test."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from agent.journal import MemoryJournal
from agent.node import NodeAgent, World
from agent.ports import NoTails
from agent.simulated import MemoryLedger, SimulatedRuntime, VirtualGpus
from events.ids import Epoch, GpuType
from scheduler.link import FromAgent, Heartbeat, HeartbeatAck, Register, Registered, Report, ReportAck, ToAgent
from tests.agent.builders import identity

T = TypeVar("T")


@dataclass(slots=True)
class _Timer:
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """See Clock. `advance` runs what falls due; `freeze` is what a stopped process sees: time passes, nothing runs."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.time + delay_s, next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        done = asyncio.Event()
        timer = self.call_later(delay_s, done.set)
        try:
            await done.wait()
        finally:
            timer.cancel()

    async def advance(self, delay_s: float) -> None:
        until = self.time + delay_s
        await settle()
        while self._timers and self._timers[0][0] <= until:
            at, _, timer = heapq.heappop(self._timers)
            self.time = max(self.time, at)
            if not timer.cancelled:
                timer.callback()
                await settle()
        self.time = until

    def freeze(self, delay_s: float) -> None:
        self.time += delay_s


async def settle() -> None:
    """Let everything that can run now run."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass(slots=True)
class Line:
    """One stream, the scheduler's side of it in the test's hands."""

    address: str
    said: list[FromAgent] = field(default_factory=list)
    closed: bool = False
    _inbox: deque[ToAgent | None] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, message: FromAgent) -> None:
        self.said.append(message)

    async def receive(self) -> ToAgent | None:
        while not self.closed:
            if self._inbox:
                return self._inbox.popleft()
            self._arrived.clear()
            await self._arrived.wait()
        return None

    def close(self) -> None:
        self.closed = True
        self._inbox.clear()
        self._arrived.set()

    def say(self, *messages: ToAgent | None) -> None:
        self._inbox.extend(messages)
        self._arrived.set()


class Node:
    """A node with two virtual GPUs, its agent, and all the lines it has dialed."""

    def __init__(self, *schedulers: str) -> None:
        self.schedulers = schedulers or ("a:1", "b:1")
        self.clock = VirtualClock()
        self.ledger = MemoryLedger()
        self.runtime = SimulatedRuntime(node="n-1", clock=self.clock, ledger=self.ledger)
        self.journal = MemoryJournal("journal-1")
        self.lines: list[Line] = []
        self.incarnation = 0
        self.task: asyncio.Task[None] | None = None
        self.acked = 0

    def connect(self, address: str) -> Line:
        self.lines.append(Line(address))
        return self.lines[-1]

    @property
    def line(self) -> Line:
        return self.lines[-1]

    async def boot(self) -> None:
        """Start an agent."""
        self.incarnation += 1
        world = World(
            transport=self,
            runtime=self.runtime,
            journal=self.journal,
            clock=self.clock,
            gpus=VirtualGpus("n-1", GpuType("h100"), 2),
            tails=NoTails(),
            chance=lambda: 0.5,
        )
        self.agent = NodeAgent(identity(incarnation=f"i-{self.incarnation}"), world, self.schedulers)
        self.task = asyncio.create_task(self.agent.run())
        await settle()

    async def kill(self) -> None:
        """End the agent, as kill -9 does: no goodbye."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def say(self, *messages: ToAgent) -> None:
        self.line.say(*messages)
        await settle()

    async def register(self, epoch: int = 1) -> None:
        """Answer the agent's Register."""
        assert isinstance(self.line.said[0], Register)
        await self.say(Registered(epoch=Epoch(epoch)))

    async def pass_time(self, delay_s: float, epoch: int = 1) -> None:
        """Let time pass, under a leader that acknowledges each heartbeat."""
        for _ in range(int(delay_s)):
            await self.clock.advance(1.0)
            beats = self.said(Heartbeat)
            if beats and beats[-1].number != self.acked:
                self.acked = beats[-1].number
                await self.say(HeartbeatAck(epoch=Epoch(epoch), number=self.acked))

    async def acknowledge(self, epoch: int = 1) -> None:
        """The log has all reports."""
        await self.say(ReportAck(epoch=Epoch(epoch), number=self.agent.fence.book.last_report))

    def said(self, kind: type[T]) -> list[T]:
        """What it said of that kind on the newest line."""
        return [message for message in self.line.said if isinstance(message, kind)]

    def reports(self) -> list[Report]:
        """All reports on the newest line, in order."""
        return [message for message in self.line.said if not isinstance(message, Register | Heartbeat)]
