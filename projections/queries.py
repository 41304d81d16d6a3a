"""The questions that the api asks of schema `read`. Every one names its cluster.

`db` is a connection made by database.connect, or a pool made by `pool`: jsonb comes as plain values. Rows come as
the classes of projections.rows. The timeline is asked in projections.audit, waiting for a seq is in projections.moves.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from projections.database import CONNECT_TIMEOUT_S, as_row, columns, listed, plain_jsonb
from projections.rows import (
    AttemptRow,
    CheckpointRow,
    ClusterRow,
    JobRow,
    LeaderRow,
    LeaseRow,
    NodeRow,
    PolicyRow,
    PositionRow,
    R,
    Row,
    TeamRow,
)
from projections.where import Page, Where, cut, decode_cursor, page

Db = Any
"""asyncpg.Connection or asyncpg.Pool: `fetch`, `fetchrow`, `fetchval`."""


async def pool(dsn: str, *, size_max: int = 10) -> Any:
    """Connections for readers."""
    return await asyncpg.create_pool(
        dsn,
        min_size=1,
        max_size=size_max,
        init=plain_jsonb,
        timeout=CONNECT_TIMEOUT_S,
        server_settings={"application_name": "signalbox-reader", "jit": "off"},
    )


def select(cls: type[Row], where: object, rest: str = "") -> str:
    """SELECT of whole rows of a table."""
    return f"SELECT {listed(columns(cls))} FROM read.{cls.TABLE} WHERE {where} {rest}"


async def _one(db: Db, cls: type[R], where: Where) -> R | None:
    record = await db.fetchrow(select(cls, where), *where.args)
    return None if record is None else as_row(cls, record)


async def _all(db: Db, cls: type[R], where: Where, order: str) -> list[R]:
    records = await db.fetch(select(cls, where, f"ORDER BY {order}"), *where.args)
    return [as_row(cls, record) for record in records]


# Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """All given ones have to hold; `labels`: each with this value; `states`: one of them; `dependent`: waits for other
    jobs, or does not."""

    team: str | None = None
    principal: str | None = None
    states: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    held: bool | None = None
    dependent: bool | None = None
    element_of: str | None = None


async def job(db: Db, cluster: str, job_id: str) -> JobRow | None:
    """One job as it is now."""
    where = Where(cluster)
    where.add("job_id = {}", job_id)
    return await _one(db, JobRow, where)


async def jobs(db: Db, cluster: str, wanted: JobFilter, *, cursor: str | None = None, limit: int = 100) -> Page[JobRow]:
    """Jobs, the newest submitted first; a cursor stays good whatever happens to the jobs. Raises BadCursor."""
    where = Where(cluster)
    for column in ("team", "principal", "name", "held", "element_of"):
        if (value := getattr(wanted, column)) is not None:
            where.add(f"{column} = {{}}", value)
    if wanted.dependent is not None:
        where.add("(cardinality(waits_on) > 0) = {}", wanted.dependent)
    if wanted.states:
        where.add("state = ANY({})", list(wanted.states))
    if wanted.labels:
        where.add("labels @> {}", wanted.labels)
    if cursor is not None:
        where.add("made_seq < {}", decode_cursor(cursor))
    size = cut(limit)
    found = await _all(db, JobRow, where, f"made_seq DESC LIMIT {size + 1}")
    return page(found, size, "made_seq")


async def attempts(db: Db, cluster: str, job_id: str) -> list[AttemptRow]:
    """The granted attempts of a job, in order, with nodes and blocks."""
    where = Where(cluster)
    where.add("job_id = {}", job_id)
    return await _all(db, AttemptRow, where, "attempt")


async def attempt(db: Db, cluster: str, job_id: str, number: int) -> AttemptRow | None:
    """One attempt; None also where it was not granted yet."""
    where = Where(cluster)
    where.add("job_id = {} AND attempt = {}", job_id, number)
    return await _one(db, AttemptRow, where)


async def leases(db: Db, cluster: str, job_id: str, number: int) -> list[LeaseRow]:
    """The ranks of an attempt: which GPUs of which node, and how far each is."""
    where = Where(cluster)
    where.add("job_id = {} AND attempt = {}", job_id, number)
    return await _all(db, LeaseRow, where, "rank")


async def newest_lease(db: Db, cluster: str, job_id: str, rank: int, number: int | None) -> LeaseRow | None:
    """The lease of a rank in that attempt, or in the newest that was granted with such a rank."""
    where = Where(cluster)
    where.add("job_id = {} AND rank = {}", job_id, rank)
    if number is not None:
        where.add("attempt = {}", number)
    found = await _all(db, LeaseRow, where, "attempt DESC LIMIT 1")
    return found[0] if found else None


async def checkpoints(db: Db, cluster: str, job_id: str) -> list[CheckpointRow]:
    """Accepted checkpoints of a job, of all attempts, in the order of their acceptance."""
    where = Where(cluster)
    where.add("job_id = {}", job_id)
    return await _all(db, CheckpointRow, where, "seq")


# The queue: class rank, then front, then submit_seq. Held jobs and those that wait for another are QUEUED, but nobody
# waits behind them. An array is one.

_IN_QUEUE = "state = 'QUEUED' AND NOT held AND cardinality(waits_on) = 0"
_ORDER = "class_rank, front_rank, submit_seq"


@dataclass(frozen=True, slots=True)
class Ahead:
    """Jobs in the queue before a job, in the whole cluster, and those among them that want the same GPU type."""

    jobs: int
    of_type: int


@dataclass(frozen=True, slots=True)
class Queued:
    """`position` counts from 1, over the whole queue of the cluster."""

    position: int
    job: JobRow
    ahead_of_type: int


async def queue(db: Db, cluster: str, *, offset: int = 0, limit: int = 100) -> list[Queued]:
    """The queue in order, from position `offset` + 1."""
    where, offset = Where(cluster), max(0, offset)
    where.add(_IN_QUEUE)
    found = await _all(db, JobRow, where, f"{_ORDER} LIMIT {cut(limit)} OFFSET {offset}")
    before: Counter[str] = Counter()
    if offset and found:
        listed = f"SELECT gpu_type FROM read.jobs WHERE {where} ORDER BY {_ORDER} LIMIT {offset}"
        before.update(dict(await db.fetch(f"SELECT gpu_type, count(*) FROM ({listed}) q GROUP BY 1", *where.args)))
    made = []
    for position, row in enumerate(found, offset + 1):
        made.append(Queued(position, row, before[row.gpu_type]))
        before[row.gpu_type] += 1
    return made


async def queue_length(db: Db, cluster: str) -> int:
    """Jobs in the queue, without the held ones."""
    counted: int = await db.fetchval(f"SELECT count(*) FROM read.jobs WHERE cluster = $1 AND {_IN_QUEUE}", cluster)
    return counted


async def ahead(db: Db, cluster: str, class_rank: int, submit_seq: int, *, front: bool = False) -> int:
    """Jobs in the queue before a job, there or hypothetical, with this place in the order."""
    counted: int = await db.fetchval(
        f"""SELECT count(*) FROM read.jobs WHERE cluster = $1 AND {_IN_QUEUE}
            AND (class_rank, front_rank, submit_seq) < ($2::smallint, $3::smallint, $4::bigint)""",
        cluster,
        class_rank,
        0 if front else 1,
        submit_seq,
    )
    return counted


async def ahead_of(db: Db, cluster: str, job_id: str) -> Ahead | None:
    """Jobs in the queue before this one; a held job sees those before its place. None where it is not QUEUED."""
    record = await db.fetchrow(
        """SELECT count(q.job_id), count(q.job_id) FILTER (WHERE q.gpu_type = j.gpu_type)
           FROM read.jobs j LEFT JOIN read.jobs q ON q.cluster = j.cluster AND q.state = 'QUEUED' AND NOT q.held
             AND (q.class_rank, q.front_rank, q.submit_seq) < (j.class_rank, j.front_rank, j.submit_seq)
           WHERE j.cluster = $1 AND j.job_id = $2 AND j.state = 'QUEUED' GROUP BY j.job_id""",
        cluster,
        job_id,
    )
    return None if record is None else Ahead(*record)


# Nodes


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node and who holds its GPUs: slot -> (job id, attempt, rank). In no other slot is a live lease."""

    node: NodeRow
    held: dict[int, tuple[str, int, int]]


async def nodes(
    db: Db, cluster: str, *, block: str | None = None, states: tuple[str, ...] = (), node_id: str | None = None
) -> list[NodeUse]:
    """Nodes by id, with their live leases. Removed ones come only where `states` or `node_id` asks for them."""
    where = Where(cluster)
    if block is not None:
        where.add("block = {}", block)
    if node_id is not None:
        where.add("node_id = {}", node_id)
    elif states:
        where.add("state = ANY({})", list(states))
    else:
        where.add("state <> 'removed'")
    found = {row.node_index: NodeUse(row, {}) for row in await _all(db, NodeRow, where, 'node_id COLLATE "C"')}
    live = await db.fetch(
        "SELECT node_index, job_id, attempt, rank, gpus FROM read.leases"
        " WHERE cluster = $1 AND phase <> 'ended' AND node_index = ANY($2)",
        cluster,
        list(found),
    )
    for index, job_id, number, rank, gpus in live:
        found[index].held.update(dict.fromkeys(gpus, (job_id, number, rank)))
    return list(found.values())


async def node(db: Db, cluster: str, node_id: str) -> NodeUse | None:
    """One node, also one that was removed."""
    found = await nodes(db, cluster, node_id=node_id)
    return found[0] if found else None


async def leases_on(db: Db, cluster: str, node_id: str, *, limit: int = 100) -> list[LeaseRow]:
    """The newest leases on a node, ended ones too."""
    where = Where(cluster)
    where.add("node_id = {}", node_id)
    return await _all(db, LeaseRow, where, f"granted_seq DESC, job_id, rank LIMIT {cut(limit)}")


# Quotas


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """GPUs of a type: what a team may use, and what it is charged now. Use without a quota has guarantee 0. Percent:
    where a figure was set so."""

    team: str
    gpu_type: str
    guaranteed: int
    borrow_limit: int
    in_use: int
    guaranteed_percent: int | None = None
    borrow_limit_percent: int | None = None

    @property
    def borrowed(self) -> int:
        """What is used above the guarantee."""
        return max(0, self.in_use - self.guaranteed)


async def quotas(db: Db, cluster: str, *, team: str | None = None) -> list[QuotaUse]:
    """Quotas and use of a team, or of all, by team and type."""
    records = await db.fetch(
        """SELECT team, gpu_type, coalesce(guaranteed, 0), coalesce(borrow_limit, 0), coalesce(in_use, 0),
             guaranteed_percent, borrow_limit_percent
           FROM (SELECT * FROM read.quotas WHERE cluster = $1 AND ($2::text IS NULL OR team = $2)) q
           FULL JOIN (SELECT * FROM read.quota_use WHERE cluster = $1 AND ($2::text IS NULL OR team = $2)) u
           USING (team, gpu_type)
           ORDER BY team COLLATE "C", gpu_type COLLATE "C" """,
        cluster,
        team,
    )
    return [QuotaUse(*record) for record in records]


async def team(db: Db, cluster: str, name: str) -> TeamRow | None:
    """The classes of a team; None where none were set."""
    where = Where(cluster)
    where.add("team = {}", name)
    return await _one(db, TeamRow, where)


# The cluster


@dataclass(frozen=True, slots=True)
class Capacity:
    """GPUs of a type over all nodes that are not removed. `usable`: on nodes that are up and not drained, and whole;
    `held`: with a live lease, wherever."""

    gpu_type: str
    nodes: int
    total: int
    usable: int
    held: int


async def capacity(db: Db, cluster: str) -> list[Capacity]:
    """The fleet by GPU type."""
    records = await db.fetch(
        """SELECT n.gpu_type, count(*), sum(n.gpu_count)::bigint,
                  sum(CASE WHEN n.state = 'up' AND NOT n.drained
                      THEN n.gpu_count - (SELECT count(*) FROM jsonb_object_keys(n.faults)) ELSE 0 END)::bigint,
                  coalesce(sum(l.held), 0)::bigint
           FROM read.nodes n LEFT JOIN (
               SELECT node_index, sum(gpu_count) AS held FROM read.leases
               WHERE cluster = $1 AND phase <> 'ended' GROUP BY node_index
           ) l USING (node_index)
           WHERE n.cluster = $1 AND n.state <> 'removed'
           GROUP BY n.gpu_type ORDER BY n.gpu_type COLLATE "C" """,
        cluster,
    )
    return [Capacity(*record) for record in records]


async def cluster_now(db: Db, cluster: str) -> ClusterRow | None:
    """Leader, policy version, mass silence; None where nothing was ever projected."""
    return await _one(db, ClusterRow, Where(cluster))


async def leaders(db: Db, cluster: str, *, limit: int = 100) -> list[LeaderRow]:
    """The newest leaderships, newest first."""
    return await _all(db, LeaderRow, Where(cluster), f"epoch DESC LIMIT {cut(limit)}")


async def policies(db: Db, cluster: str, *, limit: int = 100) -> list[PolicyRow]:
    """The newest policies, the one in force first; empty: the built-in default holds, as version 0."""
    return await _all(db, PolicyRow, Where(cluster), f"version DESC LIMIT {cut(limit)}")


async def position(db: Db, cluster: str) -> PositionRow | None:
    """How far the tables are: seq, at and n of the newest record in them."""
    return await _one(db, PositionRow, Where(cluster))
