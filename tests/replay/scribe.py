"""The engine's core, keeping the log that a leader would have written: days to verify, and to replay as recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from commands.apply import apply
from commands.changed import by_table
from commands.decide import decide_command, decide_messages
from commands.messages import Command, CommandRecord, encode_command
from commands.plan import Planned
from commands.reports import FromNode, Tick
from events import codec
from events.chain import START, Accepted, Head, admit
from events.envelope import Event, Genesis, Input, Term
from events.ids import ClusterId, CommandId, Instant, LogId, Principal
from replay.engine.core import PERSON, SCHEDULER, Core, Decide
from scheduler.proposal import Occasion, fitting, propose

COMMANDS = LogId("commands")


class Scribe(Core):
    """Leads as Core does; `records` is its events log."""

    def __init__(self, cluster: ClusterId, at: Instant) -> None:
        self.records: list[bytes] = []
        self.head: Head = START
        self._cycle: tuple[int | None, int | None] = (None, None)
        self._body: Any = None
        self._last_at = Instant(0)
        self._write(codec.encode(Genesis(log_id=LogId("scribe"), cluster=cluster)))
        super().__init__(cluster, at)

    def _write_term(self, term: Term) -> None:
        self._last_at = self.head.at
        self._write(codec.encode(replace(term, prev=self.head.hash)))

    def _write(self, raw: bytes) -> None:
        outcome = admit(self.head, len(self.records), raw)
        assert isinstance(outcome, Accepted)
        self.head = outcome.head
        self.records.append(raw)

    # The same inputs, recorded whole

    def command(self, command: Command, principal: Principal = PERSON) -> tuple[Event, ...]:
        """As Core.command."""
        self._commands += 1
        record = CommandRecord(
            id=CommandId(f"c{self._commands}"),
            principal=principal,
            key=f"key-{self._commands}",
            body="",
            sent_at=self.now,
            command=command,
        )
        body = orjson.loads(encode_command(record))
        made_by = Input(kind="command", id=record.id, body=body, position=self._commands, log_id=COMMANDS)
        return self._commit(made_by, lambda draft: decide_command(draft, record))

    def hear(self, batch: list[FromNode]) -> tuple[Event, ...]:
        """As Core.hear."""
        return self._commit(self._input("reports", batch), lambda draft: decide_messages(draft, batch))

    def tick(self, tick: Tick) -> tuple[Event, ...]:
        """As Core.tick."""
        self._body = tick
        try:
            return super().tick(tick)
        finally:
            self._body = None

    def cycle(self, made_at: Instant | None = None) -> tuple[Event, ...]:
        """As Core.cycle."""
        self.cycles += 1
        plan = self.planner.plan(self.now)
        if plan.empty():
            return ()
        self._cycle = (self.cycles, plan.n)
        try:
            made_by = self._input("cycle", Planned(at=self.now))
            self.now = self.now if made_at is None else max(self.now, made_at)
            return self._commit(made_by, lambda draft: apply(draft, plan))
        finally:
            self._cycle = (None, None)

    def _input(self, kind: str, body: Any) -> Input:
        return Input(kind=kind, id=f"{kind}-{self.epoch}-{self.state.meta.n + 1}", body=body)

    def decide(self, kind: str, decide: Decide) -> tuple[Event, ...]:
        """As Core.decide."""
        body = {"holder": "replay", "last_at": self._last_at, "restored": None} if kind == "leader" else self._body
        return self._commit(self._input(kind, body), decide)

    def _commit(self, made_by: Input, decide: Decide) -> tuple[Event, ...]:
        actor = Principal(made_by.body["principal"]) if made_by.kind == "command" else SCHEDULER
        cycle, planned_at_n = self._cycle
        occasion = Occasion(made_by=made_by, actor=actor, at=self.now, cycle=cycle, planned_at_n=planned_at_n)
        commit = propose(self.state, self.head, occasion, decide)
        if commit is None:
            return ()
        self._write(fitting(commit))
        self._accepted(commit.events, by_table(self.state.accept()))
        return commit.events
