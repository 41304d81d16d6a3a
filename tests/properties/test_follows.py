"""A planner that follows the log plans, at each step of random histories, what one made from the state would (C-70)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft, settle
from commands.entities import AttemptKey, Job, Node, NodeState, Quota
from commands.plan import Plan
from commands.policy import Policy
from commands.pools import PoolKind, PoolRule
from events.checkpoint import CheckpointRecorded
from events.envelope import Event
from events.gang import GangAllocated, GangResized
from events.ids import GpuMask, Instant
from events.job import (
    Elastic,
    EndReason,
    JobCancelRequested,
    JobFinished,
    JobHeld,
    JobPriorityChanged,
    JobReleased,
    JobState,
    PriorityClass,
    Span,
    Topology,
)
from events.node import GpuFaulted, GpuRepaired, NodeDrained, NodeReturned, NodeSuspected, NodeUndrained
from events.policy import PolicyChanged
from events.quota import QuotaChanged
from events.task import TaskEnd, TaskEnded, TaskStarted
from scheduler.planning.plan import Planner
from tests.crowds import PREEMPTIBLE, RESEARCH, queued
from tests.properties.test_preempt_histories import History

FAST = PoolRule(name="fast", kind=PoolKind.LATENCY, nodes=("n0",))
LARGE = PoolRule(name="large", kind=PoolKind.WHOLE, nodes=("n4",), gpus_min=8)
SHAPES = [(1, 1), (1, 2), (1, 4), (2, 4), (3, 4), (2, 1), (4, 4), (1, 8), (2, 8)]
HINTS = [
    Topology(pack=Span.BLOCK),
    Topology(pack=Span.RACK, strict=False),
    Topology(spread=Span.NODE),
    Topology(spread=Span.RACK),
    Topology(max_blocks=2),
]


@dataclass(slots=True)
class Wild(History):
    """Nodes of several sizes and memories; elastic, interactive and hinted jobs; quotas, pools, spares, drains, faults,
    silences, holds, changes of class, cancels and checkpoints."""

    cycles: int = 0
    elastic: float = 0.3
    """Part of the jobs."""

    def __post_init__(self) -> None:
        for sizes, block, memory_gb in (((4, 4, 4), "a", 80), ((4, 8, 8), "b", 80), ((8,), "c", 40)):
            self.crowd.nodes(*sizes, block=block, rack=f"r{block}", memory_gb=memory_gb)
        for team, guaranteed in (("red", 16), ("blue", 12), ("green", 0)):
            self.crowd.quota(team, guaranteed, self.draw.choice([8, 16, 100]))
        self.crowd.commit(self.other_policy())
        self.planner = Planner(self.crowd.state)

    def live(self) -> None:
        """A hundred steps, in each of which it is planned three times."""
        for _ in range(100):
            self.step()
        assert self.cycles == 300

    def step(self) -> None:
        """Something happens, agents do as they are told, and it is planned, at once and some time later."""
        seconds = self.draw.choice([1, 5, 30, 300, 1_800, 1_800])
        self.stop_told()
        self.end_by_limit(seconds)
        self.crowd.pass_time(seconds)
        often: list[Callable[[], None]] = [*[self.submit] * 18, *[self.finish] * 6, *[self.stop_told] * 4]
        happens = self.draw.choice(
            [*often, *[self.change_job] * 12, *[self.change_node] * 12, *[self.change_rules] * 3]
        )
        happens()
        self.cycle()
        self.crowd.pass_time(self.draw.choice([0, 1, 60, 1_800]))
        self.cycle()
        self.stop_told()
        self.cycle()

    # What happens

    def submit(self) -> None:
        draw = self.draw
        self.jobs += 1
        replicas, each = draw.choice(SHAPES)
        fields: dict[str, Any] = {
            "team": draw.choice(["red", "blue", "green"]),
            "cls": draw.choice([*PriorityClass, RESEARCH, PREEMPTIBLE]),
            "max_runtime_s": draw.choice([600, 7_200, 86_400]),
            "interactive": draw.random() < 0.2,
            "preemptible": draw.random() < 0.8,
            "gpu_memory_gb_min": draw.choice([0, 0, 0, 60]),
            "topology": draw.choice([Topology()] * 10 + HINTS),
        }
        if draw.random() < self.elastic:
            fields["elastic"] = Elastic(min_replicas=1, max_replicas=replicas + 2)
        for number in range(draw.choice([1, 1, 1, 2, 4])):
            self.jobs += number > 0
            self.commit(*queued(f"j{self.jobs:04}", replicas, each, **fields))

    def change_job(self) -> None:
        """An operator's word on one that waits, or a checkpoint of one that runs."""
        jobs = self.crowd.state.jobs.rows.values()
        waiting = [job for job in jobs if job.state is JobState.QUEUED]
        running = [job for job in jobs if job.state is JobState.RUNNING]
        if running and self.draw.random() < 0.5:
            self.commit(*self.saved(self.draw.choice(running)))
        elif waiting:
            self.commit(*self.told(self.draw.choice(waiting)))

    def told(self, job: Job) -> list[Event]:
        cancelled = JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=EndReason.CANCELLED)
        choices: list[list[Event]] = [
            [JobReleased(job_id=job.id) if job.held else JobHeld(job_id=job.id)],
            [JobPriorityChanged(job_id=job.id, priority_class=self.draw.choice(list(PriorityClass)))],
            [JobCancelRequested(job_id=job.id), cancelled],
        ]
        return self.draw.choice(choices)

    def saved(self, job: Job) -> list[Event]:
        attempt = self.crowd.state.attempts[job.id, job.attempt]
        index = next((index for rank, (index, _) in enumerate(attempt.ranks) if attempt.live(rank)), None)
        if index is None:
            return []
        report = self.crowd.state.nodes[index].last_report + 1
        sequence = 1 if job.checkpoint is None else job.checkpoint.sequence + 1
        of = {"job_id": job.id, "attempt": attempt.number, "node": index, "report": report, "sequence": sequence}
        return [CheckpointRecorded(**of, uri="u", size_bytes=1, step=1)]  # type: ignore[arg-type]

    def change_node(self) -> None:
        node: Node = self.draw.choice(list(self.crowd.state.nodes.rows.values()))
        index, broken = node.index, node.broken
        fault = GpuFaulted(node=index, mask=GpuMask(1 << self.draw.randrange(4)), code="x")
        suspected = NodeSuspected(node=index, silent_s=30)
        choices: list[Event] = [
            NodeDrained(node=index, reason="x") if node.drained is None else NodeUndrained(node=index),
            suspected if node.state is NodeState.UP else NodeReturned(node=index),
            GpuRepaired(node=index, mask=GpuMask(broken)) if broken else fault,
        ]
        self.commit(self.draw.choice(choices))

    def change_rules(self) -> None:
        if self.draw.random() < 0.3:
            self.commit(self.other_policy())
        else:
            self.commit(self.other_quota())

    def other_quota(self) -> Event:
        team: Quota = self.draw.choice(list(self.crowd.state.quotas.rows.values()))
        guaranteed, borrow_limit = self.draw.choice([0, 4, 8, 12, 16]), self.draw.choice([0, 8, 100])
        figures: dict[str, Any] = {"guaranteed": guaranteed, "borrow_limit": borrow_limit, "reason": ""}
        return QuotaChanged(team=team.team, gpu_type=team.gpu_type, **figures)

    def other_policy(self) -> Event:
        pools = [pool for pool in (FAST, LARGE) if self.draw.random() < 0.4]
        whole = Policy(
            pools=tuple(pools),
            spare_gang_gpus_min=self.draw.choice([8, 16, 512]),
            spare_nodes_percent=self.draw.choice([1, 50]),
            borrow_runtime_max_s=self.draw.choice([0, 0, 7_200]),
            failed_tries_max=self.draw.choice([5, 2_000]),
        )
        version = self.crowd.state.meta.policy_version + 1
        return PolicyChanged(version=version, policy=whole.model_dump(mode="json"))

    # What follows

    def gone(self, key: AttemptKey, end: TaskEnd, code: int) -> None:
        """All of its ranks that are there still."""

        def decide(draft: Draft) -> None:
            for rank in range(len(draft.state.attempts[key].ranks)):
                if draft.state.attempts[key].live(rank):
                    draft.add(self.rank_gone(draft, key, rank, end, code))
            settle(draft, key)

        self.decide(decide)

    def rank_gone(self, draft: Draft, key: AttemptKey, rank: int, *how: Any) -> Event:
        index, (end, code) = draft.state.attempts[key].ranks[rank][0], how
        report = draft.state.nodes[index].last_report + 1
        of = {"job_id": key[0], "attempt": key[1], "rank": rank, "node": index, "report": report}
        return TaskEnded(**of, end=end, exit_code=code)  # type: ignore[arg-type]

    def stop_told(self) -> None:
        """Attempts that end, and ranks that others go on without."""
        History.stop_told(self)
        for key, row in sorted(self.crowd.state.attempts.rows.items()):
            for rank in row.stopping:
                if row.live(rank):
                    self.decide(lambda draft, key=key, rank=rank: self._rank_stops(draft, key, rank))

    def _rank_stops(self, draft: Draft, key: AttemptKey, rank: int) -> None:
        draft.add(self.rank_gone(draft, key, rank, TaskEnd.STOPPED, 143))

    def look(self, events: list[Event]) -> None:
        """Who displaces whom is looked at elsewhere."""

    def cycle(self) -> None:
        """The same plan, whole, from both; and all of it holds."""
        self.cycles += 1
        now = Instant(self.crowd.at + 1000)
        plan = self.planner.plan(now)
        assert plan == Planner(self.crowd.state).plan(now), f"cycle {self.cycles}"
        assert not plan.poisoned
        self.apply(plan, now)

    def apply(self, plan: Plan, now: Instant) -> None:
        """All of it holds, and what it starts runs at once."""

        def decide(draft: Draft) -> None:
            assert apply(draft, plan) == []
            self.start_all(draft, draft.events)

        self.decide(decide)

    def start_all(self, draft: Draft, events: Iterable[Event]) -> None:
        for event in list(events):
            if isinstance(event, GangAllocated):
                self.start(draft, event)
            elif isinstance(event, GangResized):
                self.start_grown(draft, event)

    def start_grown(self, draft: Draft, event: GangResized) -> None:
        key = (event.job_id, event.attempt)
        first = len(draft.state.attempts[key].ranks) - len(event.grown)
        for rank, (index, _) in enumerate(event.grown, first):
            report = draft.state.nodes[index].last_report + 1
            draft.add(TaskStarted(job_id=key[0], attempt=key[1], rank=rank, node=index, report=report))


@pytest.mark.parametrize("seed", [*range(5), 26])
def test_a_planner_that_follows_plans_like_one_that_is_made_now(seed: int) -> None:
    """Whatever happens: what it remembers of failures, and every index, rests on nothing that it does not follow."""
    history = Wild(Random(seed))
    history.live()
    assert len(history.crowd.state.jobs) < history.jobs, "nothing ended"
