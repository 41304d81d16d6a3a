"""A small site around the api: logs in memory, real Postgres, the real core as leader, the real projector."""

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
import orjson
import pytest
from fastapi import FastAPI

from api import reads
from api.app import create_app
from api.auth import parse_tokens
from api.context import ApiContext, LogTail
from api.settings import ApiSettings
from events.ids import ClusterId
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore
from projections.worker import opened
from scheduler.control import migrate
from tests.api.leader import Leader
from tests.servers.waiting import WITHIN_S, until_async

CLUSTER = ClusterId("eu-1")
TOKENS = [
    {"name": "ada", "roles": ["submitter"], "teams": ["pretrain"]},
    {"name": "bob", "roles": ["submitter"], "teams": ["vision"], "classes": ["research"]},
    {"name": "olga", "roles": ["operator"], "teams": []},
    {"name": "root", "roles": ["admin", "submitter", "auditor"], "teams": "*"},
    {"name": "aud", "roles": ["auditor"]},
    {"name": "node:n-0", "roles": ["agent"]},
]
JOB: dict[str, Any] = {
    "team": "pretrain",
    "command": ["python", "train.py"],
    "gpu_type": "h100",
    "gpus_per_replica": 8,
    "max_runtime": "1h",
}
_keys = itertools.count(1)


def token_of(name: str) -> str:
    """The token of one of TOKENS."""
    return f"token-of-{name}"


def token_file() -> bytes:
    """TOKENS as a token file."""
    return orjson.dumps(
        [{**entry, "sha256": hashlib.sha256(token_of(str(entry["name"])).encode()).hexdigest()} for entry in TOKENS]
    )


def patient(**changes: Any) -> ApiSettings:
    """Settings under which nobody gives up where all is well, however slow the machine; with changes."""
    waits = dict.fromkeys(("answer_wait_s", "position_wait_s", "min_seq_wait_s", "tail_wait_s"), WITHIN_S)
    return ApiSettings(**{**waits, **changes})


def new_key() -> str:
    """An idempotency key that was not used before."""
    return f"key-{next(_keys)}"


@dataclass(kw_only=True)
class Site:
    """What the tests reach."""

    app: FastAPI
    store: MemoryStore
    leader: Leader
    dsn: str
    client: httpx.AsyncClient
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def request(
        self, method: str, path: str, *, who: str = "ada", key: str | None = None, **more: Any
    ) -> httpx.Response:
        """A request by `who`; a write gets a key of its own unless one is given."""
        headers = {"authorization": f"Bearer {token_of(who)}", **more.pop("headers", {})}
        if method not in ("GET", "HEAD"):
            headers["idempotency-key"] = key or new_key()
        return await self.client.request(method, path, headers=headers, **more)

    async def get(self, path: str, *, who: str = "ada", **more: Any) -> httpx.Response:
        """A read."""
        return await self.request("GET", path, who=who, **more)

    async def submit(self, *, who: str = "ada", key: str | None = None, **changes: Any) -> httpx.Response:
        """JOB with changes; a change to None leaves a field out."""
        body = {name: value for name, value in {**JOB, **changes}.items() if value is not None}
        return await self.request("POST", "/v1/jobs", who=who, key=key, json=body)

    async def submitted(self, **changes: Any) -> dict[str, Any]:
        """The answer to a submission that has to be taken."""
        answer = await self.submit(**changes)
        assert answer.status_code == 202, answer.text
        document: dict[str, Any] = answer.json()
        return document

    async def level(self) -> None:
        """Wait until the read models hold all that the log holds."""
        services = self.app.state.services

        async def there() -> bool:
            return bool((await services.reads.head()).seq == services.follower.head.seq == self.leader.head.seq)

        await until_async(there, what="the read models are at the end of the log")

    def lead(self) -> None:
        """Have commands answered from now on."""
        self.tasks.append(asyncio.create_task(self.leader.run()))


@contextlib.asynccontextmanager
async def site(
    dsn: str,
    settings: ApiSettings | None = None,
    *,
    leading: bool = True,
    projecting: bool = True,
    tail: LogTail | None = None,
) -> AsyncIterator[Site]:
    """A site that runs; `leading`: commands are answered; `projecting`: the read models follow."""
    store = MemoryStore()
    events, commands = MemoryEventLog(store, CLUSTER), MemoryCommandLog(store, CLUSTER)
    await events.open(create=True)
    await commands.open(create=True)
    await migrate(dsn)
    leader = Leader(events, commands)
    await leader.lead()
    context = ApiContext(
        cluster=CLUSTER,
        events=MemoryEventLog(store, CLUSTER),
        commands=MemoryCommandLog(store, CLUSTER),
        postgres_dsn=dsn,
        tokens=parse_tokens(token_file()),
        settings=settings or patient(),
        tail=tail,
    )
    app = create_app(context)
    async with contextlib.AsyncExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        for wait in ("_MIRROR_WAIT_S", "SHARES_WAIT_S"):
            patched.setattr(reads, wait, WITHIN_S)
        if projecting:
            projector = await stack.enter_async_context(opened(MemoryEventLog(store, CLUSTER), dsn))
            await projector.catch_up()
        await stack.enter_async_context(app.router.lifespan_context(app))
        # A connection that is cancelled while it is made is not closed: let the app's listener be there first.
        await until_async(lambda: _listens(dsn), what="the app listens")
        transport = httpx.ASGITransport(app=app)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://api"))
        made = Site(app=app, store=store, leader=leader, dsn=dsn, client=client)
        if projecting:
            made.tasks.append(asyncio.create_task(projector.follow()))
        if leading:
            made.lead()
        stack.push_async_callback(_end, made.tasks)
        yield made


async def _end(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _listens(dsn: str) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        return bool(await connection.fetchval(query))
    finally:
        await connection.close()
