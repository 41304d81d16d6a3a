"""Records to bytes and back. The only place that knows JSON; the bytes are what is hashed.

Decoding is in two steps: the envelope, which the filter needs, and the events, which the fold needs.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from events import catalogue
from events.envelope import Commit, Event, Genesis, Record, Term
from events.upcast import STEPS, upcast


class Unreadable(Exception):
    """Bytes that are no record of ours, or an event this build does not know. Says which and why."""


def digest(raw: bytes) -> str:
    """SHA-256 of a record's bytes, in hex: what the next record's `prev` holds."""
    return hashlib.sha256(raw).hexdigest()


def encode(record: Record) -> bytes:
    """The bytes of a record; equal records give equal bytes."""
    match record:
        case Genesis():
            return orjson.dumps({"kind": "genesis", "body": record})
        case Term():
            return orjson.dumps({"kind": "term", "body": record})
        case Commit():
            return orjson.dumps({"kind": "commit", **_commit_fields(record)})


def encode_event(event: Event) -> dict[str, Any]:
    """{type, v, body} of an event, ready for orjson."""
    entry = catalogue.entry_of(type(event))
    return {"type": entry.name, "v": entry.version, "body": event}


def decode_event(stored: dict[str, Any]) -> Event:
    """An event from {type, v, body}, brought up to the newest version. Raises Unreadable."""
    try:
        name, version, body = stored["type"], stored["v"], stored["body"]
        if (name, version) in STEPS:
            name, version, body = upcast(name, version, body)
    except (KeyError, TypeError) as error:
        raise Unreadable(f"not an event: {error}") from None
    read = _event_reader(name, version)
    try:
        return read(body)
    except ValidationError as error:
        raise Unreadable(f"event {name} v{version}: {error}") from None


@cache
def _event_reader(name: str, version: int) -> Callable[[Any], Event]:
    """Of the body of an event; readers of a long log ask a million times."""
    entry = catalogue.find(name, version)
    if entry is None:
        raise Unreadable(f"unknown event {name} v{version}")
    return _reader(entry.cls)


def decode(raw: bytes) -> Record:
    """The record in `raw`, its events included. Raises Unreadable."""
    return decode_parsed(parse(raw))


def parse(raw: bytes) -> dict[str, Any]:
    """The envelope as a dict, events undecoded: enough for the filter. Raises Unreadable."""
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(parsed, dict) or parsed.get("kind") not in ("genesis", "term", "commit"):
        raise Unreadable("not a record")
    return parsed


def decode_parsed(parsed: dict[str, Any]) -> Record:
    """A parsed envelope as a record. Raises Unreadable."""
    try:
        match parsed["kind"]:
            case "genesis":
                return _adapter(Genesis).validate_python(parsed["body"])  # type: ignore[no-any-return]
            case "term":
                return _adapter(Term).validate_python(parsed["body"])  # type: ignore[no-any-return]
            case _:
                return _decode_commit(parsed)
    except (KeyError, TypeError, ValidationError) as error:
        raise Unreadable(f"malformed {parsed.get('kind')}: {error}") from None


def _decode_commit(parsed: dict[str, Any]) -> Commit:
    fields = {**parsed, "events": ()}
    del fields["kind"]
    commit: Commit = _reader(Commit)(fields)
    events = tuple(decode_event(stored) for stored in parsed["events"])
    object.__setattr__(commit, "events", events)
    return commit


_COMMIT_FIELDS = tuple(name for name in Commit.__slots__ if name != "events")


def _commit_fields(commit: Commit) -> dict[str, Any]:
    fields = {name: getattr(commit, name) for name in _COMMIT_FIELDS}
    fields["events"] = [encode_event(event) for event in commit.events]
    return fields


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


@cache
def _reader(cls: type) -> Callable[[Any], Any]:
    """What the adapter asks in the end."""
    read: Callable[[Any], Any] = _adapter(cls).validator.validate_python
    return read
