"""Who waited how long: waits and bounded slowdown by class, size, team and overall (R-84), the longest waits, and what
became of the jobs. Pure; docs/replay-report.md has each definition.

Every job that was let in counts, also one that never started or was cancelled while it waited: its wait is what it had
waited by then, a lower bound. To leave these out would praise the policy that starves.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from events.job import JobState
from replay.outcome import JobOutcome, Outcome
from replay.report.spread import Spread, spread

SLOWDOWN_RUN_MIN_S = 10
"""Bounded slowdown: a run is reckoned this long at least, so that jobs of a second do not make the figure."""
BANDS = ((4, "<=4"), (8, "5-8"), (64, "9-64"), (512, "65-512"))
LARGEST = ">512"
BAND_NAMES = (*(name for _, name in BANDS), LARGEST)


class By(StrEnum):
    """What the jobs of a row have in common."""

    ALL = "all"
    CLASS = "class"
    SIZE = "size"
    TEAM = "team"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow:
    """Of `jobs` jobs, `unstarted` had no grant. Seconds; slowdowns are ratios of 1 and more."""

    by: By
    value: str
    jobs: int
    unstarted: int
    wait: Spread
    first_wait: Spread
    slowdown: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """What became of `submitted` jobs; `refused` at the door, by code; `ended`: (state, reason) -> jobs. The last two
    had not ended with the replay: `running` had been granted once, and may wait again; `waiting` never was."""

    submitted: int
    refused: dict[str, int]
    ended: dict[tuple[str, str], int]
    running: int
    waiting: int

    def of(self, *states: JobState) -> int:
        """Jobs that ended in one of these states."""
        return sum(count for (state, _), count in self.ended.items() if state in states)


def band(gpus: int) -> str:
    """The size band of R-84."""
    return next((name for limit, name in BANDS if gpus <= limit), LARGEST)


def let_in(jobs: Iterable[JobOutcome]) -> list[JobOutcome]:
    """The jobs whose waits count: neither refused nor rejected."""
    return [job for job in jobs if not job.refused and job.state is not JobState.REJECTED]


def slowdown(job: JobOutcome) -> float:
    """How many times longer it took than its work needs: waits, and work done again, over the run time; at least 1.
    After Feitelson's bounded slowdown, with what preemptions and faults cost counted in."""
    again_s = job.lost_gpu_s / job.charged if job.charged else 0.0
    return max(1.0, (job.waited_s + job.run_s + again_s) / max(job.run_s, SLOWDOWN_RUN_MIN_S))


def wait_rows(outcome: Outcome) -> list[WaitRow]:
    """All jobs, then by class from high to low, by size from small to large, by team in order of name."""
    jobs = let_in(outcome.jobs)
    teams = sorted({job.team for job in jobs})
    classes = sorted({job.priority_class for job in jobs}, key=list(type(jobs[0].priority_class)).index) if jobs else []
    return [
        _row(By.ALL, "all", jobs),
        *_rows(By.CLASS, classes, _grouped(jobs, lambda job: job.priority_class)),
        *_rows(By.SIZE, BAND_NAMES, _grouped(jobs, lambda job: band(job.gpus))),
        *_rows(By.TEAM, teams, _grouped(jobs, lambda job: job.team)),
    ]


def longest_waits(outcome: Outcome, count: int) -> list[JobOutcome]:
    """The jobs that waited longest, first the longest."""
    return sorted(let_in(outcome.jobs), key=lambda job: (-job.waited_s, job.job_id))[:count]


def endings(outcome: Outcome) -> Endings:
    """What became of the jobs."""
    there = [job for job in outcome.jobs if not job.refused]
    ended = Counter((str(job.state), str(job.reason or "")) for job in there if job.state is not None)
    going = [job for job in there if job.state is None]
    return Endings(
        submitted=len(outcome.jobs),
        refused=dict(sorted(Counter(job.refused for job in outcome.jobs if job.refused).items())),
        ended=dict(sorted(ended.items())),
        running=sum(1 for job in going if job.first_start_at is not None),
        waiting=sum(1 for job in going if job.first_start_at is None),
    )


def _grouped(jobs: Iterable[JobOutcome], key: Callable[[JobOutcome], str]) -> dict[str, list[JobOutcome]]:
    groups: dict[str, list[JobOutcome]] = defaultdict(list)
    for job in jobs:
        groups[key(job)].append(job)
    return groups


def _rows(by: By, values: Iterable[str], groups: dict[str, list[JobOutcome]]) -> list[WaitRow]:
    return [_row(by, str(value), groups[value]) for value in values if value in groups]


def _row(by: By, value: str, jobs: Sequence[JobOutcome]) -> WaitRow:
    return WaitRow(
        by=by,
        value=value,
        jobs=len(jobs),
        unstarted=sum(1 for job in jobs if job.first_start_at is None),
        wait=spread(job.waited_s for job in jobs),
        first_wait=spread(job.first_wait_s for job in jobs),
        slowdown=spread(slowdown(job) for job in jobs),
    )
