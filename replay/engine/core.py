"""The production core, led, without its shell: decide, apply, plan and evolve on one state, in virtual time.

What the writer and the leader do around a decision is done here in the same order, but for claims, the log and the
wire. Nothing is decided here: every fact comes from commands/ and every plan from scheduler/planning/.
"""

from collections.abc import Callable

from commands.apply import apply
from commands.changed import News, by_table
from commands.decide import decide_command, decide_leader, decide_messages, decide_tick
from commands.decide.attempts import Draft
from commands.evolve import begin, finish, fold_term
from commands.messages import Command, CommandRecord
from commands.plan import Plan
from commands.reports import FromNode, Tick
from commands.rows import maker
from commands.snapshot import RULES_VERSION
from commands.state import State
from events.envelope import Event, Input, Term
from events.ids import ClusterId, CommandId, Epoch, Instant, JobId, LogId, Nonce, Principal
from scheduler.planning.plan import Planner
from scheduler.timers import Timers

EPOCH = Epoch(1)
COMMANDS = LogId("commands")
PERSON, SCHEDULER = Principal("user:replay"), Principal("scheduler")
_input, _record = maker(Input), maker(CommandRecord)

Decide = Callable[[Draft], object]


class Core:
    """One cluster and its leader, from `at` on."""

    cycles_max = 1_000
    """Cycles in a row that all change something: more is a loop."""

    def __init__(self, cluster: ClusterId, at: Instant) -> None:
        self.state = State(cluster)
        self.now = at
        self.watchers: list[Callable[[tuple[Event, ...]], None]] = []
        """Told of the events of each accepted commit, once the indices know them."""
        self.followers: list[Callable[[tuple[Event, ...], News], None]] = []
        """Told of them before the watchers, with what is news of the changes to the state."""
        self.before_plan: list[Callable[[Plan], None]] = []
        """Told of each plan before it is applied."""
        self.cycles = 0
        self.commits = 0
        self._last = False
        """Did the newest plan say that no other is needed after it?"""
        self.epoch = EPOCH
        self._commands = 0
        self._begin_term(EPOCH)
        self.state.accept()
        self.planner = Planner(self.state)
        self.timers = Timers(self.state)
        self.decide("leader", lambda draft: decide_leader(draft, "replay", Instant(0)))

    def _begin_term(self, epoch: Epoch) -> None:
        self.epoch = epoch
        state, nonce = self.state, Nonce(f"replay-{epoch}")
        term = Term(
            cluster=state.cluster,
            epoch=epoch,
            nonce=nonce,
            n=state.meta.n + 1,
            prev="",
            at=self.now,
            rules=RULES_VERSION,
            holder="replay",
        )
        self._write_term(term)
        fold_term(state, term)

    def take_over(self) -> None:
        """Another leader: its term, and its first commit. Its indices are those of the state, as these are."""
        last_at = self.state.meta.at
        self._begin_term(Epoch(self.epoch + 1))
        self.planner.feed(self.state.accept())
        self.decide("leader", lambda draft: decide_leader(draft, "replay", last_at))

    # Inputs

    def command(self, command: Command, principal: Principal = PERSON) -> tuple[Event, ...]:
        """A command, as read from the commands log."""
        self._commands += 1
        record = _record(
            id=CommandId(f"c{self._commands}"),
            principal=principal,
            key=f"key-{self._commands}",
            body="",
            sent_at=self.now,
            command=command,
        )
        shown = {"key": record.key, "body": "", "command": {"job_id": getattr(command, "job_id", "")}}
        made_by = _input(kind="command", id=record.id, body=shown, position=self._commands, log_id=COMMANDS)
        return self._commit(made_by, lambda draft: decide_command(draft, record))

    def hear(self, batch: list[FromNode]) -> tuple[Event, ...]:
        """What agents say, in one commit. ValueError where a registration is refused, and why."""

        def decide(draft: Draft) -> None:
            for node_id, why in decide_messages(draft, batch).items():
                raise ValueError(f"node {node_id} cannot register: {why}")

        return self.decide("reports", decide)

    def tick(self, tick: Tick) -> tuple[Event, ...]:
        """What time and silence lead to."""
        if tick == Tick() and not self.state.follow_ups:
            return ()
        return self.decide("tick", lambda draft: decide_tick(draft, tick))

    def plan(self) -> int:
        """Cycles until no more comes of them, as the leader does it; how many changed something."""
        for done in range(self.cycles_max):
            if not self.cycle():
                return done
            if self._last:
                return done + 1
        raise AssertionError(f"{self.cycles_max} cycles in a row at {self.now} changed something")

    def cycle(self, made_at: Instant | None = None) -> tuple[Event, ...]:
        """One cycle. `made_at`: when it is committed, if later than now."""
        self.cycles += 1
        plan = self.planner.plan(self.now)
        self._last = plan.last
        self.now = self.now if made_at is None else max(self.now, made_at)
        for told in self.before_plan:
            told(plan)
        if plan.empty():
            return ()
        stale: list[tuple[JobId, str]] = []
        events = self.decide("cycle", lambda draft: stale.extend(apply(draft, plan)))
        assert not stale, f"the planner proposed on the newest state what does not hold of it: {stale}"
        return events

    # A decision becomes a commit

    def decide(self, kind: str, decide: Decide) -> tuple[Event, ...]:
        """The facts that follow, accepted; none where there are none."""
        return self._commit(_input(kind=kind, id=f"{kind}-{self.state.meta.n + 1}"), decide)

    def _commit(self, made_by: Input, decide: Decide) -> tuple[Event, ...]:
        state, n, first = self.state, self.state.meta.n + 1, self.state.meta.seq + 1
        begin(state, self.epoch, n, self.now)
        draft = Draft(state)
        decide(draft)
        events = tuple(draft.events)
        if not events:
            state.discard()
            return ()
        finish(state, made_by, events)
        self._before_accept(made_by, n, first, events)
        self._accepted(events, by_table(state.accept()))
        return events

    def _accepted(self, events: tuple[Event, ...], news: News) -> None:
        self.commits += 1
        self.planner.follow(news)
        self.timers.follow(news)
        for follow in self.followers:
            follow(events, news)
        for told in self.watchers:
            told(events)

    def _write_term(self, term: Term) -> None:
        """For tests, which keep a log."""

    def _before_accept(self, made_by: Input, n: int, first: int, events: tuple[Event, ...]) -> None:
        """For tests, which look at a sample of commits before they are accepted."""
