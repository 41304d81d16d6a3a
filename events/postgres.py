"""The logs in Postgres: the embedded default (PROTOCOL P-6). Schema `log`, see migrations/.

Gapless positions from a counter row; each append is one statement, so one round trip and one transaction.
Must not use a connection pooler, nor change or delete a record.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence

import asyncpg

from events import codec
from events.envelope import Genesis
from events.ids import ClusterId, LogId
from events.log import (
    READ_BATCH,
    AppendRefused,
    LogUnavailable,
    LogUnusable,
    Raw,
    UnknownOutcome,
    cut_at_gap,
    read_log_id,
    refuse_oversize,
)
from events.postgres_line import TROUBLE, Line, unavailable

POLL_S = 1.0
"""A follower looks for itself this often, should a notification be lost with its connection."""
RETRY_S = 0.2
READ_BYTES = 16 * 1024 * 1024
"""No read returns much more than this, whatever its limit in records."""

_APPEND_EVENT = """
WITH bump AS (
    UPDATE log.counters SET last = last + 1 WHERE topic = 'events' AND cluster = $1 AND last = $3 - 1 RETURNING last
), put AS (
    INSERT INTO log.events (cluster, position, value) SELECT $1, last, $2 FROM bump RETURNING position
)
SELECT position, pg_notify('log_events', $1) FROM put"""
# The row lock of `bump` is held to the commit. A rival waits there, then finds the head moved: no row, refused.

_APPEND_COMMAND = """
WITH bump AS (
    UPDATE log.counters SET last = last + 1 WHERE topic = 'commands' AND cluster = $1 RETURNING last
), put AS (
    INSERT INTO log.commands (cluster, position, value) SELECT $1, last, $2 FROM bump RETURNING position
)
SELECT position, pg_notify('log_commands', $1) FROM put"""

_GENESIS = """
WITH begun AS (
    INSERT INTO log.counters (topic, cluster, last) VALUES ('{topic}', $1, 0) ON CONFLICT DO NOTHING RETURNING last
)
INSERT INTO log.{topic} (cluster, position, value) SELECT $1, last, $2 FROM begun"""

_READ = """
SELECT position, value FROM (
    SELECT position, value, sum(octet_length(value)) OVER (ORDER BY position) - octet_length(value) AS before
    FROM (SELECT position, value FROM log.{topic} WHERE cluster = $1 AND position > $2 ORDER BY position LIMIT $3) few
) sized WHERE before < $4 ORDER BY position"""

_END = "SELECT coalesce(max(position), -1) AS last FROM log.{topic} WHERE cluster = $1"

_COUNTER = "SELECT last FROM log.counters WHERE topic = '{topic}' AND cluster = $1"


class _PostgresLog:
    """What both logs share. Three connections at most: one that writes, one that reads, one that listens."""

    _topic: str

    def __init__(self, dsn: str, cluster: ClusterId, *, application_name: str = "signalbox-log") -> None:
        self.cluster = cluster
        self._writer = Line(dsn, application_name)
        self._reader = Line(dsn, application_name)
        self._listener = Line(dsn, application_name)
        self._wakes: set[asyncio.Event] = set()

    async def open(self, *, create: bool = False) -> LogId:
        """As RecordLog.open."""
        try:
            if create:
                await self._create()
            found = await read_log_id(self)
            counted = await self._writer.fetch(_COUNTER.format(topic=self._topic), self.cluster)
        except TROUBLE as error:
            raise unavailable(error) from error
        if found is None or not counted:
            raise LogUnusable(f"there is no {self._topic} log of {self.cluster} here: it was never created")
        # The counter first: an append in between makes the log longer, never shorter.
        if (end := await self.end()) < counted[0]["last"]:
            raise LogUnusable(f"the log ends at {end}, its counter is at {counted[0]['last']}: records are missing")
        return found

    async def close(self) -> None:
        """As RecordLog.close."""
        for line in (self._listener, self._writer, self._reader):
            with contextlib.suppress(*TROUBLE):
                await line.close()

    async def abandon(self) -> None:
        """As RecordLog.abandon. A statement that the server has already may still be carried out."""
        for line in (self._listener, self._writer, self._reader):
            line.abandon()

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read."""
        rows = await self._rows(_READ, after, limit, READ_BYTES)
        if not rows and (end := await self.end()) < after:
            raise LogUnusable(f"the log ends at {end}, the position is {after}: it was truncated")
        return cut_at_gap(after, [Raw(position, value) for position, value in rows])

    async def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """As RecordLog.follow."""
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                wake.clear()  # before the look: what is stored after it sets it again
                batch = await self._look(after)
                if batch:
                    after = batch[-1].offset
                    yield batch
                elif batch is None:
                    await asyncio.sleep(RETRY_S)
                else:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(wake.wait(), POLL_S)
        finally:
            self._wakes.discard(wake)

    async def end(self) -> int:
        """As RecordLog.end."""
        return int((await self._rows(_END))[0]["last"])

    async def _look(self, after: int) -> Sequence[Raw] | None:
        """What is there after `after`; None: the log does not answer."""
        try:
            await self._listen()
            return await self.read(after, READ_BATCH)
        except LogUnavailable:
            return None

    async def _listen(self) -> None:
        try:
            await self._listener.listen(f"log_{self._topic}", self._heard, self._wake_all)
        except TROUBLE as error:
            raise unavailable(error) from error

    def _heard(self, cluster: str) -> None:
        if cluster == self.cluster:
            self._wake_all()

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def _rows(self, query: str, *args: object) -> list[asyncpg.Record]:
        try:
            return await self._reader.fetch(query.format(topic=self._topic), self.cluster, *args)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
            raise LogUnusable(f"there is no log in this database: {error}") from error
        except TROUBLE as error:
            raise unavailable(error) from error

    async def _create(self) -> None:
        await self._writer.migrate()
        genesis = codec.encode(Genesis(log_id=LogId(secrets.token_hex(8)), cluster=self.cluster))
        await self._writer.fetch(_GENESIS.format(topic=self._topic), self.cluster, genesis)


class PostgresEventLog(_PostgresLog):
    """EventLog. Refuses an append where the head has moved; dead after an unknown outcome."""

    _topic = "events"
    _dead = False

    async def append(self, value: bytes, expected: int, timeout_s: float = 15.0) -> int:
        """As EventLog.append."""
        if self._dead:
            raise UnknownOutcome("an earlier append had an unknown outcome: this writer is dead")
        refuse_oversize(value)
        try:
            rows = await self._writer.fetch(_APPEND_EVENT, self.cluster, value, expected, timeout_s=timeout_s)
        except Exception as error:
            self._dead = True
            raise UnknownOutcome(f"Postgres: {type(error).__name__}: {error}") from error
        except BaseException:  # cancelled in the middle: the outcome is as unknown
            self._dead = True
            raise
        if not rows:
            raise AppendRefused(f"the head has moved: {expected} is not the next position")
        return int(rows[0]["position"])


class PostgresCommandLog(_PostgresLog):
    """CommandLog."""

    _topic = "commands"

    async def append(self, value: bytes, timeout_s: float = 5.0) -> int:
        """As CommandLog.append."""
        refuse_oversize(value)
        try:
            rows = await self._writer.fetch(_APPEND_COMMAND, self.cluster, value, timeout_s=timeout_s)
        except Exception as error:
            raise UnknownOutcome(f"Postgres: {type(error).__name__}: {error}") from error
        if not rows:
            raise AppendRefused(f"there is no commands log of {self.cluster}")
        return int(rows[0]["position"])
