"""The two ports of the log. Adapters: memory, postgres, kafka; one contract suite for all (tests/contract).

`EventLog` has one fenced writer, `CommandLog` many writers. Both number their records from 0 without a gap;
record 0 is the genesis. What an events log acknowledges is not yet accepted: see events.chain.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from events.chain import START, Accepted, ChainBroken, Dropped, Head, admit
from events.codec import Unreadable, digest, parse
from events.envelope import RECORD_BYTES_MAX
from events.ids import ClusterId, LogId


class UnknownOutcome(Exception):
    """An append, or a statement, that may or may not have taken effect: the leadership ends (I-5). Never retried."""


class AppendRefused(Exception):
    """A definite no: the record is not in the log, and will not be (too large, or the head has moved)."""


class LogUnusable(Exception):
    """The log is not fit to lead or read on: truncated, created anew, misconfigured (P-4, P-5). Says how."""


class LogUnavailable(Exception):
    """The log does not answer now. Reading may be tried again; says nothing about an append."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One record as stored: its place and its bytes."""

    offset: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A record that somebody remembers as accepted (P-5). `by`: who, in words."""

    by: str
    log_id: str
    offset: int
    n: int
    hash: str


class RecordLog(Protocol):
    """What both logs have in common. All offsets are of one cluster's own partition (P-2)."""

    cluster: ClusterId

    async def open(self, *, create: bool = False) -> LogId:
        """Connect, check the log (P-5) and return its id; with `create`, make it with a genesis if there is none.
        Raises LogUnusable, LogUnavailable."""
        ...

    async def close(self) -> None:
        """Let go of the log in peace. A leader that stops for a failure calls `abandon` instead."""
        ...

    async def abandon(self) -> None:
        """Drop the connections with whatever is in them: nothing is flushed, finished or tried again (P-9)."""
        ...

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """Up to `limit` records with offset > `after`, in order, without a gap; empty at the end.
        Raises LogUnusable where `after` is beyond the end or before the start of what is kept, LogUnavailable."""
        ...

    def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """Batches of records with offset > `after` for ever, each soon after it is stored (p99 under 20 ms).
        Waits while the log is unavailable. Raises LogUnusable as `read` does."""
        ...

    async def end(self) -> int:
        """Offset of the last record; -1 for an empty log. Raises LogUnavailable."""
        ...


class EventLog(RecordLog, Protocol):
    """The events log: whole records (events.codec), one writer at a time by the rules of events.chain."""

    async def append(self, value: bytes, expected: int, timeout_s: float = 15.0) -> int:
        """Store a record and return its offset. `expected`: the offset it should get, one past the writer's last.

        The postgres log refuses (AppendRefused) when the end is not there; Kafka cannot, so the caller compares
        (P-1). Raises UnknownOutcome on a time-out, any error of the producer, or a missing offset (P-9); after that
        every append raises it: the writer is dead.
        """
        ...


class CommandLog(RecordLog, Protocol):
    """The commands log: opaque command records by many writers."""

    async def append(self, value: bytes, timeout_s: float = 5.0) -> int:
        """Store a command durably and return its offset. Raises UnknownOutcome, AppendRefused (too large)."""
        ...


READ_BATCH = 2000


def refuse_oversize(value: bytes) -> None:
    """Raises AppendRefused for a record that is too large for any log (P-7); nothing was sent."""
    if len(value) > RECORD_BYTES_MAX:
        raise AppendRefused(f"record of {len(value)} bytes, the limit is {RECORD_BYTES_MAX}")


def cut_at_gap(after: int, records: Sequence[Raw]) -> Sequence[Raw]:
    """The records up to the first gap (P-6). Raises LogUnusable where the very first one is missing."""
    if not records or records[-1].offset == after + len(records):
        return records
    whole = [raw for place, raw in enumerate(records, after + 1) if raw.offset == place]
    if not whole:
        raise LogUnusable(f"record {after + 1} is missing: the next one kept is {records[0].offset}")
    return whole


async def filtered(
    log: RecordLog, head: Head = START, *, until: int | None = None
) -> AsyncIterator[Accepted | Dropped]:
    """The filter's word on every record after `head`, up to offset `until` (default: the end as it is now). Raises
    ChainBroken."""
    last = await log.end() if until is None else until
    while head.offset < last:
        batch = await log.read(head.offset, READ_BATCH)
        if not batch:
            raise ChainBroken(head.offset + 1, "the log ends early")
        for raw in batch:
            outcome = admit(head, raw.offset, raw.value)
            head = outcome.head
            yield outcome
            if head.offset >= last:
                return


async def accepted(log: RecordLog, head: Head = START, *, until: int | None = None) -> AsyncIterator[Accepted]:
    """Those of them that count."""
    async for outcome in filtered(log, head, until=until):
        if isinstance(outcome, Accepted):
            yield outcome


async def follow_accepted(log: EventLog, head: Head = START) -> AsyncIterator[Sequence[Accepted | Dropped]]:
    """Filtered batches after `head` for ever; dropped records come too: they move the position. Raises ChainBroken."""
    async for batch in log.follow(head.offset):
        outcomes: list[Accepted | Dropped] = []
        for raw in batch:
            outcome = admit(head, raw.offset, raw.value)
            head = outcome.head
            outcomes.append(outcome)
        yield outcomes


async def verify_position(log: RecordLog, head: Head) -> None:
    """Check on resume that `head` names this log and a record that it still has, unchanged. Raises LogUnusable."""
    if head.offset < 0:
        return
    if (found := await read_log_id(log)) != head.log_id:
        raise LogUnusable(f"log id is {found}, the position is in {head.log_id}: this is another log")
    await kept_record(log, head.offset)
    if digest(await kept_record(log, head.accepted)) != head.hash:
        raise LogUnusable(f"the record at {head.accepted} is not the one that was read before")


async def kept_record(log: RecordLog, offset: int) -> bytes:
    """A record that was read, or written, before. Raises LogUnusable where the log does not reach it any more.

    Not by `end`: for a moment after a Kafka partition changed its leader it may lie below what was read already.
    """
    await log.read(offset, 1)
    kept = await log.read(offset - 1, 1)
    if not kept:
        raise LogUnusable(f"the log does not reach {offset} any more: it was truncated")
    return kept[0].value


async def read_log_id(log: RecordLog) -> LogId | None:
    """The id in the first record; None for an empty log. Raises LogUnusable where the first record is no genesis."""
    first = await log.read(-1, 1)
    if not first:
        return None
    try:
        return LogId(parse(first[0].value)["body"]["log_id"])
    except (Unreadable, KeyError, TypeError) as error:
        raise LogUnusable(f"the first record is no genesis: {error}") from None
