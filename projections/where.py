"""Conditions and pages of the read queries."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LIMIT_MAX = 1000


class BadCursor(ValueError):
    """The cursor is none that we gave out."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of the answers; `cursor` gets the next ones, None: there are no more now."""

    items: list[T]
    cursor: str | None


class Where:
    """Conditions with numbered parameters; `{}` in a condition stands for its value."""

    def __init__(self, cluster: str) -> None:
        self.args: list[Any] = [cluster]
        self._conditions = ["cluster = $1"]

    def add(self, condition: str, *values: Any) -> None:
        """One more condition that has to hold."""
        self._conditions.append(condition.format(*(self.arg(value) for value in values)))

    def arg(self, value: Any) -> str:
        """The place of one more parameter."""
        self.args.append(value)
        return f"${len(self.args)}"

    def __str__(self) -> str:
        return " AND ".join(self._conditions)


def cut(limit: int) -> int:
    """A page's size within its bounds."""
    return max(1, min(limit, LIMIT_MAX))


def page(items: list[T], limit: int, place: str) -> Page[T]:
    """The page of up to `limit` items, of which one more was asked for; `place`: the attribute that orders them."""
    if len(items) <= limit:
        return Page(items, None)
    return Page(items[:limit], encode_cursor(getattr(items[limit - 1], place)))


def encode_cursor(seq: int) -> str:
    """An opaque cursor after the item at `seq`."""
    return base64.urlsafe_b64encode(f"s{seq}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> int:
    """The seq in a cursor. Raises BadCursor."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        seq = int(text.removeprefix("s"))
    except (binascii.Error, ValueError):
        raise BadCursor(cursor) from None
    if text != f"s{seq}" or not 0 <= seq < 2**63:
        raise BadCursor(cursor)
    return seq
