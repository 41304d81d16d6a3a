"""A rank's output as bytes, at once or as it is written.

A log is read from its beginning; after a break from where it broke off (`from_byte`), so that a reader sees each byte
once. Must not decode: training jobs write what they like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from signalbox.errors import SignalboxError
from signalbox.transport import Backoff, Silent, Transport, transient

SILENCE_MAX_S = 120.0
"""Training may be silent for long; now and then it is checked that the attempt still goes on."""


class Log:
    """One log, read through as many connections as it takes. `which`: rank and attempt. `given`: bytes handed out."""

    def __init__(self, transport: Transport, path: str, which: dict[str, Any], patience_s: float) -> None:
        self._transport = transport
        self._path = path
        self._which = which
        self._patience_s = patience_s
        self.given = 0

    def read(self) -> Iterator[bytes]:
        """What is there now."""
        backoff = Backoff(self._patience_s)
        while True:
            try:
                yield from self._connection(backoff, {})
                return
            except SignalboxError as error:
                if not transient(error) or not backoff.wait():
                    raise

    def follow(self, over: Callable[[], bool]) -> Iterator[bytes]:
        """What is there and what comes. A connection that ends although the attempt is not `over` has lost its node or
        its relay, and is opened again.
        """
        backoff = Backoff(self._patience_s)
        while True:
            try:
                with suppress(Silent):
                    yield from self._connection(backoff, {"follow": "true"})
                if over():
                    return
            except SignalboxError as error:
                if not transient(error) or not backoff.wait():
                    raise
            else:
                backoff.pause()

    def _connection(self, backoff: Backoff, more: dict[str, Any]) -> Iterator[bytes]:
        params = {**self._which, "from_byte": self.given or None, **more}
        with self._transport.stream(self._path, params=params, silence_s=SILENCE_MAX_S) as response:
            for chunk in response.iter_bytes():
                if chunk:
                    backoff.reset()
                    self.given += len(chunk)
                    yield chunk
