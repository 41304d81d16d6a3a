"""The read models are derived: made anew from a live log they come out the same, and nothing else is touched."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path

from projections.database import connect
from projections.digest import Digests, digest_of_tables
from tests.live import kalos
from tests.live.checks import projected
from tests.live.load import submit_steadily
from tests.live.stack import Stack, stack
from tests.live.waiting import WITHIN_S


async def test_rebuild_makes_the_same_tables_and_touches_nothing_else(home: Path) -> None:
    """While jobs run, a rebuild is refused beside a projector, and without one comes to the fold of the log; at rest
    it gives the digests of before, and leaves every row of the log and of `control` as it was, versions included."""
    async with stack(home, "--nodes", "4", "--no-agent") as run:
        loading = asyncio.create_task(
            submit_steadily(run, lambda number: kalos.spec(f"job-{number}", 1 + number % 8, 0.3), rate=10, seconds=12)
        )
        refused = await _rebuild(run)
        assert refused.returncode != 0
        assert "a projector or another rebuild is at work" in refused.stderr
        await run.hold("projector")
        assert (await _rebuild(run)).returncode == 0
        run.begin("projector")
        await loading
        await kalos.all_ended(run)
        assert await projected(run) == []
        for name in ("scheduler-0", "projector", "fleet"):
            await run.hold(name)
        before, rows = await _digests(run), await _rows(run)
        assert (await _rebuild(run)).returncode == 0
        assert (await _digests(run), await _rows(run)) == (before, rows)


async def _rebuild(run: Stack) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "signalboxd", "rebuild", "--site", str(run.ground.site_file)]
    return await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=WITHIN_S, check=False)


async def _digests(run: Stack) -> Digests:
    connection = await connect(run.ground.site.postgres)
    try:
        _, digests = await digest_of_tables(connection, run.ground.site.cluster)
        return digests
    finally:
        await connection.close()


async def _rows(run: Stack) -> dict[str, str]:
    """Table -> digest of all rows with the transactions that wrote them: a row written anew shows too."""
    connection = await connect(run.ground.site.postgres)
    try:
        tables = await connection.fetch(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('control', 'log') ORDER BY 1, 2"
        )
        found = {}
        for schema, table in tables:
            rows = await connection.fetch(
                f'SELECT t::text || xmin::text || ctid::text FROM "{schema}"."{table}" t ORDER BY 1'
            )
            found[f"{schema}.{table}"] = hashlib.sha256("\n".join(each[0] for each in rows).encode()).hexdigest()
        assert {"control.leadership", "control.claims"} <= found.keys()
        assert any(name.startswith("log.") for name in found)
        return found
    finally:
        await connection.close()
