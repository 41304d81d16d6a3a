"""Logs to verify: written by whole control planes of the simulation, and then, perhaps, tampered with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from events import codec
from events.chain import START, Accepted, admit
from events.ids import ClusterId
from events.memory import MemoryEventLog, MemoryStore, Topic
from replay.verify import Noted, Report, Request, verify
from tests.simulation.run import run
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import CLUSTER


@dataclass(frozen=True, slots=True)
class Written:
    """A log, and the head that the epoch row knows of it."""

    records: tuple[bytes, ...]
    noted: Noted

    def counted(self) -> list[int]:
        """Offsets of the records that readers accept."""
        head, found = START, []
        for offset, raw in enumerate(self.records):
            outcome = admit(head, offset, raw)
            head = outcome.head
            if isinstance(outcome, Accepted):
                found.append(offset)
        return found


@cache
def written(scenario: str, seed: int) -> Written:
    """What that run of the simulation left behind."""
    outcome = run(SCENARIOS[scenario], seed)
    assert outcome.noted is not None
    log_id, offset, n, head_hash = outcome.noted
    return Written(outcome.log, Noted(by="the epoch row", log_id=log_id, offset=offset, n=n, hash=head_hash))


def memory_log(records: Sequence[bytes], cluster: ClusterId = CLUSTER) -> MemoryEventLog:
    """A log of these records."""
    store = MemoryStore()
    for raw in records:
        store.partition(Topic.EVENTS, cluster).land(raw)
    return MemoryEventLog(store, cluster)


def verified(records: Sequence[bytes], noted: Noted | None = None, **request: object) -> Report:
    """What verify says of these records."""
    heads = (noted,) if noted is not None else ()
    asked = Request(noted=heads, **request)  # type: ignore[arg-type]
    return asyncio.run(verify(memory_log(records), asked))


def n_of(raw: bytes) -> int:
    """The n of a record."""
    parsed = codec.parse(raw)
    if parsed["kind"] == "genesis":
        return 0
    return int(parsed["n"] if parsed["kind"] == "commit" else parsed["body"]["n"])


def chained_anew(records: Sequence[bytes], change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    """These records, of which every one counts, with something changed in each, and chained again."""
    made: list[bytes] = []
    for raw in records:
        parsed = codec.parse(raw)
        change(parsed)
        if parsed["kind"] != "genesis":
            (parsed if parsed["kind"] == "commit" else parsed["body"])["prev"] = codec.digest(made[-1])
        made.append(codec.encode(codec.decode_parsed(parsed)))
    return made
