"""What the rows of an outcome show about one job: who started before it, what its team held, how full the fleet was.

Pure. It counts and adds; what follows from it is said in reasons.py. "Later" and "before" are of submission, "passed"
is of the first grant, and only jobs of the same GPU type are looked at: no others could stand in its way.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from events.ids import GpuType, Instant, JobId, TeamId
from events.job import CLASS_RANK
from events.preemption import PreemptionRule
from replay.outcome import Displacement, JobOutcome, Outcome, Sample, Stretch, TeamSample
from replay.report.fleet import ratio
from replay.report.waits import let_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One preemption, from the side of either: the other job, its team, the rule, and the victim's loss."""

    job_id: JobId
    team: TeamId
    rule: PreemptionRule
    gpus: int
    lost_gpu_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Jobs whose order of first grants was not that of submission. `by`: came later, and were granted before it; of
    these `by_covered` within the guarantee of another team, `by_higher` of a higher class, `by_smaller` of fewer GPUs.
    `over`: came before it, and were not granted yet when it was.
    `behind`: came before it, still waited when it came, and were granted before it: the queue it stood in;
    `behind_gpus_max`: what the largest of these asked for."""

    by: int = 0
    by_covered: int = 0
    by_higher: int = 0
    by_smaller: int = 0
    over: int = 0
    behind: int = 0
    behind_gpus_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Means over the intervals of its wait. `team_use`: what its team held of this type over its guarantee;
    `stranded`: free GPUs of no use to jobs of `stranded_size`, the measured size next to its own from below."""

    team_use: float | None = None
    allocated: float | None = None
    free: float = 0.0
    held: float = 0.0
    waiting_gpus: float = 0.0
    stranded: float | None = None
    stranded_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One job under one policy. `gpus`: asked for; `started`: it was granted; `again_s`: without GPUs after its first
    attempt; `redone_s`: work done again; `stopped_by`: who preempted it; `made_room`: whom it preempted for its first
    grant."""

    gpus: int
    started: bool
    first_wait_s: int
    again_s: float
    redone_s: float
    lost_gpu_s: int
    faults: int
    stopped_by: tuple[Stop, ...]
    made_room: tuple[Stop, ...]
    passing: Passing
    surroundings: Surroundings


class Rows:
    """An outcome's rows, laid out to be looked up by job, type and team."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.jobs = {job.job_id: job for job in outcome.jobs}
        self._stretches: dict[JobId, list[Stretch]] = defaultdict(list)
        for stretch in sorted(outcome.stretches, key=lambda stretch: stretch.attempt):
            self._stretches[stretch.job_id].append(stretch)
        self._first = {job_id: stretches[0] for job_id, stretches in self._stretches.items()}
        self._of_type: dict[GpuType, list[JobOutcome]] = defaultdict(list)
        for job in let_in(outcome.jobs):
            self._of_type[job.gpu_type].append(job)
        self._samples: dict[GpuType, list[Sample]] = defaultdict(list)
        for sample in outcome.samples:
            self._samples[sample.gpu_type].append(sample)
        self._team_samples: dict[tuple[TeamId, GpuType, Instant], TeamSample] = {
            (row.team, row.gpu_type, row.at): row for row in outcome.team_samples
        }
        self._victims = _listed((row.victim, row) for row in outcome.displacements)
        self._preemptors = _listed((row.preemptor, row) for row in outcome.displacements)

    def granted_at(self, job_id: JobId) -> Instant | None:
        """Of its first attempt that was granted."""
        first = self._first.get(job_id)
        return first.granted_at if first else None

    def evidence(self, job_id: JobId) -> Evidence:
        """All that the rows show about this job, which is one of them."""
        job = self.jobs[job_id]
        return Evidence(
            gpus=job.gpus,
            started=job_id in self._first,
            first_wait_s=job.first_wait_s,
            again_s=self._again_s(job),
            redone_s=job.lost_gpu_s / job.charged if job.charged else 0.0,
            lost_gpu_s=job.lost_gpu_s,
            faults=job.faults,
            stopped_by=tuple(_stop_by(row) for row in self._victims.get(job_id, ())),
            made_room=self._made_room(job_id),
            passing=self._passing(job),
            surroundings=self._surroundings(job),
        )

    def _again_s(self, job: JobOutcome) -> float:
        """Seconds without GPUs from its first attempt's release on: up to each next grant, its end, or the replay's."""
        stretches = self._stretches.get(job.job_id, [])
        end = self.outcome.end_at if job.ended_at is None else job.ended_at
        until = [*(stretch.granted_at for stretch in stretches[1:]), end]
        pairs = zip(stretches, until, strict=True) if stretches else ()
        return sum(max(0, at - stretch.released_at) for stretch, at in pairs if stretch.released_at is not None) / 1000

    def _made_room(self, job_id: JobId) -> tuple[Stop, ...]:
        granted = self.granted_at(job_id)
        orders = self._preemptors.get(job_id, ()) if granted is not None else ()
        return tuple(_stop_of(row) for row in orders if granted is not None and row.ordered_at <= granted)

    def _passing(self, job: JobOutcome) -> Passing:
        mine = self.granted_at(job.job_id)
        by = covered = higher = smaller = over = behind = largest = 0
        for other in self._of_type[job.gpu_type]:
            first = self._first.get(other.job_id)
            if other.submitted_at > job.submitted_at:
                if first is not None and (mine is None or first.granted_at < mine):
                    by += 1
                    covered += not first.borrowed and other.team != job.team
                    higher += CLASS_RANK[other.priority_class] < CLASS_RANK[job.priority_class]
                    smaller += other.gpus < job.gpus
            elif other.submitted_at < job.submitted_at:
                left = first.granted_at if first is not None else other.ended_at
                if mine is not None and (left is None or left > mine):
                    over += 1
                elif first is not None and first.granted_at > job.submitted_at:
                    behind += 1
                    largest = max(largest, other.gpus)
        return Passing(
            by=by,
            by_covered=covered,
            by_higher=higher,
            by_smaller=smaller,
            over=over,
            behind=behind,
            behind_gpus_max=largest,
        )

    def _surroundings(self, job: JobOutcome) -> Surroundings:
        until = next(at for at in (self.granted_at(job.job_id), job.ended_at, self.outcome.end_at) if at is not None)
        samples = [
            sample
            for sample in self._samples[job.gpu_type]
            if sample.at > job.submitted_at and sample.at - sample.seconds * 1000 < until
        ]
        seconds = sum(sample.seconds for sample in samples)
        if not seconds:
            return Surroundings()
        healthy = sum(sample.healthy_gpu_s for sample in samples)
        allocated = sum(sample.allocated_gpu_s for sample in samples)
        size = max((size for size in samples[0].stranded if size <= job.gpus), default=0)
        left = sum(sample.stranded.get(size, 0) * sample.seconds for sample in samples) / seconds
        return Surroundings(
            team_use=self._team_use(job, samples),
            allocated=ratio(allocated, healthy),
            free=(healthy - allocated) / seconds,
            held=sum(sample.held_gpu_s for sample in samples) / seconds,
            waiting_gpus=sum(sample.waiting_gpus * sample.seconds for sample in samples) / seconds,
            stranded=left if size else None,
            stranded_size=size,
        )

    def _team_use(self, job: JobOutcome, samples: Iterable[Sample]) -> float | None:
        delivered = guaranteed = 0
        for sample in samples:
            row = self._team_samples.get((job.team, job.gpu_type, sample.at))
            if row is not None:
                delivered += row.delivered_gpu_s
                guaranteed += row.guaranteed * sample.seconds
        return ratio(delivered, guaranteed)


def _listed(pairs: Iterable[tuple[JobId, Displacement]]) -> dict[JobId, list[Displacement]]:
    found: dict[JobId, list[Displacement]] = defaultdict(list)
    for key, row in pairs:
        found[key].append(row)
    return dict(found)


def _stop_by(row: Displacement) -> Stop:
    return Stop(job_id=row.preemptor, team=row.preemptor_team, rule=row.rule, gpus=row.gpus, lost_gpu_s=row.lost_gpu_s)


def _stop_of(row: Displacement) -> Stop:
    return Stop(job_id=row.victim, team=row.victim_team, rule=row.rule, gpus=row.gpus, lost_gpu_s=row.lost_gpu_s)
