"""The jobs that gain and that lose most between two outcomes of the same work. Pure.

A job gains the time by which it ends earlier. Where it had not ended with one of the replays, the end of that replay
stands in, and the time is a lower bound. A job that was refused under one policy only, or whose end is another (as
SUCCEEDED and TIMED_OUT), is counted and not ranked: an early failure is no gain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from events.job import JobState
from replay.outcome import JobOutcome, Outcome
from replay.report.evidence import Rows
from replay.report.reasons import Reason, reason

RANKED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """`seconds`: by which it ends earlier (gains) or later (loses) under the first policy; `at_least`: a lower
    bound. `first`, `other`: the job under either."""

    first: JobOutcome
    other: JobOutcome
    seconds: float
    at_least: bool
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """How the jobs fare under the first policy next to the other. `incomparable`: not ranked; `absent`: in one of the
    outcomes only."""

    gained: int
    lost: int
    same: int
    incomparable: int
    absent: int
    gained_s: float
    lost_s: float
    winners: tuple[Mover, ...]
    losers: tuple[Mover, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    """`seconds` is positive where the first outcome has the job end earlier."""

    first: JobOutcome
    other: JobOutcome
    seconds: float
    at_least: bool


def moves(first: Rows, other: Rows, ranked: int = RANKED) -> Moves:
    """All jobs of both, and of those that gain and lose the most, at most `ranked` each, why."""
    common = [(job, other.jobs[job.job_id]) for job in first.outcome.jobs if job.job_id in other.jobs]
    found = [gap for mine, theirs in common if (gap := _gap(mine, theirs, (first.outcome, other.outcome)))]
    gains = sorted((gap for gap in found if gap.seconds > 0), key=lambda gap: (-gap.seconds, gap.first.job_id))
    losses = sorted((gap for gap in found if gap.seconds < 0), key=lambda gap: (gap.seconds, gap.first.job_id))
    return Moves(
        gained=len(gains),
        lost=len(losses),
        same=len(found) - len(gains) - len(losses),
        incomparable=len(common) - len(found),
        absent=len(first.jobs.keys() ^ other.jobs.keys()),
        gained_s=sum(gap.seconds for gap in gains),
        lost_s=-sum(gap.seconds for gap in losses),
        winners=tuple(_mover(gap, worse=other, better=first) for gap in gains[:ranked]),
        losers=tuple(_mover(gap, worse=first, better=other) for gap in losses[:ranked]),
    )


def _gap(first: JobOutcome, other: JobOutcome, outcomes: Sequence[Outcome]) -> _Gap | None:
    """None where the two cannot be compared."""
    ends = (first.ended_at, other.ended_at)
    states = {job.state for job in (first, other) if job.state is not None}
    if first.refused or other.refused or len(states) > 1 or JobState.REJECTED in states:
        return None
    mine, theirs = (outcome.end_at if end is None else end for end, outcome in zip(ends, outcomes, strict=True))
    seconds = (theirs - mine) / 1000
    # The stand-in is a bound in one direction: what has not ended ends later than the replay, never earlier.
    if (first.ended_at is None and seconds > 0) or (other.ended_at is None and seconds < 0):
        return None
    return _Gap(first=first, other=other, seconds=seconds, at_least=None in ends and seconds != 0)


def _mover(gap: _Gap, *, worse: Rows, better: Rows) -> Mover:
    job_id, seconds = gap.first.job_id, abs(gap.seconds)
    why = reason(worse.evidence(job_id), better.evidence(job_id))
    return Mover(first=gap.first, other=gap.other, seconds=seconds, at_least=gap.at_least, reason=why)
