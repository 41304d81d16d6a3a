"""The projector: crashes, rivals, foreign logs, and what it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import orjson
import pytest

from events import codec
from events.chain import START, Accepted, Dropped, admit
from events.checkpoint import CheckpointRecorded
from events.ids import JobId, NodeIndex
from events.job import JobHeld
from events.memory import MemoryStore, Topic
from projections import metrics
from projections.database import PositionMoved, connect, load_head
from projections.digest import differing
from projections.moves import Moves
from projections.worker import Projector, Stopped, batches, opened, run
from tests.projections.histories import History
from tests.projections.story import Story
from tests.servers.waiting import WITHIN_S, until_async


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    made = await connect(postgres_dsn)
    yield made
    await made.close()


async def outcomes(story: Story) -> list[Accepted | Dropped]:
    """All records of the log, filtered."""
    head, found = START, list[Accepted | Dropped]()
    for raw in await story.log.read(-1, 100_000):
        found.append(admit(head, raw.offset, raw.value))
        head = found[-1].head
    return found


async def caught_up(story: Story, dsn: str) -> None:
    async with opened(story.log, dsn) as projector:
        await projector.catch_up()


async def test_a_crash_inside_a_batch_leaves_nothing_of_it(postgres_dsn: str, connection: asyncpg.Connection) -> None:
    """The connection dies in the transaction; the next projector begins where the last whole batch ended."""
    story = await History(5).run(150)
    waiting = await outcomes(story)
    async with opened(story.log, postgres_dsn) as projector:
        await projector.project(waiting[:40])
        await connection.execute(
            "CREATE FUNCTION read.die() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';"
            "CREATE TRIGGER die AFTER INSERT ON read.timeline EXECUTE FUNCTION read.die()"
        )
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
            await projector.project(waiting[40:])
    assert await load_head(connection, story.cluster) == waiting[39].head
    assert await differing(connection, story.log) == []
    await connection.execute("DROP TRIGGER die ON read.timeline")
    await caught_up(story, postgres_dsn)
    assert await load_head(connection, story.cluster) == story.head
    assert await differing(connection, story.log) == []


async def begun_story(dsn: str, begun: int) -> tuple[Story, list[Accepted | Dropped]]:
    """A story, and its records, of which so many were projected."""
    story = await History(6).run(150)
    waiting = await outcomes(story)
    if begun:
        async with opened(story.log, dsn) as projector:
            await projector.project(waiting[:begun])
    return story, waiting


@pytest.mark.parametrize("begun", [0, 20])
async def test_of_two_projectors_only_one_moves_the_position(
    postgres_dsn: str, connection: asyncpg.Connection, begun: int
) -> None:
    """Of two that stand at the same place, one is refused whole, on empty tables as well as later."""
    story, waiting = await begun_story(postgres_dsn, begun)
    async with opened(story.log, postgres_dsn) as one, opened(story.log, postgres_dsn) as two:
        done = await asyncio.gather(
            one.project(waiting[begun:50]), two.project(waiting[begun:40]), return_exceptions=True
        )
    assert sorted(type(result).__name__ for result in done) == ["NoneType", "PositionMoved"]
    winner = waiting[49] if done[0] is None else waiting[39]
    assert await load_head(connection, story.cluster) == winner.head
    assert await differing(connection, story.log) == []


@pytest.mark.parametrize("begun", [0, 20])
async def test_what_a_rival_has_projected_is_no_bad_log(
    postgres_dsn: str, connection: asyncpg.Connection, begun: int
) -> None:
    """Who comes late finds rows of what it is about to project: it is refused, and neither stops nor alarms."""
    story, waiting = await begun_story(postgres_dsn, begun)
    async with opened(story.log, postgres_dsn) as late:
        async with opened(story.log, postgres_dsn) as rival:
            await rival.project(waiting[begun:50])
        with pytest.raises(PositionMoved):
            await late.catch_up()
    assert metrics.STOPPED.labels(story.cluster)._value.get() == 0
    assert await load_head(connection, story.cluster) == waiting[49].head
    assert await differing(connection, story.log) == []


async def test_records_that_nobody_takes_move_the_position(postgres_dsn: str, connection: asyncpg.Connection) -> None:
    """A dropped record is read once: the offset passes it, seq and hash stay."""
    story = await Story().begun()
    await story.fenced()
    await story.fenced()
    await caught_up(story, postgres_dsn)
    head = await load_head(connection, story.cluster)
    assert (head.offset, head.accepted, head.seq) == (3, 1, 0)
    assert await differing(connection, story.log) == []


async def test_an_event_that_this_build_does_not_know_stops_and_alarms(
    postgres_dsn: str, connection: asyncpg.Connection
) -> None:
    """Nothing after it is projected, what was before stays, and the gauge says so; again after a restart."""
    story = await Story().begun()
    job = await story.job("a")
    await caught_up(story, postgres_dsn)
    raw = codec.encode(await _next_commit(story, job))
    stored = orjson.loads(raw)
    stored["events"][0]["type"] = "job.painted"
    await story.log.append(orjson.dumps(stored), story.head.offset + 1)
    for _ in range(2):
        async with opened(story.log, postgres_dsn) as projector:
            with pytest.raises(Stopped, match=r"job\.painted"):
                await projector.catch_up()
        assert metrics.STOPPED.labels(story.cluster)._value.get() == 1
    assert (await load_head(connection, story.cluster)).seq == 2


async def _next_commit(story: Story, job: JobId) -> Any:
    """The commit that would come next, made on a copy of the story's place."""
    copy = Story(story.cluster)
    copy.head, copy.at = story.head, story.at
    written: list[bytes] = []

    async def keep(raw: bytes) -> None:
        written.append(raw)

    copy.write = keep  # type: ignore[method-assign]
    return await copy.commit(JobHeld(job_id=job))


@pytest.mark.parametrize("fault", ["recreated", "truncated"])
async def test_a_position_in_another_log_stops_it(postgres_dsn: str, fault: str) -> None:
    """A log that was made anew or lost its end is not read on from where another one stood (P-4)."""
    store = MemoryStore()
    story = await Story(store=store).begun()
    await story.job("a")
    await caught_up(story, postgres_dsn)
    if fault == "truncated":
        store.partition(Topic.EVENTS, story.cluster).truncate(story.head.offset - 1)
    else:
        store.recreate(Topic.EVENTS, story.cluster)
        again = await Story(store=store).begun()
        for name in "abc":
            await again.job(name)
    with pytest.raises(Stopped):
        async with opened(story.log, postgres_dsn):
            pass


async def test_it_follows_the_log_and_wakes_who_waits(postgres_dsn: str) -> None:
    """A reader that waits for a seq is answered soon after the event; one that waits in vain gets what there is."""
    story = await Story().begun()
    await caught_up(story, postgres_dsn)
    connection = await connect(postgres_dsn)
    projecting = asyncio.create_task(run(story.log, postgres_dsn))
    async with Moves(connection, postgres_dsn) as moves:
        waiting = asyncio.create_task(moves.wait_for_seq(story.cluster, 2, WITHIN_S))
        await until_async(lambda: _listens(postgres_dsn), what="somebody listens")
        await story.job("a")
        assert await waiting == 2
        assert await moves.wait_for_seq(story.cluster, 1, WITHIN_S) == 2
        assert await told_in_vain(moves, story.cluster, 3) == 2
        assert await told_in_vain(moves, "nowhere", 1) == 0
    assert metrics.SEQ.labels(story.cluster)._value.get() == 2
    projecting.cancel()
    await asyncio.gather(projecting, return_exceptions=True)
    await connection.close()


async def told_in_vain(moves: Moves, cluster: str, seq: int) -> int:
    """What there is for one that waits for more, once the tables could be asked in so short a time."""
    found: list[int] = []

    async def told() -> bool:
        found.append(await moves.wait_for_seq(cluster, seq, timeout_s=0.1))
        return found[-1] >= 0

    await until_async(told, what="the tables are asked")
    return found[-1]


async def _listens(dsn: str) -> bool:
    connection = await connect(dsn)
    try:
        return bool(
            await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%read_moved%'")
        )
    finally:
        await connection.close()


async def test_who_waits_is_answered_though_the_listener_died(postgres_dsn: str) -> None:
    """The listening connection is made again, and meanwhile the reader looks for itself."""
    story = await Story().begun()
    await caught_up(story, postgres_dsn)
    connection = await connect(postgres_dsn)
    async with Moves(connection, postgres_dsn) as moves:
        await until_async(lambda: _listens(postgres_dsn), what="somebody listens")
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%read_moved%'"
        assert await connection.fetch(kill)
        waiting = asyncio.create_task(moves.wait_for_seq(story.cluster, 2, WITHIN_S))
        await story.job("a")
        await caught_up(story, postgres_dsn)
        assert await waiting == 2
        await until_async(lambda: _listens(postgres_dsn), what="somebody listens again")
    await connection.close()


async def test_what_postgres_cannot_store_does_not_stop_it(postgres_dsn: str, connection: asyncpg.Connection) -> None:
    """NUL characters and figures beyond int8 are in the log; the tables hold the nearest that they can."""
    story = await Story().begun()
    await story.node(0)
    job = await story.job("a", name="a\x00b", labels={"k\x00": "\\u0000"})
    await story.grant(job, 1, (0, 1))
    names: dict[str, Any] = {"job_id": job, "attempt": 1, "node": NodeIndex(0), "report": 1}
    await story.commit(CheckpointRecorded(**names, sequence=1, uri="s3://\x00", size_bytes=2**64 - 1))
    await caught_up(story, postgres_dsn)
    row = await connection.fetchrow("SELECT name, labels, checkpoint_uri FROM read.jobs")
    assert row is not None
    assert tuple(row) == ("a\ufffdb", {"k\ufffd": "\\u0000"}, "s3://\ufffd")
    assert await connection.fetchval("SELECT size_bytes FROM read.checkpoints") == 2**63 - 1
    assert await differing(connection, story.log) == []


async def test_memory_holds_what_lives_and_no_more(postgres_dsn: str) -> None:
    """A projector that has caught up keeps rows of jobs, attempts and leases that have not ended."""
    history = History(8)
    story = await history.run(400)
    async with opened(story.log, postgres_dsn) as projector:
        await projector.catch_up()
        assert (
            _kept(projector) <= len(history.state.jobs) + len(history.state.attempts) * 4 + len(history.state.nodes) + 1
        )


def _kept(projector: Projector) -> int:
    return sum(len(rows) for rows in projector.rows._rows.values())


async def test_batches_are_cut_at_the_limit_and_never_inside_a_record() -> None:
    """All records come, in order, and none but the last record of a batch goes beyond the limit."""
    story = await History(9).run(80)
    whole = await outcomes(story)
    cut = list(batches(whole, events_max=10))
    assert [outcome for batch in cut for outcome in batch] == whole
    assert all(len(batch) <= 10 for batch in cut)
    assert len(cut) > 5


async def test_columns_that_are_new_are_filled_from_the_first_record_on(
    postgres_dsn: str, connection: asyncpg.Connection
) -> None:
    """Tables of a version that did not know them are made anew by whoever projects next, and are the fold again."""
    story = await History(1).run(300)
    await _caught_up(story, postgres_dsn)
    await connection.execute(
        """ALTER TABLE read.jobs DROP COLUMN reservation, DROP COLUMN pledge, DROP COLUMN preempted;
           ALTER TABLE read.attempts DROP COLUMN preempted_by, DROP COLUMN preempted_rule;
           ALTER TABLE read.quotas DROP COLUMN guaranteed_percent, DROP COLUMN borrow_limit_percent;
           DELETE FROM read.migrations WHERE name = '0003_rooms.sql'"""
    )
    await _caught_up(story, postgres_dsn)
    assert await connection.fetchval("SELECT count(*) FROM read.jobs WHERE preempted IS NOT NULL") > 0
    assert await differing(connection, story.log) == []


async def _caught_up(story: Story, dsn: str) -> None:
    async with opened(story.log, dsn) as projector:
        await projector.catch_up()
