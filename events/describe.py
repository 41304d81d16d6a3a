"""The catalogue as documents: a page for people, JSON Schema, AsyncAPI. `python docs/generate.py` writes them.

Made from the code; tests/unit/test_event_docs.py shows that docs/ is what the code says.
"""

import inspect
from typing import Any

import orjson
from pydantic import TypeAdapter

from events import catalogue, checkpoint, gang, job, leadership, node, policy, preemption, quota, reservation, task
from events.envelope import RECORD_BYTES_MAX

SUBJECTS = (job, gang, task, checkpoint, reservation, preemption, node, quota, policy, leadership)

INTRODUCTION = f"""# Events

Made from the code by `python docs/generate.py`; do not edit.

One record of the log is one **commit**: `{{kind, cluster, epoch, nonce, n, at, actor, input, policy, prev, seq,
events}}`, JSON, at most {RECORD_BYTES_MAX // 1024} KiB. `events` is a list of `{{type, v, body}}`; the first has
number `seq`, the others count on. Times (`_at`, `at`) are milliseconds since 1970 UTC, durations (`_s`) seconds, masks
have bit i for GPU slot i. [events.schema.json](events.schema.json) has every body, [asyncapi.json](asyncapi.json) the
channels.

## Reading the log from Kafka

An acknowledged record is not an accepted commit: deposed leaders may leave records behind. Keep `(epoch, nonce, n,
hash)`, read the cluster's partition from its first record, and of each record

    first record      kind "genesis": n = 0, hash = SHA-256 of its bytes
    kind "term"       counts if epoch > yours, n = yours + 1 and prev = your hash; then take its epoch and nonce
    kind "commit"     counts if (epoch, nonce) are yours, n = yours + 1 and prev = your hash
    anything else     drop: a second genesis, an older term, a record of another term, your own head again, no JSON
    a commit of your term that does not follow: stop, and tell somebody

After each that counts, hash = SHA-256 of its bytes. `tests/golden` has vectors. The api's feed is filtered already.
"""


def page() -> str:
    """docs/events.md."""
    parts = [INTRODUCTION]
    for subject in SUBJECTS:
        parts.append(f"## {subject.__name__.removeprefix('events.').capitalize()}\n\n{inspect.getdoc(subject)}\n")
        parts += [_entry(entry) for entry in catalogue.entries() if entry.cls.__module__ == subject.__name__]
    return "\n".join(parts)


def schema() -> dict[str, Any]:
    """JSON Schema of every event's body, under its name and version."""
    definitions = {f"{entry.name}.v{entry.version}": TypeAdapter(entry.cls).json_schema() for entry in _sorted()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}


def asyncapi() -> dict[str, Any]:
    """AsyncAPI 3 of the events log."""
    messages = {
        f"{entry.name}.v{entry.version}": {
            "name": entry.name,
            "summary": _summary(entry.cls),
            "payload": {"$ref": f"events.schema.json#/$defs/{entry.name}.v{entry.version}"},
        }
        for entry in _sorted()
    }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Signalbox events", "version": "1"},
        "channels": {
            "events": {
                "address": "{prefix}.events",
                "description": "One partition a cluster; see events.md for the filter.",
                "messages": messages,
            }
        },
        "operations": {"follow": {"action": "receive", "channel": {"$ref": "#/channels/events"}}},
    }


def _sorted() -> list[catalogue.EventType]:
    return catalogue.entries()


def _entry(entry: catalogue.EventType) -> str:
    lines = [f"### `{entry.name}` v{entry.version}", "", _doc(entry.cls), ""]
    for name, annotation in inspect.get_annotations(entry.cls).items():
        lines.append(f"- `{name}`: {_type_name(annotation)}")
    return "\n".join([*lines, ""])


def _type_name(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    if not isinstance(annotation, str) and getattr(annotation, "__args__", None):
        text = str(annotation)
    for module in SUBJECTS:
        text = text.replace(f"{module.__name__}.", "")
    return text.replace("events.ids.", "").replace("typing.", "")


def _doc(cls: type) -> str:
    doc = inspect.getdoc(cls) or ""
    return "" if doc.startswith(f"{cls.__name__}(") else doc


def _summary(cls: type) -> str:
    return _doc(cls).split("\n")[0]


def documents() -> dict[str, bytes]:
    """All three, by file name."""
    tidy = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    return {
        "events.md": page().encode(),
        "events.schema.json": orjson.dumps(schema(), option=tidy) + b"\n",
        "asyncapi.json": orjson.dumps(asyncapi(), option=tidy) + b"\n",
    }
