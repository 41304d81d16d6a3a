"""A record as its bytes show it, whether or not it counts: what a diagnosis reasons with."""

from dataclasses import dataclass
from typing import Any

from events import codec
from events.log import Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`kind` "" and all else None: no record of ours."""

    offset: int
    digest: str
    kind: str
    n: int | None
    prev: str | None
    epoch: int | None
    nonce: str | None


def seen(raw: Raw) -> Seen:
    """What can be told of these bytes."""
    kind, fields = _fields(raw.value)
    return Seen(
        offset=raw.offset,
        digest=codec.digest(raw.value),
        kind=kind,
        n=_int(fields.get("n")),
        prev=_str(fields.get("prev")),
        epoch=_int(fields.get("epoch")),
        nonce=_str(fields.get("nonce")),
    )


def _fields(value: bytes) -> tuple[str, dict[str, Any]]:
    try:
        parsed = codec.parse(value)
    except codec.Unreadable:
        return "", {}
    kind = str(parsed["kind"])
    fields = parsed if kind == "commit" else parsed.get("body")
    if not isinstance(fields, dict):
        return "", {}
    return kind, {"n": 0, **fields} if kind == "genesis" else fields


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _str(value: object) -> str | None:
    return value if isinstance(value, str) else None
