"""Submissions over REST: a steady stream, each tried once, as a burst of users makes it; and a queue that is never
empty."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent.clock import boottime
from tests.live.stack import Stack
from tests.live.waiting import WITHIN_S, due, passed

CLIENTS = 16
"""A request looks through all connections of its client: with one client the driver itself is the slowest part."""


@dataclass(slots=True)
class Submitted:
    """What came of it: seconds from sending to answer; CLOCK_BOOTTIME when each was sent, by job id; the wall clock in
    ms when the last was answered; how many were taken and not decided in time (SUBMITTED); and whatever failed."""

    latencies_s: list[float] = field(default_factory=list)
    sent_at: dict[str, float] = field(default_factory=dict)
    answered_at_ms: float = 0.0
    late: int = 0
    faults: list[str] = field(default_factory=list)


async def submit_steadily(
    run: Stack, spec: Callable[[int], dict[str, Any]], *, rate: float, seconds: float, lanes: int = 1000
) -> Submitted:
    """`rate` a second, sent when they are due, whether or not earlier ones were answered; `lanes` at one time."""
    made, begun, free = Submitted(), time.monotonic(), asyncio.Semaphore(lanes)
    clients = [httpx.AsyncClient(base_url=run.ground.address, timeout=WITHIN_S) for _ in range(CLIENTS)]

    async def submit(number: int) -> None:
        async with free:
            token = run.submitters[number % len(run.submitters)] if run.submitters else run.ground.admin_token
            headers = {"idempotency-key": str(uuid.uuid4()), "authorization": f"Bearer {token}"}
            sent = boottime()
            try:
                answer = await clients[number % CLIENTS].post("/v1/jobs", json=spec(number), headers=headers)
            except httpx.HTTPError as error:
                made.faults.append(f"{type(error).__name__}: {error}")
                return
            made.latencies_s.append(boottime() - sent)
            if answer.status_code != 202:
                made.faults.append(f"{answer.status_code}: {answer.text[:200]}")
                return
            made.sent_at[answer.json()["job_id"]] = sent
            made.late += answer.json()["state"] == "SUBMITTED"

    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            await due(begun + number / rate)
            group.create_task(submit(number))
    made.answered_at_ms = time.time() * 1000
    for client in clients:
        await client.aclose()
    return made


@asynccontextmanager
async def never_empty(run: Stack, spec: Callable[[int], dict[str, Any]], *, waiting: int) -> AsyncIterator[list[str]]:
    """Until it is left, so many jobs wait, whatever the pace of the machine; the ids of those that were submitted."""
    ids: list[str] = []
    over = asyncio.Event()

    async def submit(number: int) -> str:
        return (await asyncio.to_thread(run.client.submit, spec(number), f"flood-{number}")).id

    async def flood() -> None:
        while not over.is_set():
            run.check()
            seen = await run.get("/v1/cluster")
            lacking = waiting - seen["queue_length"] if seen is not None else 0
            ids.extend([await submit(number) for number in range(len(ids), len(ids) + lacking)])
            await passed(0.2)

    flooding = asyncio.create_task(flood())
    try:
        yield ids
    finally:
        over.set()
        await flooding
