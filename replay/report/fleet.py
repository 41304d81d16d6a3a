"""How the fleet was used: allocation over time, what was held idle for coming starts, and what lay stranded. Pure.

Everything is a sum of GPU-seconds over a sum of GPU-seconds, so that parts of a day, types and buckets add up.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from events.ids import Instant
from replay.outcome import Outcome, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """GPU-seconds of healthy GPUs, and how many of them were allocated, or idle for a start to come."""

    healthy_gpu_s: int
    allocated_gpu_s: int
    held_gpu_s: int

    @property
    def utilisation(self) -> float | None:
        """Allocated of healthy."""
        return ratio(self.allocated_gpu_s, self.healthy_gpu_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Means over `seconds` that end at `at`, of all types together: GPUs; and jobs and GPUs that waited, of the ends of
    the samples in it."""

    at: Instant
    seconds: int
    healthy: float
    allocated: float
    held: float
    waiting_jobs: float
    waiting_gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedRow:
    """Free GPUs that no job of `size` could use, and all free ones: means over time, by the length of each interval."""

    gpu_type: str
    size: int
    stranded: float
    free: float


def ratio(part: float, whole: float) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole else None


def use(samples: Iterable[Sample]) -> Use:
    """The sum of the samples."""
    healthy = allocated = held = 0
    for sample in samples:
        healthy += sample.healthy_gpu_s
        allocated += sample.allocated_gpu_s
        held += sample.held_gpu_s
    return Use(healthy_gpu_s=healthy, allocated_gpu_s=allocated, held_gpu_s=held)


def until_last_submission(outcome: Outcome) -> list[Sample]:
    """The samples of the time in which work still came: after it the fleet only drains, and says nothing."""
    last = max((job.submitted_at for job in outcome.jobs), default=outcome.start_at)
    return [sample for sample in outcome.samples if sample.at <= last]


def while_waiting(outcome: Outcome) -> list[Sample]:
    """The samples of types for which jobs waited (R-102's "under demand")."""
    return [sample for sample in outcome.samples if sample.waiting_jobs]


def over_time(samples: Sequence[Sample], buckets_max: int) -> list[Moment]:
    """The fleet as a row of moments, at most so many, of equal time; each the mean over its samples."""
    return [_moment(part) for part in buckets(samples, buckets_max)]


def buckets(samples: Sequence[Sample], buckets_max: int) -> list[list[Sample]]:
    """The samples, sorted by time, in at most so many groups of equal time; empty ones are left out."""
    if not samples:
        return []
    start = min(sample.at - sample.seconds * 1000 for sample in samples)
    width = bucket_ms(start, samples[-1].at, buckets_max)
    groups: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[(sample.at - 1 - start) // width].append(sample)
    return [groups[place] for place in sorted(groups)]


def bucket_ms(start: int, end: int, buckets_max: int) -> int:
    """The length of a bucket, so that from start to end there are at most so many."""
    return max(1, -(-(end - start) // buckets_max))


def fragmentation(samples: Iterable[Sample]) -> list[StrandedRow]:
    """What lay stranded for each type and size (R-36), by the time for which it did."""
    seconds: dict[tuple[str, int], int] = defaultdict(int)
    lost: dict[tuple[str, int], int] = defaultdict(int)
    free: dict[tuple[str, int], int] = defaultdict(int)
    for sample in samples:
        for size, stranded in sample.stranded.items():
            key = (sample.gpu_type, size)
            seconds[key] += sample.seconds
            lost[key] += stranded * sample.seconds
            free[key] += sample.healthy_gpu_s - sample.allocated_gpu_s
    return [
        StrandedRow(gpu_type=key[0], size=key[1], stranded=lost[key] / span, free=free[key] / span)
        for key, span in sorted(seconds.items())
        if span
    ]


def _moment(samples: Sequence[Sample]) -> Moment:
    """Of the samples of one bucket: types add up, intervals are averaged by their length."""
    seconds = sum({sample.at: sample.seconds for sample in samples}.values()) or 1
    total = use(samples)
    return Moment(
        at=samples[-1].at,
        seconds=seconds,
        healthy=total.healthy_gpu_s / seconds,
        allocated=total.allocated_gpu_s / seconds,
        held=total.held_gpu_s / seconds,
        waiting_jobs=sum(sample.waiting_jobs * sample.seconds for sample in samples) / seconds,
        waiting_gpus=sum(sample.waiting_gpus * sample.seconds for sample in samples) / seconds,
    )
