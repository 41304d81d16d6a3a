"""Thousands of simulated agents in one process, over real gRPC: for `signalboxd up`, load tests and recorded days.

They are the very agents of real nodes; only what they stand on is virtual. What they remember, and what their virtual
tasks do, is in two append-only files, so that a fleet that is killed comes back with its tasks still running.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agent.book import Book, decode, encode
from agent.clock import LoopClock
from agent.grpc_transport import GrpcTransport
from agent.node import NodeAgent, World
from agent.ports import Clock, Identity
from agent.processes import boot_id
from agent.simulated import SimulatedRuntime, VirtualGpus
from agent.tail import SimulatedTails
from events.ids import BlockId, GpuType, NodeId

SPREAD_S = 5.0
"""Agents start over one heartbeat, so that their heartbeats do not come all together."""
_BLOCK_BYTES = 1 << 16
_COMPACT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """What a fleet is made of. Nodes are numbered from `first`; blocks and racks are runs of neighbours."""

    nodes: int
    prefix: str = "n-"
    first: int = 0
    gpus_per_node: int = 8
    gpu_type: str = "h100"
    gpu_memory_gb: int = 80
    nodes_per_block: int = 32
    nodes_per_rack: int = 4
    scale: float = 1.0

    def node_ids(self) -> list[NodeId]:
        """All of them, in order."""
        return [NodeId(f"{self.prefix}{number:04d}") for number in range(self.first, self.first + self.nodes)]


class AppendedFile:
    """Lines of JSON, one write each: they outlive a kill -9. A line that was torn goes when the file is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.truncate(path, self._whole_bytes())

    def _whole_bytes(self) -> int:
        """Up to the end of the last line."""
        end = os.fstat(self._fd).st_size
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            at = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            end = begin
        return 0

    def append(self, line: dict[str, Any]) -> None:
        """One line. Numbers may be infinite; they come back as null."""
        self.append_raw(orjson.dumps(line))

    def append_raw(self, line: bytes) -> None:
        """One line that is JSON already."""
        os.write(self._fd, line + b"\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that was written."""
        with open(self._path, "rb") as file:
            for line in file:
                yield orjson.loads(line)

    def replace(self, lines: Iterator[bytes]) -> int:
        """Put these in place of all that was written. Returns their bytes."""
        beside = self._path.with_suffix(".new")
        with open(beside, "wb") as file:
            file.writelines(line + b"\n" for line in lines)
            size = file.tell()
        os.replace(beside, self._path)
        self.close()
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND)
        return size

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


@dataclass(slots=True)
class FleetBooks:
    """The journals of all agents of a fleet in one file; the last book of each node counts."""

    file: AppendedFile
    _books: dict[str, bytes] = field(default_factory=dict)
    _appended: int = 0

    def __post_init__(self) -> None:
        for line in self.file.lines():
            self._books[line["node"]] = orjson.dumps(line["book"])
        self.file.replace(self._raw(node) for node in self._books)

    def load(self, node: str, new_id: str) -> Book:
        """See Journal."""
        if node not in self._books:
            self.save(node, Book(journal=new_id))
        return decode(self._books[node])

    def save(self, node: str, book: Book) -> None:
        """See Journal. It outlives this process, not a loss of power: nor do virtual tasks."""
        self._books[node] = encode(book)
        raw = self._raw(node)
        self.file.append_raw(raw)
        self._appended += len(raw)
        if self._appended > _COMPACT_BYTES:
            self._appended = 0
            self.file.replace(self._raw(known) for known in self._books)

    def _raw(self, node: str) -> bytes:
        return b'{"node":' + orjson.dumps(node) + b',"book":' + self._books[node] + b"}"


@dataclass(frozen=True, slots=True)
class _NodeJournal:
    """One agent's part of the books."""

    books: FleetBooks
    node: str
    new_id: str

    def load(self) -> Book:
        return self.books.load(self.node, self.new_id)

    def save(self, book: Book) -> None:
        self.books.save(self.node, book)


@dataclass(slots=True)
class _Member:
    """A node of the fleet: its virtual machine, and its agent while it runs."""

    number: int
    runtime: SimulatedRuntime
    gpus: VirtualGpus
    boot_id: str
    agent: NodeAgent | None = None
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Fleet:
    """`await run()` until it is cancelled. Nodes can be taken out and put back for drills (`silence`, `wake`,
    `power_off`)."""

    plan: FleetPlan
    directory: Path
    schedulers: tuple[str, ...]
    token: str | None = None
    connections: int = 8
    clock: Clock = field(default_factory=LoopClock)
    spread_s: float = SPREAD_S
    members: dict[NodeId, _Member] = field(init=False, default_factory=dict)
    _books: FleetBooks = field(init=False)
    _transport: GrpcTransport = field(init=False)
    _failed: asyncio.Future[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        boot = boot_id()
        ledger = _open_ledger(self.directory, boot)
        self._books = FleetBooks(AppendedFile(self.directory / "books.jsonl"))
        self._transport = GrpcTransport(token=self.token, connections=self.connections)
        for number, node in enumerate(self.plan.node_ids()):
            runtime = SimulatedRuntime(node=node, clock=self.clock, ledger=ledger, scale=self.plan.scale)
            gpus = VirtualGpus(node, GpuType(self.plan.gpu_type), self.plan.gpus_per_node, self.plan.gpu_memory_gb)
            self.members[node] = _Member(number, runtime, gpus, f"{boot}/{node}")
        for line in ledger.lines():
            if "node" in line and (member := self.members.get(NodeId(line["node"]))):
                member.runtime.restore(line)

    async def run(self) -> None:
        """Run all agents. An agent that fails ends the fleet, with its error."""
        self._failed = asyncio.get_running_loop().create_future()
        try:
            for node, member in self.members.items():
                self._begin(node, self.spread_s * member.number / len(self.members))
            await self._failed
        finally:
            await asyncio.gather(*[self.silence(node) for node in self.members])
            await self._transport.close()

    def violations(self) -> list[str]:
        """Cases of two leases on one virtual GPU, or of one lease run twice, since this process began. Never any."""
        return [found for member in self.members.values() for found in member.runtime.violations]

    async def silence(self, node: NodeId) -> None:
        """End the node's agent; its tasks run on."""
        member = self.members[node]
        task, member.task = member.task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self, node: NodeId) -> None:
        """Start the node's agent, where none runs."""
        if self.members[node].task is None:
            self._begin(node, 0.0)

    async def power_off(self, node: NodeId) -> None:
        """End the agent and lose its tasks, as a machine does; `wake` boots it."""
        await self.silence(node)
        member = self.members[node]
        member.runtime.crash()
        member.boot_id = os.urandom(8).hex()

    def _begin(self, node: NodeId, delay_s: float) -> None:
        member = self.members[node]
        member.task = asyncio.create_task(self._run(node, member, delay_s), name=f"agent {node}")
        member.task.add_done_callback(self._ended)

    async def _run(self, node: NodeId, member: _Member, delay_s: float) -> None:
        await self.clock.sleep(delay_s)
        number = self.plan.first + member.number
        identity = Identity(
            node_id=node,
            boot_id=member.boot_id,
            incarnation=os.urandom(8).hex(),
            block=BlockId(f"{self.plan.prefix}b{number // self.plan.nodes_per_block:03d}"),
            rack=f"{self.plan.prefix}r{number // self.plan.nodes_per_rack:04d}",
            address=f"{node}.simulated",
        )
        tails = SimulatedTails(member.runtime.pretends_s)
        world = World(
            transport=self._transport,
            runtime=member.runtime,
            journal=_NodeJournal(self._books, node, os.urandom(8).hex()),
            clock=self.clock,
            gpus=member.gpus,
            tails=tails,
            chance=random.random,
        )
        member.agent = NodeAgent(identity, world, self.schedulers)
        try:
            await member.agent.run()
        finally:
            await tails.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and self._failed and not self._failed.done():
            self._failed.set_exception(error)


def _open_ledger(directory: Path, boot: str) -> AppendedFile:
    """The ledger of this boot. The clock begins anew with each, and with it the tasks: an older ledger is put by."""
    path = directory / "ledger.jsonl"
    if path.exists():
        with open(path, "rb") as file:
            first = file.readline()
        if orjson.loads(first or b"{}").get("boot") != boot:
            path.rename(directory / f"ledger-{path.stat().st_mtime_ns}.jsonl")
    ledger = AppendedFile(path)
    if path.stat().st_size == 0:
        ledger.append({"boot": boot})
    return ledger
