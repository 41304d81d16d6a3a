"""`signalboxd up` itself, in a folder of its own: for its test, and to measure it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from signalboxd.child import end, spawn


@contextmanager
def up(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It runs, with what it says in up.log."""
    options = ["--data", str(home / "data"), "--port", "0", "--nodes", "4", "--profile", str(home / "profile.toml")]
    (home / "up.log").write_bytes(b"")
    child = spawn([sys.executable, "-m", "signalboxd", "up", *options], log=home / "up.log")
    try:
        yield child
    finally:
        end(child, signal.SIGTERM)


def is_ready(home: Path) -> bool:
    """Does it say so?"""
    return "ready: http" in (home / "up.log").read_text()
