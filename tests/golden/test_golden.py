"""Golden logs: what was written once is read for ever, and nothing in the catalogue is without an example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import orjson
import pytest

from events import codec
from events.catalogue import EventType, find
from events.chain import START, Accepted, Dropped, DropReason, admit
from events.gang import GangAllocated
from events.upcast import STEPS
from tests.golden.examples import HERE, catalogue, full, spare

LOGS = sorted(HERE.glob("log_v*.jsonl"))
CATALOGUE = catalogue()


def outcomes(path: Path) -> Iterator[Accepted | Dropped]:
    """What the filter says of each record."""
    head = START
    for offset, raw in enumerate(path.read_bytes().splitlines()):
        outcome = admit(head, offset, raw)
        head = outcome.head
        yield outcome


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_filter_accepts_the_same_records_as_ever(path: Path) -> None:
    """The head after the last record, its hash included, is the one written down beside the log."""
    *_, last = outcomes(path)
    head = last.head
    assert f"{head.offset} {head.n} {head.seq} {head.hash}\n" == path.with_suffix(".head").read_text()


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_deposed_leader_and_the_junk_are_dropped(path: Path) -> None:
    """Each golden log holds what readers must pass over."""
    reasons = [outcome.reason for outcome in outcomes(path) if isinstance(outcome, Dropped)]
    assert reasons == [DropReason.FENCED, DropReason.UNREADABLE]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_accepted_record_decodes(path: Path) -> None:
    """No accepted record may ever stop a reader (P-7); what has no newer version is written again byte for byte."""
    for outcome in outcomes(path):
        if isinstance(outcome, Accepted):
            again = codec.encode(outcome.record())
            superseded = any((e["type"], e["v"]) in STEPS for e in outcome.parsed.get("events", ()))
            assert superseded or again == outcome.raw


def test_a_superseded_event_reads_as_the_newest_version() -> None:
    """A grant of version 1 says that no pledge stood behind it; the bytes of the log stay as they are (I-10)."""
    stored = codec.encode_event(spare(GangAllocated))
    body = {field.name: getattr(stored["body"], field.name) for field in fields(GangAllocated)}
    del body["promised_n"]
    read = codec.decode_event({"type": "gang.allocated", "v": 1, "body": body})
    assert read == spare(GangAllocated)
    assert codec.encode_event(read)["v"] == 2


@pytest.mark.parametrize(("name", "version"), sorted(STEPS))
def test_every_superseded_version_is_in_a_golden_log(name: str, version: int) -> None:
    """An old version that no golden log holds could become unreadable unseen; the newest is in the catalogue."""
    marked = orjson.dumps({"type": name, "v": version})[:-1]
    assert any(marked in path.read_bytes() for path in LOGS)
    assert find(name, version) is None


def test_every_event_is_in_a_golden_log() -> None:
    """Every name and version in the catalogue has been written down (make the log anew: tests/golden/examples.py)."""
    written = {
        (event["type"], event["v"])
        for path in LOGS
        for line in path.read_bytes().splitlines()
        if line.startswith(b'{"kind":"commit"')
        for event in orjson.loads(line)["events"]
    }
    assert {(entry.name, entry.version) for entry in CATALOGUE} <= written


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: f"{entry.name}-{entry.version}")
def test_every_event_comes_back_as_it_was(entry: EventType) -> None:
    """An event with all of its fields, and one with no more than it needs, survive bytes and back."""
    if (entry.name, entry.version) in STEPS:
        pytest.skip("superseded: comes back as the newest version")
    for event in (full(entry.cls), spare(entry.cls)):
        stored = orjson.loads(orjson.dumps(codec.encode_event(event)))
        assert codec.decode_event(stored) == event


def test_an_event_with_a_field_too_many_is_unreadable() -> None:
    """A changed schema gets a new version: unknown fields are never passed over in silence (I-10)."""
    stored = orjson.loads(orjson.dumps(codec.encode_event(full(CATALOGUE[0].cls))))
    stored["body"]["unheard_of"] = 1
    with pytest.raises(codec.Unreadable):
        codec.decode_event(stored)


def test_an_unknown_event_is_unreadable() -> None:
    """An event of a newer build stops this one, rather than being skipped."""
    assert find("nobody.knows", 1) is None
    with pytest.raises(codec.Unreadable, match=r"nobody\.knows"):
        codec.decode_event({"type": "nobody.knows", "v": 1, "body": {}})
