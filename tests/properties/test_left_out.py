"""Lines that get no turn, as they are without hope: a planner that gives all of them theirs plans the same."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from commands.plan import Plan
from events.ids import Instant
from scheduler.planning import walk
from scheduler.planning.plan import Planner
from scheduler.planning.queue import Line
from scheduler.planning.trial import Trial
from scheduler.planning.used_up import Chances, HopeAfterAll, LeftOut
from tests.properties.test_follows import Wild
from tests.properties.test_last import Waiting

SEEDS = [*range(12), 141]
"""The last needs it that a reservation which is over for a moment of the cycle is seen."""


class Thorough(Planner):
    """All have their turns."""

    def trial(self, now: Instant) -> Trial:
        made = super().trial(now)
        made.leaves_out = False
        return made


@dataclass(slots=True)
class Counts:
    """Of what happened while histories were lived."""

    left_out: int = 0
    again: int = 0


@dataclass(slots=True)
class Beside(Wild):
    """Both plan, before anything comes of it."""

    def apply(self, plan: Plan, now: Instant) -> None:
        assert plan == Thorough(self.crowd.state).plan(now), f"cycle {self.cycles}"
        Wild.apply(self, plan, now)


@dataclass(slots=True)
class BesideFull(Waiting):
    """The same, on a fleet that is full."""

    def apply(self, plan: Plan, now: Instant) -> None:
        assert plan == Thorough(self.crowd.state).plan(now), f"cycle {self.cycles}"
        Waiting.apply(self, plan, now)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Whether lines are left out at all, and cycles run again for it."""
    found = Counts()

    class Counting(LeftOut):
        def check(self) -> None:
            try:
                super().check()
            except HopeAfterAll:
                found.again += 1
                raise

    class Looking(Chances):
        def without_hope(self, lines: Any) -> set[Line]:
            out = super().without_hope(lines)
            found.left_out += len(out)
            return out

    monkeypatch.setattr(walk, "LeftOut", Counting)
    monkeypatch.setattr(walk, "Chances", Looking)
    return found


@pytest.mark.parametrize("elastic", [0.0, 0.3])
def test_the_same_is_planned_whatever_happens(elastic: float, counts: Counts) -> None:
    """Also with pools, spares, deadlines and drains; and in cycles that have to be run again."""
    for seed in SEEDS:
        Beside(Random(seed), elastic=elastic).live()
    assert counts.left_out > 500
    assert counts.again > 5


def test_the_same_is_planned_where_most_is_pledged(counts: Counts) -> None:
    """Where ends are waited for, a type is seldom used up as a whole."""
    for seed in SEEDS:
        history = BesideFull(Random(seed))
        for _ in range(100):
            history.step()
    assert counts.left_out > 500
    assert counts.again > 5
