"""Who gains and who loses, and why: each reason on a case in which it is known to be true."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.ids import JobId
from events.job import CLASS_RANK, EndReason, JobState, PriorityClass
from replay.outcome import JobOutcome, Outcome
from replay.report.evidence import Passing, Rows
from replay.report.movers import Mover, moves
from replay.report.reasons import Cause, Fact, sentence
from tests.replay.made_up import made_up_day
from tests.replay.outcomes import (
    BLUE,
    HOUR_S,
    L40S,
    RED,
    at,
    displacement,
    job,
    outcome,
    sample,
    stretch,
    team_sample,
    waiting,
)

X = JobId("j_x")


def of_x(first: Outcome, other: Outcome) -> Mover:
    """What is said of job x."""
    found = moves(Rows(first), Rows(other))
    return next(one for one in (*found.winners, *found.losers) if one.first.job_id == X)


def told(worse: Outcome, better: Outcome) -> str:
    """Why x loses where the first is the worse; it is what is said of its gain the other way round, too."""
    lost = of_x(worse, better)
    text = sentence(lost.reason, worse.policy_name, better.policy_name)
    gained = of_x(better, worse)
    assert sentence(gained.reason, worse.policy_name, better.policy_name) == text
    return text


def test_a_preempted_job_is_told_for_whom_and_what_it_lost() -> None:
    """Twice, for two jobs; the work lost and the time between its attempts, as the rows have them."""
    hit = job("x", gpus=4, ended_at=at(9 * HOUR_S), lost_gpu_s=11_160, preemptions=2, kept_gpu_s=400)
    attempts = (
        stretch("x", 0, HOUR_S, gpus=4, reason=EndReason.PREEMPTED),
        stretch("x", 2 * HOUR_S, 3 * HOUR_S, gpus=4, attempt=2, reason=EndReason.PREEMPTED),
        stretch("x", 4 * HOUR_S, 9 * HOUR_S, gpus=4, attempt=3),
    )
    stops = (
        displacement("x", "j12", HOUR_S, lost_gpu_s=11_000),
        displacement("x", "j15", 3 * HOUR_S, lost_gpu_s=160, victim_attempt=2),
    )
    worse = outcome("new", [hit], stretches=attempts, displacements=stops)
    better = outcome("old", [job("x", gpus=4, ended_at=at(HOUR_S))])
    assert told(worse, better) == (
        "Under new it was preempted twice (for j_j12 of team blue, reclaim; j_j15 of team blue, reclaim): 3.1 GPU-h of "
        "work lost and 2 h without GPUs between its attempts, against 0 GPU-h and 0 s under old."
    )


def test_more_preemptors_than_a_sentence_bears_are_counted() -> None:
    """Three are named, the others are a number."""
    hit = job("x", ended_at=at(900), lost_gpu_s=500, preemptions=5)
    stops = tuple(displacement("x", f"p{n}", n, victim_attempt=n) for n in range(1, 6))
    text = told(outcome("new", [hit], displacements=stops), outcome("old", [job("x")]))
    assert "preempted 5 times (for j_p1 of team blue, reclaim; j_p2 of team blue, reclaim; j_p3" in text
    assert "; 2 more)" in text
    assert "p4" not in text


def test_a_fault_is_told() -> None:
    """Its cost likewise."""
    hit = job("x", ended_at=at(9000), lost_gpu_s=7200, faults=1)
    text = told(outcome("new", [hit]), outcome("old", [job("x")]))
    assert text.startswith("Under new it was hit by 1 fault: 2 GPU-h of work lost")


def test_a_borrower_is_told_who_came_first() -> None:
    """Its team held 150% of its guarantee while two covered jobs of blue, which came later, started; a borrowed job of
    blue and a job of its own team are not counted, nor is one of another type."""
    late = [
        job(name, team=team, gpu_type=gpu_type, submitted_at=at(100), first_start_at=at(200))
        for name, team, gpu_type in (
            ("a", BLUE, None),
            ("b", BLUE, None),
            ("c", BLUE, None),
            ("own", RED, None),
            ("other", BLUE, L40S),
        )
        for gpu_type in [gpu_type or job("x").gpu_type]
    ]
    attempts = [stretch("x", 5000, 5100)]
    attempts += [
        stretch(one.name, 200, 300, team=one.team, gpu_type=one.gpu_type, borrowed=one.name == "c") for one in late
    ]
    around = {
        "samples": tuple(sample(end, allocated=8) for end in range(100, 5100, 100)),
        "team_samples": tuple(team_sample(end, RED, 6, 4) for end in range(100, 5100, 100)),
    }
    worse = outcome("new", [waiting("x", 5000), *late], stretches=tuple(attempts), **around)
    better = outcome("old", [waiting("x", 10), *late])
    text = told(worse, better)
    assert text.startswith("It waited 83.3 min for its first start under new, 10 s under old: ")
    assert (
        "its team held 150% of its guarantee meanwhile, and 2 covered jobs of other teams that came later started "
        "first (0 under old)" in text
    )


def test_a_job_that_was_passed_is_told_by_whom() -> None:
    """Three that came later started first, all of them smaller; under the other policy none did."""
    small = [waiting(name, 10, submitted_at=at(50), first_start_at=at(60)) for name in "abc"]
    worse = outcome("new", [waiting("x", 5000, gpus=8), *small])
    better = outcome("old", [waiting("x", 20, gpus=8), *small])
    assert "3 jobs that came later started first, 3 of them smaller (0 under old)" in told(worse, better)


def test_a_higher_class_is_told() -> None:
    """Where most of those that passed it were of a higher class, that is said."""
    above = [
        waiting(name, 10, submitted_at=at(50), first_start_at=at(60), priority_class=PriorityClass.PROD_BATCH)
        for name in "ab"
    ]
    text = told(outcome("new", [waiting("x", 500), *above]), outcome("old", [waiting("x", 20), *above]))
    assert "2 jobs that came later started first, 2 of them of a higher class (0 under old)" in text


def test_the_queue_before_it_is_told() -> None:
    """In order of submission it stood behind two, the larger of 64 GPUs; the other policy let it pass them."""
    before = [waiting("a", 400, gpus=64), waiting("b", 450)]
    mine = {"submitted_at": at(10)}
    worse = outcome("fifo", [*before, waiting("x", 490, first_start_at=at(500), **mine)])
    better = outcome("skip", [*before, waiting("x", 0, first_start_at=at(10), ended_at=at(110), **mine)])
    text = told(worse, better)
    assert "it stood there behind 2 jobs that came before it, the largest of 64 GPUs (0 under skip)" in text
    assert "under skip it passed 2 jobs that came before it" in text


def test_room_that_was_made_is_told() -> None:
    """Under the better policy two jobs of blue were stopped for it, before its first grant."""
    stops = (
        displacement("a", "x", 10, gpus=8, victim_team=BLUE),
        displacement("b", "x", 10, gpus=4, victim_team=BLUE),
        displacement("c", "x", 9000, gpus=4, victim_team=BLUE),
    )
    better = outcome("new", [waiting("x", 30)], displacements=stops)
    text = told(outcome("old", [waiting("x", 4000)]), better)
    assert "under new room was made by preempting 2 jobs (12 GPUs) of team blue" in text


def test_gpus_held_for_others_are_told_where_they_would_have_been_enough() -> None:
    """64 were held while it waited for 8; a job of 128 would not have been helped."""
    around = {"samples": tuple(sample(end, allocated=900, healthy=1024, held=64) for end in (100, 200, 300))}
    worse, better = (outcome(name, [waiting("x", wait, gpus=8)], **around) for name, wait in (("new", 300), ("old", 0)))
    assert "on average 64 GPUs were held idle for coming starts meanwhile" in told(worse, better)
    worse, better = (
        outcome(name, [waiting("x", wait, gpus=128)], **around) for name, wait in (("new", 300), ("old", 0))
    )
    assert Fact.HELD not in of_x(worse, better).reason.facts


def test_stranded_gpus_are_told() -> None:
    """40 were free, which is more than it asked for, and 32 of them were of no use to jobs of its size."""
    around = {"samples": (sample(100, allocated=60, healthy=100, stranded={8: 4, 16: 32, 32: 40}),)}
    worse = outcome("new", [waiting("x", 100, gpus=24)], **around)
    text = told(worse, outcome("old", [waiting("x", 0, gpus=24)]))
    assert "on average 40 GPUs were free, 32 of them stranded for jobs of 16" in text


def test_a_full_fleet_is_told_where_nothing_else_is_to_be_said() -> None:
    """How full it was, and what waited."""
    around = {"samples": (sample(100, allocated=8, waiting_gpus=40),)}
    text = told(outcome("new", [waiting("x", 100)], **around), outcome("old", [waiting("x", 0)]))
    assert "100% of the GPUs of its type were allocated meanwhile, and jobs for 40 GPUs waited" in text


def test_a_job_that_never_started_is_told_so() -> None:
    """And its loss is a lower bound."""
    never = job(
        "x", first_start_at=None, ended_at=None, state=None, reason=None, first_wait_s=100_000, waited_s=100_000
    )
    lost = of_x(outcome("new", [never]), outcome("old", [job("x")]))
    assert (lost.at_least, lost.seconds) == (True, 99_900)
    assert sentence(lost.reason, "new", "old").startswith(
        "It never started under new, where it waited 27.8 h, 0 s under"
    )


def test_what_neither_waits_nor_losses_explain_is_said_to_be_elsewhere() -> None:
    """No cause is made up."""
    lost = of_x(outcome("new", [job("x", ended_at=at(900))]), outcome("old", [job("x")]))
    assert lost.reason.cause is Cause.ELSEWHERE
    assert "the time went elsewhere" in sentence(lost.reason, "new", "old")


@pytest.mark.parametrize(
    "mine",
    [
        {"state": JobState.TIMED_OUT, "reason": EndReason.TIMED_OUT, "ended_at": at(1)},
        {"refused": "no_quota", "state": JobState.REJECTED, "ended_at": at(0)},
    ],
)
def test_an_early_failure_is_no_gain(mine: dict[str, object]) -> None:
    """A job that ended another way is counted, and in neither table."""
    found = moves(Rows(outcome("new", [job("x", **mine)])), Rows(outcome("old", [job("x")])))
    assert (found.incomparable, found.gained, found.lost) == (1, 0, 0)


def test_an_open_end_is_no_gain() -> None:
    """A replay that ended before the job did does not show that it ended earlier."""
    going = job("x", ended_at=None, state=None, reason=None)
    found = moves(Rows(outcome("new", [going], end_at=at(50))), Rows(outcome("old", [job("x")])))
    assert (found.incomparable, found.gained, found.lost) == (1, 0, 0)


def test_the_tables_have_the_greatest_first_and_twenty_at_most() -> None:
    """Of thirty that gain, those by the most, in order; the sums are of all."""
    first = outcome("new", [job(f"{n:02}", ended_at=at(1000 - n)) for n in range(30)])
    other = outcome("old", [job(f"{n:02}", ended_at=at(1000)) for n in range(30)])
    found = moves(Rows(first), Rows(other))
    assert (found.gained, found.same, found.gained_s) == (29, 1, sum(range(30)))
    assert [one.seconds for one in found.winners] == list(range(29, 9, -1))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["fifo", "skip", "reclaim"]))
def test_passing_is_counted_right(seed: int, policy: str) -> None:
    """For every job of a day, against the definition read out loud over all pairs."""
    made = made_up_day(seed, policy, jobs=70)
    rows = Rows(made)
    for mine in made.jobs:
        if not mine.refused:
            assert rows.evidence(mine.job_id).passing == _counted(made, mine)


def _counted(made: Outcome, mine: JobOutcome) -> Passing:
    granted = {row.job_id: row for row in sorted(made.stretches, key=lambda row: row.attempt, reverse=True)}
    others = [one for one in made.jobs if not one.refused and one.job_id != mine.job_id]
    start = granted[mine.job_id].granted_at
    later = [one for one in others if one.submitted_at > mine.submitted_at]
    before = [one for one in others if one.submitted_at < mine.submitted_at]
    by = [one for one in later if granted[one.job_id].granted_at < start]
    queue = [one for one in before if mine.submitted_at < granted[one.job_id].granted_at <= start]
    return Passing(
        by=len(by),
        by_covered=sum(not granted[one.job_id].borrowed and one.team != mine.team for one in by),
        by_higher=sum(CLASS_RANK[one.priority_class] < CLASS_RANK[mine.priority_class] for one in by),
        by_smaller=sum(one.gpus < mine.gpus for one in by),
        over=sum(granted[one.job_id].granted_at > start for one in before),
        behind=len(queue),
        behind_gpus_max=max((one.gpus for one in queue), default=0),
    )


def test_gaps_between_attempts_are_without_gpus() -> None:
    """The time up to each next grant, and after the last release up to the end, is all that is called so."""
    made = outcome(
        "new", [job("x", ended_at=at(1000))], stretches=(stretch("x", 0, 100), stretch("x", 250, 900, attempt=2))
    )
    assert Rows(made).evidence(X).again_s == 150 + 100
    assert Rows(made).granted_at(JobId("j_y")) is None
