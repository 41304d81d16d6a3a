"""A steady stream of submissions over REST, each tried once: what a burst of users does to the stack."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.live.stack import Stack
from tests.live.waiting import due


@dataclass(slots=True)
class Submitted:
    """What came of it: seconds from sending to answer, the wall clock in ms when each was sent by job id, and whatever
    was not a plain acceptance."""

    latencies_s: list[float] = field(default_factory=list)
    sent_at_ms: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


async def submit_steadily(
    run: Stack, spec: Callable[[int], dict[str, Any]], *, rate: float, seconds: float, lanes: int = 1000
) -> Submitted:
    """`rate` a second, sent when they are due, whether or not earlier ones were answered."""
    made, begun, free = Submitted(), time.monotonic(), asyncio.Semaphore(lanes)

    async def submit(number: int) -> None:
        async with free:
            sent, sent_ms = time.monotonic(), time.time() * 1000
            try:
                answer = await run.http.post(
                    "/v1/jobs", json=spec(number), headers={"idempotency-key": str(uuid.uuid4())}
                )
            except httpx.HTTPError as error:
                made.faults.append(f"{type(error).__name__}: {error}")
                return
            made.latencies_s.append(time.monotonic() - sent)
            if answer.status_code != 202 or answer.json()["state"] != "QUEUED":
                made.faults.append(f"{answer.status_code}: {answer.text[:200]}")
            if answer.status_code == 202:
                made.sent_at_ms[answer.json()["job_id"]] = sent_ms

    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            await due(begun + number / rate)
            group.create_task(submit(number))
    return made
