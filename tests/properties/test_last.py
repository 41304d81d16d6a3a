"""A plan that says that it is the last for now: the cycle after it, at the same time, finds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft
from commands.plan import Plan
from events.envelope import Event
from events.gang import GangAllocated, GangResized
from events.ids import Instant
from tests.properties.test_follows import Wild

SEEDS = [*range(16), 56, 100, 179, 334]
"""Some of them met, each by itself, what keeps a plan from being the last."""


@dataclass(slots=True)
class Watched(Wild):
    """The other cycle is run as well, before anything starts."""

    said: int = 0
    more: int = 0

    def apply(self, plan: Plan, now: Instant) -> None:
        events: list[Event] = []

        def decide(draft: Draft) -> None:
            assert apply(draft, plan) == []
            events.extend(draft.events)

        self.decide(decide)
        after = self.planner.plan(now)
        if plan.last:
            assert after.empty(), f"cycle {self.cycles} was to be the last"
        self.said += plan.last and not plan.empty()
        self.more += not plan.empty() and not after.empty()
        if any(isinstance(event, GangAllocated | GangResized) for event in events):
            self.decide(lambda draft: self.start_all(draft, events))


@pytest.mark.parametrize("elastic", [0.0, 0.3])
def test_nothing_comes_of_a_cycle_after_the_last(elastic: float) -> None:
    """Whatever happens, also where more does come of a cycle after many others."""
    said = more = 0
    for seed in SEEDS:
        history = Watched(Random(seed), elastic=elastic)
        for _ in range(100):
            history.step()
        said, more = said + history.said, more + history.more
    assert said > 50
    assert more > 20
