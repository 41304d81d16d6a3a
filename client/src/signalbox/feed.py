"""The event feed as an iterator that outlives its connections: nothing twice, nothing missed (R-83, C-64).

The position is the `seq` of the last event handed out. A connection that breaks, falls silent or ends is opened again
from there, and whatever is not above it is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from signalbox.errors import ServerFault, SignalboxError
from signalbox.shapes import Event
from signalbox.transport import Backoff, Transport, transient

FEED = "/v1/events"
NDJSON = "application/x-ndjson"


class Feed:
    """One follower. `position` may be kept, and given as `after` to a later one."""

    def __init__(
        self,
        transport: Transport,
        *,
        after: int,
        follow: bool,
        filters: dict[str, str | None],
        patience_s: float,
    ) -> None:
        self._transport = transport
        self._filters = filters
        self._follow = follow
        self._backoff = Backoff(patience_s)
        self.position = after

    def __iter__(self) -> Iterator[Event]:
        """Events in order. Without `follow` it ends at the feed's present end; with it, when the patience does."""
        while True:
            start = self.position
            try:
                for event in self._connection():
                    self._backoff.reset()
                    yield event
            except SignalboxError as error:
                if not transient(error) or not self._backoff.wait():
                    raise
                continue
            if not self._follow and self.position == start:
                return  # asked once more after the last event: there is none
            if self._follow:
                self._backoff.pause()

    def _connection(self) -> Iterator[Event]:
        """The events of one connection that are above the position."""
        params: dict[str, Any] = {**self._filters, "after": self.position}
        if self._follow:
            params["follow"] = "true"
        with self._transport.stream(FEED, params=params, accept=NDJSON) as response:
            for line in _lines(response):
                event = Event.from_wire(line)
                if event is not None and event.seq > self.position:
                    self.position = event.seq
                    yield event


def _lines(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The objects of an NDJSON stream; a last line without its end was cut off, and comes again."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield _object(line)


def _object(line: bytes) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ServerFault("The feed holds a line that is no event", detail=repr(line[:80]))
    return read
