"""Stated models of what a size and a place do to the speed of work. All are off by default: work takes its time
wherever it runs.

Speeds are in thousandths of the speed at the size that was asked for, in as few blocks as can hold it.
"""

from dataclasses import dataclass

FULL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """`parallel_percent`: how much of an elastic job's work is done faster by more replicas and slower by fewer
    (Amdahl 1967): with a part p of it parallel, a job of N replicas takes (1 - p) + p N / n of its time on n. None: its
    size makes no difference. `spread_percent`: each block more than the gang needs makes it take so many percent
    longer (R-33, R-91)."""

    parallel_percent: int | None = None
    spread_percent: int = 0

    def __post_init__(self) -> None:
        if self.parallel_percent is not None and not 0 <= self.parallel_percent <= 100:
            raise ValueError(f"parallel_percent: {self.parallel_percent} is not between 0 and 100")
        if not 0 <= self.spread_percent <= 1000:
            raise ValueError(f"spread_percent: {self.spread_percent} is not between 0 and 1000")

    @property
    def off(self) -> bool:
        """Does work take the same time wherever it runs?"""
        return self.parallel_percent is None and not self.spread_percent

    def speed(self, *, replicas: int, asked: int, blocks: int, blocks_min: int) -> int:
        """Thousandths of full speed, at least 1."""
        size, place = 100 * replicas, 100
        if self.parallel_percent is not None:
            part = self.parallel_percent
            size = (100 - part) * replicas + part * asked
        place += self.spread_percent * max(0, blocks - blocks_min)
        return max(1, FULL * 100 * replicas * 100 // (size * place))
