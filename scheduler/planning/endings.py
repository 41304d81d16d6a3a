"""When GPUs of a type should come back, by the run-time limits of what runs: what the plain presets reserve by.

Kept in step by accepted commits; numbers of GPUs, whichever nodes they are on. Decides nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import merge

from commands.changed import News
from commands.entities import Attempt
from commands.state import State
from events.ids import GpuType, Instant
from scheduler.planning.forecast import UNLIMITED, expected_end

Ending = tuple[int, int]
"""(expected end, GPUs)."""


class Endings:
    """The expected ends of all attempts, first ones first, by type."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ends: dict[GpuType, list[Ending]] = {}
        self._unlimited: dict[GpuType, int] = {}
        """GPUs of those that may run for ever."""
        for attempt in state.attempts.rows.values():
            self._count(attempt.gpu_type, _ending(attempt), 1)

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        for _, _, before, after in news.get("attempts", ()):
            old, new = _ending(before), _ending(after)
            if old != new:
                gpu_type = (after if after is not None else before).gpu_type
                self._count(gpu_type, old, -1)
                self._count(gpu_type, new, 1)

    def enough_at(
        self, gpu_type: GpuType, wanted: int, *, free: int, now: Instant, also: Iterable[Ending]
    ) -> tuple[int, int]:
        """The first end with which so many GPUs are free, and how many more than that are then, when all is counted
        that ends at that time; UNLIMITED, and 0. `free`: now; `also`: what ends beside what runs."""
        later, at = sorted(also), None
        if unlimited := self._unlimited.get(gpu_type):
            insort(later, (now + self._state.policy.unlimited_horizon_s * 1000, unlimited))
        ends = self._ends.get(gpu_type, [])
        for expected, gpus in merge(ends, later) if later else ends:
            end = max(now, expected)
            if free >= wanted and at is not None and end > at:
                return at, free - wanted
            free += gpus
            at = end
        return (UNLIMITED, 0) if at is None or free < wanted else (at, free - wanted)

    def _count(self, gpu_type: GpuType, ending: Ending | None, by: int) -> None:
        """It came, or with a minus went."""
        if ending is None:
            return
        ends = self._ends.setdefault(gpu_type, [])
        if ending[0] == UNLIMITED:
            self._unlimited[gpu_type] = self._unlimited.get(gpu_type, 0) + by * ending[1]
        elif by > 0:
            insort(ends, ending)
        else:
            del ends[bisect_left(ends, ending)]


def _ending(attempt: Attempt | None) -> Ending | None:
    return None if attempt is None or not attempt.charged else (expected_end(attempt), attempt.charged)
