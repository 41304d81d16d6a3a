"""Durations ("90s", "30m", "72h", "3d") and times (RFC 3339) as clients write and read them."""

import re
from datetime import UTC, datetime
from typing import Any

from events.ids import Instant

DURATION_PATTERN = r"^[1-9][0-9]{0,8}[smhd]$"
_DURATION = re.compile(DURATION_PATTERN)
_SECONDS = re.compile(r"\b([0-9]{1,12})s\b")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TIME_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
_TIME = re.compile(TIME_PATTERN, re.ASCII)
_YEARS = (2000, 2199)


def parse_duration(text: str) -> int:
    """Seconds. Raises ValueError where it is not a whole positive number with a unit."""
    if not _DURATION.fullmatch(text):
        raise ValueError("a whole number with a unit: 90s, 30m, 72h or 3d")
    return int(text[:-1]) * _UNIT_S[text[-1]]


def format_duration(seconds: int) -> str:
    """The shortest text that `parse_duration` reads as `seconds`."""
    for unit in "dhm":
        if seconds and seconds % _UNIT_S[unit] == 0:
            return f"{seconds // _UNIT_S[unit]}{unit}"
    return f"{seconds}s"


def spoken_durations(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of the core with their seconds in the largest unit that fits: "7776000s in all" -> "90d in all"."""

    def spoken(text: Any) -> Any:
        return _SECONDS.sub(lambda found: format_duration(int(found[1])), text) if isinstance(text, str) else text

    return {name: spoken(value) for name, value in figures.items()}


def parse_time(text: str) -> Instant:
    """Milliseconds of an RFC 3339 time with a zone. Raises ValueError."""
    if not _TIME.fullmatch(text):
        raise ValueError("an RFC 3339 time with a zone, as 2026-10-04T00:00:00Z")
    moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper()))
    if not _YEARS[0] <= moment.year <= _YEARS[1]:
        raise ValueError(f"a year from {_YEARS[0]} to {_YEARS[1]}")
    return Instant(int(moment.timestamp() * 1000))


def format_time(at: int | None) -> str | None:
    """RFC 3339 in UTC with milliseconds; None stays None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
