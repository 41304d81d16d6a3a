"""A fleet and the planner that follows it: what a decision is measured on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.figure import Figure, Stopwatch, latency
from commands.apply import apply
from commands.decide.attempts import Draft, settle
from commands.entities import AttemptKey
from commands.evolve import begin
from commands.plan import Plan
from events.envelope import Event
from events.ids import Epoch, Instant
from events.task import TaskEnd, TaskEnded
from scheduler.claiming import claims_of
from scheduler.planning.plan import Planner
from scheduler.ports import Claim
from tests.crowds import Crowd

WITHOUT_LIMIT = 1 << 60
"""Ranks in one cycle: all that fit."""


class Site:
    """One planner on one crowd. The crowd's own indices are not looked at, and may fall behind."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.state = crowd.state
        self.planner = Planner(crowd.state)

    @property
    def now(self) -> Instant:
        """When the next cycle is."""
        return Instant(self.crowd.at + 1000)

    def anew(self) -> None:
        """A planner that has planned nothing yet; who could make room is known to it."""
        self.planner = Planner(self.state)
        self.planner.victims.refresh(self.now)

    def abreast(self) -> None:
        """The same, with all its indices made: one that has followed the log, and remembers no failure."""
        self.anew()
        assert self.planner.forecast.version

    def plan(self) -> Plan:
        """One cycle."""
        return self.planner.plan(self.now, WITHOUT_LIMIT)

    def draft(self) -> Draft:
        """The next commit, on trial."""
        begin(self.state, Epoch(1), self.state.meta.n + 1, self.now)
        return Draft(self.state)

    def decide(self, plan: Plan) -> tuple[list[Event], list[Claim]]:
        """Facts and claims of a plan, on trial; all of it has to hold."""
        if plan.empty():
            return [], []
        draft = self.draft()
        stale = apply(draft, plan)
        assert stale == [], stale[:3]
        return draft.events, claims_of(self.state, draft.events)

    def keep(self) -> None:
        """What is on trial is in the log, and the planner follows."""
        self.planner.feed(self.state.accept())
        self.crowd.at += 1000

    def settle(self) -> int:
        """Plan, and keep what is planned, until nothing is left to do. In how many cycles."""
        cycles = 1
        while not (plan := self.plan()).empty():
            self.decide(plan)
            self.keep()
            cycles += 1
        return cycles


def end(draft: Draft, key: AttemptKey, how: TaskEnd) -> None:
    """All ranks of an attempt end, with what follows from that."""
    attempt = draft.state.attempts[key]
    exited = how is TaskEnd.EXITED
    for rank, (index, _) in enumerate(attempt.ranks):
        if attempt.live(rank):
            report = draft.state.nodes[index].last_report + 1
            ended = TaskEnded(
                job_id=key[0],
                attempt=key[1],
                rank=rank,
                node=index,
                report=report,
                end=how,
                exit_code=0 if exited else 143,
                finished=exited,
            )
            draft.add(ended)
    settle(draft, key)


Check = Callable[[Plan], bool]


def cpu() -> Stopwatch:
    """Seconds of the processor."""
    return Stopwatch(time.process_time)


def decisions(
    case: str,
    site: Site,
    check: Check,
    *,
    times: int,
    plan_ms: float | None = None,
    whole_ms: float | None = None,
    before: Callable[[], None] = lambda: None,
) -> Iterator[Figure]:
    """The same decision again and again, put back each time: the plan alone, and the whole. `before`: what comes before
    each is not measured. `check`: whether the plan is what the case is about."""
    planned, whole = [], []
    for _ in range(times):
        before()
        watch = cpu()
        plan = site.plan()
        planned.append(watch.s)
        site.decide(plan)
        whole.append(watch.s)
        site.state.discard()
        assert check(plan), case
    yield latency("plan.cycle", f"{case}: plan", planned, target_ms=plan_ms)
    yield latency("plan.cycle", f"{case}: decision", whole, target_ms=whole_ms)
