"""Waiting in virtual time: the one place of the simulation that sleeps. It costs no real time."""

import asyncio
from collections.abc import Callable


async def pause(seconds: float) -> None:
    """Let so much virtual time pass."""
    await asyncio.sleep(seconds)


async def until(true: Callable[[], bool], within_s: float, step_s: float = 0.5) -> bool:
    """Wait for something to be true; whether it came to be within so much virtual time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not true():
        if loop.time() >= end:
            return False
        await asyncio.sleep(step_s)
    return True
