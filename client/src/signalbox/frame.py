"""Events as a pandas DataFrame. pandas is loaded when asked for, and is no dependency."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from signalbox.shapes import Event, facts


def frame(events: Iterable[Event]) -> Any:
    """A DataFrame with a row per event, indexed by seq: type, at, job, team, actor, and each field of the events.

    Raises ImportError, saying what to install, before the first event is asked for.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ImportError("a DataFrame needs pandas: pip install pandas") from None
    table = pandas.DataFrame([row(event) for event in events])
    return table.set_index("seq") if "seq" in table else table


def row(event: Event) -> dict[str, Any]:
    """One event flattened: the envelope's columns first, then its own fields."""
    envelope = {
        "seq": event.seq,
        "at": event.at,
        "type": event.type,
        "job": event.job,
        "team": event.team,
        "actor": event.actor,
    }
    return {**envelope, **{name: value for name, value in facts(event.raw).items() if name not in envelope}}
