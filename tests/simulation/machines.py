"""A node: the real agent over a virtual machine, whose tasks outlive it; and whoever starts the agent again."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from agent.book import Book
from agent.clock import LoopClock
from agent.journal import MemoryJournal
from agent.node import NodeAgent, World
from agent.ports import Identity, Inventory, NoTails, TaskStart
from agent.simulated import MemoryLedger, SimulatedRuntime, VirtualGpus
from events.ids import BlockId, GpuType, LeaseId, NodeId
from scheduler.link import StartTask
from tests.simulation.faults import Faults
from tests.simulation.loop import Process, ProcessEnded, VirtualLoop
from tests.simulation.streams import Streams, Transport

GPU_TYPE = GpuType("h100")


class StartWitness(Protocol):
    """Who is told, before it happens, that a task is to run."""

    def starts(self, node: str, message: StartTask) -> None: ...


class KilledJournal(MemoryJournal):
    """The agent may die just before and just after it has written."""

    __slots__ = ("faults", "process")

    faults: Faults
    process: Process

    def save(self, book: Book) -> None:
        """Kept, unless the agent dies before."""
        self.faults.gate_at_once(self.process, "journal.before")
        MemoryJournal.save(self, book)
        self.faults.gate_at_once(self.process, "journal.after")


class KilledRuntime(SimulatedRuntime):
    """The agent may die just before and just after a task is begun. Whoever watches is told of each start."""

    __slots__ = ("faults", "process", "witness")

    faults: Faults
    process: Process
    witness: StartWitness

    def start(self, task: TaskStart) -> None:
        """See Runtime."""
        self.faults.gate_at_once(self.process, "exec.before")
        if task.exec_before >= self.clock.now():
            self.witness.starts(self.node, task.message)
        SimulatedRuntime.start(self, task)
        self.faults.gate_at_once(self.process, "exec.after")


@dataclass(slots=True)
class RotatedGpus(VirtualGpus):
    """GPUs that may be found in another order: the first `rotation` of them last."""

    rotation: int = 0

    def inventory(self) -> Inventory:
        """The same GPUs, in the order in which they are found now."""
        found = VirtualGpus.inventory(self)
        first = self.rotation % self.count
        return replace(found, slots=found.slots[first:] + found.slots[:first])


@dataclass(slots=True, kw_only=True)
class Machine:
    """One node. `powered`: it has power; `serviced`: an agent that ends is started again."""

    node: str
    block: str
    rack: str
    gpus: int
    loop: VirtualLoop
    chance: random.Random
    faults: Faults
    streams: Streams
    witness: StartWitness
    schedulers: tuple[str, ...]
    failed: Callable[[str, BaseException], None]
    trace: Callable[[str], None]
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    powered: bool = True
    serviced: bool = True
    process: Process | None = None
    agent: NodeAgent | None = None
    runtime: KilledRuntime = field(init=False)
    journal: KilledJournal = field(init=False)
    cards: RotatedGpus = field(init=False)
    _boots: int = 1
    _journals: int = 1
    _starts: int = 0

    def __post_init__(self) -> None:
        clock = LoopClock(self.loop.time)
        self.runtime = KilledRuntime(node=self.node, clock=clock, ledger=self.ledger)
        self.runtime.faults, self.runtime.witness = self.faults, self.witness
        self.journal = KilledJournal(journal=f"{self.node}-journal")
        self.journal.faults = self.faults
        self.cards = RotatedGpus(self.node, GPU_TYPE, self.gpus)

    def start(self) -> None:
        """Start the agent, unless it runs or cannot."""
        if not self.powered or not self.serviced or (self.process is not None and not self.process.dead):
            return
        self._starts += 1
        process = self.process = Process(self.loop, self.node, self.chance)
        self.runtime.process = self.journal.process = process
        process.on_end.append(lambda: self._ended(process))
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        identity = Identity(
            node_id=NodeId(self.node),
            boot_id=f"{self.node}-boot-{self._boots}",
            incarnation=f"{self.node}-agent-{self._starts}",
            block=BlockId(self.block),
            rack=self.rack,
            address=f"{self.node}.simulated",
        )
        world = World(
            transport=Transport(self.streams, process, self.node),
            runtime=self.runtime,
            journal=self.journal,
            clock=LoopClock(self.loop.time),
            gpus=self.cards,
            tails=NoTails(),
            chance=self.chance.random,
        )
        try:
            self.agent = NodeAgent(identity, world, self.schedulers)
            await self.agent.run()
        except ProcessEnded:
            raise
        except Exception as error:
            self.failed(self.node, error)
            process.end(f"{type(error).__name__}: {error}")

    def _ended(self, process: Process) -> None:
        self.trace(f"{self.node}: its agent ends: {process.why}")
        self.loop.call_outside(0.5 + 4.0 * self.chance.random(), self.start)

    def kill_agent(self) -> None:
        """kill -9 the agent; its tasks run on."""
        if self.process is not None:
            self.process.end("killed")

    def lose_journal(self) -> None:
        """kill -9 the agent and replace its disk: it remembers nothing, while its tasks run on."""
        self.trace(f"{self.node} loses the journal of its agent")
        self.kill_agent()
        self._journals += 1
        self.journal.journal, self.journal.saved = f"{self.node}-journal-{self._journals}", None

    def power_off(self, for_s: float) -> None:
        """The machine loses power, and with it its tasks; it boots again later."""
        self.trace(f"{self.node} loses power for {for_s:.0f} s")
        self.powered = False
        self.kill_agent()
        self.runtime.crash()
        self._boots += 1
        self.loop.call_outside(for_s, self.power_on)

    def power_on(self) -> None:
        """It boots."""
        self.powered = True
        self.start()

    def running(self) -> dict[LeaseId, tuple[str, ...]]:
        """What really runs now: lease -> UUIDs of its GPUs."""
        now = self.loop.time()
        return {lease: task.gpus for lease, task in self.runtime.tasks.items() if task.ends_at > now}
