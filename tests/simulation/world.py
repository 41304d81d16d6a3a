"""The whole world of one run: made of a seed, watched by the auditor, and asked at the end whether it came to rest."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commands import snapshot
from commands.policy import DEFAULT, Policy
from events.ids import ClusterId, Epoch, Instant
from events.log import LogUnavailable, UnknownOutcome
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore, Mode, Topic
from scheduler.link import StartTask, ToAgent
from scheduler.memory import MemoryControl, MemorySnapshots
from scheduler.ports import UnknownOutcome as StatementUnknown
from scheduler.replica import restore
from tests.simulation.audit import Auditor, Found
from tests.simulation.faults import Faults
from tests.simulation.loop import Hang, Process, ProcessEnded, VirtualLoop
from tests.simulation.machines import Machine
from tests.simulation.network import Network
from tests.simulation.people import People
from tests.simulation.schedulers import Host, Site
from tests.simulation.streams import Hostile, Streams
from tests.simulation.waiting import pause

CLUSTER = ClusterId("sim")
T0_MS = 1_800_000_000_000
TRACE_LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a world is, and which real log its log behaves like."""

    schedulers: int = 2
    nodes: int = 12
    gpus: int = 4
    nodes_per_block: int = 4
    mode: Mode = Mode.KAFKA
    snapshot_every: int = 40
    settled_max: int = 64
    policy: Policy = DEFAULT


PLAIN = Shape()


class World:
    """One run. `database_off_ms`: by how much the database's clock is wrong."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self._failed_before = 0.0
        self.shape = shape
        self.chance = random.Random(seed)
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._loop_exception)
        self.lines: deque[str] = deque(maxlen=TRACE_LINES)
        self.finding: BaseException | None = None
        self.died: list[str] = []
        self.may_die_of: tuple[type[BaseException], ...] = (LogUnavailable, StatementUnknown)
        self.database_off_ms = 0
        self.when_heard: list[Callable[[str, ToAgent], None]] = []
        self.faults = Faults(self.loop, self._fork(), self.trace)
        self.network = Network(self.loop, self.faults)
        self.hostile = Hostile(chance=self._fork())
        self.streams = Streams(self.network, self, self.hostile)
        self.store = MemoryStore()
        self.control = MemoryControl(self.database_now, self._claims_changed)
        self.hosts: list[Host] = []
        self.machines: dict[str, Machine] = {}
        self._finished = asyncio.Event()

    def _fork(self) -> random.Random:
        """Draws of its own for each part, so that one part's draws do not move another's."""
        return random.Random(self.chance.getrandbits(64))

    def trace(self, line: str) -> None:
        """Say what happens, for whoever reads a failure."""
        self.lines.append(f"{self.loop.now:9.3f} {line}")

    def database_now(self) -> Instant:
        """The database's clock."""
        return Instant(T0_MS + int(self.loop.now * 1000) + self.database_off_ms)

    # Making it

    async def build(self) -> None:
        """Logs, auditor, schedulers, machines; all started."""
        shape = self.shape
        self.commands = MemoryCommandLog(self.store, CLUSTER)
        command_log_id = await self.commands.open(create=True)
        self.events = MemoryEventLog(self.store, CLUSTER, mode=shape.mode)
        await self.events.open(create=True)
        self.auditor = Auditor(
            cluster=CLUSTER,
            events=self.store.partition(Topic.EVENTS, CLUSTER),
            commands=self.store.partition(Topic.COMMANDS, CLUSTER),
            command_log_id=command_log_id,
            claims=self.control.claims_of(CLUSTER),
            running=lambda: {node: machine.running() for node, machine in self.machines.items()},
            fail=self.fail,
        )
        self.auditor.landed()
        self._build_schedulers()
        self._build_machines()
        nodes, gpus = tuple(self.machines), shape.nodes * shape.gpus
        self.people = People(self._fork(), self._append_command, self.auditor, nodes, shape.policy, gpus)
        self.loop.task_outside(self._watch())

    def _build_schedulers(self) -> None:
        site = self.site = Site(
            loop=self.loop,
            chance=self._fork(),
            cluster=CLUSTER,
            network=self.network,
            streams=self.streams,
            store=self.store,
            control=self.control,
            mode=self.shape.mode,
            landed=self.auditor.landed,
            registers=self.auditor.registers,
            failed=self.process_failed,
            trace=self.trace,
        )
        for number in range(self.shape.schedulers):
            host = Host(site, f"s{number + 1}")
            self.hosts.append(host)
            self.loop.call_outside(number * 0.7, host.start)

    def failed_cycles(self) -> int:
        """Planning cycles that an error ended, of all leaders so far; they are counted anew from here."""
        name = "signalbox_failed_cycles_total"
        failed = sum(each.registry.get_sample_value(name) or 0 for each in self.site.measures)
        new, self._failed_before = failed - self._failed_before, failed
        return int(new)

    def _build_machines(self) -> None:
        for number in range(self.shape.nodes):
            node = f"n-{number:02d}"
            self.machines[node] = Machine(
                node=node,
                block=f"b{number // self.shape.nodes_per_block}",
                rack=f"r{number // 2}",
                gpus=self.shape.gpus,
                loop=self.loop,
                chance=self._fork(),
                faults=self.faults,
                streams=self.streams,
                witness=self,
                schedulers=tuple(host.name for host in self.hosts),
                failed=self.process_failed,
                trace=self.trace,
            )
            self.loop.call_outside(self.chance.random(), self.machines[node].start)

    async def _append_command(self, value: bytes) -> int | None:
        """The api's append: mostly acknowledged, sometimes the outcome is unknown though it is in the log."""
        await pause(self.faults.latency())
        lost, mute = self.chance.random() < self.faults.chaos.lose, self.chance.random() < self.faults.chaos.lose
        try:
            offset = None if lost else await self.commands.append(value)
        except UnknownOutcome:
            return None
        return None if mute else offset

    # Who watches

    def fail(self, finding: Found) -> None:
        """Something does not hold: the run is over."""
        if self.finding is None:
            self.finding = finding
            self.trace(f"FOUND {finding}")
            self._finished.set()

    def process_failed(self, name: str, error: BaseException) -> None:
        """A process ended by an exception."""
        self.died.append(f"{name}: {type(error).__name__}: {error}")
        self.trace(f"{name} dies of {type(error).__name__}: {error}")
        if not isinstance(error, self.may_die_of) and self.finding is None:
            finding = Found("death", f"{name} dies of {type(error).__name__}: {error}")
            finding.__cause__ = error
            self.fail(finding)

    def said(self, process: Process, node: str, message: ToAgent) -> None:
        """See Witness."""
        self.auditor.said(process.name, node, message)

    def heard(self, node: str, message: ToAgent) -> None:
        """See Witness."""
        for told in self.when_heard:
            told(node, message)

    def heeded(self, node: str, message: ToAgent) -> None:
        """See Witness."""
        self.auditor.heeded(node, message)

    def starts(self, node: str, message: StartTask) -> None:
        """See StartWitness."""
        self.auditor.starts(node, message, self.loop.now)

    def _claims_changed(self, _: ClusterId) -> None:
        self.auditor.check_claims()

    def _loop_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ProcessEnded) or (error is self.finding and error is not None):
            return
        if self.finding is None:
            self.finding = error if error is not None else Hang(str(context["message"]))
            self.trace(f"FAILED {context['message']}: {error!r}")
        self._finished.set()

    # Now and then

    async def _watch(self) -> None:
        """Cores side by side, and what the machines themselves have noticed (scenario 15)."""
        while True:
            await pause(1.0 + self.chance.random() * 9.0)
            self.check_machines()
            for host in self.hosts:
                hot = host.service.leader.state if host.service is not None and host.service.leader else None
                if hot is not None and host.leads and hot.clean() and self._is_newest(hot.meta.n, hot.meta.epoch):
                    self._same(snapshot.digest(hot), f"the hot state of {host.name}")
            replica = await restore(CLUSTER, self.events, MemorySnapshots(self.control, CLUSTER))
            if replica.head == self.auditor.head:
                self._same(snapshot.digest(replica.state), "snapshot and tail")

    def check_machines(self) -> None:
        """No machine has run a lease twice, or two on one GPU."""
        for machine in self.machines.values():
            for violation in machine.runtime.violations:
                self.fail(Found("P-17", f"{machine.node}: {violation}"))

    def _is_newest(self, n: int, epoch: Epoch) -> bool:
        return (n, epoch) == (self.auditor.head.n, self.auditor.head.epoch)

    def _same(self, digest: str, whose: str) -> None:
        if digest != self.auditor.digest():
            self.fail(Found("I-6", f"{whose} is not the fold of the log at n {self.auditor.head.n}"))

    # What scenarios ask

    def leader(self) -> Host | None:
        """The host that holds the epoch row and leads."""
        row = self.control.rows.get(CLUSTER)
        for host in self.hosts:
            if row is not None and row.holder == host.name and host.leads:
                return host
        return None

    def is_leader(self, process: Process) -> bool:
        """Is that the process of a scheduler that leads, or believes so?"""
        return any(host.is_leader(process) for host in self.hosts)

    async def finished(self) -> None:
        """Wait until something was found."""
        await self._finished.wait()
