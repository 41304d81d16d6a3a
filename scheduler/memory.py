"""Leadership, claims and snapshots in memory: for tests and for the simulation, where many processes share one loop.

All processes share one MemoryControl, whose statements mean exactly what those of scheduler.control and
scheduler.claims mean in Postgres: one at a time, whole or not at all, fenced by the epoch row. Each passes through a
hook that may delay it, lose it or have it come late, as a network does. Knows no clock but the one it is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from commands.entities import NO_EPOCH
from events.chain import Head
from events.ids import ClusterId, Epoch, Instant, LeaseId, NodeId, Nonce
from scheduler.claims import SNAPSHOTS_KEPT
from scheduler.control import judge_suspects
from scheduler.ports import TENURE_S, Claim, Conflict, Deposed, Tenure, UnknownOutcome


@dataclass(slots=True, kw_only=True)
class Row:
    """control.leadership. `expires_at`: by the database's clock, in ms."""

    epoch: Epoch
    nonce: Nonce
    holder: str
    address: str
    expires_at: Instant
    renewals: int = 0
    floor_epoch: Epoch = NO_EPOCH
    head: tuple[str, int, int, str] | None = None
    taking: str = ""
    suspects: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """One row of control.claims; its key is (node, gpu)."""

    lease_id: LeaseId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement on its way to the database. `run` executes it, whole; it may be called late, or never."""

    name: str
    run: Callable[[], Any]


Execute = Callable[[Statement], Awaitable[Any]]
"""The hook: what it returns or raises is what the caller hears; UnknownOutcome where it heard nothing."""


async def execute_at_once(statement: Statement) -> Any:
    """Others get a turn before the statement is executed, as with a server."""
    await asyncio.sleep(0)
    return statement.run()


@dataclass(slots=True)
class MemoryControl:
    """What outlives the processes: schema `control` of one database. `clock`: its time in ms. `changed`: called after
    each change of the claims of a cluster."""

    clock: Callable[[], Instant]
    changed: Callable[[ClusterId], None] = lambda _: None
    rows: dict[ClusterId, Row] = field(default_factory=dict)
    claims: dict[ClusterId, dict[tuple[NodeId, int], Held]] = field(default_factory=dict)
    snapshots: dict[ClusterId, dict[int, tuple[Head, str, bytes]]] = field(default_factory=dict)
    _nonces: int = 0

    def claims_of(self, cluster: ClusterId) -> dict[tuple[NodeId, int], Held]:
        """The claims of a cluster, to read and to change."""
        return self.claims.setdefault(cluster, {})

    def fence(self, cluster: ClusterId, tenure: Tenure) -> Row:
        """The epoch row, if it is still of this tenure. Raises Deposed (P-8)."""
        row = self.rows.get(cluster)
        if row is None or (row.epoch, row.nonce) != (tenure.epoch, tenure.nonce):
            raise Deposed(f"epoch {tenure.epoch} is over")
        return row

    def take(
        self, cluster: ClusterId, holder: str, address: str, epoch_above: Epoch, stale_at: int | None
    ) -> Row | None:
        """ACQUIRE of scheduler.control. `stale_at`: take a row that still has this number of renewals (P-11)."""
        self._nonces += 1
        nonce, expires_at = Nonce(f"nonce-{self._nonces}"), self._expires_at()
        row = self.rows.get(cluster)
        if row is None:
            row = Row(epoch=Epoch(epoch_above + 1), nonce=nonce, holder=holder, address=address, expires_at=expires_at)
            self.rows[cluster] = row
            return row
        if row.expires_at >= self.clock() and row.holder != holder and stale_at != row.renewals:
            return None
        row.epoch = Epoch(max(row.epoch, row.floor_epoch, epoch_above) + 1)
        row.nonce, row.holder, row.address, row.expires_at = nonce, holder, address, expires_at
        row.renewals += 1
        row.suspects = row.taking or row.suspects
        return row

    def renew(self, cluster: ClusterId, tenure: Tenure, head: Head) -> bool:
        """RENEW of scheduler.control."""
        try:
            row = self.fence(cluster, tenure)
        except Deposed:
            return False
        row.expires_at = self._expires_at()
        row.renewals += 1
        row.head = (head.log_id, head.accepted, head.n, head.hash)
        return True

    def _expires_at(self) -> Instant:
        return Instant(self.clock() + int(TENURE_S * 1000))


class MemoryLeadership:
    """scheduler.ports.Leadership over a MemoryControl."""

    def __init__(self, control: MemoryControl, cluster: ClusterId, execute: Execute = execute_at_once) -> None:
        self._control = control
        self._cluster = cluster
        self._execute = execute
        self._renewals_seen = -1

    async def acquire(self, holder: str, address: str, epoch_above: Epoch, *, stale: bool = False) -> Tenure | None:
        """As Leadership.acquire. Nobody's connections are terminated: what the holder before sent may come late."""
        stale_at = self._renewals_seen if stale else None

        def run() -> Tenure | None:
            row = self._control.take(self._cluster, holder, address, epoch_above, stale_at)
            return None if row is None else _tenure(row, self._control.clock())

        tenure: Tenure | None = await self._execute(Statement("acquire", run))
        return tenure

    async def renew(self, tenure: Tenure, head: Head) -> bool:
        """As Leadership.renew."""
        statement = Statement("renew", lambda: self._control.renew(self._cluster, tenure, head))
        return bool(await self._execute(statement))

    async def observe(self) -> tuple[Epoch, int, str | None]:
        """As Leadership.observe."""
        epoch, renewals, address = await self._execute(Statement("observe", self._observe))
        if epoch:
            self._renewals_seen = renewals
        return epoch, renewals, address

    async def raise_floor(self, epoch: Epoch) -> None:
        """As Leadership.raise_floor."""

        def run() -> None:
            if (row := self._control.rows.get(self._cluster)) is not None:
                row.floor_epoch = max(row.floor_epoch, epoch)

        await self._execute(Statement("raise_floor", run))

    async def mark_taking(self, tenure: Tenure, first: int | None, last: int | None, *, exact: bool) -> None:
        """As Leadership.mark_taking."""
        taking = "" if first is None else f"{first}-{last}{'!' if exact else ''}"

        def run() -> None:
            row = self._control.fence(self._cluster, tenure)
            row.taking = taking
            if not taking and not exact:
                row.suspects = ""

        await self._execute(Statement("mark_taking", run))

    def _observe(self) -> tuple[Epoch, int, str | None]:
        row = self._control.rows.get(self._cluster)
        return (row.epoch, row.renewals, row.address) if row is not None else (Epoch(0), 0, None)


class MemoryClaims:
    """scheduler.ports.Claims over a MemoryControl."""

    def __init__(self, control: MemoryControl, cluster: ClusterId, execute: Execute = execute_at_once) -> None:
        self._control = control
        self._cluster = cluster
        self._execute = execute

    async def claim(self, tenure: Tenure, claims: Sequence[Claim]) -> Sequence[Conflict]:
        """As Claims.claim."""
        if len({(node_id, gpu) for node_id, gpu, _ in claims}) != len(claims):
            raise UnknownOutcome("one gpu was asked for twice")

        def run() -> Sequence[Conflict]:
            row = self._control.fence(self._cluster, tenure)
            held = self._control.claims_of(self._cluster)
            taken = [(node_id, gpu) for node_id, gpu, _ in claims if (node_id, gpu) in held]
            if not taken:
                held.update({(node_id, gpu): Held(lease, row.epoch) for node_id, gpu, lease in claims})
                self._control.changed(self._cluster)
            return [Conflict(node_id=key[0], gpu=key[1], held_by=held[key].lease_id) for key in taken]

        conflicts: Sequence[Conflict] = await self._execute(Statement("claim", run))
        return conflicts

    async def release(self, tenure: Tenure, leases: Sequence[LeaseId]) -> None:
        """As Claims.release."""
        gone = frozenset(leases)

        def run() -> None:
            self._control.fence(self._cluster, tenure)
            held = self._control.claims_of(self._cluster)
            for key in [key for key, one in held.items() if one.lease_id in gone]:
                del held[key]
            self._control.changed(self._cluster)

        await self._execute(Statement("release", run))

    async def reconcile(self, tenure: Tenure, claims: Sequence[Claim]) -> int:
        """As Claims.reconcile."""
        wanted = {(node_id, gpu): lease for node_id, gpu, lease in claims}

        def run() -> int:
            row = self._control.fence(self._cluster, tenure)
            held = self._control.claims_of(self._cluster)
            wrong = [key for key, lease in wanted.items() if key not in held or held[key].lease_id != lease]
            extra = [key for key in held if key not in wanted]
            held.update({key: Held(wanted[key], row.epoch) for key in wrong})
            for key in extra:
                del held[key]
            self._control.changed(self._cluster)
            return len(wrong) + len(extra)

        return int(await self._execute(Statement("reconcile", run)))


class MemorySnapshots:
    """scheduler.ports.Snapshots over a MemoryControl."""

    def __init__(self, control: MemoryControl, cluster: ClusterId, execute: Execute = execute_at_once) -> None:
        self._kept = control.snapshots.setdefault(cluster, {})
        self._execute = execute

    async def save(self, head: Head, fingerprint: str, state: bytes) -> None:
        """As Snapshots.save."""

        def run() -> None:
            self._kept[head.n] = (head, fingerprint, state)
            for n in sorted(self._kept)[:-SNAPSHOTS_KEPT]:
                del self._kept[n]

        await self._execute(Statement("save", run))

    async def newest(self, fingerprint: str) -> Sequence[tuple[Head, bytes]]:
        """As Snapshots.newest."""

        def run() -> Sequence[tuple[Head, bytes]]:
            kept = [self._kept[n] for n in sorted(self._kept, reverse=True)]
            return [(head, state) for head, print_, state in kept if print_ == fingerprint]

        found: Sequence[tuple[Head, bytes]] = await self._execute(Statement("newest", run))
        return found


def _tenure(row: Row, now: Instant) -> Tenure:
    suspects, refuse = judge_suspects(row.taking, row.suspects)
    return Tenure(
        epoch=row.epoch,
        nonce=row.nonce,
        holder=row.holder,
        at=now,
        head=row.head,
        suspects=suspects,
        refuse=refuse,
    )
