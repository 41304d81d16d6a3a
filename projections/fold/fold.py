"""Fold records into rows: dispatch by event type, and what has to be at hand before.

Every event gets its row in read.timeline; those of RULES change other rows too. A type that is neither in RULES nor
in ROWS_UNCHANGED stops the projection: it is never passed over.
"""

from collections.abc import Iterable
from typing import Any

from events.checkpoint import CheckpointRefused
from events.envelope import Commit, Genesis, Record, Term
from events.ids import array_named
from events.job import JobExtended
from events.leadership import (
    CommandDone,
    CommandRefused,
    CommandRepeated,
    CommandUnreadable,
    InputRefused,
    LeaderElected,
    LogRestored,
)
from events.node import NodeWiped
from events.preemption import PreemptionOrdered
from events.task import ReportDropped, ZombieReclaimed
from projections.fold import cluster, gangs, jobs, nodes, rooms, timeline
from projections.fold.moment import Moment, Rule
from projections.rows import AttemptRow, ClusterRow, JobRow, LeaderRow, LeaseRow, NodeRow, Row
from projections.store import Rows, Unprojectable, Want

RULES: dict[type[Any], Rule] = {**jobs.RULES, **gangs.RULES, **nodes.RULES, **cluster.RULES, **rooms.RULES}

ROWS_UNCHANGED: frozenset[type[Any]] = frozenset(
    {
        CheckpointRefused,
        CommandDone,
        CommandRefused,
        CommandRepeated,
        CommandUnreadable,
        InputRefused,
        LogRestored,
        NodeWiped,  # what it frees, LeaseReleased says
        ReportDropped,
        ZombieReclaimed,
    }
)
"""Event types that are on the timeline, and nowhere else."""


WHOLE: tuple[type[Row], ...] = (ClusterRow, NodeRow)
"""Tables of which every row has to be at hand: any record may ask for any of them."""


def fold(rows: Rows, record: Record) -> None:
    """Change the rows by one accepted record. Raises Unprojectable; the rows are then of no use any more."""
    match record:
        case Genesis():
            cluster.begun(rows, record)
        case Term():
            cluster.term_begun(rows, record)
        case Commit():
            for seq, event in enumerate(record.events, record.seq):
                _fold_event(rows, Moment(record, seq), event)
            cluster.input_taken(rows, record)


def _fold_event(rows: Rows, when: Moment, event: Any) -> None:
    rule = RULES.get(type(event))
    try:
        if rule is not None:
            rule(rows, when, event)
        elif type(event) not in ROWS_UNCHANGED:
            raise Unprojectable("no rule for this type of event")
        timeline.record(rows, when, event)
    except Unprojectable as error:
        raise Unprojectable(f"seq {when.seq}, {type(event).__name__}: {error}") from None


def wanted(records: Iterable[Record]) -> set[Want]:
    """The rows that folding `records` will ask for, beside WHOLE tables and `wanted_attempts`."""
    wants: set[Want] = set()
    for record in records:
        if isinstance(record, Commit):
            for event in record.events:
                _want(wants, record, event)
    return wants


def _want(wants: set[Want], commit: Commit, event: Any) -> None:
    if (job_id := timeline.job_named(commit, event)) is not None:
        wants.add((JobRow, (job_id,)))
        if (attempt := getattr(event, "attempt", None)) is not None:
            wants.add((AttemptRow, (job_id, attempt)))
            if (rank := getattr(event, "rank", None)) is not None:
                wants.add((LeaseRow, (job_id, attempt, rank)))
        if (array := array_named(job_id)) is not None:
            wants.add((JobRow, (array,)))
    if isinstance(event, PreemptionOrdered):
        wants |= {(JobRow, (victim,)) for victim, _ in event.victims}
        wants |= {(AttemptRow, key) for key in event.victims}
    if isinstance(event, LeaderElected):
        wants.add((LeaderRow, (event.epoch,)))


def wanted_attempts(rows: Rows, records: Iterable[Record]) -> set[Want]:
    """The rest of `wanted`, once the jobs are loaded: attempts that only their job's row names."""
    wants: set[Want] = set()
    for record in records:
        for event in record.events if isinstance(record, Commit) else ():
            if isinstance(event, JobExtended) and (job := rows.find(JobRow, event.job_id)) is not None:
                wants.add((AttemptRow, (job.job_id, job.attempt)))
    return wants
