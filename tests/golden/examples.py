"""Examples of every event in the catalogue, made from its fields, and the golden log that is written from them.

`python -m tests.golden.examples` writes the newest, NEWEST, anew. That is right until a release has written such logs:
from then on the file is frozen, as all before it are, and what is new goes into a log of the next number.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
from dataclasses import fields, is_dataclass
from enum import EnumType
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import events
from events import codec
from events.catalogue import EventType, entries
from events.chain import START, Head, admit
from events.envelope import Commit, Event, Genesis, Input, Term
from events.ids import ClusterId, Epoch, Instant, LogId, Nonce, Principal

HERE = Path(__file__).parent
NEWEST = HERE / "log_v2.jsonl"
CLUSTER = ClusterId("golden")
_ADAPTERS = ("kafka", "postgres", "memory")


def catalogue() -> list[EventType]:
    """All entries, with every module of events/ imported."""
    for module in pkgutil.iter_modules(events.__path__):
        if not module.name.startswith(_ADAPTERS):
            importlib.import_module(f"events.{module.name}")
    return entries()


def full(cls: type) -> Event:
    """An event with a value in every field."""
    hints = get_type_hints(cls)
    return cls(**{field.name: _value(hints[field.name], field.name) for field in fields(cls)})


def spare(cls: type) -> Event:
    """The same event with nothing where nothing is allowed."""
    hints = get_type_hints(cls)
    nothing = {field.name: None for field in fields(cls) if type(None) in get_args(hints[field.name])}
    given = {field.name: _value(hints[field.name], field.name) for field in fields(cls) if field.name not in nothing}
    return cls(**given, **nothing)


def _value(hint: Any, name: str) -> Any:
    """A value of that type; text and numbers tell by the field's name."""
    hint = getattr(hint, "__supertype__", hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(arg for arg in args if arg is not type(None)), name)
    if origin is tuple:
        return tuple(_value(arg, name) for arg in args if arg is not Ellipsis)
    if origin is dict:
        return {f"{name}-key": _value(args[1], name)}
    if hint is not Any and is_dataclass(hint):
        return full(hint)  # type: ignore[arg-type]
    if isinstance(hint, EnumType):
        return list(hint)[-1]
    plain: dict[Any, Any] = {str: f"{name}-é", int: len(name) + 1, bool: True, float: 0.5, Any: [name]}
    return plain[hint]


def records() -> list[bytes]:
    """A whole log: a term with a commit for each event type, a deposed leader's commit, junk, and a second term."""
    genesis = codec.encode(Genesis(log_id=LogId("golden-log-1"), cluster=CLUSTER))
    log = [genesis]
    head = admit(START, 0, genesis).head
    for nonce, half in (("first", 0), ("second", 1)):
        deposed = head
        head = _add(log, head, _term(head, nonce))
        if half:
            head = _add(log, head, _commit(deposed, "zombie", ()))
            head = _add(log, head, b"not a record")
        for entry in catalogue():
            event = (full, spare)[half](entry.cls)
            head = _add(log, head, _commit(head, f"{entry.name}-{entry.version}", (event,)))
    return log


def _add(log: list[bytes], head: Head, raw: bytes) -> Head:
    log.append(raw)
    return admit(head, head.offset + 1, raw).head


def _term(head: Head, nonce: str) -> bytes:
    return codec.encode(
        Term(
            cluster=CLUSTER,
            epoch=Epoch(head.epoch + 1),
            nonce=Nonce(nonce),
            n=head.n + 1,
            prev=head.hash,
            at=Instant(head.at + 1000),
            rules=1,
            holder="host-1",
        )
    )


def _commit(head: Head, input_id: str, made: tuple[Event, ...]) -> bytes:
    return codec.encode(
        Commit(
            cluster=CLUSTER,
            epoch=head.epoch,
            nonce=head.nonce,
            n=head.n + 1,
            at=Instant(head.at + 1),
            actor=Principal("user:ada"),
            input=Input(kind="command", id=input_id, body={"x": 1}, position=head.n, log_id=LogId("golden-commands")),
            policy=1,
            prev=head.hash,
            seq=head.seq + 1,
            events=made,
            cycle=head.n,
            planned_at_n=head.n,
            cause="example",
        )
    )


def main() -> None:
    """Write the newest golden log, and beside it the head that a reader has after it."""
    log = records()
    NEWEST.write_bytes(b"\n".join(log) + b"\n")
    head = START
    for offset, raw in enumerate(log):
        head = admit(head, offset, raw).head
    NEWEST.with_suffix(".head").write_text(f"{head.offset} {head.n} {head.seq} {head.hash}\n")


if __name__ == "__main__":
    main()
