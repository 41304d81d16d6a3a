"""Questions to read.timeline: a job's timeline, the audit (R-82), the event feed, and the answer to a command."""

from dataclasses import dataclass
from typing import Any

from projections.database import as_row
from projections.queries import select
from projections.rows import TimelineRow
from projections.where import Page, Where, cut, decode_cursor, page


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """All given ones have to hold. `gpu`: a slot, with `node_id`. `from_at` inclusive, `to_at` exclusive (ms). A type
    that ends in `.*` stands for its whole subject."""

    actor: str | None = None
    job_id: str | None = None
    node_id: str | None = None
    gpu: int | None = None
    team: str | None = None
    types: tuple[str, ...] = ()
    from_at: int | None = None
    to_at: int | None = None


EVERYTHING = AuditFilter()
SEQ_MAX = 2**63 - 1

# `at` never goes back, so that a span of time is a span of seqs: one look-up instead of a scan.
_FIRST_SINCE = (
    "coalesce((SELECT t.seq FROM read.timeline t WHERE t.cluster = $1 AND t.at >= {} ORDER BY t.at, t.seq LIMIT 1),"
    f" {SEQ_MAX})"
)


async def audit(
    db: Any, cluster: str, wanted: AuditFilter, *, cursor: str | None = None, limit: int = 100
) -> Page[TimelineRow]:
    """Events, the newest first. Raises BadCursor."""
    where = _where(cluster, wanted)
    if cursor is not None:
        where.add("seq < {}", decode_cursor(cursor))
    size = cut(limit)
    return page(await _events(db, where, f"ORDER BY seq DESC LIMIT {size + 1}"), size, "seq")


async def events_after(
    db: Any, cluster: str, after: int, wanted: AuditFilter = EVERYTHING, *, until: int = SEQ_MAX, limit: int = 1000
) -> list[TimelineRow]:
    """The next events with after < seq <= `until`, in order: the feed. Fewer than `limit`: there are no more now. So
    the limit is taken as it is, and not cut to that of a page: who follows would take the rest for read."""
    where = _where(cluster, wanted)
    where.add("seq > {} AND seq <= {}", after, until)
    return await _events(db, where, f"ORDER BY seq LIMIT {limit}")


async def job_timeline(
    db: Any, cluster: str, job_id: str, *, cursor: str | None = None, limit: int = 100
) -> Page[TimelineRow]:
    """What happened to a job, from the start. Raises BadCursor."""
    size = cut(limit)
    after = 0 if cursor is None else decode_cursor(cursor)
    where = _where(cluster, AuditFilter(job_id=job_id))
    where.add("seq > {}", after)
    return page(await _events(db, where, f"ORDER BY seq LIMIT {size + 1}"), size, "seq")


async def answer(db: Any, cluster: str, command_id: str) -> list[TimelineRow]:
    """The events that answer a command; empty: it was not taken yet, as far as the tables are."""
    where = Where(cluster)
    where.add("input_kind = 'command' AND input_id = {}", command_id)
    return await _events(db, where, "ORDER BY seq")


def _where(cluster: str, wanted: AuditFilter) -> Where:
    where = Where(cluster)
    for column in ("actor", "job_id", "team"):
        if (value := getattr(wanted, column)) is not None:
            where.add(f"{column} = {{}}", value)
    if wanted.types:
        _of_types(where, list(wanted.types))
    if wanted.from_at is not None:
        where.add(f"seq >= {_FIRST_SINCE}", wanted.from_at)
    if wanted.to_at is not None:
        where.add(f"seq < {_FIRST_SINCE}", wanted.to_at)
    if wanted.node_id is not None:
        _about_node(where, wanted.node_id, wanted.gpu)
    return where


def _of_types(where: Where, names: list[str]) -> None:
    """Whole subjects are a scan: where none is asked for the index on the type serves."""
    if any(name.endswith(".*") for name in names):
        where.add("(type = ANY({}::text[]) OR split_part(type, '.', 1) || '.*' = ANY({}::text[]))", names, names)
    else:
        where.add("type = ANY({})", names)


def _about_node(where: Where, node_id: str, gpu: int | None) -> None:
    """Events of the node and, since a gang's many nodes are in its leases, the grants that took GPUs of it.

    An event of the whole node concerns each of its GPUs.
    """
    node = where.arg(node_id)
    own, lease = f"t.node_id = {node}", f"l.node_id = {node}"
    if gpu is not None:
        slot = where.arg(gpu)
        own += f" AND (t.gpus IS NULL OR {slot} = ANY(t.gpus))"
        lease += f" AND {slot} = ANY(l.gpus)"
    # As one list of seqs, each part by its own index; with OR the whole timeline would be walked.
    where.add(
        f"seq = ANY(ARRAY(SELECT t.seq FROM read.timeline t WHERE t.cluster = $1 AND {own}"
        f" UNION SELECT l.granted_seq FROM read.leases l WHERE l.cluster = $1 AND {lease}))"
    )


async def _events(db: Any, where: Where, rest: str) -> list[TimelineRow]:
    return [as_row(TimelineRow, record) for record in await db.fetch(select(TimelineRow, where, rest), *where.args)]
