"""Contract of the row that says who leads (P-7, P-8, P-11, P-12), in Postgres and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from events.chain import START
from events.ids import ClusterId, Epoch, Instant, LeaseId, LogId, NodeId
from scheduler.claims import PostgresClaims
from scheduler.control import PostgresLeadership, migrate
from scheduler.memory import MemoryClaims, MemoryControl, MemoryLeadership
from scheduler.ports import Claims, Deposed, Leadership, Tenure, UnknownOutcome
from tests.servers.waiting import until_async

EU = ClusterId("eu-1")
NONE = Epoch(0)


class Site:
    """One place where leaders meet. Each call of `leadership` or `claims` is another process."""

    def leadership(self, holder: str, cluster: ClusterId = EU) -> Leadership:
        raise NotImplementedError

    def claims(self, holder: str, cluster: ClusterId = EU) -> Claims:
        raise NotImplementedError

    async def expire(self) -> None:
        """The tenure in force runs out."""
        raise NotImplementedError

    async def close(self) -> None:
        """Everything that was opened."""


class PostgresSite(Site):
    """The real thing."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._opened: list[Any] = []

    def leadership(self, holder: str, cluster: ClusterId = EU) -> Leadership:
        self._opened.append(PostgresLeadership(self.dsn, cluster, holder))
        return self._opened[-1]  # type: ignore[no-any-return]

    def claims(self, holder: str, cluster: ClusterId = EU) -> Claims:
        self._opened.append(PostgresClaims(self.dsn, cluster, holder))
        return self._opened[-1]  # type: ignore[no-any-return]

    async def expire(self) -> None:
        await self.execute("UPDATE control.leadership SET expires_at = clock_timestamp() - interval '1 ms'")

    async def execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(statement)
        await connection.close()

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()


class MemorySite(Site):
    """The simulation's."""

    def __init__(self) -> None:
        self.now = Instant(1_800_000_000_000)
        self.control = MemoryControl(lambda: self.now)

    def leadership(self, holder: str, cluster: ClusterId = EU) -> Leadership:
        return MemoryLeadership(self.control, cluster)

    def claims(self, holder: str, cluster: ClusterId = EU) -> Claims:
        return MemoryClaims(self.control, cluster)

    async def expire(self) -> None:
        self.now = Instant(self.now + 5_001)


@pytest_asyncio.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """An empty schema `control`."""
    made: Site = MemorySite()
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
        await migrate(dsn)
        made = PostgresSite(dsn)
    yield made
    await made.close()


async def take(site: Site, holder: str, above: int = 0) -> Tenure:
    """Office, once the tenure before has run out."""
    await site.expire()
    tenure = await site.leadership(holder).acquire(holder, f"{holder}:1", Epoch(above))
    assert tenure is not None
    return tenure


async def test_one_leads_and_the_others_do_not(site: Site) -> None:
    """While a tenure holds nobody else gets one; every tenure has an epoch and a nonce of its own."""
    first = await take(site, "a")
    assert await site.leadership("b").acquire("b", "b:1", NONE) is None
    second = await take(site, "b")
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.nonce != second.nonce
    assert second.at > 0


async def test_two_who_ask_at_once(site: Site) -> None:
    """Exactly one of many gets the office that is free."""
    await take(site, "a")
    await site.expire()
    asked = [site.leadership(f"b{number}").acquire(f"b{number}", "x", NONE) for number in range(6)]
    answers = await asyncio.gather(*asked)
    assert sum(tenure is not None for tenure in answers) == 1


async def test_the_same_holder_may_take_again(site: Site) -> None:
    """At once, under a new epoch: its old tenure is over like any other."""
    first = await take(site, "a")
    again = await site.leadership("a").acquire("a", "a:1", NONE)
    assert again is not None
    assert again.epoch == first.epoch + 1
    assert await site.leadership("a").renew(first, START) is False
    assert await site.leadership("a").renew(again, START) is True


async def test_clusters_do_not_meet(site: Site) -> None:
    """Each has its own row."""
    await take(site, "a")
    other = await site.leadership("b", ClusterId("us-1")).acquire("b", "b:1", NONE)
    assert other is not None
    assert other.epoch == 1


async def test_an_epoch_is_above_row_log_and_floor(site: Site) -> None:
    """Whichever is highest (P-8, P-12)."""
    assert (await take(site, "a", above=7)).epoch == 8
    assert (await take(site, "b", above=3)).epoch == 9
    await site.leadership("b").raise_floor(Epoch(40))
    await site.leadership("b").raise_floor(Epoch(20))
    assert (await take(site, "a", above=3)).epoch == 41


async def test_a_renewal_keeps_the_office_and_notes_the_head(site: Site) -> None:
    """The next tenure reads the head that was noted last (P-5)."""
    tenure = await take(site, "a")
    assert tenure.head is None
    head = replace(START, log_id=LogId("log"), offset=12, accepted=11, n=9, hash="h" * 64)
    await site.expire()
    assert await site.leadership("a").renew(tenure, head) is True
    assert await site.leadership("b").acquire("b", "b:1", NONE) is None
    assert (await take(site, "b")).head == ("log", 11, 9, "h" * 64)


async def test_a_renewal_after_a_takeover_is_refused_and_notes_nothing(site: Site) -> None:
    """Deposed, and told so."""
    first = await take(site, "a")
    await take(site, "b")
    assert await site.leadership("a").renew(first, replace(START, log_id=LogId("a"))) is False
    assert (await take(site, "c")).head is None


async def test_observe(site: Site) -> None:
    """Epoch, renewals and address of the row; nothing where there is none."""
    watcher = site.leadership("w")
    assert await watcher.observe() == (0, 0, None)
    tenure = await take(site, "a")
    epoch, before, address = await watcher.observe()
    assert (epoch, address) == (1, "a:1")
    await site.leadership("a").renew(tenure, START)
    assert (await watcher.observe())[1] == before + 1


async def test_a_row_that_stands_still_is_taken_whatever_the_databases_clock_says(site: Site) -> None:
    """By the standby's own clock (P-11): only if the row is as it was when last observed."""
    standby = site.leadership("b")
    tenure = await take(site, "a")
    assert await standby.acquire("b", "b:1", NONE, stale=True) is None
    await standby.observe()
    await site.leadership("a").renew(tenure, START)
    assert await standby.acquire("b", "b:1", NONE, stale=True) is None
    await standby.observe()
    assert await standby.acquire("b", "b:1", NONE, stale=False) is None
    taken = await standby.acquire("b", "b:1", NONE, stale=True)
    assert taken is not None
    assert taken.epoch == 2


class TestPoison:
    """Which command ended a leadership (P-7)."""

    async def test_a_batch_that_was_left_is_suspect(self, site: Site) -> None:
        """The next leader takes its commands one by one."""
        await site.leadership("a").mark_taking(await take(site, "a"), 5, 8, exact=False)
        found = await take(site, "b")
        assert (found.suspects, found.refuse) == ((5, 8), None)

    async def test_one_alone_that_was_left_is_refused(self, site: Site) -> None:
        """It has ended two leaderships."""
        await site.leadership("a").mark_taking(await take(site, "a"), 5, 8, exact=False)
        await site.leadership("b").mark_taking(await take(site, "b"), 6, 6, exact=True)
        found = await take(site, "c")
        assert (found.suspects, found.refuse) == ((6, 6), 6)

    async def test_one_alone_that_was_decided_leaves_the_range_suspect(self, site: Site) -> None:
        """A leader that dies elsewhere counts nothing against it."""
        await site.leadership("a").mark_taking(await take(site, "a"), 5, 8, exact=False)
        tenure, leadership = await take(site, "b"), site.leadership("b")
        await leadership.mark_taking(tenure, 5, 5, exact=True)
        await leadership.mark_taking(tenure, None, None, exact=True)
        found = await take(site, "c")
        assert (found.suspects, found.refuse) == ((5, 8), None)

    async def test_a_batch_that_was_taken_leaves_nothing(self, site: Site) -> None:
        """Nor do the suspects of before, once a batch went well."""
        await site.leadership("a").mark_taking(await take(site, "a"), 5, 8, exact=False)
        tenure, leadership = await take(site, "b"), site.leadership("b")
        await leadership.mark_taking(tenure, None, None, exact=False)
        found = await take(site, "c")
        assert (found.suspects, found.refuse) == (None, None)

    async def test_a_deposed_leader_marks_nothing(self, site: Site) -> None:
        """Its word would put blame on its successor's commands."""
        first = await take(site, "a")
        await take(site, "b")
        with pytest.raises(Deposed):
            await site.leadership("a").mark_taking(first, 1, 2, exact=False)
        assert (await take(site, "c")).suspects is None


@pytest.mark.postgres
async def test_the_holder_before_loses_its_connections(postgres_dsn: str) -> None:
    """What it had in flight dies with them; connections of others stay (P-8)."""
    await migrate(postgres_dsn)
    site = PostgresSite(postgres_dsn)
    first, other = await take(site, "a"), site.claims("other")
    held = site.claims("a")
    claim = (NodeId("n0"), 0, LeaseId("j_a.1.0"))
    assert await held.claim(first, [claim]) == ()
    with pytest.raises(Deposed):
        await other.release(replace(first, nonce=first.nonce[::-1]), [])  # type: ignore[arg-type]
    await take(site, "b")

    async def names() -> set[str]:
        connection = await asyncpg.connect(postgres_dsn)
        rows = await connection.fetch("SELECT application_name AS name FROM pg_stat_activity")
        await connection.close()
        return {row["name"] for row in rows}

    async def gone() -> bool:
        return "signalbox-claims-a" not in await names()

    await until_async(gone, what="the deposed holder's connection ends")
    assert "signalbox-claims-other" in await names()
    with pytest.raises((UnknownOutcome, Deposed)):
        await held.claim(first, [(NodeId("n0"), 1, LeaseId("j_a.1.0"))])
    await site.close()
