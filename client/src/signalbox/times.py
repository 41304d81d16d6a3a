"""Durations ("90s", "30m", "72h", "3d") and times (RFC 3339 UTC), as the API writes them and as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([1-9]\d{0,8})([smhd])")


def seconds(duration: str) -> int:
    """Seconds in a duration of the API. Raises ValueError where it is none."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise ValueError(f'{duration!r} is no duration: write "90s", "30m", "72h" or "3d"')
    return int(match[1]) * _UNITS[match[2]]


def instant(text: object) -> datetime | None:
    """The time in an RFC 3339 string; None where there is none."""
    if not isinstance(text, str) or not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def humane(span_s: float) -> str:
    """A span in its largest unit or two: 45s, 3m, 2h 5m, 3d 4h."""
    whole = int(abs(span_s))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "m")
    return _two(whole // 86400, "d", whole % 86400 // 3600, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit} {small}{small_unit}" if small else f"{large}{large_unit}"


def ago(then: datetime | None, now: datetime | None = None) -> str:
    """ "3m ago", "in 2h 5m", or "-" where there is no time."""
    if then is None:
        return "-"
    span_s = ((now or datetime.now(UTC)) - then).total_seconds()
    if abs(span_s) < 1:
        return "now"
    return f"{humane(span_s)} ago" if span_s > 0 else f"in {humane(span_s)}"
