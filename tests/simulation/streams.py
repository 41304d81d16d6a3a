"""Sessions between agents and schedulers: the real gateway and the real wire, over the simulated network.

The gateway of agent/gateway.py is asked to serve streams as grpc would ask it; the agent's end is a port of the agent.
Hostile doubles, delays and reorders what is to start and stop tasks, to see what the agent's fence makes of it.
"""

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio

from agent import wire
from agent.gateway import GrpcGateway
from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from scheduler.link import FromAgent, RegisterRefused, ReportAck, StartTask, StopTask, ToAgent
from tests.simulation.loop import Process
from tests.simulation.network import END, Network, Pipe

GATE_NAMES = ((StartTask, "start"), (StopTask, "stop"), (ReportAck, "ack"), (RegisterRefused, "refuse"))


class Witness(Protocol):
    """Who hears of all that is said to agents."""

    def said(self, process: Process, node: str, message: ToAgent) -> None:
        """A scheduler sends it to an agent."""
        ...

    def heard(self, node: str, message: ToAgent) -> None:
        """It arrives in the open session of an agent."""
        ...

    def heeded(self, node: str, message: ToAgent) -> None:
        """The agent has read it and done with it, without ending the session."""
        ...


@dataclass(slots=True, kw_only=True)
class Hostile:
    """Chances of each StartTask and StopTask to come twice and to come late, by up to `delay_max_s`; what is late does
    not keep its place. `any_session`: it may come in a later session than its own, which no network can do."""

    chance: random.Random
    double: float = 0.0
    late: float = 0.0
    delay_max_s: float = 120.0
    any_session: bool = False

    def delays(self, message: ToAgent) -> list[float]:
        """After how long it arrives, each time that it does."""
        if not isinstance(message, StartTask | StopTask):
            return [0.0]
        first = self._delay() if self.chance.random() < self.late else 0.0
        return [first, self._delay()] if self.chance.random() < self.double else [first]

    def _delay(self) -> float:
        return self.chance.random() ** 3 * self.delay_max_s


class Streams:
    """All sessions: who listens where, and the newest session of each node."""

    def __init__(self, network: Network, witness: Witness, hostile: Hostile) -> None:
        self.network = network
        self.witness = witness
        self.hostile = hostile
        self.listeners: dict[str, tuple[Process, GrpcGateway]] = {}
        self.newest: dict[str, AgentStream] = {}

    def listen(self, process: Process, gateway: GrpcGateway) -> None:
        """The process serves streams at the address that is its name."""
        self.listeners[process.name] = (process, gateway)

    def deliver(self, stream: "AgentStream", message: ToAgent) -> None:
        """What arrives at an agent, as the network has it."""
        for delay_s in self.hostile.delays(message):
            if delay_s == 0.0:
                self._hand_over(stream, message)
            else:
                self.network.loop.call_outside(delay_s, self._late, stream, message)

    def _late(self, stream: "AgentStream", message: ToAgent) -> None:
        self._hand_over(self.newest[stream.node] if self.hostile.any_session else stream, message)

    def _hand_over(self, stream: "AgentStream", message: ToAgent) -> None:
        if not stream.closed:
            self.witness.heard(stream.node, message)
            stream.feed(message)


class Transport:
    """agent.ports.Transport of one agent process."""

    def __init__(self, streams: Streams, agent: Process, node: str) -> None:
        self._streams = streams
        self._agent = agent
        self._node = node

    def connect(self, address: str) -> "AgentStream":
        """See Transport."""
        self._agent.alive()
        stream = AgentStream(self._streams, self._agent, self._node, address)
        self._streams.newest[self._node] = stream
        return stream


class AgentStream:
    """agent.ports.Stream, and the connection under it."""

    def __init__(self, streams: Streams, agent: Process, node: str, address: str) -> None:
        self.node = node
        self.closed = False
        self._streams = streams
        self._agent = agent
        self._inbox: deque[ToAgent | None] = deque()
        self._read: ToAgent | None = None
        self._news = asyncio.Event()
        network = streams.network
        self._call = _Call(streams, node, address)
        self._up = Pipe(network, (node, address), self._call.feed)
        self._down = Pipe(network, (node, address), self._arrived)
        self._call.down, self._call.up = self._down, self._up
        agent.on_end.append(self._hang_up)
        network.loop.call_outside(network.faults.latency(), network.when_open, node, address, self._call.accept)

    # The agent's side

    def send(self, message: FromAgent) -> None:
        """See Stream."""
        if not self._agent.dead and not self.closed:
            self._up.push(wire.agent_message([message]))

    async def receive(self) -> ToAgent | None:
        """See Stream."""
        if self._read is not None and not self.closed:
            self._streams.witness.heeded(self.node, self._read)
        self._read = None
        while not self.closed:
            if self._inbox:
                self._read = self._inbox.popleft()
                if self._read is None:
                    self.close()
                return self._read
            self._news.clear()
            await self._news.wait()
        return None

    def close(self) -> None:
        """See Stream."""
        if not self._agent.dead:
            self._hang_up()

    def _hang_up(self) -> None:
        if not self.closed:
            self.closed = True
            self._inbox.clear()
            self._down.close()
            self._up.push(END)
            self._news.set()

    # The network's side

    def _arrived(self, item: Any) -> None:
        if item is END:
            self.feed(None)
            return
        for message in wire.to_agent(item):
            self._streams.deliver(self, message)

    def feed(self, message: ToAgent | None) -> None:
        """Into the socket: the agent reads it when it comes to it. None: the end."""
        self._inbox.append(message)
        self._news.set()


class _Call:
    """The scheduler's end: what grpc hands to the gateway as the context of a call."""

    down: Pipe
    up: Pipe

    def __init__(self, streams: Streams, node: str, address: str) -> None:
        self._streams = streams
        self._node = node
        self._address = address
        self._process: Process | None = None
        self._inbox: deque[Any] = deque()
        self._news = asyncio.Event()
        self._over = False

    def accept(self) -> None:
        """The connection is made, if anybody listens."""
        found = self._streams.listeners.get(self._address)
        if found is None or found[0].dead:
            self._finish()
            return
        self._process, gateway = found
        self._process.on_end.append(self._finish)
        self._process.spawn(self._serve(gateway))

    async def _serve(self, gateway: GrpcGateway) -> None:
        try:
            await gateway._session(None, self)  # type: ignore[arg-type]
        finally:
            self._finish()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self.up.close()
            self.down.push(END)

    def feed(self, item: Any) -> None:
        self._inbox.append(item)
        self._news.set()

    # What the gateway calls

    async def read(self) -> Any:
        """As grpc.aio.ServicerContext.read."""
        while not self._inbox:
            self._news.clear()
            await self._news.wait()
        item = self._inbox.popleft()
        return grpc.aio.EOF if item is END else item

    async def write(self, message: pb.SchedulerMessage) -> None:
        """As grpc.aio.ServicerContext.write."""
        assert self._process is not None
        said = wire.to_agent(message)
        await self._streams.network.faults.gate(self._process, f"send.{gate_name(said)}")
        for one in said:
            self._streams.witness.said(self._process, self._node, one)
        self.down.push(message)

    def invocation_metadata(self) -> tuple[()]:
        """As grpc.aio.ServicerContext.invocation_metadata."""
        return ()


def gate_name(said: list[ToAgent]) -> str:
    """The gate of a batch: what weighs most in it."""
    for kind, name in GATE_NAMES:
        if any(isinstance(message, kind) for message in said):
            return name
    return "other"
