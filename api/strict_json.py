"""JSON as it is meant: UTF-8, one object, no name twice, no NaN, not too deep. Anything else is a Problem."""

import json
from typing import Any

import orjson

from api.problems import Problem, shown

DEPTH_MAX = 16


class _Twice(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises Problem (400) saying what is wrong and, where known, in which byte."""
    if not raw.strip():
        raise Problem("malformed_json", "the body is empty: a JSON object is needed")
    try:
        orjson.loads(raw)  # strict where the standard library is lenient: encoding, surrogates, NaN, depth
        parsed = json.loads(raw, object_pairs_hook=_no_name_twice)
    except orjson.JSONDecodeError as error:
        raise Problem("malformed_json", f"not JSON: {error.msg} at byte {error.pos}") from None
    except _Twice as error:
        raise Problem("malformed_json", f"the name {shown(error.name)!r} is there twice in one object") from None
    except (ValueError, RecursionError):
        raise Problem("malformed_json", "a number is too long, or the nesting too deep") from None
    if not isinstance(parsed, dict):
        raise Problem("malformed_json", f"a JSON object is needed, not {type(parsed).__name__}")
    if _deeper_than(parsed, DEPTH_MAX):
        raise Problem("malformed_json", f"nested deeper than {DEPTH_MAX} levels")
    return parsed


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(name)
            seen.add(name)
    return made


def _deeper_than(value: Any, levels: int) -> bool:
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True
