"""The one reader of the events log in an api process: hands every accepted commit to those who listen.

Begins where the projection stands (P-4), so that what came before is in the read models, and everything after passes
through here. Stops for good, and says so, where the log is not the one it knew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import structlog

from events.chain import START, Accepted, ChainBroken, Head
from events.log import EventLog, LogUnavailable, LogUnusable, follow_accepted, verify_position

_log = structlog.get_logger()
_RETRY_S = 0.5

Listener = Callable[[Accepted], None]
"""Called for each accepted record, in order; must neither block nor raise."""


class Follower:
    """`head`: how far it has read. `failed`: why it stopped for good, None while it runs."""

    def __init__(self, log: EventLog, begin: Callable[[Head], None], listeners: Sequence[Listener]) -> None:
        self._log = log
        self._start = begin
        self._listeners = listeners
        self.head = START
        self.failed: str | None = None
        self.begun = asyncio.Event()

    async def run(self, stored: Callable[[], Awaitable[Head]]) -> None:
        """Follow for ever from the position that `stored` gives. Returns only when it has failed for good."""
        try:
            self.head = await self._begin(stored)
            self._start(self.head)
            self.begun.set()
            while True:
                try:
                    await self._follow()
                except (LogUnavailable, OSError) as error:
                    await _log.awarning("events_log_unavailable", why=str(error))
                    await asyncio.sleep(_RETRY_S)
        except (ChainBroken, LogUnusable) as error:
            self.failed = str(error)
            await _log.aerror("events_log_unusable", why=self.failed)
        except Exception as error:  # ours: it must show, and not look like a log in which nothing happens
            self.failed = f"{type(error).__name__}: {error}"
            await _log.aexception("follower_failed", why=self.failed)

    async def _follow(self) -> None:
        async for batch in follow_accepted(self._log, self.head):
            for outcome in batch:
                self.head = outcome.head
                if isinstance(outcome, Accepted):
                    for listener in self._listeners:
                        listener(outcome)

    async def _begin(self, stored: Callable[[], Awaitable[Head]]) -> Head:
        """The log opened, and a position in it that was verified; tries again while either cannot be reached."""
        while True:
            try:
                await self._log.open()
                head = await stored()
                await verify_position(self._log, head)
                return head
            except (LogUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                await _log.awarning("events_log_unavailable", why=str(error))
                await asyncio.sleep(_RETRY_S)
