"""Is the projection the fold of the log (C-65)? By digest: the tables as Postgres gives them back, against a fold of
the log in memory from its first record on, which knows neither Postgres nor batches nor partial loading.
"""

import hashlib
from dataclasses import replace
from typing import Any

import orjson

from events.chain import START, Head
from events.log import EventLog, accepted
from projections.database import Connection, load_head, position_row, snapshot, stream
from projections.fold import fold
from projections.plain import from_json, to_json
from projections.rows import FOLDED, CheckpointRow, Row, TimelineRow
from projections.store import Rows

Digests = dict[str, str]
"""Table -> SHA-256 of its rows in the order of their keys; `positions` stands for the position."""

_APPENDED: tuple[type[Row], ...] = (TimelineRow, CheckpointRow)
"""Only ever added to, in the order of their keys: need not be kept in memory."""
_TAKE_EVERY = 1000


def canonical(row: Row) -> bytes:
    """A row as text that is equal for equal rows, wherever they come from."""
    return orjson.dumps(from_json(to_json([row]))[0], option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


async def digest_of_tables(connection: Connection, cluster: str) -> tuple[Head, Digests]:
    """The tables of a cluster as they are at one moment, and the position they are at."""
    async with snapshot(connection):
        head = await load_head(connection, cluster)
        digests = {"positions": _digest(canonical(position_row(cluster, head)))}
        for cls in FOLDED:
            hasher = hashlib.sha256()
            async for row in stream(connection, cluster, cls):
                hasher.update(canonical(row))
            digests[cls.TABLE] = hasher.hexdigest()
    return head, digests


async def digest_of_log(log: EventLog, until: int | None = None) -> tuple[Rows, Digests]:
    """What the tables should be after the record at offset `until` (default: the end); `Rows` lacks the timeline."""
    rows, head = Rows(log.cluster), START
    hashers: dict[type[Row], Any] = {cls: hashlib.sha256() for cls in FOLDED}
    number = 0
    async for outcome in accepted(log, until=until):
        fold(rows, outcome.record())
        head, number = outcome.head, number + 1
        if number % _TAKE_EVERY == 0:
            _take(rows, hashers)
    _take(rows, hashers)
    for cls in FOLDED:
        if cls not in _APPENDED:
            for row in rows.rows_of(cls):
                hashers[cls].update(canonical(row))
    digests = {cls.TABLE: hasher.hexdigest() for cls, hasher in hashers.items()}
    # Records that were dropped move the offset and nothing else.
    end = await log.end() if until is None else until
    at = replace(head, offset=end)
    return rows, {"positions": _digest(canonical(position_row(log.cluster, at))), **digests}


async def differing(connection: Connection, log: EventLog) -> list[str]:
    """The tables that are not the fold of the log up to their position; empty: all is well."""
    head, tables = await digest_of_tables(connection, log.cluster)
    if head == START:
        return []
    _, folded = await digest_of_log(log, until=head.offset)
    return sorted(table for table in tables if tables[table] != folded[table])


def _take(rows: Rows, hashers: dict[type[Row], Any]) -> None:
    for cls in _APPENDED:
        for row in rows.take(cls):
            hashers[cls].update(canonical(row))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
