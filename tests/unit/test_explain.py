"""Why a job waits: each factor with its figures, all of them at once, and nothing else (C-60)."""

from __future__ import annotations

from typing import Any

import pytest

from events.ids import Instant
from events.job import JobState
from scheduler.planning.explain import RELEASED_BY, Factor, Reason, explain
from tests.builders import job_id, quota
from tests.scenario import Scenario, Stimulus
from tests.unit.explain_cases import CASES as OTHER_CASES
from tests.unit.explain_cases import Case, failing, following, gang, on
from tests.unit.explain_quota_cases import QUOTA_CASES
from tests.unit.steps import after, all_started, array, ended, hold, plan, policy, release, runs, submit

CASES = [*QUOTA_CASES, *OTHER_CASES]


def told(steps: tuple[Stimulus, ...], name: str = "a") -> tuple[Scenario, tuple[Reason, ...]]:
    scenario = Scenario().given(*steps)
    assert scenario.job_state(name) == JobState.QUEUED
    return scenario, explain(scenario.planner, job_id(name), Instant(scenario.at))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.factor}-{case.name}")
def test_each_factor_with_its_figures(case: Case) -> None:
    """It is told, with these figures; and no factor is told that is none."""
    scenario, reasons = told(case.steps)
    factors = tuple(dict.fromkeys(reason.factor for reason in reasons))
    assert factors == (case.all or (case.factor,))
    figures: dict[str, Any] = next(reason.figures for reason in reasons if reason.factor is case.factor)
    spans = {
        name: (at - scenario.at) // 1000 for name, at in figures.items() if name.endswith("_at") and isinstance(at, int)
    }
    named = {"until_at": "left_s", "expected_at": "expected_in_s", "ends_at": "ends_in_s"}
    shown = {**figures, **{named[name]: span + 1 for name, span in spans.items() if name in named}}
    assert {name: shown[name] for name in case.figures} == case.figures


@pytest.mark.parametrize("factor", Factor)
def test_every_factor_has_three_cases(factor: Factor) -> None:
    """So that none is there for show."""
    assert sum(case.factor is factor for case in CASES) >= 3


RELEASES: list[tuple[str, tuple[Stimulus, ...], tuple[Stimulus, ...]]] = [
    ("held", on("b0: [8]", submit("a"), hold("a")), (release("a"),)),
    ("dependencies", on("b0: [8]", runs("x"), submit("a", depends_on=following("x"))), (ended("x"),)),
    ("throttled", on("b0: [8]", submit("a", array=array(0, 9, 1)), plan(), all_started("a_0")), (ended("a_0"),)),
    ("backoff", on("b0: [8]", *failing(2)), (after(40),)),
    ("over_limit", on("b0: [8]", submit("a"), quota(borrow_limit=0)), (quota(borrow_limit=1),)),
    ("capacity", on("b0: [8]", runs("x", gpus_per_replica=8), submit("a")), (ended("x"),)),
    ("order", on("b0: [8] [x.......]", policy(preset="fifo"), submit("b", **gang(2)), submit("a")), (policy(),)),
]


@pytest.mark.parametrize(("factor", "before", "release"), RELEASES, ids=[name for name, *_ in RELEASES])
def test_what_releases_a_factor_ends_it(
    factor: str, before: tuple[Stimulus, ...], release: tuple[Stimulus, ...]
) -> None:
    """By an event that is named for it, or by time alone where none is; then the job starts with the next cycle."""
    assert [reason.factor for reason in told(before)[1]] == [factor]
    scenario = Scenario().given(*before).when(*release)
    named = RELEASED_BY[Factor(factor)]
    assert any(isinstance(event, named) for event in scenario.events) == bool(named)
    assert explain(scenario.planner, job_id("a"), Instant(scenario.at + 1000)) == (Reason(Factor.NEXT),)


def test_a_job_that_does_not_wait_has_no_factors() -> None:
    """Running, ended, or never heard of."""
    scenario = Scenario().given(*on("b0: [8]", runs("a"), runs("b"), ended("b")))
    for name in ("a", "b", "c"):
        assert explain(scenario.planner, job_id(name), Instant(scenario.at)) == ()


def test_every_factor_says_what_releases_it() -> None:
    """Only a backoff, and nothing at all, go by the clock."""
    assert set(RELEASED_BY) == set(Factor)
    assert {factor for factor, events in RELEASED_BY.items() if not events} == {Factor.BACKOFF, Factor.NEXT}


def test_asking_leaves_no_trace() -> None:
    """The planner plans the same, and answers the same, after it was asked for every case."""
    for case in CASES:
        scenario = Scenario().given(*case.steps)
        now = Instant(scenario.at + 1000)
        before = scenario.planner.plan(now)
        first = explain(scenario.planner, job_id("a"), now)
        assert explain(scenario.planner, job_id("a"), now) == first
        assert scenario.planner.plan(now) == before
