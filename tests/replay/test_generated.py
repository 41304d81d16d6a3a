"""The generated day has the figures that it says it has (R-100), and is a busy one."""

from __future__ import annotations

from collections import Counter

import pytest

from events.job import PriorityClass
from events.preemption import PreemptionRule
from replay.engine import run
from replay.generated import DAY_S, Fleet, day
from replay.scenario import Arrival, Scenario


@pytest.fixture(scope="module")
def whole() -> Scenario:
    """A day on the whole fleet."""
    return day(1)


def gpu_s(arrival: Arrival) -> int:
    return arrival.spec.gpus * arrival.work.run_s


def test_the_fleet(whole: Scenario) -> None:
    """24,000 GPUs on 3,000 nodes in 94 blocks, all of them guaranteed to 50 teams."""
    assert (whole.gpus, len(whole.nodes), len({node.block for node in whole.nodes})) == (24_000, 3_000, 94)
    assert len(whole.quotas) == 50
    assert 23_900 < sum(quota.guaranteed for quota in whole.quotas) <= 24_000


def test_sizes(whole: Scenario) -> None:
    """Of 40,000 jobs nine in ten want 8 GPUs or fewer; a few dozen want 1,024 to 8,192, and hold most GPU-hours."""
    arrivals = whole.arrivals
    small = sum(arrival.spec.gpus <= 8 for arrival in arrivals)
    giants = [arrival for arrival in arrivals if arrival.spec.gpus >= 1_024]
    assert len(arrivals) == 40_000
    assert 0.88 < small / 40_000 < 0.92
    assert 24 <= len(giants) <= 60
    assert max(arrival.spec.gpus for arrival in giants) == 8_192
    assert sum(map(gpu_s, giants)) > 0.5 * sum(map(gpu_s, arrivals))


def test_run_times(whole: Scenario) -> None:
    """Many run for two minutes; some for days, three at most; and all ask for more than they need."""
    times = [arrival.work.run_s for arrival in whole.arrivals]
    assert (min(times), max(times)) == (120, 3 * DAY_S)
    assert sum(run_s == 120 for run_s in times) > 0.25 * len(times)
    assert sum(run_s > DAY_S for run_s in times) > 50
    assert all((arrival.spec.max_runtime_s or 0) > arrival.work.run_s for arrival in whole.arrivals)


def test_what_is_asked_for_in_the_day(whole: Scenario) -> None:
    """Were all started at once, they would keep 95% of the fleet busy until midnight."""
    left = [(whole.start_at + DAY_S * 1000 - arrival.at) // 1000 for arrival in whole.arrivals]
    asked = [min(left_s, arrival.work.run_s) for left_s, arrival in zip(left, whole.arrivals, strict=True)]
    gpus = [arrival.spec.gpus for arrival in whole.arrivals]
    wanted = sum(map(int.__mul__, gpus, asked))
    assert wanted == pytest.approx(0.95 * whole.gpus * DAY_S, rel=0.01)


def test_who_comes_when(whole: Scenario) -> None:
    """50 teams and four classes; sweeps of 50 a second; every hour has its jobs; some nodes fail."""
    seconds = Counter(arrival.at for arrival in whole.arrivals if arrival.at > whole.start_at)
    hours = Counter((arrival.at - whole.start_at) // 3_600_000 for arrival in whole.arrivals)
    assert len({arrival.spec.team for arrival in whole.arrivals}) == 50
    assert {arrival.spec.priority_class for arrival in whole.arrivals} == set(PriorityClass)
    assert sum(count >= 50 for count in seconds.values()) >= 50
    assert min(hours[hour] for hour in range(24)) > 500
    assert len(whole.silences) == 15


def test_it_is_a_busy_day() -> None:
    """On a small fleet too some wait, some borrow, and some are stopped: for owners, and for higher classes."""
    outcome = run(day(3, Fleet(nodes=96, nodes_in_block=16), jobs=1_500, giants=12, teams=12))
    rules = Counter(displaced.rule for displaced in outcome.displacements)
    assert sum(row.borrowed for row in outcome.stretches) > 100
    assert rules[PreemptionRule.RECLAIM] > 10
    assert rules[PreemptionRule.PRIORITY] > 10
    assert max(sample.waiting_jobs for sample in outcome.samples) > 20
