"""The relay of task logs: an agent streams into one end, a reader takes from the other (DESIGN 6).

The leader only asks the agent to dial; log bytes never pass through it. A token is good for one upload.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from api.context import LogTail, TailRefused
from api.problems import Problem
from events.ids import LeaseId, NodeId

_CHUNKS = 16
_TAILS_MAX = 1000


@dataclass(slots=True)
class Tail:
    """One log on its way. A full queue holds the agent back; None in it is the end."""

    id: str
    token: str
    chunks: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_CHUNKS))
    dialled: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)


class Tails:
    """The logs that are asked for now."""

    def __init__(self, tail: LogTail | None, url: str, wait_s: float) -> None:
        self._tail = tail
        self._url = url.rstrip("/")
        self._wait_s = wait_s
        self._open: dict[str, Tail] = {}

    async def ask(
        self, lease_id: LeaseId, node_id: NodeId, *, follow: bool, from_byte: int
    ) -> tuple[Tail, bytes | None]:
        """A tail that the agent has dialled, with its first chunk (None: it is empty). Raises Problem."""
        if self._tail is None or len(self._open) >= _TAILS_MAX:
            raise Problem("unavailable", "logs cannot be relayed now")
        tail = Tail(secrets.token_hex(16), secrets.token_urlsafe(32))
        self._open[tail.id] = tail
        try:
            url = f"{self._url}/internal/tails/{tail.id}"
            await self._tail.request(lease_id, node_id, url=url, token=tail.token, follow=follow, from_byte=from_byte)
            return tail, await asyncio.wait_for(tail.chunks.get(), self._wait_s)
        except TailRefused as error:
            self.close(tail)
            raise Problem("unavailable", str(error), headers={"retry-after": "5"}) from None
        except TimeoutError:
            self.close(tail)
            raise Problem("not_yet", "the node of that rank did not send its log in time") from None
        except BaseException:
            self.close(tail)
            raise

    async def read(self, tail: Tail, first: bytes | None) -> AsyncIterator[bytes]:
        """The log's bytes as they come, until the agent ends them or the reader leaves."""
        try:
            chunk = first
            while chunk is not None:
                yield chunk
                chunk = await tail.chunks.get()
        finally:
            self.close(tail)

    def close(self, tail: Tail) -> None:
        """Nobody reads any more."""
        self._open.pop(tail.id, None)
        tail.left.set()

    def accept(self, tail_id: str, token: str) -> Tail:
        """The tail that an agent dials in for, once. Raises Problem (401, 404)."""
        tail = self._open.get(tail_id)
        if tail is None or not hmac.compare_digest(tail.token, token) or tail.dialled:
            raise Problem("not_found", "nobody waits for this log")
        tail.dialled = True
        return tail

    async def relay(self, tail: Tail, chunks: AsyncIterator[bytes]) -> int:
        """Pass an agent's bytes on until either side ends; how many were taken."""
        taken = 0
        try:
            async for chunk in chunks:
                if chunk and not await self._put(tail, chunk):
                    break
                taken += len(chunk)
        finally:
            if not tail.left.is_set():
                await self._put(tail, None)
        return taken

    async def _put(self, tail: Tail, chunk: bytes | None) -> bool:
        """Wait for room, or for the reader to leave (False)."""
        if not tail.chunks.full():
            tail.chunks.put_nowait(chunk)
            return not tail.left.is_set()
        put = asyncio.ensure_future(tail.chunks.put(chunk))
        left = asyncio.ensure_future(tail.left.wait())
        await asyncio.wait({put, left}, return_when=asyncio.FIRST_COMPLETED)
        for task in (put, left):
            task.cancel()
        return not tail.left.is_set()
