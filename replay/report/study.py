"""All that a report shows, worked out once: the figures of each outcome, and the first next to each of the others.

Pure. The page, the JSON and the tables are made of it; none of them works anything out again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from events.ids import Instant
from events.preemption import DISPLACING
from replay.outcome import JobOutcome, Outcome
from replay.report.details import (
    Detail,
    DetailDifference,
    detail_differences,
    reclaim_details,
    share_details,
    stranded_details,
    use_details,
    wait_details,
)
from replay.report.evidence import Rows
from replay.report.fairness import TeamCourse, TeamShare, courses, shares
from replay.report.fleet import Moment, StrandedRow, Use, fragmentation, over_time, use
from replay.report.keys import Difference, Figure, differences, key_figures
from replay.report.losses import Losses, Rates, Reclaims, TeamLosses, losses, lost_over_time, reclaims, team_losses
from replay.report.movers import Moves, moves
from replay.report.spread import curve
from replay.report.waits import BAND_NAMES, By, Endings, WaitRow, band, endings, let_in, longest_waits, wait_rows

MOMENTS_MAX = 400
CURVE_POINTS_MAX = 200
COURSE_BUCKETS_MAX = 60
LOSS_BUCKETS_MAX = 60
LONGEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Portrait:
    """One outcome in figures. `label`: its name on the page, unlike any other's. `wait_curves`: by size band, (wait in
    s, share of jobs). `course_ends`: the common time axis of `courses`. `lost`: (end of bucket, victims, GPU-s)."""

    label: str
    outcome: Outcome
    figures: list[Figure]
    waits: list[WaitRow]
    longest: list[JobOutcome]
    ends: Endings
    use: Use
    uses: dict[str, Use]
    moments: list[Moment]
    stranded: list[StrandedRow]
    shares: list[TeamShare]
    course_ends: list[Instant]
    courses: list[TeamCourse]
    losses: Losses
    team_losses: list[TeamLosses]
    reclaims: list[Reclaims]
    lost: list[tuple[Instant, int, int]]
    wait_curves: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The first outcome next to another."""

    first: Portrait
    other: Portrait
    differences: list[Difference]
    details: list[DetailDifference]
    moves: Moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """`portraits`: the first is the policy in question; `pairs`: it next to each of the others, in order."""

    portraits: list[Portrait]
    pairs: list[Pair]
    rates: Rates

    @property
    def first(self) -> Portrait:
        return self.portraits[0]


def study(outcomes: Sequence[Outcome], rates: Rates) -> Study:
    """Raises ValueError where there is no outcome."""
    if not outcomes:
        raise ValueError("outcomes: none were given; a report needs one at least")
    portraits = [portrait(outcome, label, rates) for outcome, label in zip(outcomes, labels(outcomes), strict=True)]
    rows = [Rows(outcome) for outcome in outcomes] if len(outcomes) > 1 else []
    pairs = [
        Pair(
            first=portraits[0],
            other=other,
            differences=differences(portraits[0].figures, other.figures),
            details=detail_differences(details(portraits[0]), details(other)),
            moves=moves(rows[0], theirs),
        )
        for other, theirs in zip(portraits[1:], rows[1:], strict=True)
    ]
    return Study(portraits=portraits, pairs=pairs, rates=rates)


def labels(outcomes: Sequence[Outcome]) -> list[str]:
    """A name for each: the policy's; with the scenario's, and then a number, where that does not tell them apart."""
    names = [outcome.policy_name for outcome in outcomes]
    if len(set(names)) < len(names):
        names = [f"{outcome.policy_name} on {outcome.scenario}" for outcome in outcomes]
    taken: set[str] = set()
    for place, name in enumerate(names):
        numbered = (name if n == 1 else f"{name} #{n}" for n in count(1))
        names[place] = next(one for one in numbered if one not in taken)
        taken.add(names[place])
    return names


def portrait(outcome: Outcome, label: str, rates: Rates) -> Portrait:
    """Everything about one outcome."""
    waits = wait_rows(outcome)
    ends, lines = courses(outcome.team_samples, COURSE_BUCKETS_MAX)
    return Portrait(
        label=label,
        outcome=outcome,
        figures=key_figures(outcome, rates, waits),
        waits=waits,
        longest=longest_waits(outcome, LONGEST),
        ends=endings(outcome),
        use=use(outcome.samples),
        uses=_uses(outcome),
        moments=over_time(outcome.samples, MOMENTS_MAX),
        stranded=fragmentation(outcome.samples),
        shares=shares(outcome.team_samples),
        course_ends=ends,
        courses=lines,
        losses=losses(outcome, rates),
        team_losses=team_losses(outcome),
        reclaims=[reclaims(outcome.displacements, rule) for rule in DISPLACING],
        lost=lost_over_time(outcome, LOSS_BUCKETS_MAX),
        wait_curves=_wait_curves(outcome),
    )


def details(of: Portrait) -> list[Detail]:
    """The figures of all its parts."""
    return [
        *wait_details(row for row in of.waits if row.by is not By.ALL),
        *share_details(of.shares),
        *use_details(of.uses),
        *reclaim_details(of.reclaims),
        *stranded_details(of.stranded),
    ]


def waits_by(of: Portrait, by: By) -> dict[str, WaitRow]:
    """The rows of one kind, by what their jobs have in common."""
    return {row.value: row for row in of.waits if row.by is by}


def _uses(outcome: Outcome) -> dict[str, Use]:
    types = sorted({sample.gpu_type for sample in outcome.samples})
    return {name: use(sample for sample in outcome.samples if sample.gpu_type == name) for name in types}


def _wait_curves(outcome: Outcome) -> dict[str, list[tuple[float, float]]]:
    waits: dict[str, list[int]] = {name: [] for name in BAND_NAMES}
    for job in let_in(outcome.jobs):
        waits[band(job.gpus)].append(job.waited_s)
    return {name: curve(values, CURVE_POINTS_MAX) for name, values in waits.items() if values}
