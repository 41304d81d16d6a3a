"""An event in a line for people: when, what, and its few telling fields. The words are the event's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from signalbox.shapes import facts
from signalbox.times import ago, humane, instant

UNTOLD = frozenset({"job_id", "spec", "principal", "ranks", "team", "node", "report", "policy", "gpus"})
"""Fields that a line leaves out: said elsewhere in it, or too long for one."""


FIRST = ("attempt", "rank", "state", "end", "reason", "exit_code", "detail")
"""What is read first comes first; the rest by name. A feed's fields come in any order."""
LISTED_MAX = 8
COUNTED = frozenset({"nodes", "grown", "stopped"})
"""Lists of which the length is told, however short."""
ATTEMPTS = frozenset({"victims", "awaited"})
"""Fields that list attempts: a job and a number each."""


def told(event: Mapping[str, Any]) -> dict[str, str]:
    """`when`, `type` and `detail` of an event of the feed or of a job's timeline."""
    return {"when": ago(instant(event.get("at"))), "type": str(event.get("type", "")), "detail": fields_of(event)}


def moment(event: Mapping[str, Any], first: datetime | None, now: datetime | None = None) -> dict[str, str]:
    """`clock` and `offset` of an event: when it was, and how long after the first."""
    at = instant(event.get("at"))
    if at is None or first is None:
        return {"clock": "-", "offset": "-"}
    span_s = (at - first).total_seconds()
    return {"clock": clock(at, now), "offset": f"+{span_s:.1f}s" if span_s < 10 else f"+{humane(span_s)}"}


def clock(at: datetime, now: datetime | None = None) -> str:
    """HH:MM:SS in UTC, with the date where that is not today's."""
    at = at.astimezone(UTC)
    same = at.date() == (now or datetime.now(UTC)).date()
    return f"{at:%H:%M:%S}" if same else f"{at:%Y-%m-%d %H:%M:%S}"


def fields_of(event: Mapping[str, Any]) -> str:
    """name=value of the event's own fields that hold something, in an order of their own; times as times."""
    said = []
    for name, value in sorted(facts(event).items(), key=_order):
        if name not in UNTOLD and value not in (None, "", False, [], {}):
            said.append(f"{name.removesuffix('_at')}={_value(name, value)}")
    return " ".join(said)


def _value(name: str, value: object) -> object:
    """Instants are milliseconds in events; of long lists the length is told; attempts are named as leases are."""
    if name in COUNTED or (isinstance(value, list) and len(value) > LISTED_MAX):
        return len(value) if isinstance(value, list) else value
    if name in ATTEMPTS and isinstance(value, list):
        return ",".join(".".join(map(str, key)) for key in value)
    if name.endswith("_at") and isinstance(value, int):
        return instant_of_ms(value)
    return value


def _order(field: tuple[str, object]) -> tuple[int, str]:
    name = field[0]
    return FIRST.index(name) if name in FIRST else len(FIRST), name


def instant_of_ms(milliseconds: int) -> str:
    """A time as people read it in a line."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
