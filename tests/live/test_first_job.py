"""The first hour with Signalbox: real processes on the real agent, over the `signalbox` command."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.processes import marked
from tests.live.checks import projected, unclaimed
from tests.live.stack import TEAM, Stack, entry, stack
from tests.live.waiting import WITHIN_S, until

TRAIN = """
import os, sys, time
print("training on", os.environ["CUDA_VISIBLE_DEVICES"].count(",") + 1, "gpus", flush=True)
for step in range(5):
    print("step", step, flush=True)
    time.sleep(0.05)
print("a warning", file=sys.stderr, flush=True)
sys.exit(7)
"""
RANK = """
import os, socket
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
assert os.environ["PET_NNODES"] == str(world) and os.environ["PET_NODE_RANK"] == str(rank)
assert (os.environ["PET_MASTER_ADDR"], os.environ["PET_MASTER_PORT"]) == (where[0], str(where[1]))
assert os.environ["PET_NPROC_PER_NODE"] == "2" and os.environ["CUDA_VISIBLE_DEVICES"].count(",") == 1
if rank == 0:
    with socket.create_server(where) as server:
        for _ in range(world - 1):
            peer, _ = server.accept()
            print("heard of rank", int(peer.recv(10)), "of", world, flush=True)
            peer.sendall(b"go")
else:
    import time
    while True:
        try:
            peer = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.05)
    peer.sendall(str(rank).encode())
    print("rank", rank, "was told:", peer.recv(10).decode(), flush=True)
"""
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) < 3:
    subprocess.Popen([sys.executable, sys.argv[0], sys.argv[1], "child"], start_new_session=True)
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a person sits: a folder, and the command."""

    stack: Stack
    folder: Path

    async def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A `signalbox` command, run to its end."""
        return await asyncio.to_thread(
            subprocess.run, entry(*words), env=self.stack.command_env(), cwd=self.folder, text=True,
            capture_output=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip

    async def document(self, *words: str) -> dict[str, object]:
        """What a command says with --json."""
        ran = await self.run(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        made: dict[str, object] = json.loads(ran.stdout)
        return made


@asynccontextmanager
async def desk(home: Path) -> AsyncIterator[Desk]:
    """A stack with the real agent alone, and a folder with programs."""
    folder = home / "work"
    folder.mkdir()
    for name, text in (("train", TRAIN), ("rank", RANK), ("stubborn", STUBBORN)):
        (folder / f"{name}.py").write_text(text)
    async with stack(home / "data", "--nodes", "0") as made:
        yield Desk(made, folder)


async def test_a_person_runs_a_job_as_if_it_ran_here(home: Path) -> None:
    """`signalbox run` needs no flags but the GPUs: it streams the ranks' output, and ends with the job's exit code;
    a launch of two replicas finds its master; a cancel leaves nothing; logs and timeline are there afterwards."""
    async with desk(home) as at:
        await _run_ends_as_the_job_does(at)
        await _two_replicas_meet(at)
        await _cancel_leaves_nothing(at)
        await unclaimed(at.stack)
        assert await projected(at.stack) == []


async def _run_ends_as_the_job_does(at: Desk) -> None:
    ran = await at.run("run", "--gpus", "2", "--", sys.executable, "train.py")
    said = ["training on 2 gpus", *(f"step {step}" for step in range(5)), "a warning"]
    assert (ran.returncode, ran.stdout.splitlines()) == (7, said), ran.stderr
    job = ran.stderr.split()[1]
    assert (await at.run("logs", job)).stdout.splitlines() == said
    shown = await at.document("show", job)
    assert (shown["state"], shown["exit_code"], shown["attempt"]) == ("FAILED", 7, 1)
    timeline = [event["type"] for event in await asyncio.to_thread(at.stack.client.job_events, job)]
    wanted = ["job.submitted", "job.queued", "gang.allocated", "task.started", "gang.running", "task.ended"]
    wanted.append("job.finished")
    assert [kind for kind in timeline if kind in wanted] == wanted


async def _two_replicas_meet(at: Desk) -> None:
    words = ["--replicas", "2", "--gpus-per-replica", "2", "--", sys.executable, "rank.py"]
    ran = await at.run("run", *words)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    lines = sorted(line.split(None, 1)[-1] for line in ran.stdout.splitlines())
    assert any("heard of rank 1 of 2" in line for line in lines), ran.stdout
    assert any("rank 1 was told: go" in line for line in lines), ran.stdout


async def _cancel_leaves_nothing(at: Desk) -> None:
    spec = {
        "team": TEAM,
        "gpu_type": "local",
        "gpus_per_replica": 1,
        "max_runtime": "1h",
        "command": [sys.executable, "stubborn.py", "parent"],
        "workdir": str(at.folder),
        "checkpoint": {"grace_seconds": 2},
    }
    job = (await asyncio.to_thread(at.stack.client.submit, spec)).id
    owner = str((at.stack.ground.data / "agent").resolve())

    async def both() -> bool:
        return (await at.run("logs", job)).stdout.count("pid") == 2

    await until(both, what="parent and child run")
    running = marked(owner)
    assert len(running) >= 2
    ran = await at.run("cancel", job)
    assert ran.returncode == 0, ran.stderr
    ended = await asyncio.to_thread(at.stack.client.wait, job)
    assert ended.state == "CANCELLED"
    assert marked(owner) == {}
    assert [pid for pid in running if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """Is it there, and more than an entry that init has not collected yet?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
