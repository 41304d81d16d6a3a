"""The life of a scheduler process: stand by, take over, lead, and end. It never steps back from leading to standing by.

A standby folds the log as it grows, so that a takeover costs only the last moments (P-9).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from events.ids import ClusterId, LogId
from events.log import CommandLog, EventLog
from scheduler.leader import Leader, World
from scheduler.link import Gateway
from scheduler.measures import Measures
from scheduler.ports import Claims, Exit, Leadership, Snapshots, Tenure, UnknownOutcome
from scheduler.replica import Replica, restore
from scheduler.takeover import TermLost, take_over
from scheduler.tenure import Office
from scheduler.writer import Writer

_log = structlog.get_logger(__name__)

CONTEND_S = 0.5
UNCHANGED_S = 7.0
"""A row that has not changed for so long by our own clock is up for the taking (P-11)."""
BEHIND_MAX = 200
"""Records behind the end of the log at which a standby does not contend yet."""


@dataclass(slots=True, kw_only=True)
class Ports:
    """What a scheduler is wired to. `keep`: starts the keeper of the tenure (scheduler.tenure)."""

    cluster: ClusterId
    holder: str
    address: str
    log: EventLog
    commands: CommandLog
    leadership: Leadership
    claims: Claims
    snapshots: Snapshots
    gateway: Gateway
    monotonic: Callable[[], float]
    leave: Exit
    keep: Callable[[Office], None]
    measures: Measures


class Service:
    """One scheduler process."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._seen: tuple[tuple[int, int], float] | None = None
        self.leader: Leader | None = None
        self.leader_address: str | None = None

    async def run(self) -> None:
        """Stand by, then lead until the process ends."""
        ports = self._ports
        await ports.log.open()
        command_log_id = await ports.commands.open()
        replica = await restore(ports.cluster, ports.log, ports.snapshots)
        _log.info("standing by", cluster=ports.cluster, n=replica.head.n)
        office, writer = await self._take_office(replica, command_log_id)
        world = World(
            cluster=ports.cluster,
            commands=ports.commands,
            command_log_id=command_log_id,
            leadership=ports.leadership,
            snapshots=ports.snapshots,
            gateway=ports.gateway,
            monotonic=ports.monotonic,
            leave=ports.leave,
            expired=office.expired,
            measures=ports.measures,
        )
        leader = Leader(writer, world)
        office.progress = leader
        self.leader = leader
        self.leader_address = ports.address
        ports.measures.leads.set(1)
        _log.info("leading", cluster=ports.cluster, epoch=office.tenure.epoch, n=writer.head.n)
        await leader.run()

    async def _take_office(self, replica: Replica, command_log_id: LogId) -> tuple[Office, Writer]:
        """Until a term of ours is in force. A term that lost its race is tried again under a new epoch (P-3)."""
        ports = self._ports
        while True:
            tenure, begun = await self._stand_by(replica)
            office = Office(tenure=tenure, monotonic=ports.monotonic, renewed_at=begun, source=replica)
            ports.keep(office)
            try:
                writer = await self._take_over(replica, tenure, command_log_id)
            except TermLost as lost:
                office.over = True
                _log.warning("term lost", epoch=tenure.epoch, why=str(lost))
                continue
            office.source = writer
            return office, writer

    async def _take_over(self, replica: Replica, tenure: Tenure, command_log_id: LogId) -> Writer:
        ports = self._ports
        return await take_over(
            cluster=ports.cluster,
            replica=replica,
            tenure=tenure,
            log=ports.log,
            commands=ports.commands,
            command_log_id=command_log_id,
            claims=ports.claims,
            monotonic=ports.monotonic,
            leave=ports.leave,
        )

    async def _stand_by(self, replica: Replica) -> tuple[Tenure, float]:
        """Fold what comes until the office is ours; with the time before it was asked for."""
        following = asyncio.create_task(replica.follow(self._ports.log))
        try:
            while True:
                if following.done():
                    following.result()
                begun = self._ports.monotonic()
                tenure = await self._contend(replica)
                if tenure is not None:
                    return tenure, begun
                await asyncio.sleep(CONTEND_S)
        finally:
            following.cancel()

    async def _contend(self, replica: Replica) -> Tenure | None:
        ports = self._ports
        try:
            epoch, renewals, self.leader_address = await ports.leadership.observe()
            if await ports.log.end() - replica.head.offset > BEHIND_MAX:
                return None
            stale = self._unchanged((epoch, renewals))
            return await ports.leadership.acquire(ports.holder, ports.address, replica.head.epoch, stale=stale)
        except UnknownOutcome as error:
            _log.warning("cannot contend", why=str(error))
            return None

    def _unchanged(self, row: tuple[int, int]) -> bool:
        """Has the row stood still for long enough by our own clock?"""
        now = self._ports.monotonic()
        if self._seen is None or self._seen[0] != row:
            self._seen = (row, now)
        return now - self._seen[1] > UNCHANGED_S
