"""The state as bytes and back (P-10), and its digest. Rows in the order of their keys: equal states, equal bytes.

The fingerprint is of the schema of the state, not of the source: a snapshot of another schema is not used.
"""

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter

from commands.entities import (
    Attempt,
    Ended,
    FairUse,
    Job,
    KeyUse,
    Meta,
    Node,
    Pledge,
    Quota,
    Reservation,
    Team,
    Usage,
)
from commands.following import derived
from commands.policy import Policy
from commands.shape import count_node
from commands.state import State
from events.ids import ClusterId

RULES_VERSION = 3
"""Version of the decision rules: raised with every change that could decide an input otherwise (R-90, P-23), and with
what inputs record of themselves. 2: the scheduling policy; cycles and conflicts with their whole input. 3: within a
team a reservation is overtaken by class alone; a team whose limit is all there is has nodes held too."""

ROWS: dict[str, type] = {
    "meta": Meta,
    "policies": Policy,
    "jobs": Job,
    "attempts": Attempt,
    "nodes": Node,
    "quotas": Quota,
    "teams": Team,
    "usage": Usage,
    "fair_use": FairUse,
    "pledges": Pledge,
    "reservations": Reservation,
    "keys": KeyUse,
    "ended": Ended,
}
"""Tables that a snapshot holds; node_index, uuids and pools follow from nodes, dependents and follow_ups from jobs."""


def dump(state: State) -> bytes:
    """The state as JSON. Only between decisions: raises AssertionError while one is on trial."""
    assert state.clean(), "a decision is on trial"
    tables = {name: [_plain(table.rows[key]) for key in sorted(table.rows)] for name, table in _kept(state)}
    return orjson.dumps({"cluster": state.cluster, "tables": tables}, option=orjson.OPT_SORT_KEYS)


def load(raw: bytes) -> State:
    """The state in `raw`. Raises ValueError where it does not fit the schema."""
    stored = orjson.loads(raw)
    state = State(ClusterId(stored["cluster"]))
    for name, table in _kept(state):
        for row in _rows(name).validate_python(stored["tables"][name]):
            table.rows[_key(name, row)] = row
    for node in state.nodes.rows.values():
        state.node_index.rows[node.id] = node.index
        for gpu in node.gpus:
            state.uuids.rows[gpu.uuid] = node.index
        count_node(state, node, 1)
    state.accept()
    dependents, follow_ups = derived(state)
    state.dependents.rows.update(dependents)
    state.follow_ups.rows.update(follow_ups)
    return state


def digest(state: State) -> str:
    """SHA-256 of the dump: equal for equal states, whichever way they came about."""
    return hashlib.sha256(dump(state)).hexdigest()


def fingerprint() -> str:
    """Of the schema: names and types of every field of every row, and the version of the rules."""
    lines = [f"rules {RULES_VERSION}"]
    for name, row in sorted(ROWS.items()):
        if is_dataclass(row):
            lines += [f"{name}.{field.name}: {field.type}" for field in fields(row)]
        else:
            lines += [f"{name}.{key}: {info.annotation}" for key, info in Policy.model_fields.items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _kept(state: State) -> list[tuple[str, Any]]:
    return [(name, table) for name, table in sorted(state.tables.items()) if name in ROWS]


def _plain(row: Any) -> Any:
    if isinstance(row, Policy):
        return row.model_dump(mode="json")
    if isinstance(row, Attempt):
        return {**{field.name: getattr(row, field.name) for field in fields(row)}, "phases": row.phases.hex()}
    return row


def _key(name: str, row: Any) -> Any:
    match name:
        case "meta" | "policies":
            return ""
        case "attempts":
            return row.key
        case "nodes":
            return row.index
        case "quotas" | "usage" | "fair_use":
            return (row.team, row.gpu_type)
        case "keys" | "reservations":
            return row.key
        case "pledges":
            return row.job_id
        case _:
            return row.id


@cache
def _rows(name: str) -> "_Rows":
    return _Rows(ROWS[name])


class _Rows:
    """Reads the rows of one table; attempts have their phases as hex in JSON."""

    def __init__(self, row: type) -> None:
        self._row = row
        listed: Any = list.__class_getitem__(row)
        self._adapter: TypeAdapter[Any] = TypeAdapter(listed)

    def validate_python(self, stored: list[dict[str, Any]]) -> list[Any]:
        """The rows, typed. Raises pydantic's ValidationError (a ValueError)."""
        if self._row is Attempt:
            stored = [{**row, "phases": bytes.fromhex(row["phases"])} for row in stored]
        return self._adapter.validate_python(stored)  # type: ignore[no-any-return]
