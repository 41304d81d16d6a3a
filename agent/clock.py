"""Clocks: the machine's, and that of any asyncio loop."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.ports import Timer


def boottime() -> float:
    """Seconds since the machine started, sleep included; the same for all processes on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LoopClock:
    """Timers of the running loop, and a reading: CLOCK_BOOTTIME, or for a simulation the loop's own virtual time."""

    read: Callable[[], float] = boottime

    def now(self) -> float:
        """See Clock."""
        return self.read()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """See Clock."""
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        """See Clock."""
        await asyncio.sleep(delay_s)
