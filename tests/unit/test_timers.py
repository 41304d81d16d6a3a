"""When attempts are looked at again."""

import pytest

from commands.entities import AttemptKey
from commands.state import Change
from events.ids import Instant
from scheduler.timers import Timers
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import cluster, ended, plan, policy, started, submit

A: AttemptKey = (job_id("a"), 1)


@pytest.fixture
def granted() -> Scenario:
    """A job that was granted, with a limit of an hour."""
    return Scenario().given(cluster("b0: [8]"), quota(), submit("a", max_runtime_s=3600), plan())


def test_a_start_time_out_comes_until_it_is_dealt_with(granted: Scenario) -> None:
    """Not before its time, and then again and again."""
    timers, at = Timers(granted.state), granted.at
    assert timers.due(Instant(at + 599_000)) == []
    assert timers.due(Instant(at + 600_000)) == [A]
    assert timers.due(Instant(at + 602_000)) == [A]


def test_the_limit_comes_after_the_start(granted: Scenario) -> None:
    """A start time-out that was passed by does not take the limit with it; the limit comes its grace early."""
    timers, at = Timers(granted.state), granted.at
    granted.given(started("a"))
    assert timers.due(Instant(at + 600_000)) == []
    assert timers.due(Instant(at + 3_539_000)) == []
    assert timers.due(Instant(at + 3_540_000)) == [A]


def test_an_entry_that_came_too_early_is_kept(granted: Scenario) -> None:
    """A time that moved later while nobody told the timers is not forgotten."""
    timers, at = Timers(granted.state), granted.at
    granted.given(policy(start_timeout_s=1200))
    assert timers.due(Instant(at + 700_000)) == []
    assert timers.due(Instant(at + 1_200_000)) == [A]


def test_another_policy_moves_every_time(granted: Scenario) -> None:
    """Also to earlier."""
    timers, at = Timers(granted.state), granted.at
    granted.given(policy(start_timeout_s=60))
    timers.follow({"policies": [Change("policies", "", None, granted.state.policy)]})
    assert timers.due(Instant(at + 60_000)) == [A]


def test_an_attempt_that_ended_is_gone(granted: Scenario) -> None:
    """It never comes again."""
    timers, at = Timers(granted.state), granted.at
    granted.given(started("a"), ended("a"))
    assert timers.due(Instant(at + 10_000_000)) == []
