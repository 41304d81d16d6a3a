"""The projector: follows the events log of one cluster and keeps its tables in step.

Each batch is one transaction with its position, so that a crash at any point loses nothing and doubles nothing. It
never guesses: another log, a broken chain or an event it cannot read stop it (Stopped), with projection_stopped at 1.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from events.chain import Accepted, ChainBroken, Dropped, Head, admit
from events.codec import Unreadable
from events.envelope import Record
from events.log import READ_BATCH, EventLog, LogUnavailable, LogUnusable, follow_accepted, verify_position
from projections import metrics
from projections.database import (
    READ_LOCK,
    Connection,
    connect,
    load,
    load_head,
    load_whole,
    migrate,
    move,
    save,
    snapshot,
)
from projections.fold import WHOLE, fold, wanted, wanted_attempts
from projections.store import Rows, Unprojectable

EVENTS_MAX = 4000
"""Events in one transaction, at about which a batch is cut."""
LAG_EVERY_S = 2.0

Outcome = Accepted | Dropped
Progress = Callable[[Head], None]

_log = structlog.get_logger()


class Stopped(Exception):
    """The projection cannot go on without an operator; starting again meets the same. Says why."""


@dataclass(slots=True)
class Projector:
    """The tables of one cluster, from `head` on. Make it with `opened`; one task uses it."""

    log: EventLog
    connection: Connection
    head: Head
    rows: Rows
    progress: Progress = field(default=lambda head: None)
    _lag_due: float = 0.0

    @property
    def cluster(self) -> str:
        return self.log.cluster

    async def follow(self) -> None:
        """Project whatever comes, for ever. Raises Stopped, PositionMoved, and what Postgres raises."""
        with self._alarm():
            async for outcomes in follow_accepted(self.log, self.head):
                for batch in batches(outcomes):
                    await self.project(batch)
                    metrics.LAG_SEQ.labels(self.cluster).set(outcomes[-1].head.seq - self.head.seq)
                await self._note_lag()

    async def catch_up(self) -> None:
        """Project up to the end as it is now. Raises as `follow` does."""
        with self._alarm():
            last = await self.log.end()
            while self.head.offset < last:
                for batch in batches(await self._read()):
                    await self.project(batch)

    async def _read(self) -> Sequence[Outcome]:
        head, outcomes = self.head, list[Outcome]()
        for raw in await self.log.read(head.offset, READ_BATCH):
            outcomes.append(admit(head, raw.offset, raw.value))
            head = outcomes[-1].head
        if not outcomes:
            raise ChainBroken(head.offset + 1, "the log ends early")
        return outcomes

    async def project(self, outcomes: Sequence[Outcome]) -> None:
        """Fold one batch and store it together with the position. After any error this projector is of no use.

        The position is moved before any row is read: what a rival made of the same records must not meet the fold,
        which would take it for a log that cannot be projected.
        """
        began = time.perf_counter()
        new = outcomes[-1].head
        records = [outcome.record() for outcome in outcomes if isinstance(outcome, Accepted)]
        async with self.connection.transaction():
            await move(self.connection, self.cluster, self.head, new)
            await self._load(records)
            for record in records:
                fold(self.rows, record)
            await save(self.connection, self.rows.changed())
        self.rows.settle()
        metrics.EVENTS.labels(self.cluster).inc(new.seq - self.head.seq)
        self.head = new
        metrics.POSITION.labels(self.cluster).set(new.offset)
        metrics.SEQ.labels(self.cluster).set(new.seq)
        metrics.BATCH_SECONDS.labels(self.cluster).observe(time.perf_counter() - began)
        self.progress(new)

    async def _load(self, records: Sequence[Record]) -> None:
        for wants in (wanted(records), None):
            if wants is None:
                wants = wanted_attempts(self.rows, records)
            if missing := self.rows.missing(wants):
                self.rows.loaded(missing, await load(self.connection, self.cluster, missing))

    async def _note_lag(self) -> None:
        """Every few seconds: asking for the log's end may be a round trip of its own."""
        if (now := time.monotonic()) < self._lag_due:
            return
        self._lag_due = now + LAG_EVERY_S
        with contextlib.suppress(LogUnavailable):
            metrics.LAG_RECORDS.labels(self.cluster).set(max(0, await self.log.end() - self.head.offset))

    @contextlib.contextmanager
    def _alarm(self) -> Iterator[None]:
        try:
            yield
        except (Unprojectable, Unreadable, ChainBroken, LogUnusable) as error:
            metrics.STOPPED.labels(self.cluster).set(1)
            _log.critical("projection stopped", cluster=self.cluster, seq=self.head.seq, why=str(error))
            raise Stopped(f"projection of {self.cluster} stopped after seq {self.head.seq}: {error}") from error


def batches(outcomes: Sequence[Outcome], events_max: int = EVENTS_MAX) -> Iterator[Sequence[Outcome]]:
    """Cut where about `events_max` events are together; a record is never cut."""
    start = events = 0
    for place, outcome in enumerate(outcomes):
        events += _size(outcome)
        if events >= events_max:
            yield outcomes[start : place + 1]
            start, events = place + 1, 0
    if start < len(outcomes):
        yield outcomes[start:]


def _size(outcome: Outcome) -> int:
    return len(outcome.parsed.get("events", ())) + 1 if isinstance(outcome, Accepted) else 1


@contextlib.asynccontextmanager
async def opened(log: EventLog, dsn: str, progress: Progress | None = None) -> AsyncIterator[Projector]:
    """A projector where the tables stand; the log is open already. Raises Stopped where the position is not of
    this log. Waits while a rebuild runs."""
    connection = await connect(dsn)
    try:
        await connection.execute("SELECT pg_advisory_lock_shared($1)", READ_LOCK)
        await migrate(connection)
        yield await resumed(log, connection, progress or (lambda head: None))
    finally:
        await connection.close()


async def resumed(log: EventLog, connection: Connection, progress: Progress) -> Projector:
    """A projector on this connection, where the tables stand. Raises Stopped."""
    # Head and rows of one moment: a rival may be at work, which only the next move finds out.
    rows = Rows(log.cluster, partial=True)
    async with snapshot(connection):
        head = await load_head(connection, log.cluster)
        for cls in WHOLE:
            rows.loaded_whole(cls, list(await load_whole(connection, log.cluster, cls)))
    projector = Projector(log=log, connection=connection, head=head, rows=rows, progress=progress)
    with projector._alarm():
        await verify_position(log, head)
    metrics.STOPPED.labels(log.cluster).set(0)
    return projector


async def run(log: EventLog, dsn: str) -> None:
    """The projector of one cluster until it fails; its supervisor starts it again. Raises as `Projector.follow`."""
    async with opened(log, dsn) as projector:
        await projector.follow()
