"""What must hold at every instant, checked from outside: on the log, the claims, the machines, and all that is said.

The auditor is a reader like any other: it folds the log by events.chain on its own. It sees each record as it lands,
each change of the claims, each message to an agent and each start of a task before anything follows from it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commands import snapshot
from commands.evolve import fold_commit, fold_term
from commands.invariants import InvariantBroken, check_all
from commands.messages import NoCommand, decode_command
from commands.state import State
from events.chain import START, Accepted, ChainBroken, Head, admit
from events.envelope import Commit, Event, Term
from events.gang import GangAllocated, GangEnding, GangResized, LeaseReleased, ReleasedBy
from events.ids import ClusterId, Epoch, JobId, LeaseId, LogId, NodeId, NodeIndex, lease_id, parse_lease_id
from events.job import EndReason, JobFinished, JobSubmitted
from events.memory import MemoryPartition
from events.task import TaskEnded
from scheduler.claiming import all_claims
from scheduler.link import Registered, ReportAck, StartTask, StopTask, ToAgent
from scheduler.memory import Held
from tests.simulation.second_opinion import SecondFilter

Running = Callable[[], Mapping[str, Mapping[LeaseId, Sequence[str]]]]
"""What really runs: node -> lease -> UUIDs of its GPUs."""


class Found(AssertionError):
    """A rule that does not hold: what the simulation is there to find."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Auditor:
    """Checks one cluster. `fail` hears of what is found; the first counts."""

    def __init__(
        self,
        *,
        cluster: ClusterId,
        events: MemoryPartition,
        commands: MemoryPartition,
        command_log_id: LogId,
        claims: Mapping[tuple[NodeId, int], Held],
        running: Running,
        fail: Callable[[Found], None],
    ) -> None:
        self.state = State(cluster)
        self.head: Head = START
        self.accepted: list[tuple[int, str]] = []
        self.heads: list[Head] = []
        self.dropped = 0
        self.granted: dict[LeaseId, tuple[int, int]] = {}
        self.submitted: dict[JobId, None] = {}
        self.ended: dict[JobId, JobFinished] = {}
        self.events_seen: dict[str, int] = {}
        self.stopped_for: dict[tuple[str, int], EndReason] = {}
        """Attempts that are to end, and why."""
        self._given_back: set[LeaseId] = set()
        self._resume: dict[LeaseId, str | None] = {}
        self._freed: dict[LeaseId, int] = {}
        self._stopped: dict[str, set[LeaseId]] = {}
        self._heard: dict[str, Epoch] = {}
        self._registered: dict[str, Epoch] = {}
        self._events = events
        self._commands = commands
        self._command_log_id = command_log_id
        self._claims = claims
        self._running = running
        self._fail = fail
        self._second = SecondFilter()

    def _found(self, rule: str, what: str) -> None:
        self._fail(Found(rule, what))

    # The log

    def landed(self) -> None:
        """Records have landed in the events log."""
        while self.head.offset < self._events.end:
            offset = self.head.offset + 1
            raw = self._events.records[offset]
            try:
                outcome = admit(self.head, offset, raw)
            except ChainBroken as broken:
                self._found("P-3", f"the log cannot be read on: {broken}")
                raise
            if isinstance(outcome, Accepted) != self._second.takes(raw):
                self._found("P-3", f"readers do not agree on the record at {offset}: {raw[:200]!r}")
            self.head = outcome.head
            self.heads.append(outcome.head)
            if isinstance(outcome, Accepted):
                self.accepted.append((outcome.head.n, outcome.head.hash))
                self._fold(outcome)
            else:
                self.dropped += 1

    def _fold(self, outcome: Accepted) -> None:
        record = outcome.record()
        if isinstance(record, Term):
            fold_term(self.state, record)
        elif isinstance(record, Commit):
            self._check_input(record)
            before = self.state.meta.seq
            try:
                fold_commit(self.state, record)
            except (AssertionError, KeyError) as error:
                self._found("P-7", f"commit {record.n} cannot be folded: {type(error).__name__}: {error}")
                raise
            if record.seq != before + 1 or self.state.meta.seq != before + len(record.events):
                self._found("I-10", f"seq of commit {record.n} is not gapless")
            for event in record.events:
                self._note(record, event)
        self.state.accept()
        try:
            check_all(self.state)
        except InvariantBroken as broken:
            self._found(str(broken).partition(":")[0], f"after n {self.head.n}: {broken}")
        self.check_claims()

    def _check_input(self, commit: Commit) -> None:
        """Commands are answered once each, in the order in which they lie in their log (I-7, P-13)."""
        made_by = commit.input
        if made_by.kind != "command":
            return
        position, last = made_by.position, self.state.meta.command_position
        if position != last + 1 or made_by.log_id != self._command_log_id:
            self._found("P-13", f"commit {commit.n} answers command {position} of {made_by.log_id} after {last}")
            return
        raw = self._commands.records[position]
        try:
            wanted = decode_command(raw).id
        except NoCommand:
            wanted = None
        if wanted is not None and wanted != made_by.id:
            self._found("P-13", f"commit {commit.n} answers {made_by.id}; at {position} is {wanted}")
        if not commit.events:
            self._found("I-7", f"commit {commit.n} answers {made_by.id} by nothing")

    def _note(self, commit: Commit, event: Event) -> None:
        name = type(event).__name__
        self.events_seen[name] = self.events_seen.get(name, 0) + 1
        match event:
            case GangAllocated():
                self._note_grant(commit, event)
            case GangResized():
                self._note_resize(commit, event)
            case GangEnding():
                self.stopped_for[event.job_id, event.attempt] = event.reason
            case TaskEnded():
                self._note_freed(commit, lease_id(event.job_id, event.attempt, event.rank), event)
            case LeaseReleased() if event.by is ReleasedBy.RECONCILED:
                self._note_freed(commit, lease_id(event.job_id, event.attempt, event.rank), event)
            case JobSubmitted():
                self.submitted[event.job_id] = None
            case JobFinished():
                if event.job_id in self.ended:
                    self._found("R-3", f"{event.job_id} ends twice")
                self.ended[event.job_id] = event
            case _:
                pass

    def _note_resize(self, commit: Commit, event: GangResized) -> None:
        """New ranks are granted with this commit, those that were given back are to end."""
        ranks = self.state.attempts[event.job_id, event.attempt].ranks
        first = len(ranks) - len(event.grown)
        self._note_ranks(commit, event, {first + rank: index for rank, (index, _) in enumerate(event.grown)})
        self._given_back |= {lease_id(event.job_id, event.attempt, rank) for rank in event.stopped}

    def _note_grant(self, commit: Commit, event: GangAllocated) -> None:
        self._note_ranks(commit, event, {rank: index for rank, (index, _) in enumerate(event.ranks)})

    def _note_ranks(self, commit: Commit, event: GangAllocated | GangResized, ranks: dict[int, NodeIndex]) -> None:
        for rank, index in ranks.items():
            lease, node = lease_id(event.job_id, event.attempt, rank), self.state.nodes[index]
            if lease in self.granted:
                self._found("I-1", f"{lease} is granted twice")
            self.granted[lease] = (commit.epoch, commit.n)
            checkpoint = self.state.jobs[event.job_id].checkpoint
            self._resume[lease] = checkpoint.uri if checkpoint is not None else None
            if self._registered.get(node.id) != commit.epoch:
                self._found("P-16", f"{lease} is granted on {node.id}, which epoch {commit.epoch} has not taken on")

    def _note_freed(self, commit: Commit, lease: LeaseId, event: Any) -> None:
        self._freed[lease] = commit.n
        for node, leases in self._running().items():
            if lease in leases:
                self._found("P-15", f"{lease} is freed by {type(event).__name__} while it runs on {node}")

    # Claims

    def check_claims(self) -> None:
        """Claims hold every live lease of the log (I-2), and whatever really runs."""
        for node_id, slot, live in all_claims(self.state):
            held = self._claims.get((node_id, slot))
            if held is None or held.lease_id != live:
                self._found("I-2", f"{live} lives on {node_id}/{slot}, claimed is {held}")
        for node, leases in self._running().items():
            known = self.state.node_by_id(NodeId(node))
            slots = {one.uuid: gpu for gpu, one in enumerate(known.gpus)} if known is not None else {}
            for lease, gpus in leases.items():
                for gpu in gpus:
                    held = self._claims.get((NodeId(node), slots.get(gpu, -1)))
                    if held is None or held.lease_id != lease:
                        self._found("P-15", f"{lease} runs on {node}/{gpu}, claimed is {held}")

    # What is said

    def said(self, sender: str, node: str, message: ToAgent) -> None:
        """A scheduler says something to a node: only what follows from accepted commits (P-1)."""
        match message:
            case StartTask() if self.granted.get(message.lease_id) != message.grant:
                self._found("P-1", f"{sender} starts {message.lease_id} under {message.grant}, which never counted")
            case StopTask() if not self._is_to_end(message.lease_id):
                self._found("P-1", f"{sender} stops {message.lease_id}, which was never to end")
            case ReportAck():
                known = self.state.node_by_id(NodeId(node))
                if known is None or known.last_report < message.number:
                    self._found("P-1", f"{sender} tells {node} that the log has report {message.number}")
            case _:
                pass

    def _is_to_end(self, lease: LeaseId) -> bool:
        job_id, attempt, _ = parse_lease_id(lease)
        return (job_id, attempt) in self.stopped_for or lease in self._given_back

    def heeded(self, node: str, message: ToAgent) -> None:
        """An agent has read it and acted on it as it saw fit."""
        match message:
            case Registered():
                self._heard[node] = max(self._heard.get(node, Epoch(0)), message.epoch)
            case StopTask() if message.epoch >= self._heard.get(node, Epoch(0)):
                self._stopped.setdefault(node, set()).add(message.lease_id)
            case _:
                pass

    def registers(self, node: str, epoch: Epoch) -> None:
        """A leader of that epoch hears the Register of a node."""
        self._registered[node] = max(epoch, self._registered.get(node, epoch))

    # What is done

    def starts(self, node: str, message: StartTask, at: float) -> None:
        """An agent is about to start a task."""
        lease = message.lease_id
        known = self.state.node_by_id(NodeId(node))
        if self.granted.get(lease) != message.grant:
            self._found("P-1", f"{node} starts {lease}, which was never granted")
        if lease in self._freed:
            self._found("P-17", f"{node} starts {lease} at {at:.3f} s, which ended at n {self._freed[lease]}")
        if lease in self._stopped.get(node, ()):
            self._found("P-17", f"{node} starts {lease} after its StopTask")
        if message.epoch < self._heard.get(node, Epoch(0)):
            self._found("P-17", f"{node} obeys epoch {message.epoch} after {self._heard[node]}")
        if known is None or known.state == "lost":
            self._found("P-18", f"{node} starts {lease} at {at:.3f} s, when it counts as lost")

        self._check_attempt(node, message)

    def _check_attempt(self, node: str, message: StartTask) -> None:
        """It resumes where the log says, and runs beside no other attempt that must not overlap (P-22)."""
        lease, job = message.lease_id, self.state.jobs.get(message.job_id)
        newest = job.checkpoint if job is not None else None
        if message.resume_uri != self._resume.get(lease) and (newest is None or newest.attempt != message.attempt):
            self._found("R-50", f"{lease} resumes at {message.resume_uri}, the log has {self._resume.get(lease)}")
        if not message.overlap_never:
            return
        for other, leases in self._running().items():
            for running in leases:
                if running.startswith(f"{message.job_id}.") and _attempt(running) != message.attempt:
                    self._found("P-22", f"{lease} starts on {node} while {running} runs on {other}")

    # In between, and at the end

    def digest(self) -> str:
        """Of the state as the log has it."""
        return snapshot.digest(self.state)

    def unanswered(self) -> int:
        """Commands in their log that nothing in the events log answers."""
        return self._commands.end - self.state.meta.command_position

    def lost_jobs(self) -> list[JobId]:
        """Jobs that were accepted and are nowhere."""
        state = self.state
        return [job for job in self.submitted if job not in state.jobs and job not in state.ended]


def _attempt(lease: LeaseId) -> int:
    return int(lease.rsplit(".", 2)[1])
