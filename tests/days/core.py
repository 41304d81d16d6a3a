"""The production core, led, without its shell: decide, apply, plan and evolve on one state, in virtual time.

What the writer and the leader do around a decision is done here in the same order, but for claims and the log. A sample
of commits is undone, sent through the codec and folded instead, and a sample of states is checked in full.
"""

from __future__ import annotations

from collections.abc import Callable

from commands.apply import apply
from commands.decide import decide_command, decide_leader, decide_messages, decide_tick
from commands.decide.attempts import Draft
from commands.evolve import begin, finish, fold_commit, fold_term
from commands.invariants import check_all, check_touched
from commands.messages import Command, CommandRecord
from commands.plan import Plan
from commands.reports import FromNode, Tick
from commands.state import State
from events import codec
from events.envelope import Commit, Event, Input, Term
from events.ids import ClusterId, CommandId, Epoch, Instant, JobId, LogId, Nonce, Principal
from scheduler.planning.plan import Planner
from scheduler.timers import Timers

T0 = Instant(1_800_000_000_000)
ADA, SCHEDULER = Principal("user:ada"), Principal("scheduler")
CYCLES_MAX = 50
"""Cycles in a row that all change something: more is a loop."""

Decide = Callable[[Draft], object]


class Core:
    """One cluster and its leader. `audit_every`: which commits go through the codec, and are checked in full."""

    def __init__(self, *, audit_every: int = 499) -> None:
        self.state = State(ClusterId("eu-1"))
        self.now = T0
        self.audit_every = audit_every
        self.watchers: list[Callable[[tuple[Event, ...]], None]] = []
        """Told of the events of each accepted commit."""
        self.before_plan: list[Callable[[Plan], None]] = []
        """Told of each plan before it is applied."""
        self.cycles = 0
        self._commands = 0
        term = Term(
            cluster=self.state.cluster,
            epoch=Epoch(1),
            nonce=Nonce("nonce"),
            n=1,
            prev="",
            at=self.now,
            rules=1,
            holder="host-1",
        )
        fold_term(self.state, term)
        self.state.accept()
        self.planner = Planner(self.state)
        self.timers = Timers(self.state)
        self.decide("leader", lambda draft: decide_leader(draft, "host-1", Instant(0)))

    # Inputs

    def command(self, command: Command) -> tuple[Event, ...]:
        """A command, as read from the commands log."""
        self._commands += 1
        record = CommandRecord(
            id=CommandId(f"c{self._commands}"),
            principal=ADA,
            key=f"key-{self._commands}",
            body="",
            sent_at=self.now,
            command=command,
        )
        shown = {"key": record.key, "body": "", "command": {"job_id": getattr(command, "job_id", "")}}
        made_by = Input(kind="command", id=record.id, body=shown, position=self._commands, log_id=LogId("commands"))
        return self._commit(made_by, lambda draft: decide_command(draft, record))

    def hear(self, batch: list[FromNode]) -> tuple[Event, ...]:
        """What agents say, in one commit. No registration may be refused."""

        def decide(draft: Draft) -> None:
            assert decide_messages(draft, batch) == {}

        return self.decide("reports", decide)

    def tick(self, tick: Tick) -> tuple[Event, ...]:
        """What time and silence lead to."""
        if tick == Tick() and not self.state.follow_ups:
            return ()
        return self.decide("tick", lambda draft: decide_tick(draft, tick))

    def plan(self) -> int:
        """Cycles until one changes nothing, as the leader does it; how many changed something."""
        for done in range(CYCLES_MAX):
            if not self.cycle():
                return done
        raise AssertionError(f"{CYCLES_MAX} cycles in a row at {self.now} changed something")

    def cycle(self) -> tuple[Event, ...]:
        """One cycle. What the planner proposes on the newest state is never objected to."""
        self.cycles += 1
        plan = self.planner.plan(self.now)
        assert not plan.poisoned, plan.poisoned
        for told in self.before_plan:
            told(plan)
        if plan.empty():
            return ()
        stale: list[tuple[JobId, str]] = []
        events = self.decide("cycle", lambda draft: stale.extend(apply(draft, plan)))
        assert stale == [], stale
        return events

    # A decision becomes a commit

    def decide(self, kind: str, decide: Decide) -> tuple[Event, ...]:
        """The facts that follow, accepted; none where there are none."""
        return self._commit(Input(kind=kind, id=f"{kind}-{self.state.meta.n + 1}"), decide)

    def _commit(self, made_by: Input, decide: Decide) -> tuple[Event, ...]:
        state, n, first = self.state, self.state.meta.n + 1, self.state.meta.seq + 1
        begin(state, Epoch(1), n, self.now)
        draft = Draft(state)
        decide(draft)
        events = tuple(draft.events)
        if not events:
            state.discard()
            return ()
        finish(state, made_by, events)
        if n % self.audit_every == 0:
            self._audit(made_by, n, first, events)
        changes = state.accept()
        self.planner.feed(changes)
        self.timers.feed(changes)
        for told in self.watchers:
            told(events)
        return events

    def _audit(self, made_by: Input, n: int, first: int, events: tuple[Event, ...]) -> None:
        """The same commit, read from its bytes, gives the same rows; and they are in order."""
        check_touched(self.state, self.state.touched())
        tried = self.state.touched()
        self.state.discard()
        commit = Commit(
            cluster=self.state.cluster,
            epoch=Epoch(1),
            nonce=Nonce("nonce"),
            n=n,
            at=self.now,
            actor=SCHEDULER,
            input=made_by,
            policy=self.state.meta.policy_version,
            prev="",
            seq=first,
            events=events,
        )
        read = codec.decode(codec.encode(commit))
        assert isinstance(read, Commit)
        fold_commit(self.state, read)
        assert self.state.touched() == tried, "what was folded is not what was decided"
        check_all(self.state)
