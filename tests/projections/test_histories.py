"""Whatever happens, the tables are the fold of the log: in any batches, over crashes, and after a rebuild."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.chain import Accepted, Dropped, admit
from events.log import EventLog
from projections.against_core import differences
from projections.database import connect
from projections.digest import Digests, differing, digest_of_log, digest_of_tables
from projections.rebuild import RebuildRefused, rebuild
from projections.worker import Projector, opened
from tests.projections.histories import History

SLOW = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


async def outcomes_after(log: EventLog, projector: Projector) -> list[Accepted | Dropped]:
    """What is still to be projected."""
    head, found = projector.head, list[Accepted | Dropped]()
    for raw in await log.read(head.offset, 100_000):
        found.append(admit(head, raw.offset, raw.value))
        head = found[-1].head
    return found


async def tables(dsn: str, log: EventLog) -> Digests:
    """Digests of the tables as they are."""
    connection = await connect(dsn)
    try:
        return (await digest_of_tables(connection, log.cluster))[1]
    finally:
        await connection.close()


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    made = await connect(postgres_dsn)
    yield made
    await made.close()


@given(seed=st.integers(0, 2**32), steps=st.integers(50, 400))
@settings(max_examples=40, deadline=None)
async def test_the_rows_tell_the_same_story_as_the_core(seed: int, steps: int) -> None:
    """Jobs, attempts, leases, nodes, quotas and use are what the core's own fold makes of the same commits."""
    history = History(seed)
    story = await history.run(steps)
    assert differences(story.rows, history.state) == []


@given(seed=st.integers(0, 2**32), steps=st.integers(30, 250))
@SLOW
async def test_any_batches_make_the_same_tables(postgres_dsn: str, seed: int, steps: int) -> None:
    """Projected in batches of any size, each by a projector that knows nothing of the one before: fold and tables
    agree, byte for byte."""
    random = Random(seed)
    story = await History(seed, cluster=f"c{seed}-{steps}").run(steps)
    while True:
        async with opened(story.log, postgres_dsn) as projector:
            if not (waiting := await outcomes_after(story.log, projector)):
                break
            for _ in range(random.randint(1, 4)):
                size = random.choice([1, 2, 5, 20, 100])
                if batch := waiting[:size]:
                    await projector.project(batch)
                    del waiting[:size]
    _, folded = await digest_of_log(story.log)
    assert await tables(postgres_dsn, story.log) == folded


async def test_a_rebuild_makes_the_same_tables_and_touches_nothing_else(postgres_dsn: str) -> None:
    """Dropped and rebuilt for two clusters, the tables are those of before; other schemas are left alone."""
    stories = [await History(seed, cluster=f"c{seed}").run(300) for seed in (1, 2)]
    connection = await connect(postgres_dsn)
    await connection.execute("CREATE SCHEMA control; CREATE TABLE control.claims AS SELECT 1 AS gpu")
    before = []
    for story in stories:
        async with opened(story.log, postgres_dsn) as projector:
            await projector.catch_up()
        before.append(await tables(postgres_dsn, story.log))
    await connection.execute("UPDATE read.jobs SET state = 'QUEUED'")
    seen: list[tuple[str, int, int, int]] = []
    await rebuild(postgres_dsn, [story.log for story in stories], lambda *told: seen.append(told))
    assert [await tables(postgres_dsn, story.log) for story in stories] == before
    assert seen[-1] == ("c2", stories[1].head.offset, stories[1].head.offset, stories[1].head.seq)
    assert await connection.fetchval("SELECT gpu FROM control.claims") == 1
    await connection.close()


async def test_a_rebuild_does_not_start_where_something_would_be_lost(postgres_dsn: str) -> None:
    """It refuses while a projector runs, and where the log of a projected cluster is not among those it is given."""
    ours, theirs = [await History(seed, cluster=f"c{seed}").run(20) for seed in (1, 2)]
    async with opened(ours.log, postgres_dsn) as projector:
        await projector.catch_up()
        with pytest.raises(RebuildRefused, match="stop it first"):
            await rebuild(postgres_dsn, [ours.log])
    with pytest.raises(RebuildRefused, match="c1"):
        await rebuild(postgres_dsn, [theirs.log])
    assert (await tables(postgres_dsn, ours.log)) == (await digest_of_log(ours.log))[1]


@pytest.mark.parametrize(
    ("tampering", "table"),
    [
        (
            "UPDATE read.jobs SET preemptions = 99 WHERE submit_seq = (SELECT min(submit_seq) FROM read.jobs)",
            "jobs",
        ),
        ("DELETE FROM read.timeline WHERE seq = 9", "timeline"),
        (
            'UPDATE read.nodes SET faults = \'{"0": "x"}\' WHERE node_index = (SELECT min(node_index) FROM read.nodes)',
            "nodes",
        ),
        ("UPDATE read.positions SET nonce = 'other'", "positions"),
    ],
)
async def test_the_digest_finds_what_was_changed(
    postgres_dsn: str, connection: asyncpg.Connection, tampering: str, table: str
) -> None:
    """A changed or missing row shows in the digest of its table, and in no other."""
    story = await History(3).run(200)
    async with opened(story.log, postgres_dsn) as projector:
        await projector.catch_up()
    assert await differing(connection, story.log) == []
    await connection.execute(tampering)
    assert await differing(connection, story.log) == [table]
