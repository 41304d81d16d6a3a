"""The state of the cluster as the log has it, in an api process: for what no table answers: why a job waits (C-60),
how the teams stand.

It follows like a standby, from the newest snapshot on, and takes part in nothing. It is never waited for longer than a
moment: who asks while it has not caught up does without. At most one reading is under way, and one waits for it,
however many ask; and what cannot be read is not begun again and again for each who asks.
"""

import asyncio
import time

import structlog

from events.chain import Accepted, ChainBroken
from events.codec import Unreadable
from events.ids import ClusterId, Instant, JobId, TeamId
from events.log import EventLog, LogUnavailable, LogUnusable, filtered
from scheduler.planning.explain import Reason, explain
from scheduler.planning.plan import Planner
from scheduler.planning.standings import TeamStanding, standings
from scheduler.ports import Snapshots, UnknownOutcome
from scheduler.replica import Replica, restore

_log = structlog.get_logger()
_IDLE_S = 5.0
"""It looks at the log so often while nobody asks."""
_YIELD_RECORDS = 20
"""After so many records others have their turn."""
_ANEW_S_MAX = 60.0
"""It begins anew at once; where that fails again, after 4, 8, .. seconds, and at last so long."""


class Mirror:
    """The copy, and the planner's indices over it. The log has to be open."""

    def __init__(self, cluster: ClusterId, log: EventLog, snapshots: Snapshots) -> None:
        self._cluster = cluster
        self._log = log
        self._snapshots = snapshots
        self._copy: tuple[Replica, Planner] | None = None
        self._lock = asyncio.Lock()
        self._to_come: asyncio.Task[bool] | None = None
        self._failures = 0
        self._anew_at = 0.0

    async def run(self) -> None:
        """Keep up for ever."""
        while True:
            await self._reading()
            await asyncio.sleep(_IDLE_S)

    async def why(self, job_id: JobId, now: Instant, wait_s: float) -> tuple[Reason, ...] | None:
        """All that holds a job back, at the end of the log. None: it does not wait there, or that is not known within
        `wait_s`."""
        planner = await self._planner(wait_s)
        if planner is None:
            return None
        try:
            planner.queue.begin(now)
            return explain(planner, job_id, now) or None
        except Exception as error:  # ours: one job that cannot be explained (C-46) still has its row
            await _log.aexception("not_explained", job_id=job_id, why=f"{type(error).__name__}: {error}")
            return None

    async def standings(
        self, team: TeamId | None, now: Instant, wait_s: float
    ) -> tuple[int, list[TeamStanding]] | None:
        """How the teams stand, or one of them, and the seq of which that holds. None: not known within `wait_s`."""
        planner = await self._planner(wait_s)
        return None if planner is None else (planner.state.meta.seq, standings(planner, now, team))

    async def _planner(self, wait_s: float) -> Planner | None:
        """At the end of the log as it is now; None where it is not there within `wait_s`. The reading goes on."""
        reading = self._reading()
        await asyncio.wait({reading}, timeout=wait_s)
        caught_up = reading.done() and not reading.cancelled() and reading.result()
        return self._copy[1] if caught_up and self._copy is not None else None

    def _reading(self) -> "asyncio.Task[bool]":
        """A reading that has yet to begin, and so sees all that there is now."""
        if self._to_come is None or self._to_come.done():
            self._to_come = asyncio.create_task(self._catch_up())
        return self._to_come

    async def _catch_up(self) -> bool:
        """Is it at the end of the log? A log that is not as it was is read again from the newest snapshot that is."""
        async with self._lock:
            self._to_come = None
            if self._copy is None and time.monotonic() < self._anew_at:
                return False
            try:
                await self._read()
                self._failures = 0
                return True
            except (LogUnavailable, UnknownOutcome, OSError) as error:
                await _log.awarning("mirror_waits", why=str(error))
            except (ChainBroken, Unreadable, LogUnusable) as error:
                self._forget()
                await _log.aerror("mirror_begins_anew", why=str(error))
            except Exception as error:  # ours: answers without it are poorer, and must go on
                self._forget()
                await _log.aexception("mirror_failed", why=f"{type(error).__name__}: {error}")
            return False

    def _forget(self) -> None:
        """To begin anew is dear: not for each who asks, where it is of no use."""
        self._copy = None
        self._failures += 1
        wait_s = min(_ANEW_S_MAX, 2.0**self._failures) if self._failures > 1 else 0.0
        self._anew_at = time.monotonic() + wait_s

    async def _read(self) -> None:
        if self._copy is None:
            replica = await restore(self._cluster, self._log, self._snapshots, _YIELD_RECORDS)
            self._copy = (replica, Planner(replica.state))
        replica, planner = self._copy
        number = 0
        async for outcome in filtered(self._log, replica.head):
            if isinstance(outcome, Accepted):
                planner.feed(replica.fold(outcome.record(), outcome.head))
            else:
                replica.head = outcome.head
            number += 1
            if number % _YIELD_RECORDS == 0:
                await asyncio.sleep(0)
