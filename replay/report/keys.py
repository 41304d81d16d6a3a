"""The key figures of an outcome, each with its unit and which direction is better; and how two outcomes differ in them.

Pure. Names are stable: JSON, Parquet and the page share them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from events.job import JobState
from events.preemption import PreemptionRule
from replay.outcome import Outcome
from replay.report.fairness import evenness, shares, shortfall, worst
from replay.report.fleet import ratio, until_last_submission, use, while_waiting
from replay.report.losses import HOUR_S, Rates, losses, reclaims
from replay.report.spread import Spread, spread
from replay.report.waits import By, WaitRow, endings, let_in, wait_rows

ABOUT_THE_SAME = 0.01
"""A change by less than this share of the other's figure is called neither better nor worse."""
ABOUT_THE_SAME_POINTS = 0.002
"""The same for figures that are shares themselves: two tenths of a percentage point."""


class Unit(StrEnum):
    SECONDS = "s"
    SHARE = "share"
    """Of 1; shown in percent."""
    TIMES = "times"
    GPU_HOURS = "gpu_h"
    DOLLARS = "dollars"
    COUNT = "count"


class Better(StrEnum):
    """Which direction of a figure is the better one."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"
    """It says what happened; more is not better or worse in itself."""


class Verdict(StrEnum):
    """What the first outcome's figure is, next to the other's."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "about the same"
    DIFFERENT = "different"
    """Of a figure with no better direction."""
    UNKNOWN = "unknown"
    """One of the two has no such figure."""


class Part(StrEnum):
    """What the figures of a group are about: the order of the page."""

    WAITING = "Waiting"
    FLEET = "Use of the fleet"
    LOSSES = "Preemption and lost work"
    FAIRNESS = "Fairness between teams"
    ENDS = "What became of the jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one outcome. `value` None: there is none, as the wait of no job."""

    name: str
    label: str
    part: Part
    unit: Unit
    better: Better
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure of the first outcome next to another's. `change`: value - other; `share`: of the other's, None where
    that is 0 or the figure is a share itself."""

    figure: Figure
    other: float | None
    change: float | None
    share: float | None
    verdict: Verdict


def key_figures(outcome: Outcome, rates: Rates, waits: Sequence[WaitRow] | None = None) -> list[Figure]:
    """All of them, in the order of the page. `waits`: its `wait_rows`, where they are there already."""
    rows = wait_rows(outcome) if waits is None else waits
    return [
        *_waiting(outcome, rows),
        *_fleet(outcome),
        *_losses(outcome, rates),
        *_fairness(outcome, rows),
        *_ends(outcome),
    ]


def differences(figures: Sequence[Figure], others: Sequence[Figure]) -> list[Difference]:
    """Each figure next to its namesake. Both came from `key_figures`."""
    return [difference(figure, other.value) for figure, other in zip(figures, others, strict=True)]


def difference(figure: Figure, other: float | None) -> Difference:
    """This figure next to another outcome's."""
    change = None if figure.value is None or other is None else figure.value - other
    share = None if change is None or not other or figure.unit is Unit.SHARE else change / other
    return Difference(figure=figure, other=other, change=change, share=share, verdict=_verdict(figure, other, change))


def _verdict(figure: Figure, other: float | None, change: float | None) -> Verdict:
    if change is None or other is None:
        return Verdict.UNKNOWN
    least = ABOUT_THE_SAME_POINTS if figure.unit is Unit.SHARE else ABOUT_THE_SAME * abs(other)
    if change == 0 or abs(change) < least:
        return Verdict.SAME
    if figure.better is Better.NEITHER:
        return Verdict.DIFFERENT
    return Verdict.BETTER if (change < 0) == (figure.better is Better.LOWER) else Verdict.WORSE


def _figure(
    part: Part, name: str, label: str, value: float | None, *, unit: Unit, better: Better = Better.LOWER
) -> Figure:
    return Figure(name=name, label=label, part=part, unit=unit, better=better, value=value)


def _waiting(outcome: Outcome, rows: Sequence[WaitRow]) -> list[Figure]:
    total = next(row for row in rows if row.by is By.ALL)
    giants = spread(job.waited_s for job in let_in(outcome.jobs) if job.gpus > 64)
    small = spread(job.waited_s for job in let_in(outcome.jobs) if job.gpus <= 8)
    return [*_overall(total), *_sized(small, giants)]


def _overall(row: WaitRow) -> list[Figure]:
    waits, firsts, slow = row.wait, row.first_wait, row.slowdown
    seconds, times = Unit.SECONDS, Unit.TIMES
    return [
        _figure(Part.WAITING, "wait_mean_s", "Mean wait", waits.mean, unit=seconds),
        _figure(Part.WAITING, "wait_p50_s", "Median wait", waits.p50, unit=seconds),
        _figure(Part.WAITING, "wait_p95_s", "95th percentile of waits", waits.p95, unit=seconds),
        _figure(Part.WAITING, "wait_p99_s", "99th percentile of waits", waits.p99, unit=seconds),
        _figure(Part.WAITING, "wait_max_s", "Longest wait", waits.max, unit=seconds),
        _figure(Part.WAITING, "first_wait_p95_s", "95th percentile up to the first start", firsts.p95, unit=seconds),
        _figure(Part.WAITING, "slowdown_mean", "Mean bounded slowdown", slow.mean, unit=times),
        _figure(Part.WAITING, "slowdown_p95", "95th percentile of slowdowns", slow.p95, unit=times),
    ]


def _sized(small: Spread, giants: Spread) -> list[Figure]:
    seconds = Unit.SECONDS
    return [
        _figure(Part.WAITING, "small_wait_p95_s", "95th percentile, 8 GPUs or fewer", small.p95, unit=seconds),
        _figure(Part.WAITING, "gang_wait_mean_s", "Mean wait of gangs over 64 GPUs", giants.mean, unit=seconds),
        _figure(Part.WAITING, "gang_wait_max_s", "Longest wait of gangs over 64 GPUs", giants.max, unit=seconds),
    ]


def _fleet(outcome: Outcome) -> list[Figure]:
    total, share, higher = use(outcome.samples), Unit.SHARE, Better.HIGHER
    coming, wanted = use(until_last_submission(outcome)).utilisation, use(while_waiting(outcome)).utilisation
    kept = ratio(sum(job.kept_gpu_s for job in outcome.jobs), total.allocated_gpu_s)
    span = (outcome.end_at - outcome.start_at) / 1000
    return [
        _figure(Part.FLEET, "utilisation_coming", "Allocated while work came in", coming, unit=share, better=higher),
        _figure(Part.FLEET, "utilisation_waiting", "Allocated while jobs waited", wanted, unit=share, better=higher),
        _figure(
            Part.FLEET, "utilisation", "Allocated, whole replay", total.utilisation, unit=share, better=Better.NEITHER
        ),
        _figure(Part.FLEET, "kept", "GPU-hours that went to kept work", kept, unit=share, better=higher),
        _figure(Part.FLEET, "held_gpu_h", "Idle for a coming start", total.held_gpu_s / HOUR_S, unit=Unit.GPU_HOURS),
        _figure(Part.FLEET, "span_s", "From the start to the end", span, unit=Unit.SECONDS),
    ]


def _losses(outcome: Outcome, rates: Rates) -> list[Figure]:
    lost, gpu_hours = losses(outcome, rates), Unit.GPU_HOURS
    reclaimed = reclaims(outcome.displacements, PreemptionRule.RECLAIM).seconds
    return [
        _figure(Part.LOSSES, "preemptions", "Preemptions", lost.preemptions, unit=Unit.COUNT),
        _figure(Part.LOSSES, "jobs_preempted", "Jobs that were preempted", lost.jobs_preempted, unit=Unit.COUNT),
        _figure(
            Part.LOSSES, "lost_preempted_gpu_h", "Lost to preemption", lost.preempted_gpu_s / HOUR_S, unit=gpu_hours
        ),
        _figure(Part.LOSSES, "lost_other_gpu_h", "Lost to faults", lost.other_gpu_s / HOUR_S, unit=gpu_hours),
        _figure(Part.LOSSES, "lost_dollars", "Cost of all lost work", lost.dollars, unit=Unit.DOLLARS),
        _figure(Part.LOSSES, "reclaim_p50_s", "Median reclaim time", reclaimed.p50, unit=Unit.SECONDS),
        _figure(Part.LOSSES, "reclaim_p95_s", "95th percentile of reclaims", reclaimed.p95, unit=Unit.SECONDS),
        _figure(Part.LOSSES, "reclaim_max_s", "Longest reclaim", reclaimed.max, unit=Unit.SECONDS),
    ]


def _fairness(outcome: Outcome, rows: Sequence[WaitRow]) -> list[Figure]:
    teams, higher = shares(outcome.team_samples), Better.HIGHER
    least = worst(teams)
    waits = [row.wait.mean for row in rows if row.by is By.TEAM and row.wait.mean is not None]
    return [
        _figure(
            Part.FAIRNESS,
            "worst_team",
            "Delivered of entitled, worst team",
            least.ratio if least else None,
            unit=Unit.SHARE,
            better=higher,
        ),
        _figure(
            Part.FAIRNESS, "shortfall", "Entitled and not delivered at the time", shortfall(teams), unit=Unit.SHARE
        ),
        _figure(
            Part.FAIRNESS,
            "evenness",
            "Evenness of delivered over demand (Jain)",
            evenness(teams),
            unit=Unit.TIMES,
            better=higher,
        ),
        _figure(
            Part.FAIRNESS,
            "team_wait_worst_s",
            "Mean wait of the worst team",
            max(waits, default=None),
            unit=Unit.SECONDS,
        ),
    ]


def _ends(outcome: Outcome) -> list[Figure]:
    ends, count = endings(outcome), Unit.COUNT
    failed, refused = ends.of(JobState.FAILED, JobState.TIMED_OUT), sum(ends.refused.values())
    return [
        _figure(Part.ENDS, "submitted", "Submitted", ends.submitted, unit=count, better=Better.NEITHER),
        _figure(Part.ENDS, "succeeded", "Succeeded", ends.of(JobState.SUCCEEDED), unit=count, better=Better.HIGHER),
        _figure(Part.ENDS, "refused", "Refused or rejected", refused + ends.of(JobState.REJECTED), unit=count),
        _figure(Part.ENDS, "failed", "Failed or timed out", failed, unit=count),
        _figure(Part.ENDS, "cancelled", "Cancelled", ends.of(JobState.CANCELLED), unit=count, better=Better.NEITHER),
        _figure(Part.ENDS, "running", "Started, and not ended", ends.running, unit=count, better=Better.NEITHER),
        _figure(Part.ENDS, "waiting", "Never started", ends.waiting, unit=count),
    ]
