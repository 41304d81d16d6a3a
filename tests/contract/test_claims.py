"""Contract of the claims: all or none, fenced by the epoch row, equal to what they should be (P-8, I-1, I-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import asyncpg
import pytest
import pytest_asyncio

from events.ids import ClusterId, LeaseId, NodeId, Nonce
from scheduler import claims as statements
from scheduler import control
from scheduler.control import migrate
from scheduler.ports import Claim, Conflict, Deposed
from tests.contract.test_leadership import EU, MemorySite, PostgresSite, Site, take
from tests.servers.waiting import WITHIN_S, until_async

A, B = LeaseId("j_a.1.0"), LeaseId("j_b.1.0")


def claim(node: str, gpu: int, lease: LeaseId = A) -> Claim:
    return (NodeId(node), gpu, lease)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements wait for locks, and work, as long as a test takes."""
    monkeypatch.setattr(control, "STATEMENT_TIMEOUT_MS", int(WITHIN_S * 1000))


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


async def held(site: Site) -> list[tuple[str, int, str]]:
    """All claims of the cluster."""
    if isinstance(site, MemorySite):
        return sorted((*key, one.lease_id) for key, one in site.control.claims_of(EU).items())
    assert isinstance(site, PostgresSite)
    connection = await asyncpg.connect(site.dsn)
    rows = await connection.fetch("SELECT node_id, gpu_index, lease_id FROM control.claims WHERE cluster = $1", EU)
    await connection.close()
    return sorted(tuple(row) for row in rows)


async def test_claimed_is_claimed_and_released_is_free(site: Site) -> None:
    """A gang over several nodes in one call; all that a lease holds goes at once."""
    tenure, claims = await take(site, "a"), site.claims("a")
    assert not await claims.claim(tenure, [claim("n0", 0), claim("n0", 1), claim("n1", 0, B)])
    assert await held(site) == [("n0", 0, A), ("n0", 1, A), ("n1", 0, B)]
    await claims.release(tenure, [A])
    assert await held(site) == [("n1", 0, B)]
    assert not await claims.claim(tenure, [claim("n0", 0, LeaseId("j_c.1.0"))])


async def test_all_or_none_and_the_conflicts_are_named(site: Site) -> None:
    """One GPU that is taken leaves the whole gang without."""
    tenure, claims = await take(site, "a"), site.claims("a")
    await claims.claim(tenure, [claim("n0", 0, B), claim("n1", 3, B)])
    conflicts = await claims.claim(tenure, [claim("n0", 0), claim("n0", 1), claim("n1", 3)])
    assert sorted(conflicts, key=lambda one: one.node_id) == [
        Conflict(node_id=NodeId("n0"), gpu=0, held_by=B),
        Conflict(node_id=NodeId("n1"), gpu=3, held_by=B),
    ]
    assert await held(site) == [("n0", 0, B), ("n1", 3, B)]


async def test_releasing_what_holds_nothing_is_harmless(site: Site) -> None:
    """Twice is as good as once."""
    tenure, claims = await take(site, "a"), site.claims("a")
    await claims.release(tenure, [A])
    await claims.release(tenure, [])
    assert await held(site) == []


async def test_another_clusters_gpus_are_its_own(site: Site) -> None:
    """Same node, same GPU, same lease id: another cluster's claims are neither met nor released nor reconciled."""
    tenure, claims = await take(site, "a"), site.claims("a")
    us = ClusterId("us-1")
    theirs = await site.leadership("b", us).acquire("b", "b:1", tenure.epoch)
    assert theirs is not None
    other = site.claims("b", us)
    await claims.claim(tenure, [claim("n0", 0)])
    assert not await other.claim(theirs, [claim("n0", 0)])
    await other.release(theirs, [A])
    await other.reconcile(theirs, [])
    assert await held(site) == [("n0", 0, A)]


async def test_a_deposed_leader_neither_claims_nor_releases_nor_reconciles(site: Site) -> None:
    """Its statements change nothing, and say so; a wrong nonce under the right epoch is as deposed."""
    first = await take(site, "a")
    old = site.claims("a")
    await old.claim(first, [claim("n0", 0)])
    second = await take(site, "b")
    for over in (first, replace(second, nonce=Nonce("forged"))):
        stale = site.claims("late")
        with pytest.raises(Deposed):
            await stale.claim(over, [claim("n0", 1)])
        with pytest.raises(Deposed):
            await stale.claim(over, [claim("n0", 0)])
        with pytest.raises(Deposed):
            await stale.release(over, [A])
        with pytest.raises(Deposed):
            await stale.reconcile(over, [])
    assert await held(site) == [("n0", 0, A)]


async def test_reconciled_is_equal(site: Site) -> None:
    """What is missing is made, what is too much goes, what another lease holds changes hands; and again is nothing."""
    tenure, claims = await take(site, "a"), site.claims("a")
    await claims.claim(tenure, [claim("n0", 0), claim("n0", 1), claim("n0", 2)])
    wanted = [claim("n0", 1), claim("n0", 2, B), claim("n1", 0, B)]
    assert await claims.reconcile(tenure, wanted) == 3
    assert await held(site) == [("n0", 1, A), ("n0", 2, B), ("n1", 0, B)]
    assert await claims.reconcile(tenure, wanted) == 0
    assert await claims.reconcile(tenure, []) == 3
    assert await held(site) == []


async def test_a_whole_cluster_is_reconciled(site: Site) -> None:
    """24,000 claims, and again."""
    tenure, claims = await take(site, "a"), site.claims("a")
    wanted = [claim(f"n{node}", gpu, LeaseId(f"j_{node}.1.0")) for node in range(3_000) for gpu in range(8)]
    assert await claims.reconcile(tenure, wanted) == 24_000
    assert await claims.reconcile(tenure, wanted) == 0


async def blocked(dsn: str) -> bool:
    """Does a statement wait for a lock? Asked on a connection of its own: a transaction would see one moment only."""
    connection = await asyncpg.connect(dsn)
    found = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    await connection.close()
    return bool(found)


TAKEOVER = "UPDATE control.leadership SET epoch = epoch + 1, nonce = 'successor', holder = 'b'"


@pytest.mark.postgres
@pytest.mark.parametrize("call", ["claim", "release", "reconcile"])
@pytest.mark.parametrize("goes_through", [True, False])
async def test_a_takeover_in_flight_is_waited_for(postgres_dsn: str, call: str, goes_through: bool) -> None:
    """A statement that meets the row in the hands of a successor waits: deposed if that commits, else done."""
    await migrate(postgres_dsn)
    site = PostgresSite(postgres_dsn)
    tenure, claims = await take(site, "a"), site.claims("a")
    await claims.claim(tenure, [claim("n0", 0)])
    before = await held(site)
    successor = await asyncpg.connect(postgres_dsn)
    transaction = successor.transaction()
    await transaction.start()
    await successor.execute(TAKEOVER)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "claim": lambda: claims.claim(tenure, [claim("n0", 1)]),
        "release": lambda: claims.release(tenure, [A]),
        "reconcile": lambda: claims.reconcile(tenure, []),
    }
    task: asyncio.Future[object] = asyncio.ensure_future(calls[call]())

    await until_async(lambda: blocked(postgres_dsn), what="the statement waits for the row")
    await (transaction.commit() if goes_through else transaction.rollback())
    if goes_through:
        with pytest.raises(Deposed):
            await task
        assert await held(site) == before
    else:
        await task
        assert await held(site) != before
    await successor.close()
    await site.close()


@pytest.mark.postgres
async def test_a_claim_in_flight_is_waited_for_by_a_takeover(postgres_dsn: str) -> None:
    """The row is locked until the claim is whole: the successor's reconcile sees it."""
    await migrate(postgres_dsn)
    site = PostgresSite(postgres_dsn)
    tenure = await take(site, "a")
    connection = await asyncpg.connect(postgres_dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch(statements.CLAIM, EU, tenure.epoch, tenure.nonce, ["n0"], [0], [A])
    successor = site.leadership("b")
    taking = asyncio.ensure_future(take(site, "b"))

    await until_async(lambda: blocked(postgres_dsn), what="the takeover waits for the claim")
    await transaction.commit()
    second = await taking
    assert await site.claims("b").reconcile(second, []) == 1
    await connection.close()
    assert (await successor.observe())[0] == second.epoch
    await site.close()


@pytest.mark.postgres
async def test_a_release_finds_its_rows_by_lease_after_any_number_of_runs(postgres_dsn: str) -> None:
    """From the sixth run on Postgres may use one plan for all lists: it must not read the whole table."""
    await migrate(postgres_dsn)
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(
        "INSERT INTO control.leadership (cluster, epoch, nonce, holder, expires_at)"
        " VALUES ('eu-1', 1, 'n', 'a', clock_timestamp());"
        "INSERT INTO control.claims (cluster, node_id, gpu_index, lease_id, epoch)"
        " SELECT 'eu-1', 'n' || i / 8, i % 8, 'j_' || i / 8 || '.1.0', 1 FROM generate_series(0, 23999) AS i;"
        "ANALYZE control.claims"
    )
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE release (text, bigint, text, text[]) AS {statements.RELEASE}")
    rows = await connection.fetch("EXPLAIN EXECUTE release ('eu-1', 1, 'n', ARRAY['j_1.1.0'])")
    await connection.close()
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan on claims" not in plan, plan
    assert "claims_lease" in plan, plan
