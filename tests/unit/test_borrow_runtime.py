"""How long a job may run that starts borrowing (R-12): `borrow_runtime_max_s`, off by default."""

from __future__ import annotations

from typing import Any

import pytest

from commands.displace import borrows_too_long, starts_only_covered
from commands.policy import DEFAULT, Policy
from commands.refusal import RefusalCode
from events.gang import GangResized
from events.ids import Instant
from events.job import Elastic, JobRejected, JobState, PriorityClass
from scheduler.planning.explain import Factor, explain
from scheduler.planning.queue import limit_class_s
from tests.builders import BLUE, RED, job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    after,
    all_started,
    checkpointed,
    cluster,
    ended,
    plan,
    policy,
    requeue,
    runs,
    stopped,
    submit,
)

HOUR_S = 3600
BATCH = PriorityClass.PROD_BATCH
NODE: dict[str, Any] = {"gpus_per_replica": 8}
RANGE: dict[str, Any] = {"elastic": Elastic(min_replicas=1, max_replicas=3), "replicas": 1, **NODE}


@pytest.fixture
def ready() -> Scenario:
    """Three nodes; red is guaranteed one, and may borrow the others for an hour."""
    return Scenario().given(cluster("b0: [8] [8] [8]"), quota(RED, 8, 16), policy(borrow_runtime_max_s=HOUR_S))


def state_of(scenario: Scenario, *names: str) -> list[str]:
    return [scenario.job_state(name) for name in names]


def factors(scenario: Scenario, name: str) -> list[Factor]:
    return [reason.factor for reason in explain(scenario.planner, job_id(name), Instant(scenario.at + 1000))]


@pytest.mark.parametrize(
    ("longest_s", "left_s", "too_long"),
    [
        *((0, None, False), (0, 10**9, False)),
        *((60, 59, False), (60, 60, False), (60, 61, True), (60, None, True)),
    ],
)
def test_the_rule(longest_s: int, left_s: int | None, too_long: bool) -> None:
    """0 is off; a job without a limit is never over soon enough."""
    assert borrows_too_long(Policy(borrow_runtime_max_s=longest_s), left_s) is too_long


def test_it_is_off_by_default(ready: Scenario) -> None:
    """However long it runs, it borrows."""
    ready.given(policy(), runs("x", **NODE), submit("a", **NODE, max_runtime_s=30 * 86_400), plan())
    assert state_of(ready, "a") == ["STARTING"]
    assert not starts_only_covered(DEFAULT, ready.job("a"))


class TestStarts:
    def test_a_second_too_long(self, ready: Scenario) -> None:
        """Jobs whose limits count as one class for backfill are told apart here."""
        assert limit_class_s(HOUR_S) == limit_class_s(HOUR_S + 1)
        ready.given(runs("x", **NODE))
        ready.given(submit("b", **NODE, max_runtime_s=HOUR_S + 1), submit("a", **NODE, max_runtime_s=HOUR_S), plan())
        assert state_of(ready, "a", "b") == ["STARTING", "QUEUED"]
        for _ in range(5):
            ready.when(plan()).then_nothing()

    def test_inside_the_guarantee_no_limit_is_too_long(self, ready: Scenario) -> None:
        """Only who borrows is asked; and as soon as there is room inside, it starts."""
        ready.given(submit("x", **NODE, max_runtime_s=9 * HOUR_S), plan(), all_started("x"))
        ready.given(submit("a", **NODE, max_runtime_s=9 * HOUR_S), plan())
        assert state_of(ready, "x", "a") == ["RUNNING", "QUEUED"]
        assert factors(ready, "a") == [Factor.BORROWS_TOO_LONG]
        ready.given(ended("x"), plan())
        assert state_of(ready, "a") == ["STARTING"]

    def test_what_is_left_of_the_limit_counts(self, ready: Scenario) -> None:
        """After two hours, saved in a checkpoint, the third may be borrowed; lost work makes nobody's rest shorter."""
        ready.given(policy(), runs("x", **NODE), runs("a", "b", **NODE, max_runtime_s=3 * HOUR_S))
        ready.given(after(2 * HOUR_S), checkpointed("a", 1), policy(borrow_runtime_max_s=HOUR_S))
        ready.given(requeue("a"), requeue("b"), stopped("a"), stopped("b"), plan())
        assert state_of(ready, "a", "b") == ["STARTING", "QUEUED"]

    def test_its_own_lower_classes_give_way(self, ready: Scenario) -> None:
        """As for any job that starts only covered: so much of them as the guarantee is short of."""
        ready.given(runs("x", "y", **NODE, max_runtime_s=HOUR_S))
        ready.given(submit("a", **NODE, max_runtime_s=9 * HOUR_S, priority_class=BATCH), plan())
        covered = [name for name in ("x", "y") if ready.attempt(name).ending == "preempted"]
        assert len(covered) == 1
        ready.given(stopped(covered[0]), plan())
        assert state_of(ready, "a") == ["STARTING"]

    def test_no_reservation_for_what_may_not_start(self, ready: Scenario) -> None:
        """Nodes are not held for a job that only its team's guarantee keeps back."""
        ready.given(runs("x", "y", "z", **NODE, max_runtime_s=HOUR_S), submit("a", **NODE, max_runtime_s=9 * HOUR_S))
        ready.given(plan())
        assert not ready.state.reservations.rows

    def test_a_change_holds_from_the_next_cycle_on(self, ready: Scenario) -> None:
        """Both ways."""
        ready.given(runs("x", **NODE), submit("a", **NODE, max_runtime_s=2 * HOUR_S), plan())
        assert state_of(ready, "a") == ["QUEUED"]
        ready.given(policy(borrow_runtime_max_s=2 * HOUR_S), plan())
        assert state_of(ready, "a") == ["STARTING"]


class TestElastic:
    """Sizes (R-44): 1 to 3 replicas of a node."""

    @pytest.mark.parametrize(("limit_s", "replicas"), [(HOUR_S, 3), (9 * HOUR_S, 1)])
    def test_growth_is_borrowing_that_begins(self, ready: Scenario, limit_s: int, replicas: int) -> None:
        """It starts inside the guarantee, whatever its limit; it grows beyond only where it is soon over."""
        ready.given(submit("a", **RANGE, max_runtime_s=limit_s), plan(), all_started("a"), plan())
        assert len(ready.attempt("a").ranks) == replicas
        for _ in range(5):
            ready.when(plan()).then_nothing()

    def test_it_grows_when_the_rest_is_short_enough(self, ready: Scenario) -> None:
        """What is left counts from now, not from the grant."""
        ready.given(submit("a", **RANGE, max_runtime_s=9 * HOUR_S), plan(), all_started("a"))
        ready.given(after(8 * HOUR_S)).when(plan()).then(GangResized)
        assert len(ready.attempt("a").ranks) == 3

    def test_inside_the_guarantee_it_grows_as_ever(self, ready: Scenario) -> None:
        """Up to the guarantee, and no further."""
        ready.given(submit("a", **RANGE, max_runtime_s=9 * HOUR_S), plan(), all_started("a"))
        ready.given(quota(RED, 16, 8)).when(plan()).then(GangResized)
        assert len(ready.attempt("a").ranks) == 2

    def test_one_that_borrows_already_does_not_grow(self, ready: Scenario) -> None:
        """All of it would be borrowed, whatever is left of the guarantee."""
        ready.given(submit("a", **RANGE, max_runtime_s=9 * HOUR_S), plan(), all_started("a"), quota(RED, 4, 20))
        assert state_of(ready, "a") == ["RUNNING"]
        ready.when(plan()).then_nothing()


def test_a_quota_that_shrinks_stops_nobody(ready: Scenario) -> None:
    """The rule is about starts: what runs on and borrows now is stopped for an owner, and for nobody else."""
    ready.given(quota(BLUE, 0, 8), runs("a", **NODE, max_runtime_s=9 * HOUR_S), quota(RED, 0, 24))
    for _ in range(5):
        ready.when(plan()).then_nothing()
    assert state_of(ready, "a") == ["RUNNING"]
    ready.given(quota(BLUE, 24, 0), submit("b", team=BLUE, replicas=3, **NODE), plan())
    assert ready.attempt("a").ending == "preempted"


class TestSubmit:
    """What the rule will never let start is refused at once (C-73)."""

    def test_longer_than_lent_and_larger_than_the_guarantee(self, ready: Scenario) -> None:
        """The limit to lower, or the GPUs, by the refusal's figures."""
        ready.when(submit("a", replicas=2, **NODE, max_runtime_s=HOUR_S + 1)).then(JobRejected)
        told = ready.events[0]
        assert isinstance(told, JobRejected)
        assert (told.code, told.field) == (RefusalCode.BORROWS_TOO_LONG, "max_runtime")
        assert (told.value, told.limit) == ("3601s", "3600s")

    @pytest.mark.parametrize(("replicas", "limit_s"), [(1, 9 * HOUR_S), (2, HOUR_S)])
    def test_what_may_start_one_day_is_taken(self, ready: Scenario, replicas: int, limit_s: int) -> None:
        """Inside the guarantee, or soon over."""
        ready.given(submit("a", replicas=replicas, **NODE, max_runtime_s=limit_s))
        assert state_of(ready, "a") == [JobState.QUEUED]
