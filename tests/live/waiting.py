"""Waiting for a stack, at a pace that leaves it the cores; the one place here that sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

WITHIN_S = 120.0
"""For what a stack does in seconds, or in those that its work takes: no load of the machine makes a fault of it."""


async def until(
    truth: Callable[[], Awaitable[T]],
    *,
    within_s: float = WITHIN_S,
    every_s: float = 0.1,
    what: str | Callable[[], str] = "",
) -> T:
    """Ask again and again until the answer is truthy, and return it; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (answer := await truth()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not true after {within_s} s: {what() if callable(what) else what}")
        await asyncio.sleep(every_s)
    return answer


async def due(at: float) -> None:
    """Until the monotonic clock is there; at once where it was."""
    await asyncio.sleep(max(0.0, at - time.monotonic()))


async def passed(seconds: float) -> None:
    """For as long as that: to let a fault last, never to wait for something to become true."""
    await asyncio.sleep(seconds)
