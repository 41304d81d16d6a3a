"""A plan that says that it is the last for now: the cycle after it, at the same time, finds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft
from commands.plan import Plan
from commands.policy import Policy
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangResized
from events.ids import Instant, JobId
from events.job import ArrayRange, EndReason
from events.policy import PolicyChanged
from events.preemption import PledgeEnd
from events.task import TaskEnd
from scheduler.planning.plan import Planner
from tests.crowds import BATCH, PREEMPTIBLE, RESEARCH, SERVING, Crowd, queued
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


@dataclass(slots=True)
class Waiting(Watched):
    """A full fleet, with ends that are near enough to be waited for; few classes, and rules that stay."""

    starts_pledged: int = 0
    waits: int = 0
    """Plans that said they were the last, by what they did."""

    def step(self) -> None:
        """Somebody comes or goes, and some time later somebody's end is near."""
        draw = self.draw
        draw.choice([self.submit, self.submit, self.finish])()
        self.cycle()
        for seconds in draw.choices([5, 30, 120, 300], k=2):
            self.end_by_limit(seconds)
            self.crowd.pass_time(seconds)
            self.cycle()
            self.stop_told()

    def submit(self) -> None:
        draw = self.draw
        for _ in range(draw.choice([1, 1, 2])):
            self.jobs += 1
            fields: dict[str, Any] = {
                "team": draw.choice(["red", "red", "blue", "green"]),
                "cls": draw.choice([BATCH, *[RESEARCH] * 5, PREEMPTIBLE]),
                "max_runtime_s": draw.choice([90, 600, 1_800, 7_200]),
                "preemptible": draw.random() < 0.9,
            }
            replicas, each = draw.choice([(1, 1), (1, 2), (1, 2), (1, 4), (1, 4), (1, 8), (2, 4)])
            if replicas == 1 and draw.random() < 0.1:
                fields["array"] = ArrayRange(first=0, last=2, throttle=2)
            self.commit(*queued(f"j{draw.randrange(90):02}{self.jobs}", replicas, each, **fields))

    def other_policy(self) -> Event:
        whole = Policy(await_ends_s=self.draw.choice([60, 300, 600]), fair_advance_s=self.draw.choice([0, 3_600]))
        return PolicyChanged(version=1, policy=whole.model_dump(mode="json"))

    def apply(self, plan: Plan, now: Instant) -> None:
        Watched.apply(self, plan, now)
        self.starts_pledged += plan.last and bool(plan.pledges_over)
        self.waits += plan.last and any(room.awaited for room in plan.rooms)


def test_nothing_comes_of_a_cycle_after_the_last_whoever_waits_for_an_end() -> None:
    """Where most of what is given is pledged before it is free: neither after the pledge nor after its start."""
    starts_pledged = waits = 0
    for seed in range(40):
        history = Waiting(Random(seed))
        for _ in range(100):
            history.step()
        starts_pledged, waits = starts_pledged + history.starts_pledged, waits + history.waits
    assert starts_pledged > 30
    assert waits > 50


class Two(Watched):
    """Two nodes of eight GPUs, on which nobody asks for a whole one."""

    def __post_init__(self) -> None:
        self.crowd.nodes(8, 8)
        self.planner = Planner(self.crowd.state)

    def wait(self, name: str, each: int, **fields: Any) -> None:
        self.commit(*queued(name, 1, each, **fields))

    def plan(self) -> Plan:
        """One cycle, and the other one after it."""
        made: Plan = self.planner.plan(Instant(self.crowd.at + 1000))
        self.cycle()
        return made


def test_what_has_started_on_what_was_pledged_may_be_displaced_at_once() -> None:
    """Nobody takes a pledge away; its start is a lease like others, and another team may have a right to it."""
    two = Two(Random(0))
    two.crowd.quota("red", 16)
    two.crowd.quota("blue", 0)
    two.crowd.run("first", (0, 0x0F), team="blue", max_runtime_s=30)
    two.crowd.run("others", (0, 0xF0), (1, 0xFF), team="red")
    two.planner = Planner(two.crowd.state)
    two.wait("next", 4, team="blue")
    assert [room.awaited for room in two.plan().rooms] == [((JobId("first"), 1),)]
    two.wait("due", 4, team="red")
    assert two.plan().empty()
    two.gone((JobId("first"), 1), TaskEnd.EXITED, 0)
    start = two.plan()
    assert start.pledges_over == ((JobId("next"), PledgeEnd.STARTED),)
    assert not start.last
    assert [room.victims for room in two.plan().rooms] == [((JobId("next"), 1),)]


def test_who_waits_for_the_end_of_a_covered_lease_may_leave_its_team_more_of_the_guarantee() -> None:
    """That lease comes last in the walk of its team then: of three and two GPUs under four, the two are covered."""
    two = Two(Random(0))
    two.crowd.quota("red", 4)
    two.crowd.quota("blue", 0)
    two.crowd.quota("own", 9)
    two.crowd.run("three", (0, 0x07), team="red", max_runtime_s=30)
    two.crowd.run("two", (1, 0x03), team="red")
    two.crowd.run("others", (0, 0x70), (1, 0x3C), team="own")
    two.planner = Planner(two.crowd.state)
    two.wait("sure", 2, team="red", preemptible=False)
    two.wait("next", 4, team="red")
    room = two.plan()
    assert [made.awaited for made in room.rooms] == [((JobId("three"), 1),)]
    assert not room.last
    assert [placement.job_id for placement in two.plan().placements] == ["sure"]


def test_a_start_may_push_what_is_ending_over_the_guarantee() -> None:
    """It is covered only as long as nobody else needs that; then there is more for those who start only covered."""
    two = Two(Random(0))
    two.crowd.quota("red", 4)
    two.crowd.run("leaves", (0, 0x0F), team="red")
    two.crowd.commit(GangEnding(job_id=JobId("leaves"), attempt=1, reason=EndReason.PREEMPTED, grace_s=60))
    two.planner = Planner(two.crowd.state)
    two.wait("sure", 2, team="red", preemptible=False)
    two.wait("more", 1, team="red")
    start = two.plan()
    assert [placement.job_id for placement in start.placements] == ["more"]
    assert not start.last
    assert [placement.job_id for placement in two.plan().placements] == ["sure"]


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
