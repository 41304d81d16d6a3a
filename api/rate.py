"""A bucket of tokens for each principal (R-111). In memory, of this process alone."""

import time
from collections import OrderedDict
from collections.abc import Callable

from api.problems import Problem

_PRINCIPALS_MAX = 10_000


class Rates:
    """`per_s` requests a second for each principal, after a burst of at most `burst`."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, principal: str) -> None:
        """Count one request. Raises Problem (429) with Retry-After."""
        now = self._clock()
        left, at = self._left.pop(principal, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        if left < 1.0:
            self._left[principal] = (left, now)
            wait_s = max(1, round((1.0 - left) / self._per_s + 0.5))
            limit = f"{self._per_s:g} requests a second"
            raise Problem(
                "too_many_requests", f"at most {limit}: try again in {wait_s} s", headers={"retry-after": str(wait_s)}
            )
        self._left[principal] = (left - 1.0, now)
        if len(self._left) > _PRINCIPALS_MAX:
            self._left.popitem(last=False)
