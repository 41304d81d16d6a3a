"""What may keep a job from starting, or has made it fail: one query for each question."""

from dataclasses import dataclass
from typing import Any

from events.job import EndReason

Db = Any
"""As projections.queries.Db."""

FAILINGS = (
    EndReason.NONZERO_EXIT,
    EndReason.START_FAILED,
    EndReason.START_TIMEOUT,
    EndReason.NODE_LOST,
    EndReason.LEASE_MISSING,
    EndReason.TIMED_OUT,
)
"""Ends of attempts that nobody asked for."""


@dataclass(frozen=True, slots=True)
class Room:
    """Nodes of one GPU type, size and memory. `serving`: nodes that something may be granted on, with `gpus` GPUs, of
    which `free` are whole and without a lease; `whole`: nodes of which all are; `largest`: the most on one node;
    `replicas`: how many of the asked size fit. The others by why they are out of service, and some of their names."""

    node_gpus: int
    serving: int
    gpus: int
    free: int
    whole: int
    largest: int
    replicas: int
    drained: int
    silent: int
    lost: int
    unconfirmed: int
    out_names: list[str]


async def room(db: Db, cluster: str, gpu_type: str, *, memory_gb_min: int = 0, per_replica: int = 1) -> list[Room]:
    """Free GPUs of a type by size of node, for replicas of `per_replica` GPUs; empty where there is no such node."""
    records = await db.fetch(
        """WITH fleet AS (
             SELECT n.node_id, n.gpu_count, n.gpu_memory_gb,
               CASE WHEN n.state = 'lost' THEN 'lost' WHEN n.state = 'suspect' THEN 'silent'
                    WHEN n.drained THEN 'drained'
                    WHEN n.confirmed_epoch IS DISTINCT FROM c.epoch THEN 'unconfirmed' ELSE 'serving' END AS how,
               n.gpu_count - (SELECT count(*) FROM jsonb_object_keys(n.faults))
                 - coalesce(sum(CASE WHEN n.faults = '{}' THEN l.gpu_count ELSE
                     (SELECT count(*) FROM unnest(l.gpus) slot WHERE NOT n.faults ? slot::text) END), 0) AS free
             FROM read.nodes n JOIN read.clusters c ON c.cluster = n.cluster
             LEFT JOIN read.leases l
               ON l.cluster = n.cluster AND l.node_index = n.node_index AND l.phase <> 'ended'
             WHERE n.cluster = $1 AND n.gpu_type = $2 AND n.gpu_memory_gb >= $3 AND n.state <> 'removed'
             GROUP BY n.cluster, n.node_index, c.epoch)
           SELECT gpu_count::bigint, count(*) FILTER (WHERE how = 'serving'),
             coalesce(sum(gpu_count) FILTER (WHERE how = 'serving'), 0)::bigint,
             coalesce(sum(free) FILTER (WHERE how = 'serving'), 0)::bigint,
             count(*) FILTER (WHERE how = 'serving' AND free = gpu_count),
             coalesce(max(free) FILTER (WHERE how = 'serving'), 0)::bigint,
             coalesce(sum(trunc(free / $4::numeric)) FILTER (WHERE how = 'serving'), 0)::bigint,
             count(*) FILTER (WHERE how = 'drained'), count(*) FILTER (WHERE how = 'silent'),
             count(*) FILTER (WHERE how = 'lost'), count(*) FILTER (WHERE how = 'unconfirmed'),
             coalesce((array_agg(node_id ORDER BY node_id COLLATE "C") FILTER (WHERE how <> 'serving'))[1:3], '{}')
           FROM fleet GROUP BY gpu_count, gpu_memory_gb ORDER BY gpu_count, gpu_memory_gb""",
        cluster,
        gpu_type,
        memory_gb_min,
        per_replica,
    )
    return [Room(*record) for record in records]


@dataclass(frozen=True, slots=True)
class Held:
    """Nodes that are held for the start of a job. `start_at` None: room is being made for it, and it starts as soon as
    that is free."""

    job_id: str
    nodes: int
    start_at: int | None


async def held(db: Db, cluster: str, gpu_type: str) -> list[Held]:
    """Everything of a type that is held now, by reservations and by pledges."""
    records = await db.fetch(
        """SELECT job_id, jsonb_array_length(coalesce(pledge, reservation) -> 'nodes')::bigint,
             CASE WHEN pledge IS NULL THEN (reservation ->> 'start_at')::bigint END
           FROM read.jobs WHERE cluster = $1 AND gpu_type = $2 AND state = 'QUEUED'
             AND (reservation IS NOT NULL OR pledge IS NOT NULL)
           ORDER BY 3 NULLS FIRST, job_id COLLATE "C" """,
        cluster,
        gpu_type,
    )
    return [Held(*record) for record in records]


@dataclass(frozen=True, slots=True)
class Failure:
    """How the first rank of an attempt ended that failed. `end`: as read.leases.end_how."""

    attempt: int
    rank: int
    end: str
    exit_code: int | None
    detail: str


async def failure(db: Db, cluster: str, job_id: str) -> Failure | None:
    """Of the newest attempt of a job that failed by itself; ranks that were stopped after it are not to blame."""
    record = await db.fetchrow(
        """SELECT l.attempt, l.rank, l.end_how, l.exit_code, l.detail
           FROM read.attempts a JOIN read.leases l USING (cluster, job_id, attempt)
           WHERE a.cluster = $1 AND a.job_id = $2 AND a.ending_reason = ANY($3) AND l.phase = 'ended'
             AND NOT l.finished AND l.end_how <> 'stopped' AND (l.end_how <> 'exited' OR l.exit_code <> 0)
           ORDER BY l.attempt DESC, l.ended_at, l.rank LIMIT 1""",
        cluster,
        job_id,
        [str(reason) for reason in FAILINGS],
    )
    return None if record is None else Failure(*record)
