"""Claims and snapshots in Postgres, schema `control` (P-8). Rules as in scheduler.control."""

from collections.abc import Sequence
from typing import Any

import asyncpg
import orjson
from pydantic import TypeAdapter

from events.chain import Head
from events.ids import ClusterId, LeaseId, NodeId
from scheduler.control import Session
from scheduler.ports import Claim, Conflict, Deposed, Tenure, UnknownOutcome

SNAPSHOTS_KEPT = 3
_HEAD = TypeAdapter(Head)

# Every data-changing CTE is referenced, since one that is not would still run but without the epoch's lock; FOR SHARE
# makes a takeover in flight wait for us, or us for it (P-8).
CLAIM = """
WITH office AS MATERIALIZED (
    SELECT epoch FROM control.leadership WHERE cluster = $1 AND epoch = $2 AND nonce = $3 FOR SHARE
), made AS (
    INSERT INTO control.claims (cluster, node_id, gpu_index, lease_id, epoch)
    SELECT $1, wanted.node_id, wanted.gpu, wanted.lease_id, office.epoch
    FROM office, unnest($4::text[], $5::int[], $6::text[]) AS wanted(node_id, gpu, lease_id)
    RETURNING 1
)
SELECT (SELECT count(*) FROM office) AS office, (SELECT count(*) FROM made) AS made
"""
# No wait for the disk: a release that a crash of the server loses leaves a claim too many, never one too few (I-2).
RELEASE = """
WITH office AS MATERIALIZED (
    SELECT epoch FROM control.leadership WHERE cluster = $1 AND epoch = $2 AND nonce = $3
        AND set_config('synchronous_commit', 'off', true) = 'off' FOR SHARE
), gone AS (
    DELETE FROM control.claims USING office WHERE cluster = $1 AND lease_id = ANY($4::text[]) RETURNING 1
)
SELECT (SELECT count(*) FROM office) AS office, (SELECT count(*) FROM gone) AS gone
"""
RECONCILE = """
WITH office AS MATERIALIZED (
    SELECT epoch FROM control.leadership WHERE cluster = $1 AND epoch = $2 AND nonce = $3 FOR SHARE
), wanted AS MATERIALIZED (
    SELECT * FROM unnest($4::text[], $5::int[], $6::text[]) AS w(node_id, gpu, lease_id)
), kept AS (
    INSERT INTO control.claims AS c (cluster, node_id, gpu_index, lease_id, epoch)
    SELECT $1, wanted.node_id, wanted.gpu, wanted.lease_id, office.epoch FROM office, wanted
    ON CONFLICT (cluster, node_id, gpu_index) DO UPDATE SET lease_id = excluded.lease_id, epoch = excluded.epoch
    WHERE c.lease_id <> excluded.lease_id
    RETURNING 1
), gone AS (
    DELETE FROM control.claims c USING office WHERE c.cluster = $1
        AND NOT EXISTS (SELECT 1 FROM wanted w WHERE w.node_id = c.node_id AND w.gpu = c.gpu_index)
    RETURNING 1
)
SELECT (SELECT count(*) FROM office) AS office,
    (SELECT count(*) FROM kept) + (SELECT count(*) FROM gone) AS changed
"""
HOLDERS = """
SELECT c.node_id, c.gpu_index, c.lease_id FROM control.claims c
JOIN unnest($2::text[], $3::int[]) AS w(node_id, gpu) ON c.node_id = w.node_id AND c.gpu_index = w.gpu
WHERE c.cluster = $1
"""


class PostgresClaims:
    """scheduler.ports.Claims."""

    def __init__(self, dsn: str, cluster: ClusterId, holder: str) -> None:
        self._cluster = cluster
        self._session = Session(dsn, f"signalbox-claims-{holder}")

    async def claim(self, tenure: Tenure, claims: Sequence[Claim]) -> Sequence[Conflict]:
        nodes, gpus, leases = _columns(claims)
        try:
            row = await self._one(CLAIM, tenure, nodes, gpus, leases)
        except asyncpg.UniqueViolationError as error:
            holders = await self._holders(nodes, gpus)
            if not holders:
                raise UnknownOutcome(
                    "a conflict that nobody holds: it went away, or one gpu was asked for twice"
                ) from error
            return holders
        if row["made"] != len(claims):
            raise UnknownOutcome(f"{row['made']} of {len(claims)} claims were made")
        return ()

    async def release(self, tenure: Tenure, leases: Sequence[LeaseId]) -> None:
        await self._one(RELEASE, tenure, list(leases))

    async def reconcile(self, tenure: Tenure, claims: Sequence[Claim]) -> int:
        row = await self._one(RECONCILE, tenure, *_columns(claims))
        return int(row["changed"])

    async def _one(self, statement: str, tenure: Tenure, *arguments: Any) -> Any:
        rows = await self._session.fetch(statement, self._cluster, tenure.epoch, tenure.nonce, *arguments)
        if not rows or rows[0]["office"] != 1:
            raise Deposed(f"epoch {tenure.epoch} is over")
        return rows[0]

    async def _holders(self, nodes: list[str], gpus: list[int]) -> Sequence[Conflict]:
        rows = await self._session.fetch(HOLDERS, self._cluster, nodes, gpus)
        return [
            Conflict(node_id=NodeId(row["node_id"]), gpu=row["gpu_index"], held_by=LeaseId(row["lease_id"]))
            for row in rows
        ]

    async def close(self) -> None:
        await self._session.close()


class PostgresSnapshots:
    """scheduler.ports.Snapshots."""

    def __init__(self, dsn: str, cluster: ClusterId, holder: str) -> None:
        self._cluster = cluster
        self._session = Session(dsn, f"signalbox-snapshots-{holder}")

    async def save(self, head: Head, fingerprint: str, state: bytes) -> None:
        await self._session.fetch(
            "INSERT INTO control.snapshots (cluster, n, head, fingerprint, state) VALUES ($1, $2, $3, $4, $5)"
            " ON CONFLICT (cluster, n) DO UPDATE SET head = $3, fingerprint = $4, state = $5",
            self._cluster,
            head.n,
            orjson.dumps(head).decode(),
            fingerprint,
            state,
        )
        await self._session.fetch(
            "DELETE FROM control.snapshots WHERE cluster = $1 AND n NOT IN"
            " (SELECT n FROM control.snapshots WHERE cluster = $1 ORDER BY n DESC LIMIT $2)",
            self._cluster,
            SNAPSHOTS_KEPT,
        )

    async def newest(self, fingerprint: str) -> Sequence[tuple[Head, bytes]]:
        rows = await self._session.fetch(
            "SELECT head, state FROM control.snapshots WHERE cluster = $1 AND fingerprint = $2 ORDER BY n DESC",
            self._cluster,
            fingerprint,
        )
        return [(_HEAD.validate_json(row["head"]), bytes(row["state"])) for row in rows]

    async def close(self) -> None:
        await self._session.close()


def _columns(claims: Sequence[Claim]) -> tuple[list[str], list[int], list[str]]:
    return (
        [node_id for node_id, _, _ in claims],
        [gpu for _, gpu, _ in claims],
        [lease for _, _, lease in claims],
    )
