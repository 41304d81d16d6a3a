"""A measured figure, and how to take one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report. `median` and `p99` are of `n` samples in `unit`; for rates p99 is the 1st percentile:
    the one that 99 of 100 samples reach.

    `target`: what the median must reach, `target_p99` the same for p99; None: measured only.
    """

    bench: str
    case: str
    unit: str
    median: float
    p99: float
    n: int
    target: float | None = None
    target_p99: float | None = None
    higher_is_better: bool = False

    @property
    def met(self) -> bool:
        """Whether both targets are reached."""
        sign = -1 if self.higher_is_better else 1
        pairs = ((self.median, self.target), (self.p99, self.target_p99))
        return all(target is None or sign * value <= sign * target for value, target in pairs)


def latency(
    bench: str,
    case: str,
    seconds: Sequence[float],
    *,
    target_ms: float | None = None,
    target_p99_ms: float | None = None,
) -> Figure:
    """A figure in milliseconds from samples in seconds."""
    samples = sorted(second * 1e3 for second in seconds)
    return Figure(
        bench=bench,
        case=case,
        unit="ms",
        median=round(median(samples), 3),
        p99=round(samples[len(samples) * 99 // 100], 3),
        n=len(samples),
        target=target_ms,
        target_p99=target_p99_ms,
    )


def rate(bench: str, case: str, per_second: Sequence[float], *, unit: str, target: float | None = None) -> Figure:
    """A figure per second; more is better."""
    samples = sorted(per_second)
    return Figure(
        bench=bench,
        case=case,
        unit=unit,
        median=round(median(samples)),
        p99=round(samples[len(samples) // 100]),
        n=len(samples),
        target=target,
        higher_is_better=True,
    )


class Stopwatch:
    """Seconds since it was made: by the monotonic clock, or another one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = clock()

    @property
    def s(self) -> float:
        return self._clock() - self._begin
