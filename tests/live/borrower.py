"""A training job as a user writes it: it counts steps, saves where it is when it is told to stop, and goes on from
there. A process of the real agent; it ends when its folder says so.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.stack import Stack
from tests.live.waiting import until

GRACE_S = 30
PROGRAM = """
import os, pathlib, time
from signalbox import job

def save():
    path = job.checkpoint_dir() / f"step-{step}"
    with job.atomic_checkpoint(path) as partial:
        partial.write_text(str(step))
    job.report_checkpoint(path, step=step)
    print("saved", path, flush=True)

step = int(pathlib.Path(job.resume_uri()).read_text()) if job.resume_uri() else 0
print("begins at", step, "from", job.resume_uri(), flush=True)
job.on_preempt(save)
while not pathlib.Path("end").exists():
    step += 1
    job.report_step(step)
    if step == 3:
        save()
    time.sleep(0.05)
job.report_finished()
"""


@dataclass(frozen=True, slots=True)
class Borrower:
    """A job of `team`, in a folder of its own."""

    run: Stack
    job: str
    folder: Path

    async def shown(self) -> dict[str, Any]:
        """The job over REST."""
        found: dict[str, Any] | None = await self.run.get(f"/v1/jobs/{self.job}")
        return found or {}

    async def becomes(self, state: str, *, attempt: int = 1) -> dict[str, Any]:
        """The job once it is so; fails with what it is instead."""
        seen: dict[str, Any] = {}

        async def so() -> bool:
            self.run.check()
            seen.update(await self.shown())
            return (seen.get("state"), seen.get("attempt")) == (state, attempt)

        def what() -> str:
            return f"{self.job} is {state} in attempt {attempt}; it is {seen.get('state')} in {seen.get('attempt')}"

        await until(so, what=what)
        return seen

    async def saved(self, count: int) -> list[dict[str, Any]]:
        """Its accepted checkpoints, once there are so many."""

        async def enough() -> list[dict[str, Any]] | None:
            found = await self.run.get(f"/v1/jobs/{self.job}/checkpoints")
            return found["checkpoints"] if found and len(found["checkpoints"]) >= count else None

        return list(await until(enough, what=f"{self.job} has {count} checkpoints") or ())

    async def says(self, attempt: int, beginning: str) -> str:
        """The line of that attempt's output that begins so, once it is there."""

        async def line() -> str | None:
            raw = b"".join(await asyncio.to_thread(lambda: list(self.run.client.logs(self.job, attempt=attempt))))
            return next((each for each in raw.decode().splitlines() if each.startswith(beginning)), None)

        return str(await until(line, what=f"attempt {attempt} of {self.job} says {beginning}"))

    def end(self) -> None:
        """Have it exit with 0."""
        (self.folder / "end").touch()


async def borrower(run: Stack, folder: Path, *, team: str, gpus: int) -> Borrower:
    """Submit one."""
    folder.mkdir()
    spec = {
        "team": team,
        "name": folder.name,
        "gpu_type": "local",
        "gpus_per_replica": gpus,
        "max_runtime": "1h",
        "command": [sys.executable, "-c", PROGRAM],
        "workdir": str(folder),
        "checkpoint": {"grace_seconds": GRACE_S, "uri": str(folder / "checkpoints")},
    }
    made = await asyncio.to_thread(run.client.submit, spec)
    return Borrower(run, made.id, folder)
