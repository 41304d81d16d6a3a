"""Leadership in Postgres, schema `control` (P-8), and the session on which claims rest too.

Each operation is ONE autocommitted statement in READ COMMITTED, joined to the epoch row FOR SHARE, its row count
checked: a takeover in flight makes it wait, and then find itself deposed. Never a transaction of several.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any

import asyncpg

from events.chain import Head
from events.ids import ClusterId, Epoch, Instant, Nonce
from scheduler.ports import TENURE_S, Deposed, Tenure, UnknownOutcome

STATEMENT_TIMEOUT_MS = 2_000
TCP_USER_TIMEOUT_MS = 4_000
MIGRATIONS = Path(__file__).parent / "migrations"


async def connect(dsn: str, name: str) -> asyncpg.Connection:
    """A direct connection with the session settings on which P-8 rests; `name` shows in pg_stat_activity."""
    connection: asyncpg.Connection = await asyncpg.connect(
        dsn,
        timeout=5,
        command_timeout=STATEMENT_TIMEOUT_MS / 1000 + 1,
        server_settings={
            "application_name": name[:63],
            "statement_timeout": str(STATEMENT_TIMEOUT_MS),
            "idle_in_transaction_session_timeout": str(STATEMENT_TIMEOUT_MS),
            "default_transaction_isolation": "read committed",
            "synchronous_commit": "on",
            "jit": "off",
        },
    )
    transport = getattr(connection, "_transport", None)
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is not None and raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    return connection


async def migrate(dsn: str) -> None:
    """Make schema `control`; harmless where it is there."""
    connection = await connect(dsn, "signalbox-migrate")
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(727001)")
            for script in sorted(MIGRATIONS.glob("*.sql")):
                await connection.execute(script.read_text())
    finally:
        await connection.close()


class Session:
    """One connection, made when it is first needed. A failure that leaves the outcome open raises UnknownOutcome."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._dsn, self._name)
                return list(await self._connection.fetch(statement, *arguments))
            except asyncpg.UniqueViolationError:
                raise
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
                raise UnknownOutcome(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


ACQUIRE = """
WITH before AS (SELECT holder FROM control.leadership WHERE cluster = $1),
taken AS (
    INSERT INTO control.leadership AS l (cluster, epoch, nonce, holder, address, expires_at)
    VALUES ($1, $6::bigint + 1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5))
    ON CONFLICT (cluster) DO UPDATE SET
        epoch = greatest(l.epoch, l.floor_epoch, $6::bigint) + 1, nonce = $2, holder = $3, address = $4,
        expires_at = clock_timestamp() + make_interval(secs => $5), renewals = l.renewals + 1,
        suspects = CASE WHEN l.taking <> '' THEN l.taking ELSE l.suspects END
    WHERE l.expires_at < clock_timestamp() OR l.holder = $3 OR ($7 AND l.renewals = $8)
    RETURNING *
)
SELECT taken.*, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, before.holder AS holder_before
FROM taken LEFT JOIN before ON true
"""
# The row before the update decides who was suspect; `taking` is read back to see whether one command ended two terms.
RENEW = """
UPDATE control.leadership SET expires_at = clock_timestamp() + make_interval(secs => $4), renewals = renewals + 1,
    head_log_id = $5, head_offset = $6, head_n = $7, head_hash = $8, restored_by = NULL, restored_reason = NULL
WHERE cluster = $1 AND epoch = $2 AND nonce = $3 RETURNING 1
"""
# No wait for the disk: the mark tells of a scheduler that died, not of a server that did, and the commit that follows
# brings it to the disk anyway.
MARK = """
UPDATE control.leadership SET taking = $4, suspects = CASE WHEN $4 = '' AND NOT $5 THEN '' ELSE suspects END
WHERE cluster = $1 AND epoch = $2 AND nonce = $3 AND set_config('synchronous_commit', 'off', true) = 'off' RETURNING 1
"""
RESTORED = """
UPDATE control.leadership SET head_log_id = '', head_offset = -1, head_n = -1, head_hash = '',
    restored_by = $2, restored_reason = $3
WHERE cluster = $1 RETURNING 1
"""
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = ANY($1::text[]) AND pid <> pg_backend_pid()
"""


class PostgresLeadership:
    """scheduler.ports.Leadership. Its own connection, so that it can run on a thread and loop of its own (P-9)."""

    def __init__(self, dsn: str, cluster: ClusterId, holder: str) -> None:
        self._cluster = cluster
        self._session = Session(dsn, f"signalbox-lead-{holder}")
        self._renewals_seen = -1

    async def acquire(self, holder: str, address: str, epoch_above: Epoch, *, stale: bool = False) -> Tenure | None:
        nonce = await self._nonce()
        rows = await self._session.fetch(
            ACQUIRE, self._cluster, nonce, holder, address, TENURE_S, epoch_above, stale, self._renewals_seen
        )
        if not rows:
            return None
        row = rows[0]
        if row["holder_before"] and row["holder_before"] != holder:
            names = [f"signalbox-{role}-{row['holder_before']}"[:63] for role in ("lead", "claims")]
            await self._session.fetch(TERMINATE, names)
        return _tenure(row)

    async def renew(self, tenure: Tenure, head: Head) -> bool:
        rows = await self._session.fetch(
            RENEW,
            self._cluster,
            tenure.epoch,
            tenure.nonce,
            TENURE_S,
            head.log_id,
            head.accepted,
            head.n,
            head.hash,
        )
        return bool(rows)

    async def observe(self) -> tuple[Epoch, int, str | None]:
        rows = await self._session.fetch(
            "SELECT epoch, renewals, address FROM control.leadership WHERE cluster = $1", self._cluster
        )
        if not rows:
            return Epoch(0), 0, None
        self._renewals_seen = rows[0]["renewals"]
        return Epoch(rows[0]["epoch"]), rows[0]["renewals"], rows[0]["address"]

    async def raise_floor(self, epoch: Epoch) -> None:
        await self._session.fetch(
            "UPDATE control.leadership SET floor_epoch = greatest(floor_epoch, $2) WHERE cluster = $1",
            self._cluster,
            epoch,
        )

    async def mark_taking(self, tenure: Tenure, first: int | None, last: int | None, *, exact: bool) -> None:
        taking = "" if first is None else f"{first}-{last}{'!' if exact else ''}"
        rows = await self._session.fetch(
            MARK,
            self._cluster,
            tenure.epoch,
            tenure.nonce,
            taking,
            exact,
        )
        if not rows:
            raise Deposed(f"epoch {tenure.epoch} is over")

    async def noted_head(self) -> tuple[str, int, int, str] | None:
        """(log id, offset, n, hash) of the newest record that a leader has noted as accepted (P-5); None: of none."""
        rows = await self._session.fetch(
            "SELECT head_log_id, head_offset, head_n, head_hash FROM control.leadership"
            " WHERE cluster = $1 AND head_log_id <> ''",
            self._cluster,
        )
        return tuple(rows[0]) if rows else None

    async def restored(self, operator: str, reason: str) -> bool:
        """An operator's word that the log was restored on purpose: the noted head is forgotten, and the next leader
        puts the word on record (P-5). False where the cluster never had a leader."""
        return bool(await self._session.fetch(RESTORED, self._cluster, operator, reason))

    async def close(self) -> None:
        await self._session.close()

    async def _nonce(self) -> Nonce:
        rows = await self._session.fetch("SELECT gen_random_uuid()::text AS nonce")
        return Nonce(rows[0]["nonce"])


def _tenure(row: Any) -> Tenure:
    head = (row["head_log_id"], row["head_offset"], row["head_n"], row["head_hash"]) if row["head_log_id"] else None
    suspects, refuse = judge_suspects(row["taking"], row["suspects"])
    restored = (row["restored_by"], row["restored_reason"] or "") if row["restored_by"] else None
    return Tenure(
        epoch=Epoch(row["epoch"]),
        nonce=Nonce(row["nonce"]),
        holder=row["holder"],
        at=Instant(row["now_ms"]),
        head=head,
        suspects=suspects,
        refuse=refuse,
        restored=restored,
    )


def judge_suspects(taking: str, suspects: str) -> tuple[tuple[int, int] | None, int | None]:
    """(range of suspects, command to refuse) from what the row said (P-7).

    A range left behind makes its commands suspects, to be taken one by one. One of them that then leaves its own
    mark behind (`p-p!`) has ended two leaderships: it is refused.
    """
    if taking.endswith("!"):
        position = int(taking[:-1].split("-")[0])
        return (position, position), position
    left = taking or suspects
    if not left:
        return None, None
    first, last = left.rstrip("!").split("-")
    return (int(first), int(last)), None
