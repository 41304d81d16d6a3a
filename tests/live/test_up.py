"""`signalboxd up` itself: what a person starts, kills parts of, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from signalboxd.supervisor import last_lines
from tests.live.stack import entry
from tests.live.started import is_ready, up
from tests.live.waiting import WITHIN_S, until


async def test_up_is_ready_heals_itself_and_leaves_nothing(home: Path) -> None:
    """The first command needs no flags; a Postgres that is killed is started again; after a SIGTERM no process is
    left, and the next start finds what was there."""
    with up(home) as child:
        state = await _ready(home)
        assert _run(home, "run", "--gpus", "2", "--", "echo", "hello").stdout == "hello\n"
        os.kill(state["pids"]["postgres"], signal.SIGKILL)

        async def runs_again() -> bool:
            return (await asyncio.to_thread(_run, home, "run", "--", "echo", "again")).stdout == "again\n"

        await until(runs_again, what="a job runs after Postgres was killed")
        child.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, WITHIN_S) == 0
        assert [name for name, pid in state["pids"].items() if os.path.exists(f"/proc/{pid}")] == []
    with up(home):
        await _ready(home)
        jobs = json.loads(_run(home, "history", "--json").stdout)
        assert json.dumps(jobs).count("SUCCEEDED") >= 2


async def _ready(home: Path) -> dict[str, Any]:
    """Its own account of itself, once it says that it is ready."""

    async def said() -> bool:
        return is_ready(home)

    await until(said, what=lambda: _logs(home))
    state: dict[str, Any] = json.loads((home / "data" / "up.json").read_text())
    return state


def _run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SIGNALBOX_PROFILE": str(home / "profile.toml")}
    env["SIGNALBOX_PATIENCE"] = str(WITHIN_S)
    return subprocess.run(
        entry(*words), env=env, cwd=home, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def _logs(home: Path) -> str:
    """What everybody said last, for a message."""
    logs = [home / "up.log", *sorted((home / "data" / "logs").glob("*.log"))]
    return "".join(f"\n--- {log.name}\n{last_lines(log)}" for log in logs)
