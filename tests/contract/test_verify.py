"""Verify over each place where a log is kept: an honest log is whole there, and what became of another is named."""

from __future__ import annotations

from typing import Any

import pytest

from events.log import EventLog, Raw
from replay.verify import Noted, Request, Wrong, verify
from tests.contract.places import Opened, Place, PostgresPlace
from tests.contract.records import CLUSTER
from tests.replay.logs import chained_anew, written


def ours(parsed: dict[str, Any]) -> None:
    """As a leader of the cluster of the places would have written it."""
    (parsed if parsed["kind"] == "commit" else parsed["body"])["cluster"] = CLUSTER


@pytest.fixture(scope="session")
def honest() -> list[Raw]:
    """A run without faults."""
    return [Raw(place, raw) for place, raw in enumerate(chained_anew(written("quiet", 1).records, ours))]


async def holding(opened: Opened, place: Place, records: list[Raw]) -> EventLog:
    """The log, holding these records."""
    await opened.events()
    await place.restore(records)
    return await opened.events()


async def test_an_honest_log_is_whole(opened: Opened, place: Place, honest: list[Raw]) -> None:
    """Each record is found, and each decision comes out again."""
    records = list(honest)
    report = await verify(await holding(opened, place, records))
    assert (report.whole, report.finding) == (True, None)
    assert report.accepted == len(records)
    assert report.recomputed == report.commits > 50


async def test_a_changed_byte_is_named(opened: Opened, place: Place, honest: list[Raw]) -> None:
    """The first record that is not what it was."""
    records = list(honest)
    changed = bytearray(records[40].value)
    changed[-30] ^= 1
    records[40] = Raw(40, bytes(changed))
    report = await verify(await holding(opened, place, records))
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.CHANGED, 40)


async def test_a_cut_tail_is_named(opened: Opened, place: Place, honest: list[Raw]) -> None:
    """By the head that was noted elsewhere."""
    records = list(honest)
    report = await verify(await holding(opened, place, records))
    assert report.head is not None
    head = report.head
    noted = Noted(by="the epoch row", log_id=head.log_id, offset=head.accepted, n=head.n, hash=head.hash)
    await place.restore(records[:-5])
    report = await verify(await opened.events(), Request(noted=(noted,)))
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.CUT, len(records) - 5)


@pytest.mark.postgres
async def test_a_row_deleted_from_the_table_is_named(postgres_dsn: str, honest: list[Raw]) -> None:
    """Somebody with the rights of the owner took one out: the gap is found (P-6)."""
    place = PostgresPlace(postgres_dsn)
    opened, records = Opened(place), list(honest)
    await opened.events()
    await place.restore([*records[:30], *records[31:]])
    log = place.events()
    report = await verify(log)
    await log.close()
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.MISSING, 30)
    await opened.close()
