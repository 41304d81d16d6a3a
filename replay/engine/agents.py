"""Model agents: what nodes and the work on them do in virtual time.

A gang starts after a while, runs for as long as its work takes, and saves a checkpoint each interval. On SIGTERM it
stands still, saves, and exits; what takes longer to save than the grace is killed unsaved. What stops with a fault is
not saved. A job resumes where the state says that it was saved: the step of its newest checkpoint is the work done by
then, in ms.

The saves of each interval let nothing fit that did not, and there are more of them than of all else. They make no
instant of their own: they are taken together, before the next thing that happens or a minute after the first of them.
What is kept is what was done when each was written; only the state dates it by up to that minute later.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from commands.decide.attempts import FAULTS
from commands.entities import Attempt, AttemptKey
from commands.messages import CancelJob, Command
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
from commands.rows import maker
from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangResized, GangRunning
from events.ids import Instant, JobId, LeaseId, NodeIndex, lease_id
from events.job import EndReason, JobFinished
from events.task import TaskEnd, TaskStarted
from replay.engine.models import FULL, Models
from replay.scenario import Work

Later = Callable[[Instant, Callable[[], None]], None]
"""Do this at that time."""

UNSAVED = {*FAULTS, EndReason.NONZERO_EXIT}
"""Ends at which nobody is there to save."""
LEAST_MS = 1_000
"""Nothing runs for less."""
SIGTERMED = 128 + 15
OFF = Models()
_from_node, _checkpoint = maker(FromNode), maker(CheckpointReport)
_task_started, _task_ended = maker(TaskStartedReport), maker(TaskEndedReport)


class Run:
    """An attempt whose tasks are not gone. `running_at`: None until all its ranks run. `done_ms`: of the job's work by
    `since`; from then on it goes on at `speed`, in thousandths, 0 once it was told to stop."""

    __slots__ = ("done_ms", "ends_at", "running_at", "since", "speed")

    def __init__(self, now: Instant) -> None:
        self.running_at: Instant | None = None
        self.done_ms = 0
        self.since = now
        self.speed = 0
        self.ends_at = Instant(0)

    def done(self, now: Instant) -> int:
        """Ms of the job's work that are done by now."""
        return self.done_ms + (now - self.since) * self.speed // FULL

    def go_on(self, now: Instant, speed: int) -> None:
        """At another speed from now on."""
        self.done_ms = self.done(now)
        self.since = now
        self.speed = speed


class Agents:
    """All agents of a cluster, told of each accepted commit."""

    def __init__(self, state: State, clock: Callable[[], Instant], later: Later, *, models: Models = OFF) -> None:
        self._state = state
        self._clock = clock
        self._later = later
        self._models = models
        self.work: dict[JobId, Work] = {}
        self.said: list[FromNode] = []
        """Reports that the leader has yet to take."""
        self.orders: list[Command] = []
        """Cancels by users that are due."""
        self.silent: dict[NodeIndex, Instant] = {}
        """Nodes that cannot be heard, since when."""
        self.runs: dict[AttemptKey, Run] = {}
        self._registers: dict[NodeIndex, Register] = {}
        self._unsent: dict[NodeIndex, list[FromNode]] = {}
        self._written: dict[NodeIndex, int] = {}
        self._saves: list[tuple[Instant, AttemptKey, int]] = []
        """A heap of what saves next: when, which attempt, and its interval in ms."""
        self._saved: dict[JobId, tuple[int, Instant]] = {}
        """Job -> sequence of the newest checkpoint that it wrote, and when it did."""

    def register(self, said: Register) -> FromNode:
        """A node's agent registers for the first time."""
        index = NodeIndex(len(self._registers))
        self._registers[index] = said
        return FromNode(node_id=said.node_id, message=said)

    # What the leader decided

    def see(self, events: tuple[Event, ...]) -> None:
        """Do as the accepted facts say."""
        for event in events:
            follow = _FOLLOWS.get(type(event))
            if follow is not None:
                getattr(self, follow)(event)

    def work_of(self, job_id: JobId) -> Work:
        """Its own, or its array's."""
        found = self.work.get(job_id)
        if found is None:
            array = self._state.jobs[job_id].element_of
            assert array is not None, f"{job_id} has no work"
            found = self.work[array]
        return found

    def _in(self, ms: int, action: Callable[[], None]) -> None:
        self._later(Instant(self._clock() + ms), action)

    def _allocated(self, event: GangAllocated) -> None:
        key = (event.job_id, event.attempt)
        self.runs[key] = Run(self._clock())
        self._in(self.work_of(event.job_id).start_s * 1000, lambda: self._start(key, range(len(event.ranks))))

    def _start(self, key: AttemptKey, ranks: Iterable[int]) -> None:
        attempt = self._state.attempts.get(key)
        if key not in self.runs or attempt is None or attempt.ending is not None:
            return
        for rank in ranks:
            if attempt.stays(rank):
                self._say(attempt, rank, _task_started)

    def _running(self, event: GangRunning) -> None:
        key = (event.job_id, event.attempt)
        run = self.runs.get(key)
        if run is None:
            return
        now = run.since = run.running_at = self._clock()
        job = self._state.jobs[key[0]]
        run.done_ms = (job.checkpoint.step or 0) if job.checkpoint is not None else 0
        self._go_on(key, run)
        interval_ms = job.spec.checkpoint.interval_s * 1000
        if now + interval_ms < run.ends_at:
            heappush(self._saves, (Instant(now + interval_ms), key, interval_ms))

    def _go_on(self, key: AttemptKey, run: Run) -> None:
        """At the speed that its size and place give it; its end moves with that."""
        now = self._clock()
        run.go_on(now, FULL if self._models.off else self._speed(self._state.attempts[key]))
        left_ms = self.work_of(key[0]).run_s * 1000 - run.done_ms
        run.ends_at = Instant(now + max(LEAST_MS, -(-left_ms * FULL // run.speed)))
        self._later(run.ends_at, lambda: self._end(key))

    def _speed(self, attempt: Attempt) -> int:
        spec, nodes = self._state.jobs[attempt.job_id].spec, self._state.nodes
        used = [nodes[index] for rank, (index, _) in enumerate(attempt.ranks) if attempt.stays(rank)]
        sizes: dict[str, int] = {}
        for racks in self._state.pools.rows.values():
            for block, counts in racks.items():
                sizes[block] = sizes.get(block, 0) + sum(counts.values())
        blocks, count = {node.block for node in used}, len({node.index for node in used})
        blocks_min = -(-count // max(sizes.values()))
        return self._models.speed(
            replicas=max(1, len(used)), asked=spec.replicas, blocks=len(blocks), blocks_min=blocks_min
        )

    def _resized(self, event: GangResized) -> None:
        """New ranks start after a while; those that are stopped save, and go."""
        key, work = (event.job_id, event.attempt), self.work_of(event.job_id)
        run, attempt = self.runs.get(key), self._state.attempts[key]
        if run is None:
            return
        if event.grown:
            ranks = range(len(attempt.ranks) - len(event.grown), len(attempt.ranks))
            self._in(work.start_s * 1000, lambda: self._start(key, ranks))
        for rank in event.stopped:
            self._in(min(work.save_s, event.grace_s) * 1000, lambda rank=rank: self._rank_gone(key, rank))  # type: ignore[misc]
        self._changed_size(key)

    def _rank_started(self, event: TaskStarted) -> None:
        self._changed_size((event.job_id, event.attempt))

    def _changed_size(self, key: AttemptKey) -> None:
        run = self.runs.get(key)
        if not self._models.off and run is not None and run.speed:
            self._go_on(key, run)

    def _rank_gone(self, key: AttemptKey, rank: int) -> None:
        attempt = self._state.attempts.get(key)
        if key in self.runs and attempt is not None and attempt.live(rank):
            self._say(attempt, rank, TaskEndedReport, end=TaskEnd.STOPPED, exit_code=SIGTERMED)

    # Checkpoints

    def saves_at(self) -> Instant | None:
        """When the next save of an interval is due; None: never, as things are."""
        return self._saves[0][0] if self._saves else None

    def save_until(self, until: Instant) -> Instant:
        """Write what is due by then, each at its time, as long as it runs; when the last of it was due."""
        saves, at = self._saves, self._clock()
        while saves and saves[0][0] <= until:
            at, key, interval_ms = heappop(saves)
            run = self.runs.get(key)
            if run is None or not run.speed:
                continue
            self._save(key, run, at)
            if at + interval_ms < run.ends_at:
                heappush(saves, (Instant(at + interval_ms), key, interval_ms))
        return at

    def saved_at(self, job_id: JobId) -> Instant:
        """When a job wrote its newest checkpoint."""
        return self._saved[job_id][1]

    def _save(self, key: AttemptKey, run: Run, at: Instant, *, rank: int | None = None) -> None:
        attempt = self._state.attempts[key]
        if rank is None:
            rank = next(filter(attempt.live, range(len(attempt.ranks))), None)
        if rank is None:
            return
        sequence = self._saved[key[0]][0] + 1 if key[0] in self._saved else 1
        self._saved[key[0]] = (sequence, at)
        self._say(attempt, rank, _checkpoint, sequence=sequence, uri="replay", size_bytes=1, step=run.done(at))

    def _end(self, key: AttemptKey) -> None:
        """The work is done, unless it was told to stop before, or goes on for longer."""
        run, attempt = self.runs.get(key), self._state.attempts.get(key)
        if run is None or not run.speed or self._clock() < run.ends_at or attempt is None:
            return
        work = self.work_of(key[0])
        if work.cancelled:
            self.orders.append(CancelJob(job_id=key[0]))
        else:
            self._gone(key, TaskEnd.EXITED, work.exit_code, finished=work.exit_code == 0)

    def _stops(self, event: GangEnding) -> None:
        """SIGTERM: what runs saves its work within the grace, and exits."""
        key = (event.job_id, event.attempt)
        run = self.runs.get(key)
        if run is None:
            return
        if run.running_at is None:
            self._in(LEAST_MS, lambda: self._gone(key, TaskEnd.NEVER_STARTED, None))
            return
        run.go_on(self._clock(), 0)
        save_s = 0 if event.reason in UNSAVED else self.work_of(event.job_id).save_s
        saved = event.reason not in UNSAVED and save_s <= event.grace_s
        self._in(min(save_s, event.grace_s) * 1000, lambda: self._exit(key, saved))

    def _exit(self, key: AttemptKey, saved: bool) -> None:
        run = self.runs.get(key)
        if run is None or key not in self._state.attempts:
            return
        if saved:
            self._save(key, run, self._clock())
        self._gone(key, TaskEnd.STOPPED, SIGTERMED)

    def _gone(self, key: AttemptKey, end: TaskEnd, exit_code: int | None, *, finished: bool = False) -> None:
        attempt = self._state.attempts.get(key)
        if self.runs.pop(key, None) is None or attempt is None:
            return
        for rank in range(len(attempt.ranks)):
            if attempt.live(rank):
                self._say(attempt, rank, _task_ended, end=end, exit_code=exit_code, finished=finished)

    def _finished(self, event: JobFinished) -> None:
        self._saved.pop(event.job_id, None)

    # The wire

    def _say(self, attempt: Attempt, rank: int, report: Callable[..., Report], **fields: Any) -> None:
        """On the agent's disk; sent at once, or once the node can be heard again."""
        index = attempt.ranks[rank][0]
        number = self._written[index] = self._written.get(index, 0) + 1
        lease = lease_id(attempt.job_id, attempt.number, rank)
        said = _from_node(
            node_id=self._registers[index].node_id, message=report(number=number, lease_id=lease, **fields)
        )
        if index in self.silent and not self._heard_then(attempt):
            self._unsent.setdefault(index, []).append(said)
        else:
            self.said.append(said)

    def _heard_then(self, attempt: Attempt) -> bool:
        """Is its report known to have come through, though its node had fallen silent?"""
        return False

    def fall_silent(self, index: NodeIndex) -> None:
        """The node runs on, and nobody hears it."""
        self.silent.setdefault(index, self._clock())

    def come_back(self, index: NodeIndex, *, wiped: bool = False, outstanding: bool = False) -> None:
        """Its agent registers with what it has, and sends what it wrote."""
        if self.silent.pop(index, None) is not None:
            self.register_again(index, wiped=wiped, outstanding=outstanding and not wiped)

    def register_again(
        self, index: NodeIndex, *, wiped: bool = False, outstanding: bool = False, without: LeaseId | None = None
    ) -> None:
        """With this leader, or after a while. `wiped`: nothing runs on it any more; `without`: this does not;
        `outstanding`: there are reports that it has yet to send, so that it cannot be confirmed yet."""
        leases = () if wiped else (lease_id(*held) for held in self._state.nodes[index].leases)
        running = tuple(
            Running(lease_id=lease, grant=(0, 0), phase=Phase.RUNNING) for lease in leases if lease != without
        )
        last_report = self._written.get(index, 0) + outstanding
        said = replace(self._registers[index], running=running, last_report=last_report)
        self.said += [FromNode(node_id=said.node_id, message=said), *self._unsent.pop(index, [])]

    def begin_anew(self, index: NodeIndex, *, outstanding: bool, new_disk: bool) -> None:
        """Another agent process on the node registers; with a new disk it has nothing, and writes from 1 on."""
        before = self._registers[index]
        self._registers[index] = replace(before, incarnation=f"{before.incarnation}+")
        if new_disk:
            self._registers[index] = replace(self._registers[index], journal=f"{before.journal}+")
            self._unsent.pop(index, None)
            self._written[index] = 0
        self.register_again(index, outstanding=outstanding, wiped=new_disk)


_FOLLOWS: dict[type, str] = {
    GangAllocated: "_allocated",
    GangRunning: "_running",
    GangEnding: "_stops",
    GangResized: "_resized",
    TaskStarted: "_rank_started",
    JobFinished: "_finished",
}
