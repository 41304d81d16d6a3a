"""Streams a rank's captured output to an api that asked for it: an HTTP POST of unknown length, as the output comes.

The bytes go from the node to the api and past the leader (DESIGN 6).
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import orjson
import structlog

from events.ids import LeaseId
from scheduler.link import TailLog

_log = structlog.get_logger(__name__)
_CHUNK = 1 << 16
FOLLOW_POLL_S = 0.25
DIAL_S = 10.0
TAILS_MAX = 32


class Logs(Protocol):
    """Where output is kept."""

    def log_directory(self, lease: LeaseId) -> Path | None: ...

    def running(self, lease: LeaseId) -> bool: ...


def read_log(directory: Path, position: int) -> tuple[int, bytes]:
    """Output from that byte on, some of it: (where it begins, the bytes). It begins later than asked for where the
    beginning was lost to rotation; no bytes: there is nothing beyond."""
    for _ in range(100):
        before = _offsets(directory)
        kept = before.get("output.log.1", before["output.log"])
        position = max(position, kept)
        name = "output.log" if position >= before["output.log"] else "output.log.1"
        try:
            with open(directory / name, "rb") as file:
                file.seek(position - before[name])
                read = file.read(_CHUNK)
        except FileNotFoundError:
            # In the middle of a rotation: the name comes back in a moment.
            continue
        if _offsets(directory) == before:
            return position, read
    return position, b""


def _offsets(directory: Path) -> dict[str, int]:
    try:
        offsets: dict[str, int] = orjson.loads((directory / "log.json").read_bytes())
        return offsets
    except FileNotFoundError:
        return {"output.log": 0}


async def output(directory: Path, position: int, more: Callable[[], bool]) -> AsyncIterator[bytes]:
    """All output from that byte on; while `more()`, what is still to come."""
    while True:
        last = not more()
        while True:
            position, read = read_log(directory, position)
            if not read:
                break
            position += len(read)
            yield read
        if last:
            return
        await asyncio.sleep(FOLLOW_POLL_S)


@dataclass(slots=True)
class _Posts:
    """Requests that run in the background, each with the bytes that `_output` finds for it."""

    _running: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def begin(self, request: TailLog) -> None:
        """See Tails."""
        if len(self._running) >= TAILS_MAX:
            _log.warning("tail.too_many", lease=request.lease_id)
            return
        task = asyncio.create_task(self._tail(request), name=f"tail {request.lease_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End them all."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _tail(self, request: TailLog) -> None:
        try:
            await post(request, self._output(request))
        except (OSError, ValueError, TimeoutError) as failure:
            _log.warning("tail.failed", lease=request.lease_id, reason=str(failure))

    def _output(self, request: TailLog) -> AsyncIterator[bytes]:
        raise NotImplementedError


@dataclass(slots=True)
class HttpTails(_Posts):
    """See Tails."""

    logs: Logs

    async def _output(self, request: TailLog) -> AsyncIterator[bytes]:
        directory = self.logs.log_directory(request.lease_id)
        if directory is None:
            return
        more = (lambda: self.logs.running(request.lease_id)) if request.follow else (lambda: False)
        async for chunk in output(directory, request.from_byte, more):
            yield chunk


@dataclass(slots=True)
class SimulatedTails(_Posts):
    """Of virtual tasks, which write nothing: one line that says so. `pretends_s`: how long a task is to run, where that
    is known."""

    pretends_s: Callable[[LeaseId], float | None]

    async def _output(self, request: TailLog) -> AsyncIterator[bytes]:
        seconds = self.pretends_s(request.lease_id)
        more = "" if seconds is None else f"; the task pretends for {seconds:g} s"
        line = f"simulated node: nothing was run{more}\n".encode()
        if request.from_byte < len(line):
            yield line[request.from_byte :]


async def post(request: TailLog, chunks: AsyncIterator[bytes]) -> None:
    """One request to `request.url`, its body the chunks as they come. Ends early when the other side hangs up."""
    url = urlsplit(request.url)
    reader, writer = await _dial(url)
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {request.token}\r\n"
            "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii"))
        answered = asyncio.ensure_future(reader.readline())
        async for chunk in chunks:
            if answered.done():
                break
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        else:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        async with asyncio.timeout(DIAL_S):
            status = (await answered).split(b" ")[1:2]
        if status and not status[0].startswith(b"2"):
            raise ValueError(f"the api answered {status[0].decode(errors='replace')}")
    finally:
        writer.close()


async def _dial(url: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if url.scheme not in ("http", "https") or url.hostname is None:
        raise ValueError(f"not an address of an api: {url.geturl()}")
    secure = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if secure else 80)
    async with asyncio.timeout(DIAL_S):
        return await asyncio.open_connection(url.hostname, port, ssl=secure)
