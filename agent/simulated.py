"""Virtual GPUs and tasks: the runtime of fleets, of the demo and of the simulation.

A virtual task outlives its agent, and the process of the fleet too: what has begun is in a ledger, and goes on by the
clock whether anybody looks or not. The ledger holds when which lease ran on which GPU, written by those who ran it and
not by those who granted it: `overlaps` reads from it whether any GPU ever ran two.

Set by the job's environment: SIGNALBOX_SIM_DURATION_S (60), _START_S (0), _STOP_S (1: how long it takes to end after a
SIGTERM), _KILL_S (0: how long it survives SIGKILL), _EXIT_CODE (0), _CHECKPOINT_S (0: none), _IGNORES_TERM (any value:
only SIGKILL ends it).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from agent.book import LeaseRecord
from agent.ports import Checkpoint, Clock, Inventory, Observed, Orphan, TaskStart
from events.ids import GpuType, LeaseId
from events.node import GpuSlot
from events.task import TaskEnd
from scheduler.link import Phase, StartTask

ISOLATION_S = 900.0
LIMIT_MARGIN_S = 5.0
_FOREVER = float("inf")


class Ledger(Protocol):
    """Where virtual tasks are kept: lines appended, and read again by whoever adopts."""

    def append(self, line: dict[str, Any]) -> None:
        """Kept over the death of the process when it returns."""
        ...


@dataclass(slots=True)
class MemoryLedger:
    """In memory."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def append(self, line: dict[str, Any]) -> None:
        """Kept."""
        self.lines.append(line)


@dataclass(slots=True, kw_only=True)
class VirtualTask:
    """A task that is nowhere. All instants are of the clock; `ends_at` and how are known from the beginning, and
    change when it is stopped. `taken`: checkpoints that the agent has; `done_before_s`: work of earlier attempts."""

    lease: LeaseId
    gpus: tuple[str, ...]
    begun_at: float
    runs_at: float
    ends_at: float
    end: TaskEnd = TaskEnd.EXITED
    exit_code: int = 0
    limit_at: float = _FOREVER
    grace_s: float = 60.0
    stop_s: float = 1.0
    kill_s: float = 0.0
    ignores_term: bool = False
    overlap_never: bool = False
    checkpoint_s: float = 0.0
    checkpoint_uri: str | None = None
    attempt: int = 1
    done_before_s: float = 0.0
    scale: float = 1.0
    taken: int = 0
    said: Phase | None = None

    def terminate(self, at: float, grace_s: float, end: TaskEnd) -> None:
        """SIGTERM at that time, SIGKILL after the grace. An earlier end stays as it is."""
        killed_at = at + grace_s + self.kill_s
        left_at = _FOREVER if self.ignores_term else at + self.stop_s
        if min(killed_at, left_at) < self.ends_at:
            self.end = end
            self.exit_code = 143 if left_at <= killed_at else 137
            self.ends_at = min(killed_at, left_at)

    def advance(self, now: float, isolated_at: float) -> None:
        """What its shim would have done by now."""
        limit_term_at = self.limit_at - self.grace_s + LIMIT_MARGIN_S
        if limit_term_at <= now:
            self.terminate(limit_term_at, self.grace_s, TaskEnd.TIMED_OUT)
        if self.overlap_never and isolated_at <= now:
            self.terminate(isolated_at, self.grace_s, TaskEnd.LOST)

    def next_at(self, now: float, isolated_at: float) -> float:
        """When it may do something by itself. Orders of the past have been carried out; ends are told until taken."""
        dues = [self.ends_at, self._checkpoint_at(self.taken + 1)]
        if self.said is not Phase.RUNNING:
            dues.append(self.runs_at)
        orders = [self.limit_at - self.grace_s + LIMIT_MARGIN_S, isolated_at if self.overlap_never else _FOREVER]
        return min(dues + [order for order in orders if order > now])

    def checkpoints(self, now: float) -> tuple[Checkpoint, ...]:
        """Those complete by now and not yet taken. The URI ends with the seconds of work that are safe."""
        made = []
        while self.checkpoint_uri is not None and self._checkpoint_at(self.taken + 1) <= min(now, self.ends_at):
            self.taken += 1
            done_s = int(self.done_before_s + self.taken * self.checkpoint_s)
            uri = f"{self.checkpoint_uri.rstrip('/')}/{self.lease}/{done_s}"
            sequence = self.attempt * 1_000_000 + self.taken
            made.append(Checkpoint(sequence=sequence, uri=uri, size_bytes=1 << 30, step=done_s))
        return tuple(made)

    def _checkpoint_at(self, number: int) -> float:
        if not self.checkpoint_s or self.checkpoint_uri is None:
            return _FOREVER
        return self.runs_at + number * self.checkpoint_s * self.scale


def virtual_task(message: StartTask, now: float, scale: float) -> VirtualTask:
    """What a StartTask comes to. A resume URI that ends with seconds, as ours do, shortens it by them."""
    env = message.env

    def seconds(name: str, default: float) -> float:
        return float(env.get(f"SIGNALBOX_SIM_{name}_S", default))

    last = (message.resume_uri or "").rstrip("/").rsplit("/", 1)[-1]
    done_s = float(last) if last.isdecimal() else 0.0
    runs_at = now + seconds("START", 0.0) * scale
    return VirtualTask(
        lease=message.lease_id,
        gpus=message.gpu_uuids,
        begun_at=now,
        runs_at=runs_at,
        ends_at=runs_at + max(0.0, seconds("DURATION", 60.0) - done_s) * scale,
        exit_code=int(env.get("SIGNALBOX_SIM_EXIT_CODE", 0)),
        grace_s=message.grace_s,
        stop_s=seconds("STOP", 1.0),
        kill_s=seconds("KILL", 0.0),
        ignores_term="SIGNALBOX_SIM_IGNORES_TERM" in env,
        overlap_never=message.overlap_never,
        checkpoint_s=seconds("CHECKPOINT", 0.0),
        checkpoint_uri=message.checkpoint_uri,
        attempt=message.attempt,
        done_before_s=done_s,
        scale=scale,
    )


@dataclass(slots=True)
class SimulatedRuntime:
    """The virtual GPUs of one node. The object outlives its agent: it is the machine. `restored` makes it again from
    the ledger of a process that died."""

    node: str
    clock: Clock
    ledger: Ledger
    scale: float = 1.0
    tasks: dict[LeaseId, VirtualTask] = field(default_factory=dict)
    ended: dict[LeaseId, Observed] = field(default_factory=dict)
    seen: set[LeaseId] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    _fresh: list[Observed] = field(init=False, default_factory=list)
    _renewed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._renewed_at = self.clock.now()

    def restore(self, line: dict[str, Any]) -> None:
        """Take one line of the ledger, in order."""
        lease = LeaseId(line["lease"])
        self.seen.add(lease)
        if "task" in line:
            kept = dict(line["task"])
            kept["gpus"], kept["end"], kept["said"] = tuple(kept["gpus"]), TaskEnd(kept["end"]), None
            kept["limit_at"] = _FOREVER if kept["limit_at"] is None else kept["limit_at"]
            self.tasks[lease] = VirtualTask(**kept)
        elif "ended_at" in line:
            self.tasks.pop(lease, None)
            self.ended[lease] = _ended(lease, TaskEnd(line["end"]), line["exit_code"])
        else:
            self.ended.pop(lease, None)

    def crash(self) -> None:
        """The machine loses power: its tasks are gone, without an exit status."""
        for task in list(self.tasks.values()):
            self._end(task, min(self.clock.now(), task.ends_at), TaskEnd.LOST)
        self._fresh.clear()

    # The port

    def adopt(self, leases: Sequence[LeaseRecord]) -> tuple[Orphan, ...]:
        """See Runtime."""
        now = self.clock.now()
        self._fresh.clear()
        self._advance(now)
        wanted = {record.lease_id: record for record in leases}
        orphans = [task for lease, task in self.tasks.items() if lease not in wanted]
        for task in orphans:
            self._end(task, now, TaskEnd.LOST)
            self.forget(task.lease)
        for lease, record in wanted.items():
            if lease in self.tasks:
                self.tasks[lease].taken, self.tasks[lease].said = record.read_to, None
            elif lease not in self.ended:
                end = TaskEnd.LOST if lease in self.seen or record.started else TaskEnd.NEVER_STARTED
                self._never(lease, end, now)
        self._fresh = [self.ended[lease] for lease in wanted if lease in self.ended]
        return tuple(Orphan(gpu_uuid=gpu, pid=0) for task in orphans for gpu in task.gpus[:1])

    def start(self, task: TaskStart) -> None:
        """See Runtime."""
        message, now = task.message, self.clock.now()
        if message.lease_id in self.seen:
            self.violations.append(f"{message.lease_id} was to run twice")
            return
        if now > task.exec_before:
            self._never(message.lease_id, TaskEnd.NEVER_STARTED, now)
            return
        begun = virtual_task(message, now, self.scale)
        begun.limit_at = _FOREVER if task.limit_at is None else task.limit_at
        self._advance(now)
        for other in self.tasks.values():
            if shared := set(other.gpus) & set(begun.gpus):
                self.violations.append(f"{sorted(shared)} run {other.lease} and {begun.lease}")
        self.seen.add(begun.lease)
        self.tasks[begun.lease] = begun
        self._write(begun)

    def stop(self, lease: LeaseId, grace_s: int) -> None:
        """See Runtime."""
        self._advance(self.clock.now())
        if task := self.tasks.get(lease):
            task.terminate(self.clock.now(), grace_s, TaskEnd.STOPPED)
            self._write(task)

    def extend(self, lease: LeaseId, limit_at: float | None) -> None:
        """See Runtime."""
        self._advance(self.clock.now())
        if task := self.tasks.get(lease):
            task.limit_at = _FOREVER if limit_at is None else limit_at
            self._write(task)

    def renew(self, now: float) -> None:
        """See Runtime."""
        self._advance(now)
        self._renewed_at = now

    def poll(self) -> list[Observed]:
        """See Runtime."""
        now = self.clock.now()
        self._advance(now)
        seen, self._fresh = self._fresh, []
        for task in self.tasks.values():
            said, made = Phase.RUNNING if now >= task.runs_at else Phase.STARTING, task.checkpoints(now)
            if said is not task.said or made:
                task.said = said
                seen.append(Observed(lease_id=task.lease, phase=said, checkpoints=made, read_to=task.taken))
        return seen

    def next_poll(self, now: float) -> float | None:
        """See Runtime."""
        if self._fresh:
            return 0.0
        if not self.tasks:
            return None
        isolated_at = self._renewed_at + ISOLATION_S
        return max(0.0, min(task.next_at(now, isolated_at) for task in self.tasks.values()) - now)

    def orphans(self) -> tuple[Orphan, ...]:
        """None: nothing else runs on virtual GPUs."""
        return ()

    def forget(self, lease: LeaseId) -> None:
        """See Runtime."""
        if self.ended.pop(lease, None) is not None:
            self.ledger.append({"node": self.node, "lease": lease})

    def disk_free_bytes(self) -> int:
        """Always enough."""
        return 1 << 40

    def pretends_s(self, lease: LeaseId) -> float | None:
        """How long a task is to run in all; None where it has ended or is not known."""
        task = self.tasks.get(lease)
        return None if task is None else round(task.ends_at - task.runs_at, 1)

    # Within

    def _advance(self, now: float) -> None:
        if not self.tasks:
            return
        for task in list(self.tasks.values()):
            task.advance(now, self._renewed_at + ISOLATION_S)
            if task.ends_at <= now:
                self._end(task, task.ends_at, task.end)

    def _end(self, task: VirtualTask, at: float, end: TaskEnd) -> None:
        made = task.checkpoints(at)
        exit_code = None if end is TaskEnd.LOST else task.exit_code
        del self.tasks[task.lease]
        ended = _ended(task.lease, end, exit_code, made, task.taken)
        self.ended[task.lease] = ended
        self._fresh.append(ended)
        self._write_end(ended, at)

    def _never(self, lease: LeaseId, end: TaskEnd, now: float) -> None:
        """It does not run, and never will."""
        self.seen.add(lease)
        self.ended[lease] = _ended(lease, end, None)
        self._fresh.append(self.ended[lease])
        self._write_end(self.ended[lease], now)

    def _write(self, task: VirtualTask) -> None:
        self.ledger.append({"node": self.node, "lease": task.lease, "task": asdict(task)})

    def _write_end(self, ended: Observed, at: float) -> None:
        line = {"node": self.node, "lease": ended.lease_id, "ended_at": at}
        self.ledger.append(line | {"end": ended.end, "exit_code": ended.exit_code})


def _ended(
    lease: LeaseId,
    end: TaskEnd,
    exit_code: int | None,
    made: tuple[Checkpoint, ...] = (),
    taken: int = 0,
) -> Observed:
    return Observed(lease_id=lease, phase=Phase.ENDED, end=end, exit_code=exit_code, checkpoints=made, read_to=taken)


def overlaps(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Every case of two leases on one GPU at one time, by the ledger of those who ran them. Empty: P-15 held."""
    begun: dict[str, tuple[float, tuple[str, ...]]] = {}
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for line in lines:
        lease = line.get("lease", "")
        if "task" in line:
            begun[lease] = (line["task"]["begun_at"], tuple(line["task"]["gpus"]))
        elif "ended_at" in line and lease in begun:
            begun_at, gpus = begun.pop(lease)
            for gpu in gpus:
                spans.setdefault(gpu, []).append((begun_at, line["ended_at"], lease))
    for lease, (begun_at, gpus) in begun.items():
        for gpu in gpus:
            spans.setdefault(gpu, []).append((begun_at, _FOREVER, lease))
    found = []
    for gpu, held in sorted(spans.items()):
        free_at, one = -_FOREVER, ""
        for came_at, left_at, other in sorted(held):
            if came_at < free_at:
                found.append(f"{gpu}: {other} began {free_at - came_at:.3f} s before {one} had ended")
            free_at, one = max((free_at, one), (left_at, other))
    return found


@dataclass(slots=True)
class VirtualGpus:
    """GPUs that exist by declaration. `mask`: those to call broken."""

    node: str
    gpu_type: GpuType
    count: int
    memory_gb: int = 80
    mask: int = 0

    def inventory(self) -> Inventory:
        """UUIDs are made of the node's name."""
        slots = tuple(GpuSlot(uuid=f"GPU-{self.node}-{index}") for index in range(self.count))
        return Inventory(gpu_type=self.gpu_type, gpu_memory_gb=self.memory_gb, slots=slots)

    def faults(self) -> int:
        """As set."""
        return self.mask
