"""Keeps child processes running: each is its own process (P-9), started again when it ends, ever later if it keeps
ending. All die with this process, whatever it dies of.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from signalboxd import child

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
POLL_S = 0.1
STEADY_S = 30.0
"""A child that ran so long starts its backoff anew."""


class ChildFailed(Exception):
    """A child ended that is not to be started again; says which, how, and where its log is."""


@dataclass(slots=True, kw_only=True)
class Child:
    """One process to keep. `fatal`: exit codes after which only a person can help."""

    name: str
    argv: Sequence[str | Path]
    log: Path
    fatal: frozenset[int] = frozenset()
    env: dict[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    stopping: bool = False
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def begin(self) -> None:
        """Start it, and again whenever it ends."""
        self.task = asyncio.create_task(self._keep(), name=self.name)

    async def stop(self, patience_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL; it is not started again."""
        self.stopping = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        if self.process is not None and self.process.poll() is None:
            await asyncio.to_thread(child.end, self.process, signal.SIGTERM, patience_s=patience_s)

    async def failed(self) -> None:
        """Wait for the failure from which it does not come back. Raises ChildFailed."""
        assert self.task is not None
        await self.task

    async def _keep(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            self.process = child.spawn(self.argv, log=self.log, env=self.env)
            self.starts += 1
            code = await self._ended(self.process)
            if code in self.fatal:
                raise ChildFailed(f"{self.name} ended with {code}; see {self.log}:\n{last_lines(self.log)}")
            backoff_s = BACKOFF_FIRST_S if loop.time() - begun > STEADY_S else backoff_s
            sys.stderr.write(f"{self.name} ended with {code}; starting it again in {backoff_s:.1f} s\n")
            await asyncio.sleep(backoff_s)
            backoff_s = min(BACKOFF_MAX_S, backoff_s * 2)

    async def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code. Polled: a thread that waits would outlive a cancel."""
        while (code := process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return code


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, for a message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return "(no log)"
