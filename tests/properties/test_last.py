"""A plan that says that it is the last for now: the cycle after it, at the same time, finds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft
from commands.plan import Plan
from events.envelope import Event
from events.gang import GangAllocated, GangResized
from events.ids import Instant
from scheduler.planning.plan import Planner
from tests.crowds import BATCH, PREEMPTIBLE, RESEARCH, SERVING, Crowd
from tests.properties.test_follows import Wild

SEEDS = [*range(16), 56, 100, 179, 334]
"""Some of them met, each by itself, what keeps a plan from being the last."""
TEAMS = ["red", "blue", "own"]


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
        history.live()
        said, more = said + history.said, more + history.more
    assert said > 50
    assert more > 20


def crowd(draw: Random) -> Crowd:
    """A small fleet: some run, some wait, of three teams, with ids in no order."""
    made = Crowd()
    made.nodes(*[draw.choice([4, 8, 8]) for _ in range(draw.choice([2, 3, 3, 4]))])
    for team in TEAMS:
        made.quota(team, draw.choice([0, 2, 4, 6]), draw.choice([0, 4, 1 << 20, 1 << 20]))
    free = {index: list(range(len(node.gpus))) for index, node in made.state.nodes.rows.items()}
    names = draw.sample("abcdefghijklmnopqrstuvwxyz", 26)
    for _ in range(draw.randint(3, 9)):
        count, each = draw.choice([1, 1, 1, 2]), draw.choice([1, 2, 2, 3, 4])
        nodes = [index for index in draw.sample(sorted(free), min(count, len(free))) if len(free[index]) >= each]
        ranks = [(index, sum(1 << free[index].pop() for _ in range(each))) for index in nodes]
        fields: dict[str, Any] = {
            "team": draw.choice(TEAMS),
            "cls": draw.choice([BATCH, RESEARCH, RESEARCH, PREEMPTIBLE]),
        }
        if len(ranks) == count:
            made.run(names.pop(), *ranks, preemptible=draw.random() > 0.2, **fields)
    for _ in range(draw.randint(2, 4)):
        count, each = draw.choice([1, 1, 1, 2]), draw.choice([1, 2, 3, 4])
        cls = draw.choice([SERVING, BATCH, RESEARCH, RESEARCH, PREEMPTIBLE])
        limit_s = draw.choice([45, 3_600, 3_600])  # the end of one of 45 s can be waited for
        made.queue(names.pop(), count, each, team=draw.choice(TEAMS), cls=cls, max_runtime_s=limit_s)
    return made


def test_nothing_comes_of_a_cycle_after_the_last_whoever_borrows() -> None:
    """Small fleets with teams over their guarantees, where one grant turns others' leases over."""
    said = more = 0
    for seed in range(1_500):
        made = crowd(Random(seed))
        now = Instant(made.at + 1000)
        plan = Planner(made.state).plan(now)
        if plan.empty():
            continue
        made.apply(plan)
        after = Planner(made.state).plan(now)
        if plan.last:
            assert after.empty(), f"seed {seed}"
        said, more = said + plan.last, more + (not after.empty())
    assert said > 100
    assert more > 20
