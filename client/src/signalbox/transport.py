"""HTTP with patience: one request, sent again until it is answered or its time is up.

Repeating is safe because every write carries an idempotency key and keeps it. Must not know what any answer means.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import httpx

from signalbox.errors import ServerFault, SignalboxError, Unreachable, from_problem

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0
RETRIED = frozenset({429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
QUEUE_FULL = "urn:signalbox:problem:queue-full"
"""A 429 that lasts until jobs of the team have started: not tried again."""
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
"""Above the 5 s that a read with min_seq may take."""
SILENCE_MAX_S = 45.0
"""A feed that gives no sign of life for so long is taken for dead, and opened again; the api gives one each 15 s."""


def client_version() -> str:
    """The version of this distribution; "0" where it is not installed."""
    try:
        return version("signalbox-client")
    except PackageNotFoundError:
        return "0"


@dataclass(slots=True)
class Backoff:
    """Waits that double up to BACKOFF_MAX_S, with jitter, until `patience_s` have gone by without success."""

    patience_s: float
    tries: int = 0
    since: float | None = None

    def reset(self) -> None:
        """Something succeeded: the next failure is a first one."""
        self.tries = 0
        self.since = None

    def pause(self) -> None:
        """Sleep before asking again although nothing failed: no patience is used up, but pauses grow."""
        delay_s = self._delay_s()
        self.since = None
        self.tries += 1
        time.sleep(delay_s)

    def wait(self, at_least_s: float = 0.0) -> bool:
        """Sleep before the next try; False at once where the patience would not last that long."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        delay_s = max(self._delay_s(), at_least_s)
        if now + delay_s - self.since > self.patience_s:
            return False
        self.tries += 1
        time.sleep(delay_s)
        return True

    def _delay_s(self) -> float:
        longest_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * float(1 << min(self.tries, 10)))
        return longest_s * random.uniform(0.5, 1.0)


class Silent(Unreachable):
    """A stream that is open, and on which nothing came for long."""


class Transport:
    """A connection pool to one address. Safe to share between threads.

    `on_no_answer` is called once, with the address: when nobody listens there from the first request on.
    """

    def __init__(
        self, address: str, token: str | None, patience_s: float, on_no_answer: Callable[[str], None] | None = None
    ) -> None:
        headers = {"User-Agent": f"signalbox-client/{client_version()}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.address = address
        self.patience_s = patience_s
        self._on_no_answer = on_no_answer if patience_s else None
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._http = httpx.Client(base_url=address, headers=headers, timeout=timeout, limits=limits)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        """The JSON of the answer (None if empty). `key` is the idempotency key of a write, the same at every try.

        Raises Refused, ServerFault or Unreachable: the last error, when the patience is at its end.
        """
        request = self._request(method, path, params=params, body=body, key=key)
        backoff = Backoff(self.patience_s)
        while True:
            at_least_s = 0.0
            failure: SignalboxError
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                failure = self._unanswered(error)
            else:
                self._on_no_answer = None
                if response.is_success:
                    return _body(response)
                failure = problem(response)
                if not transient(failure):
                    raise failure
                at_least_s = retry_after_s(response)
            if not backoff.wait(at_least_s):
                raise failure

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        accept: str = "*/*",
        silence_s: float = SILENCE_MAX_S,
    ) -> Iterator[httpx.Response]:
        """One try at an answer that is read as it comes.

        Raises as `call`, Unreachable when it breaks off, and Silent when nothing came for `silence_s`.
        """
        request = self._request("GET", path, params=params, accept=accept)
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": silence_s}
        try:
            response = self._http.send(request, stream=True)
            self._on_no_answer = None
            try:
                if not response.is_success:
                    response.read()
                    raise problem(response)
                yield response
            finally:
                response.close()
        except httpx.ReadTimeout as error:
            raise Silent(f"Signalbox at {self.address} has fallen silent") from error
        except httpx.TransportError as error:
            raise self._unanswered(error) from error

    def _unanswered(self, error: httpx.TransportError) -> Unreachable:
        told, self._on_no_answer = self._on_no_answer, None
        if told is not None and isinstance(error, httpx.ConnectError):
            told(self.address)
        return unreachable(self.address, error)

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str | None = None,
        accept: str = "application/json",
    ) -> httpx.Request:
        headers = {"Accept": accept}
        if key is not None:
            headers["Idempotency-Key"] = key
        sent = {name: value for name, value in (params or {}).items() if value is not None}
        return self._http.build_request(method, path, params=sent or None, json=body, headers=headers)


def unreachable(address: str, error: httpx.TransportError) -> Unreachable:
    """The error for a request that got no answer."""
    why = str(error) or type(error).__name__
    return Unreachable(f"Signalbox at {address} is not reachable", detail=why)


def problem(response: httpx.Response) -> SignalboxError:
    """The error that an answer states."""
    fallback = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
    try:
        body = response.json()
    except ValueError:
        body = None
    return from_problem(response.status_code, body, fallback)


def transient(error: SignalboxError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, Unreachable) or (error.status in RETRIED and error.type != QUEUE_FULL)


def retry_after_s(response: httpx.Response) -> float:
    """Seconds that the answer asks to wait; 0 where it says nothing (or a date, which is not used here)."""
    stated = response.headers.get("Retry-After", "")
    return float(stated) if stated.isdecimal() else 0.0


def _body(response: httpx.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        title = "The answer is no JSON"
        raise ServerFault(title, status=response.status_code, detail=f"from {response.request.url}") from None
