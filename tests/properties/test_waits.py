"""Nobody starves: covered jobs start in time among a flood of borrowers, and promises are kept (R-22, R-23)."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft, settle
from commands.entities import AttemptKey
from commands.evolve import begin
from events.envelope import Event
from events.gang import GangAllocated, GangRunning
from events.ids import Epoch, Instant, JobId, TeamId
from events.job import JobState, PriorityClass
from events.task import TaskEnd, TaskEnded, TaskStarted
from scheduler.planning.plan import Planner
from tests.crowds import H100, RESEARCH, Crowd, queued
from tests.properties.promises import check_promises

STEP_S = 30
TEAMS = {"red": 24, "blue": 24, "green": 16}
"""GPUs guaranteed, of the 64 that there are."""


@dataclass(slots=True)
class Day:
    """Eight nodes. Every job lasts as long as it may; who is told to stop stops at once."""

    draw: Random
    crowd: Crowd = field(default_factory=Crowd)
    covered_since: dict[JobId, int] = field(default_factory=dict)
    waits_s: list[int] = field(default_factory=list)
    jobs: int = 0
    planner: Any = None

    def __post_init__(self) -> None:
        for block in "ab":
            self.crowd.nodes(8, 8, 8, 8, block=block)
        for team, guaranteed in TEAMS.items():
            self.crowd.quota(team, guaranteed)
        self.planner = Planner(self.crowd.state)

    def run(self, steps: int, flood: str) -> None:
        """So many steps; the team `flood` keeps submitting."""
        for _ in range(steps):
            self.crowd.at += STEP_S * 1000
            while sum(job.state is JobState.QUEUED and job.spec.team == flood for job in self.rows()) < 20:
                self.submit(flood, 1)
            for team in TEAMS:
                if self.draw.random() < 0.05:
                    self.submit(team, self.draw.choice([1, 1, 2]))
            self.ends()
            self.cycle()
            self.look()

    def rows(self) -> list[Any]:
        return list(self.crowd.state.jobs.rows.values())

    def submit(self, team: str, nodes: int) -> None:
        self.jobs += 1
        limit_s = self.draw.choice([600, 3_600, 14_400])
        cls = self.draw.choice([RESEARCH, RESEARCH, PriorityClass.PREEMPTIBLE])
        self.decide(*queued(f"j{self.jobs:05}", nodes, 8, team=team, max_runtime_s=limit_s, cls=cls))

    def ends(self) -> None:
        """What has run for its time, and what was told to stop."""
        for key, row in sorted(self.crowd.state.attempts.rows.items()):
            over = row.limit_at is not None and row.limit_at <= self.crowd.at
            if over or row.ending is not None:
                self.gone(key, TaskEnd.STOPPED if row.ending is not None else TaskEnd.EXITED)

    def gone(self, key: AttemptKey, end: TaskEnd) -> None:
        def decided(draft: Draft) -> None:
            row = draft.state.attempts[key]
            for rank, (index, _) in enumerate(row.ranks):
                report, code = draft.state.nodes[index].last_report + 1, 0 if end is TaskEnd.EXITED else 143
                draft.add(
                    TaskEnded(
                        job_id=key[0], attempt=key[1], rank=rank, node=index, report=report, end=end, exit_code=code
                    )
                )
            settle(draft, key)

        self.decide(decided)

    def cycle(self) -> None:
        plan, before = self.planner.plan(Instant(self.crowd.at)), dict(self.crowd.state.reservations.rows)
        made: list[Event] = []

        def decided(draft: Draft) -> None:
            assert apply(draft, plan) == []
            made.extend(draft.events)
            for event in list(draft.events):
                if isinstance(event, GangAllocated):
                    for rank, (index, _) in enumerate(event.ranks):
                        report, name, number = draft.state.nodes[index].last_report + 1, event.job_id, event.attempt
                        draft.add(TaskStarted(job_id=name, attempt=number, rank=rank, node=index, report=report))
                    draft.add(GangRunning(job_id=event.job_id, attempt=event.attempt))

        self.decide(decided)
        check_promises(self.crowd.state, before, made, Instant(self.crowd.at))

    def decide(self, *steps: Any) -> None:
        state = self.crowd.state
        begin(state, Epoch(1), state.meta.n + 1, Instant(self.crowd.at))
        draft = Draft(state)
        for step in steps:
            step(draft) if callable(step) else draft.add(step)
        changes = state.accept()
        self.crowd.feed(changes)
        self.planner.feed(changes)

    def look(self) -> None:
        """Who has been covered since when, and still waits; not behind nodes held for its own team (ADR 10)."""
        state = self.crowd.state
        first = {state.jobs[held.job_id].spec.team: held.job_id for held in state.reservations.rows.values()}
        for job in self.rows():
            waits = job.state is JobState.QUEUED
            room = self.planner.shares.standing((TeamId(job.spec.team), H100)).covered_room
            behind = first.get(job.spec.team, job.id) != job.id
            if waits and not behind and (job.spec.gpus <= room or job.id in state.pledges):
                self.covered_since.setdefault(job.id, self.crowd.at)
            elif (since := self.covered_since.pop(job.id, None)) is not None:
                self.waits_s.append((self.crowd.at - since) // 1000)


@pytest.mark.parametrize("seed", range(4))
def test_a_covered_job_starts_within_ten_minutes(seed: int) -> None:
    """While one team floods the queue with jobs that borrow all that is idle: what is lent is taken back in time."""
    day = Day(Random(seed))
    day.run(600, flood=["red", "blue", "green", "red"][seed])
    waits = [*day.waits_s, *((day.crowd.at - since) // 1000 for since in day.covered_since.values())]
    assert len(waits) > 10
    assert max(waits) <= 600


@pytest.mark.parametrize("seed", range(2))
def test_the_flood_gets_what_nobody_else_wants(seed: int) -> None:
    """With nobody else there it has the whole fleet."""
    day = Day(Random(seed))
    for _ in range(20):
        day.crowd.at += STEP_S * 1000
        day.submit("red", 1)
        day.ends()
        day.cycle()
    assert sum(row.charged for row in day.crowd.state.usage.rows.values()) == 64
