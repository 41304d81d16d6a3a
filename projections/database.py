"""Schema `read` in Postgres: how it is made, and how rows are loaded and saved. Knows no events.

Connections are direct, never through a pooler that changes sessions between statements.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from typing import Any

import asyncpg

from events.chain import START, Head
from events.ids import Epoch, Instant, LogId, Nonce
from projections.plain import from_json, to_json
from projections.rows import FOLDED, PositionRow, R, Row
from projections.store import Want

CHANNEL = "read_moved"
"""Notified with "<seq> <cluster>" by each transaction that moves a position."""

CONNECT_TIMEOUT_S = 5.0
READ_LOCK = 0x5167_6E61_6C52_6561
"""Advisory lock: shared by projectors while they run, exclusive for a rebuild."""
_MIGRATION_LOCK = READ_LOCK + 1
_MIGRATIONS = ("0001_read.sql", "0002_arrays.sql", "0003_rooms.sql")
_CURSOR_ROWS = 1000

Connection = asyncpg.Connection


class PositionMoved(Exception):
    """Somebody else moved the projector's position: nothing of this batch was written (P-4)."""


async def connect(dsn: str, application_name: str = "signalbox-projector") -> Connection:
    """A connection whose jsonb values are plain Python values."""
    settings = {
        "application_name": application_name,
        # Rows and position are lost together in a crash of Postgres, and projected again: nothing waits for a disk.
        "synchronous_commit": "off",
        "default_transaction_isolation": "read committed",
        "jit": "off",
    }
    connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
    await plain_jsonb(connection)
    return connection


async def plain_jsonb(connection: Any) -> None:
    """Have jsonb come as plain values; also fit as `init` of a pool."""
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=_jsonb, decoder=from_json)


def _jsonb(value: Any) -> str:
    return to_json([value])[1:-1].decode()


async def migrate(connection: Connection) -> None:
    """Bring schema `read` up to date; safe when several processes do it at once."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        await connection.execute(
            "CREATE SCHEMA IF NOT EXISTS read;"
            "CREATE TABLE IF NOT EXISTS read.migrations (name text PRIMARY KEY, at timestamptz DEFAULT now())"
        )
        done = {row["name"] for row in await connection.fetch("SELECT name FROM read.migrations")}
        for name in _MIGRATIONS:
            if name not in done:
                await connection.execute((resources.files("projections") / "migrations" / name).read_text())
                await connection.execute("INSERT INTO read.migrations (name) VALUES ($1)", name)


async def recreate(connection: Connection) -> None:
    """Drop schema `read` and make it anew, empty, in one transaction. No other schema is touched."""
    async with connection.transaction():
        await connection.execute("DROP SCHEMA IF EXISTS read CASCADE")
        await migrate(connection)


_COLUMNS: dict[type[Row], tuple[str, ...]] = {
    cls: tuple(field.name for field in dataclasses.fields(cls)) for cls in (*FOLDED, PositionRow)
}


def columns(cls: type[Row]) -> tuple[str, ...]:
    """The columns of a table, in the order of its class."""
    return _COLUMNS[cls]


def listed(names: Iterable[str], prefix: str = "") -> str:
    """Names of columns for SQL."""
    return ", ".join(f'{prefix}"{name}"' for name in names)


def _upsert(cls: type[Row]) -> str:
    names, key = columns(cls), ("cluster", *cls.KEY)
    sets = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name not in key)
    return (
        f"INSERT INTO read.{cls.TABLE} ({listed(names)}) SELECT {listed(names)}"
        f" FROM json_populate_recordset(NULL::read.{cls.TABLE}, $1::text::json)"
        f" ON CONFLICT ({listed(key)}) DO UPDATE SET {sets}"
    )


def _lookup(cls: type[Row]) -> str:
    """By key, one index look-up for each: OFFSET 0 keeps the planner, which cannot see how few keys come, from
    joining with the whole table."""
    keys = " AND ".join(f't."{name}" = wanted."{name}"' for name in cls.KEY)
    return (
        f"SELECT {listed(columns(cls), 'found.')} FROM json_populate_recordset(NULL::read.{cls.TABLE}, $2::text::json)"
        f" wanted CROSS JOIN LATERAL (SELECT * FROM read.{cls.TABLE} t WHERE t.cluster = $1 AND {keys} OFFSET 0) found"
    )


_UPSERTS = {cls: _upsert(cls) for cls in FOLDED}
_LOOKUPS = {cls: _lookup(cls) for cls in FOLDED if cls.KEY}


async def save(connection: Connection, changed: dict[type[Row], list[Row]]) -> None:
    """Write rows over whatever has their keys."""
    for cls, rows in changed.items():
        await connection.execute(_UPSERTS[cls], to_json(rows).decode())


async def load(connection: Connection, cluster: str, wants: list[Want]) -> list[Row]:
    """The rows that there are of `wants`."""
    keys: dict[type[Row], list[Any]] = {}
    for cls, key in wants:
        keys.setdefault(cls, []).append(dict(zip(cls.KEY, key, strict=True)))
    found: list[Row] = []
    for cls, wanted in keys.items():
        records = await connection.fetch(_LOOKUPS[cls], cluster, to_json(wanted).decode())
        found += [as_row(cls, record) for record in records]
    return found


@contextlib.asynccontextmanager
async def snapshot(connection: Connection) -> AsyncIterator[None]:
    """All that is read inside is of one moment."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        yield


async def load_whole(connection: Connection, cluster: str, cls: type[R]) -> list[R]:
    """All rows of one cluster in a table, by key."""
    return [row async for row in stream(connection, cluster, cls)]


async def stream(connection: Connection, cluster: str, cls: type[R]) -> AsyncIterator[R]:
    """The rows of one cluster in a table, by key, a few at a time; text in the order of its code points."""
    order = ", ".join(f'"{name}" COLLATE "C"' if _is_text(cls, name) else f'"{name}"' for name in cls.KEY) or "1"
    query = f"SELECT {listed(columns(cls))} FROM read.{cls.TABLE} WHERE cluster = $1 ORDER BY {order}"
    async with connection.transaction():
        async for record in connection.cursor(query, cluster, prefetch=_CURSOR_ROWS):
            yield as_row(cls, record)


def _is_text(cls: type[Row], name: str) -> bool:
    return any(field.name == name and field.type is str for field in dataclasses.fields(cls))  # type: ignore[arg-type]


def as_row(cls: type[R], record: Any) -> R:
    """A record with the table's columns as its row."""
    return cls(**{name: record[name] for name in columns(cls)})


async def load_head(connection: Connection, cluster: str) -> Head:
    """Where the projector of the cluster stands; START only where nothing was ever projected."""
    record = await connection.fetchrow(
        f"SELECT {listed(columns(PositionRow))} FROM read.positions WHERE cluster = $1", cluster
    )
    if record is None:
        return START
    return Head(
        log_id=LogId(record["log_id"]),
        offset=record["offset"],
        accepted=record["accepted"],
        epoch=Epoch(record["epoch"]),
        nonce=Nonce(record["nonce"]),
        n=record["n"],
        seq=record["seq"],
        at=Instant(record["at"]),
        hash=record["hash"],
    )


def position_row(cluster: str, head: Head) -> PositionRow:
    """The head as read.positions keeps it."""
    return PositionRow(cluster=cluster, **dataclasses.asdict(head))


_NAMES = columns(PositionRow)
_PLACES = ", ".join(f"${number}" for number in range(1, len(_NAMES) + 1))
_FIRST = f"INSERT INTO read.positions ({listed(_NAMES)}) VALUES ({_PLACES}) ON CONFLICT DO NOTHING RETURNING seq"
_SET = ", ".join(f'"{name}" = ${number}' for number, name in enumerate(_NAMES, 1) if name != "cluster")
_OLD = " AND ".join(f'"{name}" = ${number}' for number, name in enumerate(_NAMES[1:], len(_NAMES) + 1))
_MOVE = f"UPDATE read.positions SET {_SET} WHERE cluster = $1 AND {_OLD} RETURNING seq"
_TELL = "WITH moved AS ({}) SELECT pg_notify('" + CHANNEL + "', seq || ' ' || $1::text) FROM moved"


async def move(connection: Connection, cluster: str, old: Head, new: Head) -> None:
    """Compare and swap the position, and tell who waits. Raises PositionMoved: one row or abort (P-4).

    First in its transaction: a rival waits for the row here, before it has read or written anything, and then gives up.
    """
    after = dataclasses.astuple(position_row(cluster, new))
    if old.offset < 0:
        moved = await connection.fetch(_TELL.format(_FIRST), *after)
    else:
        moved = await connection.fetch(
            _TELL.format(_MOVE), *after, *dataclasses.astuple(position_row(cluster, old))[1:]
        )
    if len(moved) != 1:
        raise PositionMoved(f"the position of {cluster} is not at offset {old.offset} any more")
