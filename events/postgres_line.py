"""A connection of the Postgres log, and the making of its schema. Knows no records.

Connections are direct, never through a pooler: what the session sets here must hold for each statement.
"""

import asyncio
import socket
from collections.abc import Callable
from importlib import resources

import asyncpg

from events.log import LogUnavailable

STATEMENT_TIMEOUT_MS = 2000
CONNECT_TIMEOUT_S = 5.0
MIGRATION_TIMEOUT_MS = 60_000
KEEPALIVE = 3
"""Seconds of silence before a probe, seconds between probes, and how many of them."""
_MIGRATION_LOCK = 0x5167_6E61_6C62_6F78
_MIGRATIONS = ("log_0001.sql",)

Connection = asyncpg.Connection


class Line:
    """One connection, made when first used and again after a failure; one statement at a time."""

    def __init__(self, dsn: str, application_name: str) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def fetch(self, query: str, *args: object, timeout_s: float = CONNECT_TIMEOUT_S) -> list[asyncpg.Record]:
        """The rows of one statement. Whatever goes wrong, a time-out and a cancellation too, drops the connection:
        nobody waits for, or mistakes, a late answer."""
        async with asyncio.timeout(timeout_s), self._lock:
            try:
                connection = await self._connected()
                return await connection.fetch(query, *args)
            except BaseException:
                self.abandon()
                raise

    async def listen(self, channel: str, heard: Callable[[str], None], lost: Callable[[], None]) -> None:
        """Call `heard` with the payload of each notification until the connection ends; then `lost`, once.
        Does nothing where the line listens already."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S), self._lock:
            if self._connection is not None and not self._connection.is_closed():
                return
            try:
                connection = await self._connected()
                connection.add_termination_listener(lambda _: lost())
                await connection.add_listener(channel, lambda _c, _p, _ch, payload: heard(str(payload)))
            except BaseException:
                self.abandon()
                raise

    async def migrate(self) -> None:
        """Bring the schema `log` up to date; safe when several processes do it at once."""
        async with self._lock:
            connection = await self._connected()
            async with connection.transaction():
                await connection.execute(f"SET LOCAL statement_timeout = {MIGRATION_TIMEOUT_MS}")
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
                await connection.execute(
                    "CREATE SCHEMA IF NOT EXISTS log;"
                    "CREATE TABLE IF NOT EXISTS log.migrations (name text PRIMARY KEY, at timestamptz DEFAULT now())"
                )
                done = {row["name"] for row in await connection.fetch("SELECT name FROM log.migrations")}
                for name in _MIGRATIONS:
                    if name not in done:
                        await connection.execute((resources.files("events") / "migrations" / name).read_text())
                        await connection.execute("INSERT INTO log.migrations (name) VALUES ($1)", name)

    async def close(self) -> None:
        """End the connection in peace."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(timeout=CONNECT_TIMEOUT_S)

    def abandon(self) -> None:
        """End it at once, without a word to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            # As startup parameters these win over what an administrator set for the role or the database.
            settings = {
                "application_name": self._application_name,
                "synchronous_commit": "on",
                "statement_timeout": str(STATEMENT_TIMEOUT_MS),
                "idle_in_transaction_session_timeout": str(STATEMENT_TIMEOUT_MS),
                "default_transaction_isolation": "read committed",
                "jit": "off",
            }
            self._connection = await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
            _notice_silence(self._connection)
        return self._connection


def _notice_silence(connection: Connection) -> None:
    """Have the kernel end a connection whose other end is gone without a word: a listener sends nothing itself."""
    found = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if found is not None and found.family != socket.AF_UNIX:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            found.setsockopt(socket.IPPROTO_TCP, option, KEEPALIVE)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, KEEPALIVE * KEEPALIVE * 1000)


TROUBLE: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement on a connection that the dying server has just said goodbye on
    OSError,
    TimeoutError,
)
"""What a statement may fail with."""


def unavailable(error: Exception) -> LogUnavailable:
    """A failed read as the port names it."""
    return LogUnavailable(f"Postgres: {type(error).__name__}: {error}")
