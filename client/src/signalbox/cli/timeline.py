"""An event in a line for people: when, what, and its few telling fields. The words are the event's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from signalbox.shapes import facts
from signalbox.times import ago, instant

UNTOLD = frozenset({"job_id", "spec", "principal", "ranks", "team", "node", "report", "policy", "gpus"})
"""Fields that a line leaves out: said elsewhere in it, or too long for one."""


def told(event: Mapping[str, Any]) -> dict[str, str]:
    """`when`, `type` and `detail` of an event of the feed or of a job's timeline."""
    return {"when": ago(instant(event.get("at"))), "type": str(event.get("type", "")), "detail": fields_of(event)}


def fields_of(event: Mapping[str, Any]) -> str:
    """name=value of the event's own fields that hold something; times as times."""
    said = []
    for name, value in facts(event).items():
        if name not in UNTOLD and value not in (None, "", False, [], {}):
            said.append(f"{name.removesuffix('_at')}={_value(name, value)}")
    return " ".join(said)


def _value(name: str, value: object) -> object:
    """Instants are milliseconds in events."""
    if name.endswith("_at") and isinstance(value, int):
        return instant_of_ms(value)
    return value


def instant_of_ms(milliseconds: int) -> str:
    """A time as people read it in a line."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
