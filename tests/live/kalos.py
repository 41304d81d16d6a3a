"""The Kalos trace as submissions, at compressed time (tests/data/LICENCE.md)."""

from __future__ import annotations

import asyncio
import csv
import gzip
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.stack import TEAM, Stack
from tests.live.waiting import due, until

TRACE = Path(__file__).parents[1] / "data" / "acme-kalos-completed.csv.gz"
NODES = 128
SPAN_S = 40.0
"""In which the 90 days' jobs are submitted."""
LOAD = 0.5
"""GPU time asked for, as a share of what the fleet has in that span; the trace has 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job: when it comes, in seconds of the run, and what is submitted."""

    at_s: float
    key: str
    spec: dict[str, Any]


def arrivals(span_s: float = SPAN_S, load: float = LOAD) -> list[Arrival]:
    """All 319, in order."""
    with gzip.open(TRACE, "rt") as file:
        rows = list(csv.DictReader(file))
    submits = span_s / float(rows[-1]["submit_s"])
    asked = sum(float(row["duration_s"]) * int(row["gpus"]) for row in rows)
    durations = load * span_s * NODES * 8 / asked
    return [
        Arrival(
            at_s=float(row["submit_s"]) * submits,
            key=row["job_id"],
            spec=spec(row["job_id"], int(row["gpus"]), float(row["duration_s"]) * durations),
        )
        for row in rows
    ]


def spec(name: str, gpus: int, duration_s: float, gpu_type: str = "h100") -> dict[str, Any]:
    """A body of POST /v1/jobs: one replica up to a node's worth, else as many whole nodes as it takes."""
    return {
        "team": TEAM,
        "name": name,
        "gpu_type": gpu_type,
        "command": ["train"],
        "max_runtime": "1h",
        "env": {"SIGNALBOX_SIM_DURATION_S": f"{duration_s:.3f}"},
        "replicas": -(-gpus // 8),
        "gpus_per_replica": min(gpus, 8),
    }


async def submit_all(stack: Stack, jobs: list[Arrival]) -> dict[str, str]:
    """Submit each at its time, whatever dies meanwhile; key -> job id. A client that got no answer tries again."""
    begun = time.monotonic()
    ids: dict[str, str] = {}

    async def submit(job: Arrival) -> None:
        answer = await asyncio.to_thread(stack.client.submit, job.spec, job.key)
        ids[job.key] = answer.id

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            await due(begun + job.at_s)
            group.create_task(submit(job))
    return ids


async def all_ended(stack: Stack) -> dict[str, str]:
    """The states of all jobs once none is left to run."""

    async def ended() -> dict[str, str] | None:
        stack.check()
        states = await stack.states()
        running = [state for state in states.values() if state in ("SUBMITTED", "QUEUED", "STARTING", "RUNNING")]
        return None if running else states

    found = await until(ended, every_s=0.5, what="every job has ended")
    assert found is not None
    return found
