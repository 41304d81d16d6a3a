"""A tiny HTTP server that gives scripted answers and remembers what it was asked. Real sockets, so that connections
break as they do. Knows nothing of Signalbox but paths.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """JSON, or `chunks` of a stream; `cut`: the connection breaks where the answer would end; `drop`: none at all."""

    status: int = 200
    json: Any = None
    chunks: Sequence[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    drop: bool = False


def problem(status: int, code: str, title: str, *errors: dict[str, Any], **headers: str) -> Answer:
    """An error as the API gives it."""
    body = {"type": f"urn:signalbox:problem:{code}", "title": title, "status": status, "code": code}
    return Answer(status=status, json={**body, "errors": list(errors)}, headers=headers)


Script = Answer | Callable[[Asked], Answer]


class ScriptedApi:
    """Answers by (method, path): those scripted, in order; the last of them again and again."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._scripts: dict[tuple[str, str], deque[Script]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._requests())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> ScriptedApi:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on(self, method: str, path: str, *answers: Script) -> None:
        """Script the answers to a request."""
        self._scripts[method, path].extend(answers)

    def requests(self, method: str, path: str) -> list[Asked]:
        """The requests that arrived there, in order."""
        with self._lock:
            return [asked for asked in self.asked if (asked.method, asked.path) == (method, path)]

    def answer(self, asked: Asked) -> Answer:
        """Take note of a request, and find its answer."""
        with self._lock:
            self.asked.append(asked)
            scripts = self._scripts[asked.method, asked.path]
            if not scripts:
                return problem(404, "not-found", f"Nothing scripted for {asked.method} {asked.path}")
            script = scripts.popleft() if len(scripts) > 1 else scripts[0]
        return script if isinstance(script, Answer) else script(asked)

    def _requests(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                split = urlsplit(self.path)
                query = {name: ",".join(values) for name, values in parse_qs(split.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(raw) if raw else None
                asked = Asked(method=self.command, path=split.path, query=query, headers=headers, body=body)
                _send(self, api.answer(asked))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        return Requests


def _send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.close_connection = True
    if answer.drop:
        handler.connection.shutdown(socket.SHUT_RDWR)
        return
    handler.send_response(answer.status)
    handler.send_header("Connection", "close")
    for name, value in answer.headers.items():
        handler.send_header(name.replace("_", "-"), value)
    if answer.chunks is None:
        raw = b"" if answer.json is None else json.dumps(answer.json).encode()
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)
        return
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with suppress(ConnectionError):  # the reader may have had enough
        for chunk in answer.chunks:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            handler.wfile.flush()
        if not answer.cut:
            handler.wfile.write(b"0\r\n\r\n")
