"""The `signalbox` command, run as people run it: a process, its streams and its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.waiting import WITHIN_S

ENTRY = "from signalbox.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Command:
    """Runs in `folder`, with `profile` as its profile. `env` is added to a bare environment."""

    profile: Path
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            self.words(*words), input=stdin, env=self.environment(**env), cwd=self.folder, capture_output=True,
            text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start, and leave the rest to the caller."""
        return subprocess.Popen(
            self.words(*words), env=self.environment(**env), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_hears_interrupts,
        )  # fmt: skip

    def words(self, *words: str) -> list[str]:
        """The argument list."""
        return [sys.executable, "-c", ENTRY, *words]

    def environment(self, **env: str) -> dict[str, str]:
        """No variable of the caller's but what Python needs."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        bare = {"HOME": str(self.folder), "SIGNALBOX_PROFILE": str(self.profile), "SIGNALBOX_PATIENCE": "0.5"}
        return {**kept, **bare, "COLUMNS": "100", "NO_PROXY": "*", **self.env, **env}


def _hears_interrupts() -> None:
    """Runs in the child: whoever started the tests in the background made it, and all its children, deaf to SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
