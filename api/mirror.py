"""The state of the cluster as the log has it, in an api process: for what no table answers: why a job waits (C-60),
how the teams stand.

It follows like a standby, from the newest snapshot on, and takes part in nothing. It is never waited for longer than a
moment: who asks while it has not caught up does without.
"""

import asyncio

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


class Mirror:
    """The copy, and the planner's indices over it. The log has to be open."""

    def __init__(self, cluster: ClusterId, log: EventLog, snapshots: Snapshots) -> None:
        self._cluster = cluster
        self._log = log
        self._snapshots = snapshots
        self._copy: tuple[Replica, Planner] | None = None
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Keep up for ever."""
        while True:
            await self._catch_up()
            await asyncio.sleep(_IDLE_S)

    async def why(self, job_id: JobId, now: Instant, wait_s: float) -> tuple[Reason, ...] | None:
        """All that holds a job back, at the end of the log. None: it does not wait there, or that is not known within
        `wait_s`."""
        planner = await self._planner(wait_s)
        if planner is None:
            return None
        try:
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
        catching_up = asyncio.ensure_future(self._catch_up())
        done, _ = await asyncio.wait({catching_up}, timeout=wait_s)
        return self._copy[1] if done and catching_up.result() and self._copy is not None else None

    async def _catch_up(self) -> bool:
        """Is it at the end of the log? A log that is not as it was is read again from the newest snapshot that is."""
        async with self._lock:
            try:
                await self._read()
                return True
            except (LogUnavailable, UnknownOutcome, OSError) as error:
                await _log.awarning("mirror_waits", why=str(error))
            except (ChainBroken, Unreadable, LogUnusable) as error:
                self._copy = None
                await _log.aerror("mirror_begins_anew", why=str(error))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # ours: answers without it are poorer, and must go on
                self._copy = None
                await _log.aexception("mirror_failed", why=f"{type(error).__name__}: {error}")
            return False

    async def _read(self) -> None:
        if self._copy is None:
            replica = await restore(self._cluster, self._log, self._snapshots)
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
