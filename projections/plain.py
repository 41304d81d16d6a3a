"""Rows as plain JSON, the form in which they are written and in which they are compared.

What Postgres cannot store is changed here, the same for every user of the rows: no accepted event may stop a
projection because of a character or a figure in it (P-7).
"""

import re
from typing import Any

import orjson

from projections.rows import Row

INT8_MAX = 2**63 - 1
_LONG = re.compile(rb":[19][0-9]{18}")


def to_json(rows: list[Row]) -> bytes:
    """The rows as a JSON array. No NUL, which Postgres has in no text; no figure beyond int8."""
    payload = orjson.dumps(rows)
    if b"\\u0000" in payload or _LONG.search(payload):
        return orjson.dumps(_storable(orjson.loads(payload)))
    return payload


def from_json(payload: bytes | str) -> Any:
    """The plain values in a JSON text."""
    return orjson.loads(payload)


def _storable(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\x00", "�")
        case bool():
            return value
        case int():
            return min(value, INT8_MAX)
        case list():
            return [_storable(one) for one in value]
        case dict():
            return {_storable(key): _storable(one) for key, one in value.items()}
        case _:
            return value
