"""What the read models say, in the form in which it goes out. The questions themselves are in projections."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import asyncpg
import orjson

from api import views
from api.context import now_ms
from api.feed import FeedEvent, Filter
from api.mirror import Mirror
from api.problems import FieldError, Problem
from api.times import format_time
from api.views import Document
from api.waiting import Known, is_in_queue, known_of, waiting_view
from events.chain import START, Head
from events.ids import ClusterId, Instant, JobId, LeaseId, NodeId, TeamId, lease_id
from events.job import CLASS_RANK, JobSpec, JobState
from projections import audit, blockers, queries
from projections.database import load_head
from projections.moves import Moves
from projections.queries import JobFilter
from projections.rows import JobRow
from projections.where import BadCursor, Page, decode_cursor, encode_cursor

_MIRROR_WAIT_S = 1.0
SHARES_WAIT_S = 5.0
_TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


class Reads:
    """The read models of one cluster. `pool`: as projections.queries.pool makes it; `mirror`: whom to ask why a job
    waits, where that is not only read from the tables."""

    def __init__(
        self,
        pool: Any,
        moves: Moves,
        cluster: ClusterId,
        now: Callable[[], int] = now_ms,
        *,
        mirror: Mirror | None = None,
    ) -> None:
        self._now = now
        self._mirror = mirror
        self._pool = pool
        self._moves = moves
        self._cluster = cluster

    async def head(self) -> Head:
        """Where the projection stands; START where there is none yet."""
        async with self._pool.acquire() as connection:
            try:
                return await load_head(connection, self._cluster)
            except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                return START

    async def require(self, seq: int, wait_s: float) -> None:
        """Wait until the tables hold `seq`. Raises Problem (504) that names it."""
        reached = await self._moves.wait_for_seq(self._cluster, seq, wait_s)
        if reached < seq:
            detail = f"the read models have got to seq {max(0, reached)}, not yet to {seq}"
            headers = {"retry-after": "1"}
            raise Problem("not_yet", detail, min_seq=seq, seq=max(0, reached), headers=headers)

    async def position_of_new(self, spec: JobSpec, seq: int, wait_s: float) -> int | None:
        """Place in the queue of a job that was submitted at `seq`; None where those ahead cannot be counted now."""
        try:
            if await self._moves.wait_for_seq(self._cluster, seq, wait_s) < seq:
                return None
            if spec.depends_on:
                return None
            return 1 + await queries.ahead(self._pool, self._cluster, CLASS_RANK[spec.priority_class], seq)
        except _TROUBLE:  # the job is accepted whatever the read models do
            return None

    async def team_of(self, job_id: str) -> str | None:
        """The team of a job; None where it is not known."""
        query = "SELECT team FROM read.jobs WHERE cluster = $1 AND job_id = $2"
        team: str | None = await self._pool.fetchval(query, self._cluster, job_id)
        return team

    async def job(self, job_id: JobId) -> Document | None:
        """One job, with all there is to say."""
        row = await queries.job(self._pool, self._cluster, job_id)
        if row is None:
            return None
        failure = await blockers.failure(self._pool, self._cluster, job_id) if row.attempt else None
        if row.state == JobState.QUEUED:
            ahead, known = await self._waits(row)
            return views.job_view(row, None, ahead, known, failure)
        attempt = await queries.attempt(self._pool, self._cluster, job_id, row.attempt)
        leases = await queries.leases(self._pool, self._cluster, job_id, row.attempt) if attempt is not None else ()
        return views.job_view(row, attempt, failure=failure, leases=leases)

    async def _waits(self, row: JobRow) -> tuple[int | None, Known]:
        """Jobs ahead of one that waits (None where it is not in the queue), and all that is known of why it does."""
        ahead = await queries.ahead_of(self._pool, self._cluster, row.job_id) if is_in_queue(row) else None
        quotas = await queries.quotas(self._pool, self._cluster, team=row.team)
        least, size = row.spec.get("gpu_memory_gb_min", 0), row.spec["gpus_per_replica"]
        rooms = await blockers.room(self._pool, self._cluster, row.gpu_type, memory_gb_min=least, per_replica=size)
        others = [
            one for one in await blockers.held(self._pool, self._cluster, row.gpu_type) if one.job_id != row.job_id
        ]
        now, factors = self._now(), None
        if self._mirror is not None:
            factors = await self._mirror.why(JobId(row.job_id), Instant(now), _MIRROR_WAIT_S)
        known = known_of(ahead, quotas, rooms, others, row, now, factors)
        return None if ahead is None else ahead.jobs, known

    async def job_at(self, job_id: JobId, seq: int, wait_s: float) -> Document | None:
        """One job, as soon as the tables hold `seq`, without why it waits; None where they do not in time, or cannot
        be read."""
        try:
            if await self._moves.wait_for_seq(self._cluster, seq, wait_s) < seq:
                return None
            row = await queries.job(self._pool, self._cluster, job_id)
            if row is None:
                return None
            queued = row.state == JobState.QUEUED and is_in_queue(row)
            ahead = await queries.ahead_of(self._pool, self._cluster, job_id) if queued else None
            return views.job_view(row, ahead=None if ahead is None else ahead.jobs)
        except _TROUBLE:
            return None

    async def logged_lease(self, job_id: JobId, rank: int, number: int | None) -> tuple[LeaseId, NodeId] | None:
        """The lease whose log that is, and its node: of that attempt, or the newest granted; None if there is none."""
        row = await queries.newest_lease(self._pool, self._cluster, job_id, rank, number)
        return (lease_id(job_id, row.attempt, rank), NodeId(row.node_id)) if row is not None else None

    async def why(self, job_id: JobId) -> Document | None:
        """All that a job waits for."""
        row = await queries.job(self._pool, self._cluster, job_id)
        if row is None:
            return None
        known = (await self._waits(row))[1] if row.state == JobState.QUEUED else views.UNKNOWN
        return waiting_view(row, known)

    async def attempts(self, job_id: JobId) -> list[Document]:
        """The attempts of a job, oldest first."""
        return [views.attempt_view(row) for row in await queries.attempts(self._pool, self._cluster, job_id)]

    async def jobs(self, wanted: JobFilter, cursor: str | None, limit: int) -> Document:
        """Jobs, newest first."""
        page, now = (
            await _paged(queries.jobs(self._pool, self._cluster, wanted, cursor=cursor, limit=limit)),
            self._now(),
        )
        return {"jobs": [views.job_view(row, known=Known(now=now)) for row in page.items], "cursor": page.cursor}

    async def queue(self, cursor: str | None, limit: int) -> Document:
        """The queue in its order, without the held jobs."""
        try:
            offset = decode_cursor(cursor) if cursor else 0
        except BadCursor:
            raise bad_cursor() from None
        found = await queries.queue(self._pool, self._cluster, offset=min(offset, 10**9), limit=limit)
        length = await queries.queue_length(self._pool, self._cluster)
        more = encode_cursor(offset + limit) if offset + limit < length else None
        now = self._now()
        listed = [
            views.job_view(each.job, None, _ahead(each), Known(ahead_of_type=each.ahead_of_type, now=now))
            for each in found
        ]
        return {"queue": listed, "length": length, "cursor": more}

    async def checkpoints(self, job_id: JobId) -> list[Document]:
        """Accepted checkpoints of a job, in the order of their acceptance."""
        found = await queries.checkpoints(self._pool, self._cluster, job_id)
        return [
            {
                "seq": row.seq,
                "at": format_time(row.at),
                "attempt": row.attempt,
                "sequence": row.sequence,
                "uri": row.uri,
                "size_bytes": row.size_bytes,
                "step": row.step,
            }
            for row in found
        ]

    async def nodes(self, block: str | None, states: tuple[str, ...], cursor: str | None, limit: int) -> Document:
        """Nodes by id."""
        found = await queries.nodes(self._pool, self._cluster, block=block, states=states)
        try:
            offset = decode_cursor(cursor) if cursor else 0
        except BadCursor:
            raise bad_cursor() from None
        more = encode_cursor(offset + limit) if offset + limit < len(found) else None
        return {"nodes": [views.node_view(use) for use in found[offset : offset + limit]], "cursor": more}

    async def node(self, node_id: NodeId) -> Document | None:
        """One node, slot by slot."""
        use = await queries.node(self._pool, self._cluster, node_id)
        return {**views.node_view(use), "gpus": views.slots_view(use)} if use else None

    async def quota(self, team: TeamId) -> Document:
        """Quota and use by GPU type; empty where the team has neither."""
        found = await queries.quotas(self._pool, self._cluster, team=team)
        return {use.gpu_type: views.quota_view(use) for use in found}

    async def shares(self, team: TeamId | None) -> Document | None:
        """How the teams stand, or one of them; None where the state is not known yet."""
        if self._mirror is None:
            return None
        found = await self._mirror.standings(team, Instant(self._now()), SHARES_WAIT_S)
        if found is None:
            return None
        seq, listed = found
        return {"seq": seq, "shares": [views.standing_view(standing) for standing in listed]}

    async def cluster(self) -> Document:
        """Leader, fleet, queue and how far the projection is."""
        now = await queries.cluster_now(self._pool, self._cluster)
        fleet = await queries.capacity(self._pool, self._cluster)
        at = await queries.position(self._pool, self._cluster)
        return {
            "cluster": self._cluster,
            "leader": views.leader_view(now) if now else None,
            "gpu_types": {each.gpu_type: asdict(each) for each in fleet},
            "queue_length": await queries.queue_length(self._pool, self._cluster),
            "seq": at.seq if at else 0,
            "at": format_time(at.at) if at else None,
        }

    async def gpu_types(self) -> list[str]:
        """Types of which a node is registered."""
        return [each.gpu_type for each in await queries.capacity(self._pool, self._cluster)]

    async def policy(self, version: int | None) -> Document | None:
        """The policy in force, or that version of it, and all there were, newest first; None for an unknown version."""
        rows = await queries.policies(self._pool, self._cluster, limit=1000)
        return views.policy_view(rows, version)

    async def job_events(self, job_id: JobId, cursor: str | None, limit: int) -> Document:
        """What happened to a job, from the start."""
        page = await _paged(audit.job_timeline(self._pool, self._cluster, job_id, cursor=cursor, limit=limit))
        return {"events": [views.event_view(row) for row in page.items], "cursor": page.cursor}

    async def audit(self, wanted: audit.AuditFilter, cursor: str | None, limit: int) -> Document:
        """Events that meet the conditions, newest first."""
        page = await _paged(audit.audit(self._pool, self._cluster, wanted, cursor=cursor, limit=limit))
        return {"events": [views.event_view(row) for row in page.items], "cursor": page.cursor}

    async def events(self, after: int, until: int, wanted: Filter, limit: int) -> Sequence[FeedEvent] | None:
        """As feed.History.events: place and rows of one snapshot, since a rebuild may be under way."""
        narrowed = audit.AuditFilter(job_id=wanted.job_id, team=wanted.team, types=tuple(sorted(wanted.types)))
        try:
            async with (
                self._pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                if (await load_head(connection, self._cluster)).seq < until:
                    return None
                rows = await audit.events_after(connection, self._cluster, after, narrowed, until=until, limit=limit)
        except _TROUBLE:
            return None
        return [
            FeedEvent(row.seq, row.type, row.job_id, row.team, orjson.dumps(views.event_document(row))) for row in rows
        ]


def _ahead(queued: queries.Queued) -> int | None:
    """Jobs before it; None for an array that waits for its own elements."""
    return queued.position - 1 if is_in_queue(queued.job) else None


async def _paged(asked: Any) -> Page[Any]:
    try:
        found: Page[Any] = await asked
    except BadCursor:
        raise bad_cursor() from None
    return found


def bad_cursor() -> Problem:
    """The problem of a cursor that was not given out here."""
    error = FieldError("cursor", None, "a cursor of an earlier answer", "is not a cursor that was given out")
    return Problem("invalid", "cursor: is not a cursor that was given out", errors=[error])
