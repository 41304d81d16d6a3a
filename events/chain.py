"""The one filter that all readers of an events log share (PROTOCOL P-1 to P-4).

An acknowledged append is not an accepted commit: the log may hold records of deposed leaders. This pure
fold says of each record, in log order, whether it counts. Every reader that applies it to the same log
accepts the same records. It must never depend on anything but the head and the record's bytes.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from events import codec
from events.envelope import Record
from events.ids import Epoch, Instant, LogId, Nonce

GENESIS_HASH = "0" * 64
NO_NONCE = Nonce("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The position of a reader (P-4): the last record read (`offset`), and the last one accepted:
    its offset (`accepted`), epoch, nonce, n, last seq, at and hash. -1: nothing yet.
    """

    log_id: LogId
    offset: int
    accepted: int
    epoch: Epoch
    nonce: Nonce
    n: int
    seq: int
    at: Instant
    hash: str


START = Head(
    log_id=LogId(""),
    offset=-1,
    accepted=-1,
    epoch=Epoch(0),
    nonce=NO_NONCE,
    n=-1,
    seq=0,
    at=Instant(0),
    hash=GENESIS_HASH,
)
"""Before the first record of any log."""


class DropReason(StrEnum):
    """Why a record does not count. None of these is tampering."""

    SECOND_GENESIS = "second_genesis"
    STALE_TERM = "stale_term"
    FENCED = "fenced"
    DUPLICATE = "duplicate"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The record counts; `head` is the reader's next position. `parsed` still has its events undecoded."""

    head: Head
    parsed: dict[str, Any]
    raw: bytes

    def record(self) -> Record:
        """The whole record. Raises codec.Unreadable."""
        return codec.decode_parsed(self.parsed)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The record does not count; `head` only moves its offset."""

    head: Head
    reason: DropReason


class ChainBroken(Exception):
    """A record of the current term that does not follow from the head: halt and alarm, never guess (P-3)."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"record at offset {offset}: {why}")
        self.offset = offset
        self.why = why


def admit(head: Head, offset: int, raw: bytes) -> Accepted | Dropped:
    """What the record at `offset` is to a reader at `head`. Raises ChainBroken.

    Offsets follow one another without a gap: a gap is a record that was not read.
    """
    if offset != head.offset + 1:
        raise ChainBroken(offset, f"expected offset {head.offset + 1}: a record is missing")
    try:
        parsed = codec.parse(raw)
        return _admit_parsed(head, offset, raw, parsed)
    except (codec.Unreadable, KeyError, TypeError) as error:
        if offset == 0:
            raise ChainBroken(offset, f"the first record is no genesis: {error}") from None
        return Dropped(replace(head, offset=offset), DropReason.UNREADABLE)


def _admit_parsed(head: Head, offset: int, raw: bytes, parsed: dict[str, Any]) -> Accepted | Dropped:
    kind = parsed["kind"]
    if head.n < 0:
        if kind != "genesis":
            raise ChainBroken(offset, f"the first record is a {kind}, not a genesis")
        first = replace(
            head,
            log_id=LogId(parsed["body"]["log_id"]),
            offset=offset,
            accepted=offset,
            n=0,
            hash=codec.digest(raw),
        )
        return Accepted(first, parsed, raw)
    if kind == "genesis":
        return Dropped(replace(head, offset=offset), DropReason.SECOND_GENESIS)
    if kind == "term":
        return _admit_term(head, offset, raw, parsed)
    return _admit_commit(head, offset, raw, parsed)


def _admit_term(head: Head, offset: int, raw: bytes, parsed: dict[str, Any]) -> Accepted | Dropped:
    """A term counts if its epoch is above every accepted one and it chains to the head; its writer reads on to see."""
    term = parsed["body"]
    if term["epoch"] <= head.epoch or term["n"] != head.n + 1 or term["prev"] != head.hash:
        return Dropped(replace(head, offset=offset), DropReason.STALE_TERM)
    if term["at"] < head.at:
        return Dropped(replace(head, offset=offset), DropReason.STALE_TERM)
    return Accepted(
        Head(
            log_id=head.log_id,
            offset=offset,
            accepted=offset,
            epoch=Epoch(term["epoch"]),
            nonce=Nonce(term["nonce"]),
            n=term["n"],
            seq=head.seq,
            at=Instant(term["at"]),
            hash=codec.digest(raw),
        ),
        parsed,
        raw,
    )


def _admit_commit(head: Head, offset: int, raw: bytes, parsed: dict[str, Any]) -> Accepted | Dropped:
    if (parsed["epoch"], parsed["nonce"]) != (head.epoch, head.nonce):
        return Dropped(replace(head, offset=offset), DropReason.FENCED)
    record_hash = codec.digest(raw)
    if record_hash == head.hash:
        return Dropped(replace(head, offset=offset), DropReason.DUPLICATE)
    _check_follows(head, offset, parsed)
    events = parsed["events"]
    return Accepted(
        Head(
            log_id=head.log_id,
            offset=offset,
            accepted=offset,
            epoch=head.epoch,
            nonce=head.nonce,
            n=head.n + 1,
            seq=head.seq + len(events),
            at=Instant(parsed["at"]),
            hash=record_hash,
        ),
        parsed,
        raw,
    )


def _check_follows(head: Head, offset: int, parsed: dict[str, Any]) -> None:
    if parsed["n"] != head.n + 1:
        raise ChainBroken(offset, f"n is {parsed['n']}, expected {head.n + 1}")
    if parsed["prev"] != head.hash:
        raise ChainBroken(offset, f"prev of n {parsed['n']} is not the hash of the record before")
    if parsed["seq"] != head.seq + 1:
        raise ChainBroken(offset, f"seq is {parsed['seq']}, expected {head.seq + 1}")
    if parsed["at"] < head.at:
        raise ChainBroken(offset, f"at goes back from {head.at} to {parsed['at']}")
