"""How values are spread: mean, exact percentiles, and the curve of how many are at most so large. Pure arithmetic.

A percentile is by nearest rank: the smallest value that at least so many of each hundred do not exceed. It is always
one of the values, and the same in every process.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of `count` values. All None where there is none."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


NOTHING = Spread(count=0, mean=None, p50=None, p95=None, p99=None, max=None)


def spread(values: Iterable[float]) -> Spread:
    """The spread of values in any order."""
    ranked = sorted(values)
    if not ranked:
        return NOTHING
    p50, p95, p99 = (nearest_rank(ranked, percent) for percent in (50, 95, 99))
    return Spread(count=len(ranked), mean=sum(ranked) / len(ranked), p50=p50, p95=p95, p99=p99, max=ranked[-1])


def nearest_rank(ranked: Sequence[float], percent: int) -> float:
    """The percentile (1..100) of sorted values, of which there is one at least."""
    return ranked[max(1, -(-len(ranked) * percent // 100)) - 1]


def curve(values: Iterable[float], points_max: int) -> list[tuple[float, float]]:
    """(value, share of values that are at most it), rising; thinned to `points_max` points that are each exact, first
    and last among them."""
    ranked = sorted(values)
    if not ranked:
        return []
    count = len(ranked)
    places = range(count) if count <= points_max else [(count - 1) * i // (points_max - 1) for i in range(points_max)]
    kept = sorted({ranked[place] for place in places})
    return [(value, bisect_right(ranked, value) / count) for value in kept]
