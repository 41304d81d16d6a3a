"""What the log in Postgres promises beyond the others: one gapless order under slow commits, and no rewriting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from events import postgres_line
from events.ids import ClusterId
from events.log import AppendRefused, LogUnavailable, LogUnusable, Raw, UnknownOutcome
from events.postgres import PostgresCommandLog, PostgresEventLog
from events.postgres_line import Line
from signalboxd.embedded_postgres import EmbeddedPostgres
from tests.contract.places import Opened, PostgresPlace
from tests.contract.records import CLUSTER
from tests.servers.waiting import WITHIN_S, until_async

pytestmark = pytest.mark.postgres

SLOW_APPEND = """
WITH bump AS (
    UPDATE log.counters SET last = last + 1 WHERE topic = '{topic}' RETURNING last
)
INSERT INTO log.{topic} SELECT 'west', last, 'slow' FROM bump"""


@pytest_asyncio.fixture
async def opened(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    """Opens logs in a database of the test's own, whose statements wait for locks as long as a test takes."""
    monkeypatch.setattr(postgres_line, "STATEMENT_TIMEOUT_MS", int(WITHIN_S * 1000))
    opened = Opened(PostgresPlace(postgres_dsn))
    await opened.events()
    await opened.commands()
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def other(opened: Opened, postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Somebody else's connection to it."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


async def waiting_for_locks(other: asyncpg.Connection, count: int) -> None:
    """Until so many statements wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def reached() -> bool:
        return int(await other.fetchval(query)) >= count

    await until_async(reached, what=f"{count} statements wait")


@asynccontextmanager
async def under_way(*work: Coroutine[Any, Any, int]) -> AsyncIterator[list[asyncio.Task[int]]]:
    """These appends as tasks, none left behind."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("topic", ["events", "commands"])
@pytest.mark.parametrize(
    "statement",
    ["UPDATE log.{} SET value = 'x'", "DELETE FROM log.{}", "TRUNCATE log.{}", "DELETE FROM log.{} WHERE position = 7"],
)
async def test_nothing_stored_is_ever_changed(other: asyncpg.Connection, topic: str, statement: str) -> None:
    """The database refuses to update, delete or truncate either table, even where no row would be hit."""
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await other.execute(statement.format(topic))


@pytest.mark.parametrize(
    "statement",
    ["UPDATE log.counters SET last = last - 1", "UPDATE log.counters SET cluster = 'x'", "DELETE FROM log.counters"],
)
async def test_the_counter_only_goes_forward(other: asyncpg.Connection, statement: str) -> None:
    """The database refuses to turn a counter back, rename it or take it away."""
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await other.execute(statement)


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_a_slow_commit_holds_back_those_behind_it(opened: Opened, other: asyncpg.Connection, ends: str) -> None:
    """No reader sees a later command before one that is still being committed, and a rollback leaves no gap (P-6)."""
    reader, *writers = [await opened.commands() for _ in range(4)]
    await other.execute("BEGIN")
    await other.execute(SLOW_APPEND.format(topic="commands"))
    async with under_way(*(log.append(b"quick", WITHIN_S) for log in writers)) as appends:
        watcher = await asyncpg.connect(opened_dsn(opened))
        await waiting_for_locks(watcher, len(writers))
        await watcher.close()
        assert await reader.end() == 0
        assert list(await reader.read(0, 100)) == []
        await other.execute(ends)
        offsets = sorted(await asyncio.gather(*appends))
    first = 2 if ends == "COMMIT" else 1
    assert offsets == list(range(first, first + len(writers)))
    assert [raw.offset for raw in await reader.read(-1, 100)] == list(range(offsets[-1] + 1))


async def test_a_writer_that_waits_for_its_successor_is_refused(opened: Opened, other: asyncpg.Connection) -> None:
    """An append compares the head as it is when the append before it has committed, not as it was when it began."""
    log = await opened.events()
    await other.execute("BEGIN")
    await other.execute(SLOW_APPEND.format(topic="events"))
    async with under_way(log.append(b"deposed", 1, WITHIN_S)) as (append,):
        watcher = await asyncpg.connect(opened_dsn(opened))
        await waiting_for_locks(watcher, 1)
        await watcher.close()
        await other.execute("COMMIT")
        with pytest.raises(AppendRefused):
            await append
    assert await log.read(0, 9) == [Raw(1, b"slow")]


async def test_an_append_that_waits_too_long_has_an_unknown_outcome(
    opened: Opened, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the server's limit for a statement nor the caller's lets a leader hang; both end its leadership."""
    monkeypatch.setattr(postgres_line, "STATEMENT_TIMEOUT_MS", 1000)
    by_server, by_caller = await opened.events(), await opened.events()
    await other.execute("BEGIN")
    await other.execute(SLOW_APPEND.format(topic="events"))
    async with under_way(by_server.append(b"x", 1, WITHIN_S), by_caller.append(b"x", 1, timeout_s=0.2)) as appends:
        for append in appends:
            with pytest.raises(UnknownOutcome):
                await append
    await other.execute("ROLLBACK")
    for log in (by_server, by_caller):
        with pytest.raises(UnknownOutcome, match="dead"):
            await log.append(b"x", 1)


async def test_a_connection_lost_in_an_append_is_an_unknown_outcome(opened: Opened, other: asyncpg.Connection) -> None:
    """For events that ends the writer; for commands the next append connects again."""
    events, commands = await opened.events(), await opened.commands()
    await other.execute("BEGIN")
    for topic in ("events", "commands"):
        await other.execute(SLOW_APPEND.format(topic=topic))
    async with under_way(events.append(b"x", 1, WITHIN_S), commands.append(b"x", WITHIN_S)) as appends:
        watcher = await asyncpg.connect(opened_dsn(opened))
        await waiting_for_locks(watcher, 2)
        await watcher.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'signalbox-log'"
        )
        await watcher.close()
        for append in appends:
            with pytest.raises(UnknownOutcome):
                await append
    await other.execute("ROLLBACK")
    with pytest.raises(UnknownOutcome):
        await events.append(b"x", 1)
    assert await commands.append(b"y") == 1


async def test_what_is_acknowledged_is_on_disk_whatever_the_database_says(postgres_dsn: str) -> None:
    """The session's synchronous_commit and isolation win over those set for the database."""
    other = await asyncpg.connect(postgres_dsn)
    name = await other.fetchval("SELECT current_database()")
    await other.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await other.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    await other.close()
    line = Line(postgres_dsn, "signalbox-log")
    for setting, value in {"synchronous_commit": "on", "transaction_isolation": "read committed"}.items():
        assert (await line.fetch(f"SHOW {setting}"))[0][0] == value
    await line.close()


async def test_readers_stop_at_a_gap(opened: Opened, other: asyncpg.Connection) -> None:
    """A record that is missing is never passed over: reading ends before it, and fails at it."""
    log = await opened.events()
    for offset in range(1, 6):
        await log.append(b"x", offset)
    await other.execute("ALTER TABLE log.events DISABLE TRIGGER USER; DELETE FROM log.events WHERE position = 3")
    assert [raw.offset for raw in await log.read(-1, 100)] == [0, 1, 2]
    with pytest.raises(LogUnusable, match="missing"):
        await log.read(2, 100)


async def test_a_log_that_is_shorter_than_its_counter_does_not_open(opened: Opened, other: asyncpg.Connection) -> None:
    """Records that were taken from the end are missed when the log is opened."""
    log = await opened.events()
    await log.append(b"x", 1)
    await other.execute("ALTER TABLE log.events DISABLE TRIGGER USER; DELETE FROM log.events WHERE position = 1")
    with pytest.raises(LogUnusable, match="missing"):
        await opened.events()


async def test_clusters_in_one_database_know_nothing_of_each_other(postgres_dsn: str) -> None:
    """Each cluster has a log of its own, with its own positions (P-2)."""
    place = PostgresPlace(postgres_dsn)
    west, east = place.events(), PostgresEventLog(postgres_dsn, ClusterId("east"))
    assert await west.open(create=True) != await east.open(create=True)
    assert [await west.append(b"w", 1), await east.append(b"e", 1)] == [1, 1]
    assert (await east.read(0, 9))[0].value == b"e"
    await west.close()
    await east.close()


async def test_followers_outlast_a_server_that_is_killed(postgres_server: EmbeddedPostgres) -> None:
    """After kill -9 and a restart a follower goes on where it was; reading meanwhile says that the log is away."""
    log, writer = (PostgresCommandLog(postgres_server.dsn, CLUSTER) for _ in range(2))
    await log.open(create=True)
    await writer.open()
    follower = log.follow(0)
    await writer.append(b"before")
    assert await anext(follower) == [Raw(1, b"before")]
    following = asyncio.ensure_future(anext(follower))
    await asyncio.to_thread(postgres_server.kill)
    with pytest.raises(LogUnavailable):
        await writer.end()
    await asyncio.to_thread(postgres_server.start)
    await until_async(lambda: appended(writer), what="the server takes an append")
    assert (await asyncio.wait_for(following, WITHIN_S))[0] == Raw(2, b"after")
    await follower.aclose()  # type: ignore[attr-defined]
    await log.close()
    await writer.close()


async def appended(log: PostgresCommandLog) -> bool:
    """Whether an append went through."""
    try:
        await log.append(b"after")
    except UnknownOutcome:
        return False
    return True


def opened_dsn(opened: Opened) -> str:
    """The database's address."""
    place = opened.place
    assert isinstance(place, PostgresPlace)
    return place.dsn
