"""One row of read.timeline for each event: what it says, and what it is about, for timelines, audit and the feed."""

from typing import Any

from events import catalogue
from events.envelope import Commit, Event
from events.ids import NodeIndex
from projections.fold.moment import Moment, slots_of
from projections.rows import JobRow, LeaseRow, NodeRow, TimelineRow
from projections.store import Rows


def record(rows: Rows, when: Moment, event: Event) -> None:
    """Note the event; called after its rule, so that the rows it is about are there."""
    entry = catalogue.entry_of(type(event))
    commit = when.commit
    job_id = job_named(commit, event)
    node_id, gpus = _place(rows, commit, event)
    rows.put(
        TimelineRow(
            cluster=rows.cluster,
            seq=when.seq,
            at=when.at,
            n=commit.n,
            type=entry.name,
            v=entry.version,
            job_id=job_id,
            attempt=getattr(event, "attempt", None),
            node_id=node_id,
            gpus=gpus,
            team=_team(rows, commit, event, job_id),
            actor=commit.actor,
            cause=commit.cause,
            input_kind=commit.input.kind,
            input_id=commit.input.id,
            body=event,
        )
    )


def job_named(commit: Commit, event: Event) -> str | None:
    """The job that the event is about: named by it or, in answers that change nothing, by the command."""
    if (job_id := getattr(event, "job_id", None)) is not None:
        return job_id or None
    return _asked(commit, "job_id") if _answers(event) else None


def _answers(event: Event) -> bool:
    return catalogue.entry_of(type(event)).name.startswith(("command.", "input."))


def _asked(commit: Commit, name: str) -> str | None:
    """A field of the command that the commit answers (CommandRecord, as the commit's input keeps it)."""
    body = commit.input.body
    command = body.get("command") if isinstance(body, dict) else None
    value = command.get(name) if isinstance(command, dict) else None
    return value if isinstance(value, str) and value else None


def _team(rows: Rows, commit: Commit, event: Event, job_id: str | None) -> str | None:
    team: str | None = getattr(event, "team", None)
    if team is not None:
        return team
    if job_id is not None and (job := rows.find(JobRow, job_id)) is not None:
        return job.team
    return _asked(commit, "team") if _answers(event) else None


def _place(rows: Rows, commit: Commit, event: Event) -> tuple[str | None, list[int] | None]:
    """The one node, and its GPUs, that the event is about. A gang's many are in read.leases, under its seq."""
    rank = getattr(event, "rank", None)
    if rank is not None and (lease := rows.find(LeaseRow, event.job_id, event.attempt, rank)) is not None:
        return lease.node_id, lease.gpus
    mask, gpu = getattr(event, "mask", None), getattr(event, "gpu", None)
    gpus = slots_of(mask) if mask is not None else None if gpu is None else [gpu]
    if (named := getattr(event, "node_id", None)) is not None:
        return named, gpus
    index: NodeIndex | Any = getattr(event, "node", None)
    if index is not None:
        node = rows.find(NodeRow, index)
        return (None if node is None else node.node_id), gpus
    return (_asked(commit, "node_id") if _answers(event) else None), gpus
