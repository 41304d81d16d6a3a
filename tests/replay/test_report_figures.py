"""The figures of a report against brute force, and on small cases that can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.job import JobState, PriorityClass
from events.preemption import PreemptionRule
from replay.outcome import JobOutcome
from replay.report.fairness import courses, evenness, shares, shortfall, worst
from replay.report.fleet import fragmentation, over_time, until_last_submission, use, while_waiting
from replay.report.losses import Rates, losses, lost_over_time, reclaims, team_losses
from replay.report.spread import NOTHING, curve, nearest_rank, spread
from replay.report.waits import BAND_NAMES, By, band, endings, let_in, longest_waits, slowdown, wait_rows
from tests.replay.made_up import made_up_day
from tests.replay.outcomes import (
    BLUE,
    H100,
    L40S,
    RED,
    at,
    displacement,
    job,
    outcome,
    sample,
    team_sample,
    waiting,
)

VALUES = st.lists(st.integers(0, 50), min_size=1, max_size=300)
POLICIES = st.sampled_from(["fifo", "skip", "reclaim"])


@given(VALUES, st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    """Of the values that at least `percent` in a hundred are not above, it is the smallest."""
    enough = [one for one in values if 100 * sum(other <= one for other in values) >= percent * len(values)]
    assert nearest_rank(sorted(values), percent) == min(enough)


@given(VALUES)
def test_a_spread_is_of_all_values(values: list[int]) -> None:
    """Count, mean and greatest are those of the values, in any order."""
    found = spread(reversed(values))
    assert (found.count, found.max) == (len(values), max(values))
    assert found.mean == pytest.approx(float(Fraction(sum(values), len(values))))
    assert found.p50 == nearest_rank(sorted(values), 50)
    assert spread([]) == NOTHING


@given(VALUES, st.integers(2, 40))
def test_a_thinned_curve_is_exact_where_it_has_points(values: list[int], points: int) -> None:
    """Each point says how many are at most its value; the smallest and the greatest value are among them."""
    drawn = curve(values, points)
    assert all(share == sum(one <= value for one in values) / len(values) for value, share in drawn)
    assert (drawn[0][0], drawn[-1]) == (min(values), (max(values), 1.0))
    assert len(drawn) <= points
    assert drawn == sorted(set(drawn))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), POLICIES)
def test_waits_by_group_are_those_of_the_jobs_of_the_group(seed: int, policy: str) -> None:
    """Each row has just the jobs that its value names, and every job that was let in is in one row of each kind."""
    made = made_up_day(seed, policy, jobs=120)
    keys: dict[By, Callable[[JobOutcome], str]] = {
        By.ALL: lambda one: "all",
        By.CLASS: lambda one: one.priority_class,
        By.SIZE: lambda one: band(one.gpus),
        By.TEAM: lambda one: one.team,
    }
    rows = wait_rows(made)
    for row in rows:
        own = [one for one in let_in(made.jobs) if keys[row.by](one) == row.value]
        assert (row.jobs, row.unstarted) == (len(own), sum(one.first_start_at is None for one in own))
        assert row.wait == spread(one.waited_s for one in own)
        assert row.first_wait == spread(one.first_wait_s for one in own)
        assert row.slowdown == spread(slowdown(one) for one in own)
    for kind in By:
        assert sum(row.jobs for row in rows if row.by is kind) == len(let_in(made.jobs))


def test_rows_come_in_the_order_that_people_read_them() -> None:
    """Classes from high to low, sizes from small to large, teams by name."""
    rows = wait_rows(made_up_day(1, "skip"))
    assert [row.value for row in rows if row.by is By.CLASS] == list(PriorityClass)
    assert [row.value for row in rows if row.by is By.SIZE] == list(BAND_NAMES)
    teams = [row.value for row in rows if row.by is By.TEAM]
    assert teams == sorted(teams)


def test_who_never_started_counts_and_who_was_refused_does_not() -> None:
    """A job that waits to the end counts with what it has waited; one that was turned away has no wait."""
    never = job("never", first_start_at=None, ended_at=None, state=None, waited_s=900, first_wait_s=900)
    refused = job("refused", first_start_at=None, refused="too_many_jobs", state=JobState.REJECTED)
    row = wait_rows(outcome("fifo", [waiting("a", 100), never, refused]))[0]
    assert (row.jobs, row.unstarted, row.wait.max, row.wait.mean) == (2, 1, 900, 500)


def test_the_size_bands_are_those_of_the_metrics() -> None:
    """Each limit belongs to the band below it."""
    sizes = (1, 4, 5, 8, 9, 64, 65, 512, 513)
    names = ("<=4", "<=4", "5-8", "5-8", "9-64", "9-64", "65-512", "65-512", ">512")
    assert tuple(map(band, sizes)) == names


def test_slowdown_is_bounded_and_counts_work_done_again() -> None:
    """Waits and lost work over the run time; a run of a second is reckoned as ten; nothing is below 1."""
    assert slowdown(waiting("a", 300, run_s=100)) == 4
    assert slowdown(waiting("a", 90, run_s=1)) == pytest.approx(9.1)
    assert slowdown(waiting("a", 0, run_s=1)) == 1
    assert slowdown(waiting("a", 0, run_s=100, gpus=4, lost_gpu_s=400)) == 2


def test_the_longest_waits_are_named_longest_first() -> None:
    """Ties go by job id."""
    made = outcome("fifo", [waiting("b", 50), waiting("a", 50), waiting("c", 70), waiting("d", 1)])
    assert [one.name for one in longest_waits(made, 3)] == ["c", "a", "b"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), POLICIES)
def test_every_job_has_one_end(seed: int, policy: str) -> None:
    """Refused, ended, running and waiting jobs add up to all that were submitted."""
    ends = endings(made_up_day(seed, policy, jobs=100))
    assert sum(ends.refused.values()) + sum(ends.ended.values()) + ends.running + ends.waiting == ends.submitted == 100


def test_ends_are_told_apart() -> None:
    """Running and never started jobs are not ended; a refusal counts under its code."""
    running = job("r", ended_at=None, state=None, reason=None)
    never = job("n", ended_at=None, state=None, reason=None, first_start_at=None)
    refused = job("x", refused="no_quota", state=JobState.REJECTED)
    ends = endings(outcome("fifo", [job("a"), running, never, refused]))
    assert (ends.running, ends.waiting, ends.refused) == (1, 1, {"no_quota": 1})
    assert (ends.of(JobState.SUCCEEDED), ends.of(JobState.FAILED)) == (1, 0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 80))
def test_thinning_over_time_loses_no_gpu_second(seed: int, buckets: int) -> None:
    """However few the moments, their means times their lengths are all GPU-seconds that there were."""
    made = made_up_day(seed, "skip", jobs=80)
    moments, total = over_time(made.samples, buckets), use(made.samples)
    assert len(moments) <= buckets
    assert sum(one.healthy * one.seconds for one in moments) == pytest.approx(total.healthy_gpu_s)
    assert sum(one.allocated * one.seconds for one in moments) == pytest.approx(total.allocated_gpu_s)
    assert sum(one.held * one.seconds for one in moments) == pytest.approx(total.held_gpu_s)


def test_a_moment_adds_types_up_and_averages_time() -> None:
    """Two types at one time are one fleet; two intervals of one bucket count by their lengths."""
    both = [sample(100, allocated=2), sample(100, allocated=4, gpu_type=L40S), sample(400, allocated=6, seconds=300)]
    (moment,) = over_time(both, 1)
    assert (moment.healthy, moment.allocated) == ((8 + 8 + 3 * 8) / 4, (2 + 4 + 3 * 6) / 4)


def test_utilisation_is_told_with_and_without_the_drain() -> None:
    """While work came in it leaves out what follows the last submission; while jobs waited, the idle types."""
    samples = (
        sample(100, allocated=8, waiting_jobs=2),
        sample(100, allocated=0, gpu_type=L40S),
        sample(200, allocated=6, waiting_jobs=1),
        sample(300, allocated=1),
    )
    made = outcome("fifo", [job("a"), job("b", submitted_at=at(200))], samples=samples)
    assert use(made.samples).utilisation == 15 / 32
    assert use(until_last_submission(made)).utilisation == 14 / 24
    assert use(while_waiting(made)).utilisation == 14 / 16
    assert use([]).utilisation is None


def test_stranded_gpus_count_by_the_time_for_which_they_were() -> None:
    """Three times as long counts three times."""
    rows = fragmentation([sample(100, stranded={8: 4, 16: 8}), sample(400, seconds=300, allocated=4, stranded={8: 0})])
    assert [(row.size, row.stranded, row.free) for row in rows] == [(8, 1, 5), (16, 8, 8)]


def test_later_plenty_does_not_make_good_for_a_shortfall() -> None:
    """Red was short of 4 GPUs in one interval, and borrowed 4 in the next: its total is right, its shortfall stays."""
    teams = shares([team_sample(100, RED, 0, 4), team_sample(200, RED, 8, 4), team_sample(100, BLUE, 2, 2)])
    red = next(row for row in teams if row.team == RED)
    assert (red.ratio, red.shortfall_gpu_s) == (1, 400)
    assert shortfall(teams) == 400 / 1000


def test_one_type_does_not_make_good_for_another() -> None:
    """The same at one time with two types."""
    (red,) = shares([team_sample(100, RED, 0, 4), team_sample(100, RED, 8, 4, gpu_type=L40S)])
    assert (red.ratio, red.shortfall_gpu_s) == (1, 400)


def test_the_worst_team_is_the_one_that_got_least_of_its_own() -> None:
    """A team that was entitled to nothing is not looked at."""
    teams = shares([team_sample(100, RED, 3, 4), team_sample(100, BLUE, 1, 4), team_sample(100, RED, 0, 0)])
    found = worst(teams)
    assert found is not None
    assert (found.team, found.ratio) == (BLUE, 0.25)
    assert worst(shares([team_sample(100, RED, 0, 0)])) is None


def test_evenness_is_one_for_equal_parts_and_one_nth_for_one_taker() -> None:
    """Jain's index of delivered over demand."""
    equal = [team_sample(100, RED, 2, 4, demand_gpu_s=400), team_sample(100, BLUE, 4, 4, demand_gpu_s=800)]
    alone = [team_sample(100, RED, 4, 4), team_sample(100, BLUE, 0, 4)]
    assert (evenness(shares(equal)), evenness(shares(alone)), evenness([])) == (1, 0.5, None)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 50))
def test_courses_of_one_bucket_are_the_totals(seed: int, buckets: int) -> None:
    """All teams share one time axis, and in one bucket each team's course is its ratio."""
    samples = made_up_day(seed, "skip", jobs=60).team_samples
    ends, lines = courses(samples, buckets)
    assert len(ends) <= buckets
    assert {len(line.ratios) for line in lines} == {len(ends)}
    _, whole = courses(samples, 1)
    assert [line.ratios for line in whole] == [(row.ratio,) for row in shares(samples)]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_lost_work_is_split_without_a_rest(seed: int) -> None:
    """Lost to preemption and lost otherwise are all that was lost; by rule, team and time the victims add up."""
    made = made_up_day(seed, "reclaim")
    found = losses(made, Rates())
    assert found.lost_gpu_s == sum(one.lost_gpu_s for one in made.jobs)
    assert found.preemptions == len(made.displacements) == sum(found.by_rule.values())
    assert sum(row.suffered for row in team_losses(made)) == sum(row.caused for row in team_losses(made))
    course = lost_over_time(made, 12)
    assert (sum(row[1] for row in course), sum(row[2] for row in course)) == (found.preemptions, found.preempted_gpu_s)
    assert len(course) <= 12


def test_lost_work_costs_what_its_type_costs() -> None:
    """A named type has its own rate, all others the common one; faults are priced apart."""
    jobs = [job("a", lost_gpu_s=7200), job("b", gpu_type=L40S, lost_gpu_s=3600), job("p")]
    made = outcome("fifo", jobs, displacements=(displacement("a", "p", lost_gpu_s=3600),))
    found = losses(made, Rates(of_type={H100: 3.0}, other=0.5))
    assert (found.preempted_dollars, found.other_dollars) == (3.0, 3.5)
    assert (found.preempted_gpu_s, found.other_gpu_s) == (3600, 7200)


def test_an_order_with_several_victims_is_one_reclaim() -> None:
    """It took from the order to the start; an order that led to no start is counted, and has no time."""
    rows = [
        displacement("a", "p", 0, started_at=at(30)),
        displacement("b", "p", 0, started_at=at(30)),
        displacement("c", "p", 500, started_at=at(540)),
        displacement("d", "q", 0, started_at=None),
        displacement("e", "r", 0, rule=PreemptionRule.PRIORITY),
    ]
    found = reclaims(rows, PreemptionRule.RECLAIM)
    assert (found.count, found.unmet, found.seconds.p50, found.seconds.max) == (3, 1, 30, 40)
    assert reclaims(rows, PreemptionRule.PRIORITY).count == 1
