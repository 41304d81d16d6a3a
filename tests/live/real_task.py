"""A task that runs as a real process under the real agent until it is told to end."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live.stack import TEAM, Stack
from tests.live.waiting import until

PROGRAM = """
import os, pathlib, time
here = pathlib.Path(os.environ["HERE"])
with open(here / "pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
while not (here / "end").exists():
    time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True)
class RealTask:
    """Its job, and the folder in which each of its processes notes its pid."""

    job: str
    folder: Path

    def pids(self) -> list[int]:
        """Of every process that ever ran for it."""
        noted = self.folder / "pids"
        return [int(line) for line in noted.read_text().split()] if noted.exists() else []

    def alive(self) -> bool:
        """Whether the one process that ran for it still does."""
        (pid,) = self.pids()
        return Path(f"/proc/{pid}/cmdline").exists() and b"pids" in Path(f"/proc/{pid}/cmdline").read_bytes()

    def end(self) -> None:
        """Have it exit with 0."""
        (self.folder / "end").touch()


async def begin(stack: Stack, folder: Path) -> RealTask:
    """One that runs."""
    folder.mkdir()
    spec = {
        "team": TEAM,
        "name": "real",
        "gpu_type": "local",
        "gpus_per_replica": 2,
        "max_runtime": "1h",
        "command": [sys.executable, "-c", PROGRAM],
        "workdir": str(folder),
        "env": {"HERE": str(folder)},
    }
    made = await asyncio.to_thread(stack.client.submit, spec)
    task = RealTask(made.id, folder)

    async def runs() -> bool:
        return bool(task.pids())

    await until(runs, what="the real task runs")
    return task
