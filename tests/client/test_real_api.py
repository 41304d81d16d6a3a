"""The client and the command line against the real api, core and projection: the forms that both sides mean agree."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from signalbox import Client, Profile, Refused

from tests.api.site import JOB, Site, token_of
from tests.api.site import site as running
from tests.client.command import Command
from tests.servers.waiting import WITHIN_S, until_async

pytestmark = pytest.mark.postgres
SPEC = {name: value for name, value in JOB.items() if name != "team"}


@pytest.fixture
async def served(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[tuple[Site, Profile]]:
    """A site on a real socket, and an admin's profile for it."""
    async with running(postgres_dsn) as site:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            server = uvicorn.Server(
                uvicorn.Config(site.app, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
            )
            serving = asyncio.create_task(server.serve(sockets=[taken]))
            await until_async(_true_of(server))
            address = f"http://127.0.0.1:{taken.getsockname()[1]}"
            profile = Profile(
                address=address, token=token_of("root"), team="pretrain", gpu_type="h100", max_runtime="1h"
            )
            yield site, profile
            server.should_exit = True
            await serving


def _true_of(server: uvicorn.Server) -> Any:
    async def started() -> bool:
        return server.started

    return started


async def test_the_client_speaks_the_apis_forms(served: tuple[Site, Profile]) -> None:
    """Submit, read, steer, list and follow: every call is taken, and every answer read, by the real api."""
    site, profile = served

    def calls() -> str:
        with Client(profile, patience_s=WITHIN_S) as client:
            made = client.submit({**JOB, "name": "llm", "labels": {"run": "a"}}, "k-1")
            assert client.submit({**JOB, "name": "llm", "labels": {"run": "a"}}, "k-1").id == made.id
            job = client.job(made.id)
            assert (job.state, job.queue_position, job.name, job.gpus) == ("QUEUED", 1, "llm", 8)
            assert job.waiting.startswith("first in the queue")
            assert client.hold(made.id)["held"]
            assert client.job(made.id).waiting.startswith("held")
            assert not client.release(made.id)["held"]
            client.change(made.id, labels={"run": "b"})
            assert [row.id for row in client.jobs(state=["QUEUED", "RUNNING"], label="run=b", limit=5)] == [made.id]
            assert [row["job_id"] for row in client.queue(team="pretrain")] == [made.id]
            assert client.queue(team="vision") == []
            assert client.why(made.id)["reasons"]
            assert [event["type"] for event in client.job_events(made.id)][:2] == ["job.submitted", "job.queued"]
            assert client.checkpoints(made.id) == []
            assert client.policy()["policy"]["grace_s_max"] == 240
            assert client.cluster()["gpu_types"]["h100"]["total"] == 32
            client.set_quota("pretrain", {"h100": {"guaranteed": 16, "borrow_limit": 8}}, reason="more")
            client.drain("n-3", "xid 79")
            client.undrain("n-3")
            assert {row["node_id"] for row in client.nodes(state=["up"], block="b1")} == {"n-2", "n-3"}
            assert list(client.audit(team="pretrain", type="quota.changed", limit=1))
            seqs = [event.seq for event in client.events(follow=False)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert next(client.events(after=seqs[-2])).seq == seqs[-1]
            with pytest.raises(Refused) as refused:
                client.submit({**JOB, "max_runtime": "forever"})
            assert [error.field for error in refused.value.errors] == ["max_runtime"]
            with pytest.raises(Refused, match="no log"):
                list(client.logs(made.id))
            return made.id

    id = await asyncio.to_thread(calls)
    await site.leader.start(id)

    def ends() -> None:
        with Client(profile, patience_s=WITHIN_S) as client:
            assert client.job(id).state in ("QUEUED", "STARTING", "RUNNING")
            assert client.cancel(id)["state"] == "CANCELLING"

    await asyncio.to_thread(ends)


COMMANDS = (
    "queue",
    "history",
    "nodes",
    "quota",
    "policy",
    "top",
    "audit",
    "events",
    "nodes --state up",
    "history -n 5",
)


async def test_the_commands_speak_the_apis_forms(served: tuple[Site, Profile], tmp_path: Path) -> None:
    """Each reading command exits with 0 against the real api; a job is submitted, waited for and cancelled."""
    _, profile = served
    command = Command(profile.save(tmp_path / "profile.toml"), tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(SPEC))
    made = await asyncio.to_thread(command, "submit", "job.json", "--json")
    assert made.returncode == 0, made.stderr
    id = json.loads(made.stdout)["job_id"]
    for words in (*COMMANDS, f"show {id}", f"why {id}", f"cancel {id}", "history --state cancelled"):
        ran = await asyncio.to_thread(command, *words.split())
        assert (ran.returncode, ran.stderr) == (0, ""), words
        assert ran.stdout, words
    gone = await asyncio.to_thread(command, "cancel", "j_00000000000000000000")
    assert gone.returncode == 3
    assert gone.stderr == "signalbox: There is no such job: there is no job j_00000000000000000000\n"
