"""The outermost layer: sizes of headers and bodies, counts, and no answer that is not a problem document.

Plain ASGI: what streams stays a stream.
"""

import time

import asyncpg
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import metrics
from api.problems import Problem, response
from api.settings import ApiSettings

_log = structlog.get_logger()
_HEADERS_MAX = 100
_UPLOADS = "/internal/tails/"
"""Agents stream logs there, of any length, past the one-time token's check."""


class Gate:
    """Wraps the app."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._settings.body_bytes_max)
        try:
            self._check_headers(scope, exchange.limit)
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.status:  # too late to say anything: the client sees a cut answer
                raise
            await response(as_problem(error))(scope, receive, exchange.send)
        finally:
            exchange.count()

    def _check_headers(self, scope: Scope, body_limit: int | None) -> None:
        headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers) + len(scope.get("query_string", b""))
        if size > self._settings.header_bytes_max or len(headers) > _HEADERS_MAX:
            limit = f"{self._settings.header_bytes_max} bytes in {_HEADERS_MAX} lines"
            raise Problem("headers_too_large", f"headers and query: at most {limit}")
        if body_limit is None:
            return
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > body_limit:
                raise too_large(body_limit)


class _Exchange:
    """One request and its answer, measured."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, body_bytes_max: int) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._taken = 0
        self._began = time.perf_counter()
        self._answered = self._began
        self.status = 0
        self.limit = None if scope["path"].startswith(_UPLOADS) else body_bytes_max

    async def receive(self) -> Message:
        message = await self._receive()
        if self.limit is not None and message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            if self._taken > self.limit:
                raise too_large(self.limit)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._answered = time.perf_counter()
        await self._send(message)

    def count(self) -> None:
        route = getattr(self._scope.get("route"), "path", "none")
        method = self._scope["method"]
        known = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        metrics.REQUESTS.labels(known, route, self.status).inc()
        metrics.REQUEST_SECONDS.labels(route).observe(self._answered - self._began)


def too_large(limit: int) -> Problem:
    """The 413."""
    return Problem("body_too_large", f"at most {limit} bytes are taken", limit=limit)


def as_problem(error: Exception) -> Problem:
    """What the client is told of an error; ours go to the log, and to nobody else."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError):
        return Problem("unavailable", "the read models are being made", headers={"retry-after": "2"})
    if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.InterfaceError | OSError | TimeoutError):
        _log.warning("api_unavailable", why=f"{type(error).__name__}: {error}")
        return Problem("unavailable", "the database does not answer", headers={"retry-after": "1"})
    if isinstance(error, asyncpg.OperatorInterventionError | asyncpg.InsufficientResourcesError):
        return Problem("unavailable", "the database is busy or restarting", headers={"retry-after": "1"})
    _log.error("api_error", exc_info=error)
    return Problem("internal")
