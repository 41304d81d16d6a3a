"""Model agents: what nodes and the work on them do in virtual time.

A gang starts after a while, runs for as long as its work takes, and saves a checkpoint each interval. On SIGTERM it
saves and exits. A preempted job resumes where the state says that it was saved: the step of its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from commands.entities import AttemptKey
from commands.reports import (
    CheckpointReport,
    FromNode,
    Phase,
    Register,
    Report,
    Running,
    TaskEndedReport,
    TaskStartedReport,
)
from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangRunning
from events.ids import Instant, JobId, NodeIndex, lease_id
from events.job import JobFinished
from events.task import TaskEnd

Later = Callable[[Instant, Callable[[], None]], None]
"""Do this at that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job really does. `run_s`: running time it needs in all; `start_s`: from grant to running; `save_s`: from
    SIGTERM to its exit, its checkpoint written; `exit_code`: at the end."""

    run_s: int
    start_s: int = 20
    save_s: int = 20
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """An attempt that was told to stop while it ran: how long it had (s), and how far the job was (s)."""

    job_id: JobId
    attempt: int
    at: Instant
    ran_s: int
    done_s: int


class Agents:
    """All agents of a cluster, told of each accepted commit."""

    def __init__(self, state: State, clock: Callable[[], Instant], later: Later) -> None:
        self._state = state
        self._clock = clock
        self._later = later
        self.work: dict[JobId, Work] = {}
        self.said: list[FromNode] = []
        """Reports that the leader has yet to take."""
        self.stops: list[Stop] = []
        self.resumed: dict[AttemptKey, int] = {}
        """Attempt -> seconds of work that were done before it."""
        self.lost_gpu_s = 0
        """Work that was done, and has to be done again."""
        self.silent: dict[NodeIndex, Instant] = {}
        """Nodes that cannot be heard, since when."""
        self._registers: dict[NodeIndex, Register] = {}
        self._unsent: dict[NodeIndex, list[FromNode]] = {}
        self._written: dict[NodeIndex, int] = {}
        self._live: dict[AttemptKey, Instant | None] = {}
        """Attempts whose tasks are not gone -> when they began to run."""
        self._saved: dict[JobId, tuple[int, int]] = {}
        """Job -> (sequence, seconds) of the newest checkpoint that it wrote."""
        self._reached: dict[JobId, int] = {}
        """Job -> how far earlier attempts came."""

    def register(self, said: Register) -> FromNode:
        """A node's agent registers for the first time."""
        index = NodeIndex(len(self._registers))
        self._registers[index] = said
        return FromNode(node_id=said.node_id, message=said)

    # What the leader decided

    def see(self, events: tuple[Event, ...]) -> None:
        """Do as the accepted facts say."""
        for event in events:
            if isinstance(event, GangAllocated):
                self._allocated(event)
            elif isinstance(event, GangRunning):
                self._runs((event.job_id, event.attempt))
            elif isinstance(event, GangEnding):
                self._stops((event.job_id, event.attempt), event.grace_s)
            elif isinstance(event, JobFinished):
                self._saved.pop(event.job_id, None)
                self._reached.pop(event.job_id, None)

    def work_of(self, job_id: JobId) -> Work:
        """Its own, or its array's."""
        found = self.work.get(job_id)
        if found is None:
            array = self._state.jobs[job_id].element_of
            assert array is not None
            found = self.work[array]
        return found

    def _in(self, seconds: int, action: Callable[[], None]) -> None:
        self._later(Instant(self._clock() + seconds * 1000), action)

    def _allocated(self, event: GangAllocated) -> None:
        key = (event.job_id, event.attempt)
        self._live[key] = None
        self._in(self.work_of(event.job_id).start_s, lambda: self._start(key))

    def _start(self, key: AttemptKey) -> None:
        attempt = self._state.attempts.get(key)
        if key not in self._live or attempt is None or attempt.ending is not None:
            return
        for rank, (index, _) in enumerate(attempt.ranks):
            if attempt.live(rank):
                self._write(index, TaskStartedReport(number=0, lease_id=lease_id(*key, rank)))

    def _runs(self, key: AttemptKey) -> None:
        if key not in self._live:
            return
        self._live[key] = self._clock()
        job = self._state.jobs[key[0]]
        checkpoint = job.checkpoint
        done = self.resumed[key] = (checkpoint.step or 0) if checkpoint is not None else 0
        self.lost_gpu_s += max(0, self._reached.get(key[0], 0) - done) * job.spec.gpus
        self._in(max(1, self.work_of(key[0]).run_s - done), lambda: self._end(key))
        self._in(job.spec.checkpoint.interval_s, lambda: self._saves(key))

    def _saves(self, key: AttemptKey) -> None:
        """A checkpoint each interval, as long as it runs."""
        attempt = self._state.attempts.get(key)
        if self._live.get(key) is None or attempt is None or attempt.ending is not None:
            return
        self._save(key)
        self._in(self._state.jobs[key[0]].spec.checkpoint.interval_s, lambda: self._saves(key))

    def _save(self, key: AttemptKey) -> None:
        attempt = self._state.attempts[key]
        rank = next((rank for rank in range(len(attempt.ranks)) if attempt.live(rank)), None)
        if rank is None:
            return
        sequence, done = self._saved.get(key[0], (0, 0))[0] + 1, self.done_s(key)
        self._saved[key[0]] = (sequence, done)
        report = CheckpointReport(
            number=0, lease_id=lease_id(*key, rank), sequence=sequence, uri="s3://c", size_bytes=1, step=done
        )
        self._write(attempt.ranks[rank][0], report)

    def done_s(self, key: AttemptKey) -> int:
        """Seconds of the job's work that are done by now."""
        began = self._live.get(key)
        if began is None:
            return self.resumed.get(key, 0)
        return self.resumed.get(key, 0) + (self._clock() - began) // 1000

    def _end(self, key: AttemptKey) -> None:
        """The work is done, unless it was told to stop before."""
        attempt = self._state.attempts.get(key)
        if key in self._live and attempt is not None and attempt.ending is None:
            code = self.work_of(key[0]).exit_code
            self._gone(key, TaskEnd.EXITED, code, finished=code == 0)

    def _stops(self, key: AttemptKey, grace_s: int) -> None:
        """SIGTERM: what runs saves its work within the grace, and exits."""
        if key not in self._live:
            return
        if self._live[key] is None:
            self._in(1, lambda: self._gone(key, TaskEnd.NEVER_STARTED, None))
            return
        done, began = self.done_s(key), self._live[key]
        assert began is not None
        self._reached[key[0]] = max(done, self._reached.get(key[0], 0))
        ran = (self._clock() - began) // 1000
        self.stops.append(Stop(job_id=key[0], attempt=key[1], at=self._clock(), ran_s=ran, done_s=done))
        self._in(min(self.work_of(key[0]).save_s, grace_s), lambda: self._exit(key))

    def _exit(self, key: AttemptKey) -> None:
        if key in self._live and key in self._state.attempts:
            self._save(key)
            self._gone(key, TaskEnd.STOPPED, 143)

    def _gone(self, key: AttemptKey, end: TaskEnd, exit_code: int | None, *, finished: bool = False) -> None:
        attempt = self._state.attempts.get(key)
        if key not in self._live or attempt is None:
            return
        del self._live[key]
        for rank, (index, _) in enumerate(attempt.ranks):
            if attempt.live(rank):
                report = TaskEndedReport(
                    number=0, lease_id=lease_id(*key, rank), end=end, exit_code=exit_code, finished=finished
                )
                self._write(index, report)

    # The wire

    def _write(self, index: NodeIndex, report: Report) -> None:
        """On the agent's disk; sent at once, or once the node can be heard again."""
        number = self._written[index] = self._written.get(index, 0) + 1
        said = FromNode(node_id=self._registers[index].node_id, message=replace(report, number=number))
        if index in self.silent:
            self._unsent.setdefault(index, []).append(said)
        else:
            self.said.append(said)

    def fall_silent(self, index: NodeIndex) -> None:
        """The node runs on, and nobody hears it."""
        self.silent.setdefault(index, self._clock())

    def come_back(self, index: NodeIndex) -> None:
        """Its agent registers with what it has, and sends what it wrote."""
        if self.silent.pop(index, None) is None:
            return
        leases = (lease_id(*held) for held in self._state.nodes[index].leases)
        running = tuple(Running(lease_id=lease, grant=(0, 0), phase=Phase.RUNNING) for lease in leases)
        said = replace(self._registers[index], running=running, last_report=self._written.get(index, 0))
        self.said += [FromNode(node_id=said.node_id, message=said), *self._unsent.pop(index, [])]
