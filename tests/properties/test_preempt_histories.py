"""Preemption over random histories, planned by the planner itself: who displaces whom, how often, and for what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from commands.apply import apply
from commands.coverage import walk
from commands.decide.attempts import Draft, settle
from commands.displace import may_displace
from commands.entities import Attempt, AttemptKey, Job
from commands.evolve import begin
from commands.invariants import check_all
from events.envelope import Event
from events.gang import GangAllocated, GangRunning
from events.ids import Epoch, Instant, JobId, TeamId
from events.job import CLASS_RANK, JobState, PriorityClass
from events.preemption import PledgeEnd, PreemptionEnded, PreemptionOrdered, PreemptionRule
from events.task import TaskEnd, TaskEnded, TaskStarted
from scheduler.planning.plan import Planner
from tests.crowds import H100, RESEARCH, SERVING, Crowd, queued

DAY_MS = 86_400_000


@dataclass(slots=True)
class History:
    """A fleet that is worked on, step by step, by three teams whose quotas do not change."""

    draw: Random
    crowd: Crowd = field(default_factory=Crowd)
    orders: list[PreemptionOrdered] = field(default_factory=list)
    asked_gpus: int = 0
    stopped_gpus: int = 0
    ended: list[PreemptionEnded] = field(default_factory=list)
    granted: list[GangAllocated] = field(default_factory=list)
    jobs: int = 0

    def __post_init__(self) -> None:
        for block in "ab":
            self.crowd.nodes(4, 4, 4, block=block)
        for team, guaranteed in (("red", 12), ("blue", 8), ("green", 0)):
            self.crowd.quota(team, guaranteed)
        self.planner = Planner(self.crowd.state)

    planner: Any = None

    def step(self) -> None:
        """Something happens; then the planner has a turn, and agents do as they are told."""
        seconds = self.draw.choice([1, 5, 30, 300, 1_800])
        self.stop_told()
        self.end_by_limit(seconds)
        self.crowd.pass_time(seconds)
        self.draw.choice([self.submit, self.submit, self.submit, self.finish, self.stop_told])()
        self.cycle()
        if self.draw.random() < 0.7:
            self.stop_told()
            self.cycle()

    def submit(self) -> None:
        self.jobs += 1
        self.commit(
            *queued(
                f"j{self.jobs:04}",
                *self.draw.choice([(1, 1), (1, 2), (1, 4), (2, 4), (3, 4), (2, 1), (4, 4)]),
                team=self.draw.choice(["red", "blue", "green"]),
                cls=self.draw.choice([*PriorityClass, RESEARCH]),
                max_runtime_s=self.draw.choice([600, 7_200, 86_400]),
            )
        )

    def finish(self) -> None:
        """One of those that run ends well."""
        running = [key for key, row in sorted(self.crowd.state.attempts.rows.items()) if row.ending is None]
        if running:
            self.gone(self.draw.choice(running), TaskEnd.EXITED, 0)

    def end_by_limit(self, seconds: int) -> None:
        """Those whose time is up within so long end."""
        for key, row in sorted(self.crowd.state.attempts.rows.items()):
            if row.limit_at is not None and row.limit_at <= self.crowd.at + seconds * 1000:
                self.gone(key, TaskEnd.EXITED, 0)

    def stop_told(self) -> None:
        """Those that were told to stop do so."""
        for key, row in sorted(self.crowd.state.attempts.rows.items()):
            if row.ending is not None:
                self.gone(key, TaskEnd.STOPPED, 143)

    def gone(self, key: AttemptKey, end: TaskEnd, code: int) -> None:
        def decide(draft: Draft) -> None:
            attempt = draft.state.attempts[key]
            for rank, (index, _) in enumerate(attempt.ranks):
                draft.add(
                    TaskEnded(
                        job_id=attempt.job_id,
                        attempt=attempt.number,
                        rank=rank,
                        node=index,
                        report=draft.state.nodes[index].last_report + 1,
                        end=end,
                        exit_code=code,
                    )
                )
            settle(draft, key)

        self.decide(decide)

    def cycle(self) -> None:
        plan = self.planner.plan(Instant(self.crowd.at + 1000))
        assert not plan.poisoned

        def decide(draft: Draft) -> None:
            stale = apply(draft, plan)
            assert not {job_id for job_id, _ in stale} & {step.job_id for step in (*plan.rooms, *plan.placements)}
            for event in list(draft.events):
                if isinstance(event, GangAllocated):
                    self.start(draft, event)

        self.decide(decide)

    def start(self, draft: Draft, event: GangAllocated) -> None:
        for rank, (index, _) in enumerate(event.ranks):
            report = draft.state.nodes[index].last_report + 1
            draft.add(TaskStarted(job_id=event.job_id, attempt=event.attempt, rank=rank, node=index, report=report))
        draft.add(GangRunning(job_id=event.job_id, attempt=event.attempt))

    def commit(self, *events: Event) -> None:
        self.decide(lambda draft: [draft.add(event) for event in events])

    def decide(self, decide: Any) -> None:
        crowd = self.crowd
        crowd.at += 1000
        begin(crowd.state, Epoch(1), crowd.state.meta.n + 1, Instant(crowd.at))
        draft = Draft(crowd.state)
        decide(draft)
        self.look(draft.events)
        check_all(crowd.state)
        changes = crowd.state.accept()
        crowd.feed(changes)
        self.planner.feed(changes)

    def look(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, PreemptionOrdered):
                self.orders.append(event)
                self.asked_gpus += sum(mask.bit_count() for _, mask in event.ranks) if event.victims else 0
                self.stopped_gpus += sum(self.crowd.state.attempts[key].charged for key in event.victims)
                self.check_order(event)
            elif isinstance(event, PreemptionEnded):
                self.ended.append(event)
            elif isinstance(event, GangAllocated):
                self.granted.append(event)

    def check_order(self, order: PreemptionOrdered) -> None:
        """Nobody of prod-serving goes; who is shielded goes only to a reclaim; classes as R-40 has them; and nobody
        could displace in turn."""
        state = self.crowd.state
        job = state.jobs[order.job_id]
        for key in order.victims:
            victim = state.jobs[key[0]]
            assert victim.priority_class is not SERVING
            assert not self.could_return(order, job, key)
            if order.rule is PreemptionRule.RECLAIM:
                continue
            assert CLASS_RANK[victim.priority_class] > CLASS_RANK[job.priority_class]
            recent = [at for at in victim.preempted_at if at > self.crowd.at - DAY_MS]
            assert len(recent) < 3
            attempt = state.attempts[key]
            if attempt.after_preemption:
                assert attempt.running_at is not None
                assert self.crowd.at >= attempt.running_at + 1_800_000

    def could_return(self, order: PreemptionOrdered, job: Job, key: AttemptKey) -> bool:
        """Once the job runs and the victims wait, could this victim displace it? As things stand: whose end by his own
        limit is awaited still runs, and what starts in the same commit does not: ends and starts of others change who
        is covered (ADR 9)."""
        state, now = self.crowd.state, Instant(self.crowd.at)
        gpus = sum(mask.bit_count() for _, mask in order.ranks)
        started = replace(
            state.attempts[key], job_id=job.id, team=job.spec.team, number=99, charged=gpus, running_at=now, ending=None
        )
        going = {*order.victims}
        for pledge in state.pledges.rows.values():
            going.update(pledge.victims)
        others = [row for row in state.attempts.rows.values() if row.grant[1] != state.meta.n or row.promised_n]
        left = [row for row in others if row.key not in going and row.ending is None]
        promised_n = state.pledges[job.id].ordered_n
        after = [*left, replace(started, grant=(1, 1 << 40), promised_n=promised_n, after_preemption=False)]
        victim, attempt = state.jobs[key[0]], state.attempts[key]
        borrowed = started.key in self.walked(job.id, started.team, after)[1]
        covered_use = self.walked(job.id, attempt.team, after)[0]
        covered = covered_use + attempt.charged <= state.quotas[attempt.team, H100].guaranteed
        return may_displace(state.policy, now, victim, covered, replace(job, preempted_at=()), started, borrowed)

    def walked(self, started: JobId, team: TeamId, attempts: list[Attempt]) -> tuple[int, frozenset[AttemptKey]]:
        """A team's leases, walked, with the pledges of the others that had one before this commit."""
        state = self.crowd.state
        others = [row for row in state.pledges.rows.values() if row.team == team and row.job_id != started]
        pledges = [row for row in others if row.ordered_n != state.meta.n]
        own = [row for row in attempts if row.team == team]
        return walk(state, state.quotas[team, H100].guaranteed, own, pledges)


@pytest.mark.parametrize("seed", [*range(12), 18, 37, 57, 59, 65, 122])
def test_nobody_displaces_the_one_that_displaced_it(seed: int) -> None:
    """Not as things stand when it is displaced (C-11). Later, by class never; as a reclaim when its team uses less, or
    because it borrowed and is covered now. Who has a pledge starts on it (R-45)."""
    history = History(Random(seed))
    for _ in range(150):
        history.step()
    assert history.orders, "nothing was displaced"
    by_class: set[tuple[JobId, JobId]] = set()
    for order in history.orders:
        for victim, _ in order.victims:
            assert (victim, order.job_id) not in by_class or order.rule is PreemptionRule.RECLAIM
            if order.rule is PreemptionRule.PRIORITY:
                by_class.add((order.job_id, victim))
    _check_pledges(history)


def test_what_is_stopped_is_about_what_is_asked_for() -> None:
    """GPUs stopped for each that an order asks for, over many histories on a fleet of six nodes (C-12)."""
    asked = stopped = 0
    for seed in range(100, 108):
        history = History(Random(seed))
        for _ in range(120):
            history.step()
        asked += history.asked_gpus
        stopped += history.stopped_gpus
    assert 0 < stopped <= 1.25 * asked, f"{stopped} stopped, {asked} asked for"


def _check_pledges(history: History) -> None:
    """Every order but the open ones came to an end, and what started started on what was pledged."""
    ends = [event.because for event in history.ended]
    assert len(history.orders) - len(ends) == len(history.crowd.state.pledges)
    assert set(ends) <= {PledgeEnd.STARTED, PledgeEnd.TOO_LATE}
    assert ends.count(PledgeEnd.STARTED) >= 0.8 * len(ends)


def test_after_the_histories_the_fleet_comes_to_rest() -> None:
    """When nothing happens any more but that agents do as they are told, the planner soon has no more to do."""
    history = History(Random(99))
    for _ in range(150):
        history.step()
    for _ in range(40):
        history.stop_told()
        history.crowd.pass_time(1)
        history.cycle()
    for _ in range(5):
        n, orders = history.crowd.state.meta.seq, len(history.orders)
        history.crowd.pass_time(1)
        history.cycle()
        assert (history.crowd.state.meta.seq, len(history.orders)) == (n, orders)
    assert not history.crowd.state.pledges.rows
    assert all(job.state is not JobState.PREEMPTING for job in history.crowd.state.jobs.rows.values())
