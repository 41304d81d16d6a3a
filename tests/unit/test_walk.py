"""What a cycle costs, and what it forgets: failed tries, their shares, and memories that change nothing (R-24, C-5)."""

from __future__ import annotations

from typing import Any

import pytest

from events.ids import Instant, JobId, TeamId
from events.job import JobSpec, PriorityClass
from scheduler.planning import fit
from scheduler.planning.capacity import Capacity
from scheduler.planning.plan import Planner
from scheduler.planning.walk import allowances
from tests.builders import BLUE, L40S, job_id, quota
from tests.crowds import HOUR_MS, T0, Crowd, queued
from tests.scenario import Scenario
from tests.unit.steps import after, all_started, cancel, cluster, ended, plan, policy, quietly, runs, stopped, submit

FULL = 0xFF


def crowd(nodes: int, **guarantees: int) -> Crowd:
    """A fleet of nodes of eight, full of one team's prod-serving but for the last node, and teams."""
    found = Crowd()
    found.nodes(*[8] * nodes)
    found.quota("owner", 8 * nodes)
    for team, guaranteed in guarantees.items():
        found.quota(team, guaranteed)
    for index in range(nodes - 1):
        found.run(f"full{index}", (index, FULL), team="owner", cls=PriorityClass.PROD_SERVING)
    return found


def test_ten_thousand_that_cannot_run_and_one_that_can() -> None:
    """It starts in the same cycle, and the others cost one try (C-5)."""
    found = crowd(4, red=0)
    found.commit(*[event for number in range(10_000) for event in queued(f"big{number:05}", 3, 8)])
    found.commit(*queued("small", 1, 1))
    made = Planner(found.state).plan(Instant(found.at))
    assert ([placement.job_id for placement in made.placements], made.tries) == (["small"], 1)


def test_ten_thousand_of_fifty_shapes_cost_like_fifty() -> None:
    """One try for each shape, in this cycle and in each that follows (C-5)."""
    found = crowd(4, red=0)
    asked = [(f"j{number:05}", 2 + number % 50) for number in range(10_000)]
    found.commit(*[event for name, nodes in asked for event in queued(name, nodes, 8)])
    planner = Planner(found.state)
    assert [planner.plan(Instant(found.at + 1000 * cycle)).tries for cycle in range(3)] == [50] * 3


@pytest.mark.parametrize(
    ("tries_max", "shapes", "expected"),
    [
        (10, {"a": 3, "b": 3}, {"a": 4, "b": 4}),
        (10, {"a": 100, "b": 100}, {"a": 5, "b": 5}),
        (10, {"a": 100, "b": 1}, {"a": 8, "b": 2}),
        (10, {"a": 100, "b": 100, "c": 1}, {"a": 4, "b": 4, "c": 2}),
        (2, {"a": 9, "b": 9, "c": 9}, {"a": 1, "b": 1, "c": 1}),
        (10, {}, {}),
    ],
)
def test_tries_are_shared_out(tries_max: int, shapes: dict[TeamId, int], expected: dict[TeamId, int]) -> None:
    """Evenly; what one team has no use for is the others', and each has one."""
    assert allowances(tries_max, shapes) == expected


def test_a_team_has_no_turn_before_its_first_though_that_has_a_pledge() -> None:
    """Among teams with the same share who was submitted first goes first. Of red it is who has the deadline, after
    blue's job: until then red's other job, submitted before that, has no turn. One GPU is free that all ask for."""
    found = Crowd()
    found.nodes(2)
    for team, guaranteed in (("red", 8), ("blue", 8), ("owner", 0)):
        found.quota(team, guaranteed)
    found.run("there", (0, 0b01), team="owner")
    found.run("gone", (0, 0b10), team="owner", preemptible=False)
    found.queue("early", 1, 1, team="red")
    found.queue("other", 1, 1, team="blue")
    found.queue("late", 1, 1, team="red", deadline_at=T0 + 24 * HOUR_MS)
    found.order("late")
    found.commit(*found.gone(found.state.attempts[JobId("gone"), 1]))
    made = Planner(found.state).plan(Instant(found.at + 1000))
    assert [placement.job_id for placement in made.placements] == ["other"]


class TestAllowance:
    """No team's blocked shapes shut out the rest (R-24, C-72)."""

    def ready(self) -> Scenario:
        """Red has thirty blocked shapes, all before blue's job."""
        scenario = Scenario().given(cluster("b0: [xxxxxxx.] [8 drained]"), quota(), quota("blue"))
        scenario.given(policy(failed_tries_max=4))
        scenario.given(*[submit(f"r{number}", gpus_per_replica=2, gpu_memory_gb_min=number) for number in range(30)])
        return scenario.given(submit("b", team=BLUE))

    def test_another_team_is_served_in_the_same_cycle(self) -> None:
        """However many shapes fail before its turn."""
        scenario = self.ready().given(plan())
        assert scenario.job_state("b") == "STARTING"

    def test_a_failure_that_is_remembered_counts(self) -> None:
        """So that the outcome is that of a planner that starts afresh: four are tried, again and again."""
        scenario = self.ready()
        planner, now = Planner(scenario.state), Instant(scenario.at)
        assert [planner.plan(now).tries for _ in range(3)] == [2, 2, 2]

    def test_grants_do_not_count(self) -> None:
        """More are granted than tries may fail."""
        scenario = Scenario().given(cluster("b0: [8]"), quota(), policy(failed_tries_max=1))
        scenario.given(*[submit(f"r{number}", gpu_memory_gb_min=number) for number in range(8)])
        made = scenario.planner.plan(Instant(scenario.at))
        assert (len(made.placements), made.tries) == (8, 0)


class TestMemory:
    """What is remembered of a failure never outlives what it rested on. Every plan is compared with that of a planner
    that starts afresh (tests/scenario.py)."""

    def blocked(self) -> Scenario:
        """Red has two nodes' worth, all of it in use; one job waits and is remembered."""
        scenario = Scenario().given(cluster("b0: [8] [8 drained]"), quota(guaranteed=16), quota("blue"))
        scenario.given(runs("a", gpus_per_replica=8), submit("b", gpus_per_replica=2), plan())
        assert scenario.job_state("b") == "QUEUED"
        quietly(scenario)
        return scenario

    def test_gpus_that_come_free(self) -> None:
        """It starts with the next cycle."""
        assert self.blocked().given(ended("a"), plan()).job_state("b") == "STARTING"

    def test_a_node_that_comes_in(self) -> None:
        """Also one of another size."""
        assert self.blocked().given(cluster("b1: [4]"), plan()).job_state("b") == "STARTING"

    def test_a_limit_that_is_raised(self) -> None:
        """What was over it fits."""
        scenario = Scenario().given(cluster("b0: [8]"), quota(borrow_limit=1), runs("a"), submit("b"), plan())
        quietly(scenario)
        assert scenario.given(quota(borrow_limit=2), plan()).job_state("b") == "STARTING"

    def test_another_policy(self) -> None:
        """All is tried anew."""
        scenario = self.blocked().given(policy(grace_s_max=30))
        quietly(scenario)

    def test_a_start_that_was_planned_and_did_not_come_about(self) -> None:
        """The job for which the GPU was meant is cancelled; the one behind it, which did not fit, gets it (C-6)."""
        scenario = Scenario().given(cluster("b0: [xxxxxx..]"), quota(), submit("a", gpus_per_replica=2))
        scenario.given(submit("b", gpus_per_replica=1))
        first = scenario.planner.plan(Instant(scenario.at + 1000))
        assert [placement.job_id for placement in first.placements] == ["j_a"]
        assert scenario.given(cancel("a"), plan()).job_state("b") == "STARTING"

    def test_a_lease_that_becomes_borrowed(self) -> None:
        """A lowered guarantee makes it so: who is covered takes its place, though nothing came free."""
        scenario = Scenario().given(cluster("b0: [8] [8 drained]"), quota(guaranteed=8), quota("blue", 8))
        scenario.given(runs("a", gpus_per_replica=8), submit("b", team=BLUE, gpus_per_replica=8), plan())
        assert scenario.job_state("b") == "QUEUED"
        scenario.given(quota(guaranteed=4), plan())
        assert scenario.job_state("a") == "PREEMPTING"

    def test_time_alone(self) -> None:
        """A protection that ends lets room be made, with nothing else happening."""
        scenario = Scenario().given(cluster("b0: [8] [8 drained]"), quota(guaranteed=8), quota("blue", 8))
        low = {"gpus_per_replica": 8, "priority_class": PriorityClass.PREEMPTIBLE, "max_runtime_s": 86_400}
        scenario.given(runs("low", **low), submit("first", gpus_per_replica=8), plan(), stopped("low"), plan())
        scenario.given(all_started("first"), ended("first"), plan(), all_started("low"))
        scenario.given(submit("b", team=BLUE, gpus_per_replica=8), plan())
        assert scenario.job_state("low") == "RUNNING"
        scenario.given(after(1_790), plan())
        assert scenario.job_state("low") == "RUNNING"
        scenario.given(after(30), plan())
        assert scenario.job_state("low") == "PREEMPTING"

    def test_other_types_have_memories_of_their_own(self) -> None:
        """What comes free on one is no news on another."""
        scenario = Scenario().given(cluster("b0: [xxxxxxxx]\nb1 l40s 48: [4]"), quota(), quota(gpu_type=L40S))
        scenario.given(runs("a", gpu_type=L40S), submit("b"), plan())
        quietly(scenario.given(ended("a")))


def test_one_poisonous_job_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that it meets is its own misfortune: it is held, with what went wrong, and the others go on (C-46)."""
    real = fit.one_rank

    def fails(capacity: Capacity, spec: JobSpec, among: int | None) -> Any:
        found = real(capacity, spec, among)
        if spec.gpus_per_replica == 2:
            raise ZeroDivisionError("by a bug")
        return found

    monkeypatch.setattr("scheduler.planning.turns.one_rank", fails)
    scenario = Scenario().given(
        cluster("b0: [8]"), quota(), submit("a"), submit("bad", gpus_per_replica=2), submit("c")
    )
    now = Instant(scenario.at + 1000)
    made = scenario.planner.plan(now)
    assert made == Planner(scenario.state).plan(now)
    assert made.poisoned == ((job_id("bad"), "ZeroDivisionError: by a bug"),)
    assert [(placement.job_id, placement.ranks) for placement in made.placements] == [
        (job_id("a"), ((0, 0b1),)),
        (job_id("c"), ((0, 0b10),)),
    ]


def test_a_job_that_cannot_even_be_looked_at_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is hope for it is asked before its turn: a bug that is met there is met again in that (C-46)."""
    real = Capacity.could_hold

    def fails(capacity: Capacity, spec: JobSpec, among: int | None = None) -> bool:
        if spec.gpus_per_replica == 2:
            raise ZeroDivisionError("by a bug")
        return real(capacity, spec, among)

    monkeypatch.setattr(Capacity, "could_hold", fails)
    scenario = Scenario().given(
        cluster("b0: [8]"), quota(), submit("a"), submit("bad", replicas=2, gpus_per_replica=2), submit("c")
    )
    made = scenario.planner.plan(Instant(scenario.at + 1000))
    assert made.poisoned == ((job_id("bad"), "ZeroDivisionError: by a bug"),)
    assert [placement.job_id for placement in made.placements] == [job_id("a"), job_id("c")]
