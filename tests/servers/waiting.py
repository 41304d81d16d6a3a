"""Waiting for something outside this process to become true; the one place where tests may sleep."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

WITHIN_S = 60.0
"""For what is true in a moment where nothing is wrong: so long that no load of the machine makes a fault of it."""


def until(truth: Callable[[], T], *, within_s: float = WITHIN_S, what: str = "") -> T:
    """Ask again and again until the answer is truthy, and return it; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (answer := truth()):
        assert time.monotonic() < deadline, f"not true after {within_s} s: {what or truth}"
        time.sleep(0.02)
    return answer


async def until_async(truth: Callable[[], Awaitable[T]], *, within_s: float = WITHIN_S, what: str = "") -> T:
    """The same for a question that has to be awaited."""
    deadline = time.monotonic() + within_s
    while not (answer := await truth()):
        assert time.monotonic() < deadline, f"not true after {within_s} s: {what or truth}"
        await asyncio.sleep(0.02)
    return answer


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread and a loop of its own, so that sync fixtures leave the test's loop
    alone.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as problem:
            failure.append(problem)

    thread = threading.Thread(target=body, name="run-apart")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
