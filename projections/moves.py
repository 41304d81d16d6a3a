"""Waiting until the tables hold an event: `?min_seq=N`, read your own writes.

Whether they do is asked of read.positions each time; notifications only say when to ask.
"""

import asyncio
import contextlib
from typing import Any

import asyncpg

from projections.database import CHANNEL, CONNECT_TIMEOUT_S, Connection, connect

POLL_S = 0.5
"""Whoever waits asks this often anyway, should a notification be lost with its connection."""
RETRY_S = 0.2

_SEQ = "SELECT seq FROM read.positions WHERE cluster = $1"
_TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


class Moves:
    """Hears of every move of the projections in one database, for all waiting readers of this process.

    `db`: a pool or connection for the questions; `dsn`: for a connection of its own that listens.
    """

    def __init__(self, db: Any, dsn: str) -> None:
        self._db = db
        self._dsn = dsn
        self._waiting: dict[str, set[tuple[int, asyncio.Future[None]]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Moves":
        self._task = asyncio.create_task(self._listen(), name="read-moves")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def wait_for_seq(self, cluster: str, min_seq: int, timeout_s: float = 5.0) -> int:
        """The seq that the tables hold, as soon as it is at least `min_seq`; a lower one after `timeout_s`."""
        seq = -1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    with self._woken(cluster, min_seq) as wake:
                        seq = await self._db.fetchval(_SEQ, cluster) or 0
                        if seq >= min_seq:
                            break
                        await asyncio.wait({wake}, timeout=POLL_S)
        return seq

    @contextlib.contextmanager
    def _woken(self, cluster: str, min_seq: int) -> Any:
        """A future that is done when a move to `min_seq` or beyond is heard of from now on."""
        waiter = (min_seq, asyncio.get_running_loop().create_future())
        waiting = self._waiting.setdefault(cluster, set())
        waiting.add(waiter)
        try:
            yield waiter[1]
        finally:
            waiting.discard(waiter)

    def _heard(self, payload: str) -> None:
        seq, _, cluster = payload.partition(" ")
        for min_seq, wake in self._waiting.get(cluster, ()):
            if min_seq <= int(seq) and not wake.done():
                wake.set_result(None)

    async def _listen(self) -> None:
        while True:
            connection: Connection | None = None
            with contextlib.suppress(*_TROUBLE):
                connection = await connect(self._dsn, "signalbox-moves")
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                await connection.add_listener(CHANNEL, lambda _c, _p, _ch, payload: self._heard(str(payload)))
                try:
                    await lost.wait()
                finally:
                    with contextlib.suppress(*_TROUBLE):
                        await connection.close(timeout=CONNECT_TIMEOUT_S)
            await asyncio.sleep(RETRY_S)
