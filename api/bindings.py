"""The table that ties an idempotency key to a job id before the command is written (P-14).

So that a retry of a submission whose answer never came names the same job. Lies in schema `control`, whose migrations
make the table: it is no read model, and no rebuild touches it.
"""

from dataclasses import dataclass

import asyncpg

from api.problems import Problem
from events.ids import ClusterId, JobId

# A key that is older than the core remembers it is free again. Where two bind at once, the loser's insert does
# nothing, and its snapshot may be too old to see the winner's row: it asks once more.
_BIND = """
WITH bound AS (
    INSERT INTO control.bindings AS b (digest, cluster, job_id, body) VALUES ($1, $2, $3, $4)
    ON CONFLICT (digest) DO UPDATE
        SET cluster = excluded.cluster, job_id = excluded.job_id, body = excluded.body, bound_at = now()
        WHERE b.bound_at < now() - make_interval(days => $5)
    RETURNING cluster, job_id, body
)
SELECT cluster, job_id, body FROM bound
UNION ALL SELECT cluster, job_id, body FROM control.bindings WHERE digest = $1 AND NOT EXISTS (SELECT FROM bound)
"""
_PURGE = "DELETE FROM control.bindings WHERE bound_at < now() - make_interval(days => $1)"
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A key's job. `body`: digest of the request that bound it."""

    digest: str
    cluster: ClusterId
    job_id: JobId
    body: str


class Bindings:
    """The table, through a pool."""

    def __init__(self, pool: asyncpg.Pool, key_days: int) -> None:
        self._pool = pool
        self._key_days = key_days

    async def bind(self, wanted: Binding) -> Binding:
        """The key's binding: `wanted`, or the one that was there before it. Raises Problem (409) for another body."""
        for _ in range(_TRIES):
            row = await self._pool.fetchrow(
                _BIND, wanted.digest, wanted.cluster, wanted.job_id, wanted.body, self._key_days
            )
            if row is None:
                continue
            if row["body"] != wanted.body:
                raise Problem("key_conflict", job_id=row["job_id"])
            return Binding(
                digest=wanted.digest, cluster=ClusterId(row["cluster"]), job_id=JobId(row["job_id"]), body=row["body"]
            )
        raise Problem("unavailable", "the idempotency key could not be bound: try again")

    async def purge(self) -> None:
        """Forget keys that are free again."""
        await self._pool.execute(_PURGE, self._key_days + 1)
