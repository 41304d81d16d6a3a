"""The language of the core's tests: `given` facts and doings, `when` one more is done, `then` these facts follow.

    Scenario().given(cluster("b0: [8]"), quota(), submit("a")).when(plan()).then(GangAllocated)

What may be given or done: an event (a fact, taken as it is), a command, a report or registration, a tick, or a step
of the functions below. Every decision is first tried and undone, which must leave no trace; then its commit goes
through the codec and is folded, with all invariants checked after every event; then a snapshot of the state must give
the same state, and the planner's indices must be those that the state alone would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import orjson

from commands import snapshot
from commands.apply import apply
from commands.decide import decide_command, decide_leader, decide_messages, decide_tick
from commands.decide.attempts import Draft
from commands.entities import Attempt, Job, Node
from commands.evolve import begin, evolve, finish, fold_commit, fold_term
from commands.invariants import check_all, check_touched
from commands.messages import Command, CommandRecord, decode_command, encode_command
from commands.reports import FromNode, Register, Report, Running, Tick
from commands.state import Change, State
from events import catalogue, codec
from events.envelope import Commit, Event, Input, Record, Term
from events.gang import GangAllocated
from events.ids import (
    ClusterId,
    CommandId,
    Epoch,
    Instant,
    JobId,
    LogId,
    NodeId,
    Nonce,
    Principal,
)
from events.leadership import CommandRefused
from scheduler.planning.plan import Planner
from tests.builders import job_id, mask_text

T0 = 1_800_000_000_000
ADA = Principal("user:ada")
Stimulus = Any
"""An event, a command, a FromNode, a Tick, or a step: a function of the scenario."""


class Scenario:
    """One cluster, led. Every commit is a second after the one before."""

    def __init__(self, *, at: int = T0) -> None:
        self.state = State(ClusterId("eu-1"))
        self.at = at
        self.log: list[bytes] = []
        self.events: tuple[Event, ...] = ()
        self.refused: dict[NodeId, str] = {}
        """Node -> why its registration was refused, by the last message."""
        self.said: dict[NodeId, Register] = {}
        self.reports: dict[NodeId, int] = {}
        """Node -> number of the last report written there."""
        self.grants: list[GangAllocated] = []
        """All there were, in order."""
        self.stale: list[tuple[Any, str]] = []
        self._commands = 0
        self.planner = Planner(self.state)
        self.takeover(silently=True)

    # The language

    def given(self, *steps: Stimulus) -> Self:
        """These came before."""
        for step in steps:
            self.take(step)
        return self

    def when(self, *steps: Stimulus) -> Self:
        """This happens: `events` are all that follow from it."""
        made: list[Event] = []
        for step in steps:
            self.take(step)
            made += self.events
        self.events = tuple(made)
        return self

    def then(self, *expected: Event | type) -> Self:
        """Exactly these facts followed, in this order; a class stands for any event of it."""
        got = self.events
        fits = len(expected) == len(got) and all(map(_fits, got, expected))
        assert fits, "\n  ".join(["expected:", *map(_shown, expected), "got:", *map(_shown, got)])
        return self

    def then_nothing(self) -> Self:
        """No fact followed."""
        return self.then()

    def then_refused(self, code: str, field: str | None = None, limit: str | None = None) -> Self:
        """The command was refused with that code, and nothing else followed."""
        self.then(CommandRefused)
        (refusal,) = self.events
        assert refusal.code == code, refusal
        assert field is None or refusal.field == field, refusal
        assert limit is None or refusal.limit == limit, refusal
        return self

    # What is

    def job(self, name: str) -> Job:
        return self.state.jobs[job_id(name)]

    def job_state(self, name: str) -> str:
        """State of a job, ended ones too."""
        job = self.state.jobs.get(job_id(name))
        return str(job.state) if job is not None else str(self.state.ended[job_id(name)].state)

    def attempt(self, name: str, number: int | None = None) -> Attempt:
        """An attempt that is not over; the newest by default."""
        return self.state.attempts[job_id(name), self.job(name).attempt if number is None else number]

    def node(self, name: str) -> Node:
        node = self.state.node_by_id(NodeId(name))
        assert node is not None, f"{name} was never registered"
        return node

    def charged(self, team: str, gpu_type: str = "h100") -> int:
        """GPUs charged to a team now."""
        usage = self.state.usage.get((team, gpu_type))  # type: ignore[arg-type]
        return usage.charged if usage is not None else 0

    def placed(self, name: str) -> str:
        """GPUs of a job's newest attempt, rank by rank: "n0:0,1 n2:4,5"."""
        ranks = self.attempt(name).ranks
        return " ".join(f"{self.state.nodes[index].id}:{mask_text(mask)}" for index, mask in ranks)

    def table(self, *names: str) -> dict[str, str]:
        """Where each job is: "n0*8 n1*8" (node*GPUs of each rank), or "waits"."""
        found: dict[str, str] = {}
        for name in names:
            attempt = self.state.attempts.get((job_id(name), self.job(name).attempt))
            ranks = attempt.ranks if attempt is not None else ()
            text = " ".join(f"{self.state.nodes[index].id}*{mask.bit_count()}" for index, mask in ranks)
            found[name] = text or "waits"
        return found

    # What is done

    def take(self, step: Stimulus) -> None:
        """Do one thing; `events` are what followed."""
        self.events = ()
        if isinstance(step, FromNode):
            self.hear([step])
        elif isinstance(step, Tick):
            self.decide(self._input("tick", step), lambda draft: decide_tick(draft, step))
        elif isinstance(step, CommandRecord):
            self.command(step)
        elif hasattr(step, "type") and isinstance(step.type, str):
            self.command(self.record(step))
        elif callable(step):
            step(self)
        else:
            self.facts(step)

    def facts(self, *events: Event) -> None:
        """Events as they are, in one commit."""
        for event in events:
            catalogue.entry_of(type(event))

        def decide(draft: Draft) -> None:
            for event in events:
                draft.add(event)

        self.decide(self._input("given", None), decide)

    def record(self, command: Command, key: str = "", body: str = "", principal: Principal = ADA) -> CommandRecord:
        """The command as the api would append it, under a key of its own unless one is given."""
        self._commands += 1
        return CommandRecord(
            id=CommandId(f"c{self._commands}"),
            principal=principal,
            key=key or f"key-{self._commands}",
            body=body or f"body-{self._commands}",
            sent_at=Instant(self.at),
            command=command,
        )

    def command(self, record: CommandRecord) -> None:
        """One command, as read from the commands log."""
        raw = encode_command(record)
        read = decode_command(raw)
        assert read == record, "the command does not survive its codec"
        position = self.state.meta.command_position + 1
        made_by = Input(
            kind="command", id=record.id, body=orjson.loads(raw), position=position, log_id=LogId("commands")
        )
        self.decide(made_by, lambda draft: decide_command(draft, read), record.principal)
        assert self.events, "I-7: every command leads to at least one event"

    def hear(self, batch: list[FromNode]) -> None:
        """Messages of agents in one commit; who registers well is confirmed, as the leader does it (P-16)."""

        def decide(draft: Draft) -> None:
            self.refused = decide_messages(draft, batch)

        self.decide(self._input("reports", batch), decide)

    def plan(self) -> None:
        """One cycle. What the planner proposes on the newest state is never objected to; one that starts afresh would
        propose the same, and so would this one if it was asked again."""
        before, now = snapshot.digest(self.state), Instant(self.at + 1000)
        plan = self.planner.plan(now)
        assert Planner(self.state).plan(now) == plan, "C-70: a fresh planner plans otherwise"
        assert self.planner.plan(now) == plan, "C-70: it plans otherwise when it is asked again"
        assert snapshot.digest(self.state) == before, "P-23: planning changed the state"
        assert not plan.poisoned, plan.poisoned

        def decide(draft: Draft) -> None:
            self.stale = apply(draft, plan)

        self.decide(self._input("cycle", None), decide)
        assert self.stale == []

    def takeover(self, *, after_s: int = 1, silently: bool = False) -> None:
        """A new leader: term, and its first commit."""
        last_at, meta = Instant(self.at if self.log else 0), self.state.meta
        self.at += after_s * 1000
        term = Term(
            cluster=self.state.cluster,
            epoch=Epoch(meta.epoch + 1),
            nonce=Nonce(f"nonce-{meta.epoch + 1}"),
            n=meta.n + 1,
            prev="",
            at=Instant(self.at),
            rules=snapshot.RULES_VERSION,
            holder="host-1",
        )
        fold_term(self.state, self._through_codec(term))  # type: ignore[arg-type]
        self._accept()
        if not silently:
            self.decide(self._input("leader", None), lambda draft: decide_leader(draft, "host-1", last_at))

    # A decision becomes a commit

    def decide(self, made_by: Input, decide: Callable[[Draft], None], actor: Principal = ADA) -> None:
        """Try, undo, write, read, fold."""
        before = snapshot.digest(self.state)
        n, at, seq = self.state.meta.n + 1, Instant(self.at + 1000), self.state.meta.seq + 1
        epoch = self.state.meta.epoch
        begin(self.state, epoch, n, at)
        draft = Draft(self.state)
        decide(draft)
        finish(self.state, made_by, tuple(draft.events))
        check_touched(self.state, self.state.touched())
        self.state.discard()
        assert snapshot.digest(self.state) == before, "C-70: a trial left a trace"
        self.events = tuple(draft.events)
        if not draft.events:
            return
        self.at = at
        commit = Commit(
            cluster=self.state.cluster,
            epoch=epoch,
            nonce=Nonce(f"nonce-{epoch}"),
            n=n,
            at=at,
            actor=actor,
            input=made_by,
            policy=self.state.meta.policy_version,
            prev="",
            seq=seq,
            events=self.events,
        )
        read = self._through_codec(commit)
        assert isinstance(read, Commit)
        assert read.events == self.events, "an event does not survive the codec"
        fold_checked(self.state, read)
        self.grants += [event for event in read.events if isinstance(event, GangAllocated)]
        self._accept()

    def _through_codec(self, record: Record) -> Record:
        raw = codec.encode(record)
        self.log.append(raw)
        read = codec.decode(raw)
        assert codec.encode(read) == raw
        return read

    def _accept(self) -> None:
        self.planner.feed(self.state.accept())
        dumped = snapshot.dump(self.state)
        loaded = snapshot.load(dumped)
        assert snapshot.dump(loaded) == dumped, "P-10: a snapshot does not give the state back"
        assert loaded.uuids.rows == self.state.uuids.rows
        assert loaded.node_index.rows == self.state.node_index.rows
        assert loaded.dependents.rows == self.state.dependents.rows
        assert loaded.follow_ups.rows == self.state.follow_ups.rows
        check_indices(self.planner, self.state, Instant(self.at))

    def _input(self, kind: str, body: Any) -> Input:
        return Input(kind=kind, id=f"{kind}-{self.state.meta.n + 1}", body=body)


def fold_checked(state: State, commit: Commit) -> None:
    """fold_commit, with everything checked after every event."""
    begin(state, commit.epoch, commit.n, commit.at)
    for event in commit.events:
        evolve(state, event)
        check_all(state)
    finish(state, commit.input, commit.events)


def fold_log(log: list[bytes], state: State) -> list[Change]:
    """Fold the records of a scenario's log that come after `state`; what the last one changed."""
    changes: list[Change] = []
    for raw in log:
        match codec.decode(raw):
            case Term() as term if term.n > state.meta.n:
                fold_term(state, term)
            case Commit() as commit if commit.n > state.meta.n:
                fold_commit(state, commit)
            case _:
                continue
        changes = state.accept()
    return changes


def check_indices(planner: Planner, state: State, now: Instant) -> None:
    """The planner's indices are those that the state alone would give."""
    fresh = Planner(state)
    for one in (planner, fresh):
        one.queue.begin(now)
    assert _entries(planner) == _entries(fresh)
    assert planner.capacity.free == fresh.capacity.free
    assert planner.capacity.picture() == fresh.capacity.picture()


def _entries(planner: Planner) -> dict[Any, Any]:
    """The lines of the queue, as they are walked."""
    return {shape: line.entries for shape, line in planner.queue.lines.items()}


def _fits(event: Event, expected: Event | type) -> bool:
    return type(event) is expected if isinstance(expected, type) else bool(event == expected)


def _shown(event: Event | type) -> str:
    return event.__name__ if isinstance(event, type) else repr(event)


def running_leases(scenario: Scenario, node: Node, phase: Any) -> tuple[Running, ...]:
    """What the agent of the node would list, were it to have every lease that the state has there."""
    found: list[Running] = []
    for job, number, rank in node.leases:
        grant = scenario.state.attempts[job, number].grant
        found.append(Running(lease_id=_lease(job, number, rank), grant=grant, phase=phase))
    return tuple(found)


def _lease(job: JobId, number: int, rank: int) -> Any:
    return f"{job}.{number}.{rank}"


def with_number(scenario: Scenario, node: NodeId, report: Report, number: int | None) -> FromNode:
    """The report under the next number of its node, or the one given."""
    if number is None:
        number = scenario.reports.get(node, 0) + 1
    scenario.reports[node] = max(number, scenario.reports.get(node, 0))
    return FromNode(node_id=node, message=replace(report, number=number))
