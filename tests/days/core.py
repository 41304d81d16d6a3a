"""The production core in virtual time (replay.engine.core), watched: a sample of commits is undone, sent through the
codec and folded instead, and a sample of states is checked in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from commands.evolve import fold_commit
from commands.invariants import check_all, check_touched
from commands.plan import Plan
from commands.state import Change
from events import codec
from events.envelope import Commit, Event, Input
from events.ids import ClusterId, Nonce
from replay.engine import core as engine
from replay.generated import MIDNIGHT


class Core(engine.Core):
    """One cluster and its leader. `audit_every`: which commits go through the codec, and are checked in full."""

    cycles_max = 50

    def __init__(self, *, audit_every: int = 499) -> None:
        self.audit_every = audit_every
        super().__init__(ClusterId("eu-1"), MIDNIGHT)
        self.before_plan.append(_whole)

    def _before_accept(self, made_by: Input, n: int, first: int, events: tuple[Event, ...]) -> None:
        """The same commit, read from its bytes, gives the same rows; and they are in order."""
        if n % self.audit_every:
            return
        check_touched(self.state, self.state.touched())
        tried = _by_key(self.state.touched())
        self.state.discard()
        commit = Commit(
            cluster=self.state.cluster,
            epoch=self.epoch,
            nonce=Nonce("nonce"),
            n=n,
            at=self.now,
            actor=engine.SCHEDULER,
            input=made_by,
            policy=self.state.meta.policy_version,
            prev="",
            seq=first,
            events=events,
        )
        read = codec.decode(codec.encode(commit))
        assert isinstance(read, Commit)
        fold_commit(self.state, read)
        assert _by_key(self.state.touched()) == tried, "what was folded is not what was decided"
        check_all(self.state)


def _whole(plan: Plan) -> None:
    assert not plan.poisoned, plan.poisoned


def _by_key(changes: Iterable[Change]) -> dict[tuple[str, Any], Change]:
    """Grants that are decided in several steps are folded in one: the rows come in another order."""
    return {(change.table, change.key): change for change in changes}
