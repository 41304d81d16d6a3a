"""Which part of a log is recomputed: from a day, a commit or an event, to another."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from events.chain import Head
from events.ids import Instant


class BadBound(ValueError):
    """No bound of a window; says what would be one."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`of`: what is measured, "at" (ms), "n" or "seq"; both ends of a window belong to it."""

    of: str
    value: int

    def place(self, head: Head) -> int:
        """Where the accepted record stands on this measure."""
        return {"at": head.at, "n": head.n, "seq": head.seq}[self.of]


@dataclass(frozen=True, slots=True)
class Window:
    """None: from the start, to the end. Raises BadBound where it ends before it begins: nothing lies in it, and
    nothing would be all that was looked at."""

    first: Bound | None = None
    last: Bound | None = None

    def __post_init__(self) -> None:
        first, last = self.first, self.last
        if first is not None and last is not None and first.of == last.of and first.value > last.value:
            raise BadBound(f"the window ends ({last.of} {last.value}) before it begins ({first.of} {first.value})")

    def holds(self, head: Head) -> bool:
        """Does the record that was accepted with this head lie in it?"""
        begun = self.first is None or self.first.place(head) >= self.first.value
        return begun and (self.last is None or self.last.place(head) <= self.last.value)

    def over(self, head: Head) -> bool:
        """Is this record behind it?"""
        return self.last is not None and self.last.place(head) > self.last.value


EVERYTHING = Window()


def read_bound(text: str, *, last: bool = False) -> Bound:
    """`n:120`, `seq:5000`, `2026-07-01` (a day in UTC; as the last one, the whole of it) or `2026-07-01T12:00`. Raises
    BadBound."""
    if (counted := re.fullmatch(r"(n|seq):(\d{1,18})", text)) is not None:
        return Bound(counted[1], int(counted[2]))
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if last and len(text) == len("2026-07-01"):
            return Bound("at", Instant(_ms(at + timedelta(days=1)) - 1))
        return Bound("at", Instant(_ms(at)))
    except (ValueError, OverflowError):
        raise BadBound(f"{text!r}: wanted a day (2026-07-01), a time (2026-07-01T12:00), n:N or seq:N") from None


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
