"""The plain presets over random histories: what they start is what a walk of every job by the book would start, a
planner that follows the log plans like one made now (C-70), and a plan that says that it is the last one is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft
from commands.entities import Job
from commands.plan import Placement, Plan
from commands.policy import Policy, Preset
from commands.shape import charged_gpus
from commands.state import State
from events.envelope import Event
from events.ids import Instant
from events.job import ArrayRange, Elastic, PriorityClass, Topology
from events.policy import PolicyChanged
from scheduler.planning.fit import find
from scheduler.planning.plan import Planner
from scheduler.planning.queue import ELEMENT_RANKS
from tests.crowds import queued
from tests.properties.test_follows import HINTS, SHAPES, Wild

PLAIN = [Preset.FIFO, Preset.SKIP, Preset.EASY]
NEVER = 1 << 60


class Book:
    """One pass over the queue, job by job, that keeps nothing. On the indices of a planner that was just made."""

    def __init__(self, state: State, now: Instant, ranks_max: int) -> None:
        self.ranks_left = ranks_max
        self.planner, self.state, self.now = Planner(state), state, now
        self.planner.queue.begin(now)
        self.preset = state.policy.preset
        self.started: list[Placement] = []
        self.behind = 0
        """Starts of jobs that came after one which waits on."""
        self.over: set[object] = set()
        running, ends_at = state.attempts.rows.values(), self.planner.forecast.ends_at
        self.ends: list[tuple[int, int]] = [(ends_at(row, now), row.charged) for row in running if row.charged]

    def run(self) -> list[Placement]:
        start_at, extra, blocked = NEVER, 0, False
        for job in self.jobs():
            gpus, past = self.gpus(job), self.end(job) > start_at
            if past and gpus > extra:
                continue
            started = self.start(job)
            if started:
                extra -= gpus if past else 0
                self.behind += blocked
            elif started is None and not blocked:
                if self.preset is Preset.FIFO:
                    break
                blocked = True
                if self.preset is Preset.EASY:
                    start_at, extra = self.hole(gpus)
        return self.started

    def jobs(self) -> Iterator[Job]:
        """In order of submission, an array once for each of its elements."""
        queue = self.planner.queue
        waiting = [self.state.jobs[job_id] for line in queue.lines.values() for _, job_id in line.entries]
        for job in sorted(waiting, key=lambda job: (job.submit_seq, job.id)):
            for _ in range(job.grants_max):
                if self.ranks_left > 0 and queue.shape(job.id) not in self.over:
                    yield job

    def start(self, job: Job) -> bool | None:
        """None: it does not fit. False: its team's limit lets it not in, nor any of its shape after it."""
        planner, mark = self.planner, self.planner.capacity.mark()
        ranks = find(self.state, planner.capacity, job.spec)
        if ranks is None:
            return None
        gpus, share = sum(mask.bit_count() for _, mask in ranks), (job.spec.team, job.spec.gpu_type)
        if gpus > planner.shares.standing(share).room:
            planner.capacity.undo(mark)
            self.over.add(planner.queue.shape(job.id))
            return False
        planner.shares.grant(share, gpus, False)
        self.ends.append((self.end(job), gpus))
        self.ranks_left -= len(ranks) + (ELEMENT_RANKS if job.elements is not None else 0)
        self.started.append(Placement(job_id=job.id, ranks=ranks))
        return True

    def hole(self, wanted: int) -> tuple[int, int]:
        free = sum(pool.free_gpus for pool in self.planner.capacity.pools.values())
        for end in sorted({end for end, _ in self.ends}):
            there = free + sum(gpus for at, gpus in self.ends if at <= end)
            if there >= wanted:
                return end, there - wanted
        return NEVER, 0

    def end(self, job: Job) -> int:
        left_s = self.state.policy.unlimited_horizon_s if job.left_s is None else job.left_s
        return self.now + left_s * 1000

    def gpus(self, job: Job) -> int:
        each = job.spec.gpus_per_replica
        holding = [size for _, size, _ in self.state.pools.rows if size >= each]
        return charged_gpus(job.spec, min(holding)) if holding else job.spec.gpus


@dataclass(slots=True)
class Plainly(Wild):
    """A preset is in force, and now and then another. Jobs without limits and arrays come, too."""

    presets: list[Preset] = field(default_factory=lambda: [*PLAIN, Preset.DEFAULT])
    turns: float = 0.0
    """How often the policy changes, beside what changes it anyway."""
    said: int = 0
    more: int = 0
    behind: int = 0

    def __post_init__(self) -> None:
        Wild.__post_init__(self)
        for _ in range(6):
            self.commit(self.other_quota())

    def other_policy(self) -> Event:
        whole = Policy(
            preset=self.draw.choice(self.presets), unlimited_horizon_s=self.draw.choice([3_600, 86_400, 604_800])
        )
        version = self.crowd.state.meta.policy_version + 1
        return PolicyChanged(version=version, policy=whole.model_dump(mode="json"))

    def other_quota(self) -> Event:
        """Mostly as much as anybody may want: else few jobs wait for the head."""
        changed: Any = Wild.other_quota(self)
        return changed if self.draw.random() < 0.2 else replace(changed, borrow_limit=100)

    def submit(self) -> None:
        """One, or some of two kinds that come together."""
        kinds = [self.kind(), self.kind()]
        for _ in range(self.draw.choice([1, 1, 3, 9])):
            self.jobs += 1
            kind = self.draw.choice(kinds)
            self.commit(*queued(f"j{self.jobs:04}", kind["replicas"], kind["each"], **kind["fields"]))

    def kind(self) -> dict[str, Any]:
        draw, (replicas, each) = self.draw, self.draw.choice(SHAPES)
        array = ArrayRange(first=0, last=draw.choice([1, 4]), throttle=draw.choice([None, 1, 2]))
        fields: dict[str, Any] = {
            "team": draw.choice(["red", "blue", "green"]),
            "cls": draw.choice([*PriorityClass]),
            "max_runtime_s": draw.choice([None, 60, 601, 640, 3_600, 7_000, 7_200, 86_400]),
            "gpu_memory_gb_min": draw.choice([0, 0, 0, 60]),
            "topology": draw.choice([Topology()] * 10 + HINTS),
        }
        if draw.random() < 0.2:
            fields["array"] = array
        elif draw.random() < 0.1:
            fields["elastic"] = Elastic(min_replicas=1, max_replicas=replicas + 2)
        return {"replicas": replicas, "each": each, "fields": fields}

    def change_job(self) -> None:
        if self.draw.random() < self.turns:
            self.commit(self.other_policy())
        else:
            Wild.change_job(self)

    def saved(self, job: Job) -> list[Event]:
        """An array itself saves nothing."""
        return Wild.saved(self, job) if job.elements is None else []

    def end_by_limit(self, seconds: int) -> None:
        """Some agents are late."""
        if self.draw.random() < 0.7:
            Wild.end_by_limit(self, seconds)

    def cycle(self) -> None:
        """The same plan from both planners, and from the book."""
        self.cycles += 1
        now, state, ranks_max = Instant(self.crowd.at + 1000), self.crowd.state, self.draw.choice([1, 6, 4_000, 4_000])
        plan = self.planner.plan(now, ranks_max)
        assert plan == Planner(state).plan(now, ranks_max), f"cycle {self.cycles}"
        if state.policy.preset in PLAIN:
            book = Book(state, now, ranks_max)
            assert list(plan.placements) == book.run(), f"cycle {self.cycles}"
            self.behind += book.behind
        self.apply(plan, now)

    def apply(self, plan: Plan, now: Instant) -> None:
        """All of it holds, and where it says that it is the last, it is; then what it starts runs."""
        events: list[Event] = []

        def decide(draft: Draft) -> None:
            assert apply(draft, plan) == []
            events.extend(draft.events)

        plain = self.crowd.state.policy.preset in PLAIN
        self.decide(decide)
        after = self.planner.plan(now)
        if plain and plan.last:
            assert after.empty(), f"cycle {self.cycles} was to be the last"
        self.said += plain and plan.last and not plan.empty()
        self.more += plain and not plan.empty() and not after.empty()
        self.decide(lambda draft: self.start_all(draft, events))


@pytest.mark.parametrize("preset", PLAIN)
def test_a_preset_starts_what_the_book_says(preset: Preset) -> None:
    """Whatever happens, on nodes of several sizes, with limits of teams, hints, arrays and jobs without an end."""
    said = more = behind = 0
    for seed in range(12):
        history = Plainly(Random(seed), presets=[preset])
        history.live()
        said, more, behind = said + history.said, more + history.more, behind + history.behind
    assert said > 20
    assert more > 3
    assert (behind > 30) is (preset is not Preset.FIFO)


def test_presets_take_turns() -> None:
    """What one of them keeps of the queue and of ends is right after the policy's own planner had its time, too."""
    for seed in range(100, 106):
        history = Plainly(Random(seed), turns=0.5)
        history.live()
        assert history.crowd.state.meta.policy_version > 5
