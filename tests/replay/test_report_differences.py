"""Two outcomes next to each other: which figure is better, by how much, and in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.job import JobState
from replay.report.headline import headline
from replay.report.keys import Better, Figure, Part, Unit, Verdict, difference, differences, key_figures
from replay.report.losses import Rates
from replay.report.study import labels, study
from replay.report.text import lines
from replay.report.words import amount, change, duration, number, percent
from tests.replay.made_up import made_up_day
from tests.replay.outcomes import job, outcome, waiting

RATES = Rates()
LOWER, HIGHER = Better.LOWER, Better.HIGHER
OPPOSITE = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}


def figure(value: float | None, better: Better = LOWER, unit: Unit = Unit.SECONDS) -> Figure:
    return Figure(name="x", label="X", part=Part.WAITING, unit=unit, better=better, value=value)


@pytest.mark.parametrize(
    ("mine", "other", "verdict"),
    [
        (figure(50), 100, Verdict.BETTER),
        (figure(150), 100, Verdict.WORSE),
        (figure(50, HIGHER), 100, Verdict.WORSE),
        (figure(150, HIGHER), 100, Verdict.BETTER),
        (figure(100.9), 100, Verdict.SAME),
        (figure(101), 100, Verdict.WORSE),
        (figure(0), 0, Verdict.SAME),
        (figure(1), 0, Verdict.WORSE),
        (figure(0.901, HIGHER, Unit.SHARE), 0.9, Verdict.SAME),
        (figure(0.903, HIGHER, Unit.SHARE), 0.9, Verdict.BETTER),
        (figure(50, Better.NEITHER), 100, Verdict.DIFFERENT),
        (figure(None), 100, Verdict.UNKNOWN),
    ],
)
def test_which_of_two_figures_is_better(mine: Figure, other: float, verdict: Verdict) -> None:
    """By the better direction of the figure, but for changes that say nothing."""
    assert difference(mine, other).verdict is verdict


def test_the_other_may_have_no_such_figure() -> None:
    """Then nothing is said."""
    assert difference(figure(1), None).verdict is Verdict.UNKNOWN


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_swapping_two_outcomes_swaps_better_and_worse(seed: int) -> None:
    """Every change has the opposite sign, and where both are far apart the opposite verdict."""
    skip, reclaim = (key_figures(made_up_day(seed, name, jobs=150), RATES) for name in ("skip", "reclaim"))
    for here, there in zip(differences(skip, reclaim), differences(reclaim, skip), strict=True):
        if here.change is None or there.change is None:
            assert here.verdict is there.verdict is Verdict.UNKNOWN
            continue
        assert here.change == -there.change
        if Verdict.SAME not in (here.verdict, there.verdict):
            assert there.verdict is OPPOSITE.get(here.verdict, here.verdict)


def test_an_outcome_is_the_same_as_itself() -> None:
    """No figure of it, nor of its parts, differs from its own, and no job moves."""
    made = made_up_day(5, "reclaim")
    (pair,) = study([made, replace(made, policy_name="again")], RATES).pairs
    found = {one.verdict for one in pair.differences} | {one.difference.verdict for one in pair.details}
    assert found <= {Verdict.SAME, Verdict.UNKNOWN}
    assert Verdict.SAME in found
    assert (pair.moves.gained, pair.moves.lost) == (0, 0)


def test_every_kind_of_part_is_compared() -> None:
    """Classes, sizes, teams, types, rules and stranded sizes each have differences of their own."""
    (pair,) = study([made_up_day(5, "reclaim"), made_up_day(5, "fifo")], RATES).pairs
    kinds = {one.detail.by for one in pair.details}
    assert kinds == {"class", "size", "team", "type", "rule", "stranded"}
    names = {one.detail.figure.name for one in pair.details if one.detail.by == "size"}
    assert {"wait_p50_s", "wait_p95_s", "wait_p99_s", "wait_mean_s", "wait_max_s", "slowdown_mean"} <= names


def test_names_of_figures_are_unlike() -> None:
    """A figure is known by its name."""
    names = [one.name for one in key_figures(made_up_day(1, "skip", jobs=20), RATES)]
    assert len(names) == len(set(names))


def test_outcomes_of_one_name_are_told_apart() -> None:
    """By their scenarios; then by numbers, which no name that was given can be taken for."""
    one = outcome("default", [])
    assert labels([one, outcome("fifo", [])]) == ["default", "fifo"]
    other = outcome("default", [], scenario="half the fleet")
    assert labels([one, other]) == ["default on a small day", "default on half the fleet"]
    assert labels([one, one]) == ["default on a small day", "default on a small day #2"]


def test_the_headline_says_the_figures_and_what_got_worse() -> None:
    """Mean and longest waits of both, in the units of people, and the verdict of each."""
    short = outcome("new", [waiting("a", 60), waiting("b", 7200)])
    long = outcome("old", [waiting("a", 3600), waiting("b", 3600)])
    alone, against = headline(study([short, long], RATES))
    assert "Under new, 2 jobs on 8 GPUs waited 60.5 min on average" in alone
    assert "the mean wait was 60.5 min instead of 60 min (about the same)" in against
    assert "the longest wait 2 h instead of 60 min (worse)" in against
    assert "1 job ended earlier (by 59 min on average), 1 later (by 60 min), 0 at the same time" in against


def test_the_headline_begins_with_whom_a_policy_turns_away() -> None:
    """Waits are those of the jobs that were let in: who reads them has read first how many were not."""
    turned_away = [job("b", refused="limit_exceeded", first_start_at=None), job("c", state=JobState.REJECTED)]
    strict = outcome("strict", [waiting("a", 60), *turned_away])
    lax = outcome("lax", [waiting("a", 120), waiting("b", 120), waiting("c", 120)])
    alone, against = headline(study([strict, lax], RATES))
    assert "Under strict, 2 of 3 jobs were refused or rejected; the other 1 on 8 GPUs waited 60 s on" in alone
    assert "Next to lax: refused or rejected jobs were 2 instead of 0 (worse); the mean wait was 60 s" in against
    assert "refused" not in " ".join(headline(study([lax, lax], RATES)))


def test_a_terminal_shows_jobs_as_whole_numbers() -> None:
    """Nobody submits 1.0 jobs; a wait of theirs may well have a part of a second."""
    said = list(lines(study([outcome("new", [waiting("a", 60)])], RATES)))
    assert any(re.fullmatch(r"Submitted +1", line) for line in said)
    assert any(re.fullmatch(r"Mean wait +s +60\.0", line) for line in said)


def test_a_report_needs_an_outcome() -> None:
    """None is refused, by name."""
    with pytest.raises(ValueError, match="outcomes: none were given"):
        study([], RATES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(0), "0 s"),
        (duration(119), "119 s"),
        (duration(120), "2 min"),
        (duration(7199), "120 min"),
        (duration(7200), "2 h"),
        (duration(582_070), "6.7 d"),
        (duration(None), "–"),
        (number(1234.5), "1,234"),
        (number(0.04), "0.04"),
        (percent(0.9876), "98.8%"),
        (amount(-3.2, Unit.DOLLARS), "−$3"),
        (change(difference(figure(34), 100)), "−66 s (−66%)"),
        (change(difference(figure(1), 1000)), "−16.6 min (−99.9%)"),
        (change(difference(figure(0), 1000)), "−16.7 min (−100%)"),
        (change(difference(figure(2000), 100)), "+31.7 min (× 20)"),
        (change(difference(figure(0.95, HIGHER, Unit.SHARE), 0.9)), "+5.0 points"),
        (change(difference(figure(7), 7)), "±0"),
        (change(difference(figure(7), None)), "–"),
    ],
)
def test_figures_are_written_as_people_read_them(text: str, expected: str) -> None:
    """Three figures at most, a unit, a sign; what is nearly all is not called all."""
    assert text == expected


def test_a_job_that_only_one_outcome_has_is_counted() -> None:
    """It is in neither table."""
    (pair,) = study([outcome("new", [job("a"), job("b")]), outcome("old", [job("a")])], RATES).pairs
    assert (pair.moves.absent, pair.moves.same) == (1, 1)
