"""Whole outcomes, made up: the same random jobs under plain policies.

They come from a count of free GPUs and a queue, without nodes: their rows agree with each other as those of a real
replay do (waits with stretches, samples with stretches), which is all that a report may rely on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from events.ids import Instant, JobId, TeamId
from events.job import EndReason, JobState, PriorityClass
from events.preemption import DISPLACING
from replay.outcome import Displacement, JobOutcome, Outcome, Sample, Stretch, TeamSample
from tests.replay.outcomes import H100, NOON, at, job

SAMPLE_S = 900
SIZES = (1, 1, 1, 1, 2, 4, 8, 8, 16, 32, 72, 600)
CLASSES = tuple(PriorityClass)


@dataclass(kw_only=True)
class _Running:
    job: JobOutcome
    attempt: int
    granted_at: Instant
    borrowed: bool
    left_s: int


@dataclass(kw_only=True)
class _Day:
    """`held`: GPUs in use by team; rows as they become known."""

    random: Random
    gpus: int
    now: Instant = NOON
    free: int = 0
    running: dict[JobId, _Running] = field(default_factory=dict)
    rows: dict[JobId, dict[str, Any]] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    displacements: list[Displacement] = field(default_factory=list)


def made_up_day(seed: int, policy_name: str, *, jobs: int = 400, gpus: int = 640, teams: int = 5) -> Outcome:
    """A day of random jobs, the same ones for a seed. Under `skip` whoever fits starts, else strictly in order; under
    `reclaim` the same as skip, and one in forty starts stops another job."""
    arrivals = list(_arrivals(Random(seed), jobs, teams))
    day = _Day(random=Random(seed + 1), gpus=gpus, free=gpus)
    _play(day, arrivals, policy_name)
    end = max((row.released_at or day.now for row in day.stretches), default=day.now)
    rows = tuple(JobOutcome(**day.rows[one.job_id]) for one in arrivals)
    return Outcome(
        scenario=f"made-up day {seed}",
        policy_name=policy_name,
        gpus=gpus,
        start_at=NOON,
        end_at=end,
        jobs=rows,
        stretches=tuple(sorted(day.stretches, key=lambda row: (row.granted_at, row.job_id))),
        displacements=tuple(day.displacements),
        samples=tuple(_samples(day, rows, end)),
        team_samples=tuple(_team_samples(day, rows, end, teams)),
        cycles=jobs,
        commits=2 * jobs,
        events=9 * jobs,
    )


def _arrivals(draw: Random, jobs: int, teams: int) -> Iterable[JobOutcome]:
    at_s = 0.0
    for number in range(jobs):
        at_s += draw.expovariate(jobs / 40_000)
        run_s = min(40_000, int(draw.paretovariate(0.7) * 60))
        refused = draw.random() < 0.01
        failed = draw.random() < 0.05
        yield job(
            f"{number:05}",
            team=TeamId(f"team-{draw.randrange(teams)}"),
            priority_class=draw.choice(CLASSES),
            gpus=draw.choice(SIZES),
            submitted_at=at(at_s),
            run_s=run_s,
            refused="too_many_jobs" if refused else "",
            state=JobState.REJECTED if refused else JobState.FAILED if failed else JobState.SUCCEEDED,
            reason=EndReason.NONZERO_EXIT if failed and not refused else EndReason.COMPLETED,
        )


def _play(day: _Day, arrivals: Sequence[JobOutcome], policy_name: str) -> None:
    queue: list[tuple[JobOutcome, int, int, Instant]] = []
    agenda: list[tuple[Instant, int, Any]] = []
    for place, one in enumerate(arrivals):
        heappush(agenda, (one.submitted_at, place, one))
    count = len(agenda)
    while agenda:
        day.now, _, what = heappop(agenda)
        if isinstance(what, _Running):
            if day.running.get(what.job.job_id) is not what:
                continue
            _end(day, what)
        elif what.refused or what.gpus > day.gpus:
            code = what.refused or "never_fits"
            day.rows[what.job_id] = _fields(what) | {
                "first_start_at": None,
                "ended_at": day.now,
                "refused": code,
                "state": JobState.REJECTED,
                "waited_s": 0,
                "first_wait_s": 0,
                "kept_gpu_s": 0,
                "charged": 0,
            }
        else:
            queue.append((what, 1, what.run_s, day.now))
        for entry in list(queue):
            one, attempt, left_s, since = entry
            victim = _victim(day, one, policy_name)
            if one.gpus > day.free and victim is not None:
                queue.append((victim.job, victim.attempt + 1, victim.left_s, day.now))
            if one.gpus > day.free:
                if policy_name == "fifo":
                    break
                continue
            queue.remove(entry)
            started = _start(day, one, attempt, left_s, since)
            count += 1
            heappush(agenda, (Instant(day.now + left_s * 1000), count, started))


def _fields(one: JobOutcome) -> dict[str, Any]:
    return {name: getattr(one, name) for name in JobOutcome.__dataclass_fields__}


def _start(day: _Day, one: JobOutcome, attempt: int, left_s: int, since: Instant) -> _Running:
    waited = (day.now - since) // 1000
    row = day.rows.setdefault(
        one.job_id,
        _fields(one) | {"first_start_at": day.now, "first_wait_s": waited, "waited_s": 0, "kept_gpu_s": 0},
    )
    row["waited_s"] += waited
    day.free -= one.gpus
    started = _Running(job=one, attempt=attempt, granted_at=day.now, borrowed=day.random.random() < 0.4, left_s=left_s)
    day.running[one.job_id] = started
    return started


def _end(day: _Day, what: _Running) -> None:
    row = day.rows[what.job.job_id]
    row["ended_at"] = day.now
    row["kept_gpu_s"] += what.job.gpus * what.left_s
    _release(day, what, what.job.reason)


def _victim(day: _Day, one: JobOutcome, policy_name: str) -> _Running | None:
    """A running job, now stopped for this one: half of what it did is lost."""
    if policy_name != "reclaim" or one.gpus <= day.free or day.random.random() > 0.025:
        return None
    fits = [row for row in day.running.values() if row.job.gpus + day.free >= one.gpus and row.granted_at < day.now]
    if not fits:
        return None
    victim = day.random.choice(fits)
    ran = (day.now - victim.granted_at) // 1000
    lost = ran // 2
    row = day.rows[victim.job.job_id]
    row["preemptions"] += 1
    row["lost_gpu_s"] += lost * victim.job.gpus
    row["kept_gpu_s"] += (ran - lost) * victim.job.gpus
    _release(day, victim, EndReason.PREEMPTED)
    victim.left_s = max(1, victim.left_s - ran + lost)
    day.displacements.append(
        Displacement(
            victim=victim.job.job_id,
            victim_attempt=victim.attempt,
            victim_team=victim.job.team,
            preemptor=one.job_id,
            preemptor_team=one.team,
            rule=day.random.choice(DISPLACING),
            gpus=victim.job.gpus,
            lost_gpu_s=lost * victim.job.gpus,
            ordered_at=day.now,
            freed_at=day.now,
            started_at=day.now if day.random.random() < 0.9 else None,
        )
    )
    return victim


def _release(day: _Day, what: _Running, reason: EndReason | None) -> None:
    del day.running[what.job.job_id]
    day.free += what.job.gpus
    day.stretches.append(
        Stretch(
            job_id=what.job.job_id,
            attempt=what.attempt,
            team=what.job.team,
            gpu_type=what.job.gpu_type,
            gpus=what.job.gpus,
            nodes=-(-what.job.gpus // 8),
            blocks=1,
            granted_at=what.granted_at,
            running_at=what.granted_at,
            released_at=day.now,
            reason=reason,
            borrowed=what.borrowed,
        )
    )


def _bins(end: Instant) -> int:
    return -(-(end - NOON) // (SAMPLE_S * 1000))


def _held(stretches: Iterable[Stretch], bins: int) -> list[int]:
    """GPU-ms of the stretches in each interval."""
    width = SAMPLE_S * 1000
    sums = [0] * bins
    for row in stretches:
        start, stop = row.granted_at - NOON, (row.released_at or row.granted_at) - NOON
        for place in range(start // width, min(bins, stop // width + 1)):
            inside = min(stop, (place + 1) * width) - max(start, place * width)
            sums[place] += row.gpus * max(0, inside)
    return sums


def _samples(day: _Day, rows: Sequence[JobOutcome], end: Instant) -> Iterable[Sample]:
    bins = _bins(end)
    held = _held(day.stretches, bins)
    waits = [(row.submitted_at, row.first_start_at, row.gpus) for row in rows if row.first_start_at is not None]
    for place in range(bins):
        when = Instant(NOON + (place + 1) * SAMPLE_S * 1000)
        queued = [gpus for came, started, gpus in waits if came <= when < started] if place % 4 == 0 else []
        allocated = held[place] // 1000
        yield Sample(
            at=when,
            gpu_type=H100,
            seconds=SAMPLE_S,
            healthy_gpu_s=day.gpus * SAMPLE_S,
            allocated_gpu_s=allocated,
            held_gpu_s=(day.gpus * SAMPLE_S - allocated) // 10,
            waiting_jobs=len(queued),
            waiting_gpus=sum(queued),
            stranded={size: day.random.randrange(size) for size in (1, 2, 4, 8, 16, 32)},
        )


def _team_samples(day: _Day, rows: Sequence[JobOutcome], end: Instant, teams: int) -> Iterable[TeamSample]:
    bins, guaranteed = _bins(end), day.gpus // teams
    for number in range(teams):
        team = TeamId(f"team-{number}")
        held = _held([row for row in day.stretches if row.team == team], bins)
        for place in range(bins):
            delivered = held[place] // 1000
            demand = delivered + day.random.randrange(guaranteed * SAMPLE_S)
            yield TeamSample(
                at=Instant(NOON + (place + 1) * SAMPLE_S * 1000),
                team=team,
                gpu_type=H100,
                guaranteed=guaranteed,
                delivered_gpu_s=delivered,
                entitled_gpu_s=min(demand, guaranteed * SAMPLE_S),
                demand_gpu_s=demand,
            )
