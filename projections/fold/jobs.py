"""What the facts about jobs make of read.jobs. The states are those of commands.evolve.jobs, by its rules."""

from dataclasses import replace
from typing import Any

import orjson

from events.checkpoint import CheckpointRecorded
from events.job import (
    CLASS_RANK,
    JobCancelRequested,
    JobDependencyEnded,
    JobElementMade,
    JobExtended,
    JobFinished,
    JobHeld,
    JobLabelsChanged,
    JobPriorityChanged,
    JobQueued,
    JobRejected,
    JobReleased,
    JobState,
    JobSubmitted,
    QueueReason,
)
from projections.fold.moment import Moment, Rule
from projections.rows import AttemptRow, CheckpointRow, JobRow
from projections.store import ENDED_STATES, Rows


def job_row(rows: Rows, when: Moment, job_id: str) -> JobRow:
    """The job's row, to be changed by the event at `when`."""
    row = rows.change(JobRow, job_id)
    row.changed_at, row.changed_seq = when.at, when.seq
    return row


def _new(rows: Rows, when: Moment, event: JobSubmitted | JobRejected, state: JobState) -> JobRow:
    spec = event.spec
    row = JobRow(
        cluster=rows.cluster,
        job_id=event.job_id,
        team=spec.team,
        principal=event.principal,
        name=spec.name,
        labels=dict(spec.labels),
        spec=orjson.loads(orjson.dumps(spec)),
        gpu_type=spec.gpu_type,
        gpus=spec.gpus,
        priority_class=spec.priority_class.value,
        state=state.value,
        submitted_at=when.at,
        submit_seq=when.seq,
        class_rank=CLASS_RANK[spec.priority_class],
        max_runtime_s=spec.max_runtime_s,
        made_seq=when.seq,
        changed_at=when.at,
        changed_seq=when.seq,
    )
    rows.add(row)
    return row


def submitted(rows: Rows, when: Moment, event: JobSubmitted) -> None:
    _new(rows, when, event, JobState.SUBMITTED)


def rejected(rows: Rows, when: Moment, event: JobRejected) -> None:
    row = _new(rows, when, event, JobState.REJECTED)
    row.ended_at = when.at
    row.rejected_code, row.rejected_field = event.code, event.field
    row.rejected_value, row.rejected_limit = event.value, event.limit


def queued(rows: Rows, when: Moment, event: JobQueued) -> None:
    """The job waits for `attempt`, even while an older one still ends; from here on that one is the older."""
    row = job_row(rows, when, event.job_id)
    if row.state in ENDED_STATES:
        return
    row.state, row.attempt = JobState.QUEUED.value, event.attempt
    row.queued_at, row.queue_reason = when.at, event.reason.value
    row.front, row.not_before_at, row.waits_on = event.front, event.not_before_at, list(event.waits_on)
    row.granted_at = row.started_at = row.limit_at = None
    row.faults += event.reason in (QueueReason.FAULT, QueueReason.START_FAILED)
    row.retried += event.reason is QueueReason.RETRY
    row.preemptions += event.reason is QueueReason.PREEMPTED


def held(rows: Rows, when: Moment, event: JobHeld) -> None:
    job_row(rows, when, event.job_id).held = True


def released(rows: Rows, when: Moment, event: JobReleased) -> None:
    job_row(rows, when, event.job_id).held = False


def priority_changed(rows: Rows, when: Moment, event: JobPriorityChanged) -> None:
    row = job_row(rows, when, event.job_id)
    row.priority_class, row.class_rank = event.priority_class.value, CLASS_RANK[event.priority_class]


def labels_changed(rows: Rows, when: Moment, event: JobLabelsChanged) -> None:
    job_row(rows, when, event.job_id).labels = dict(event.labels)


def extended(rows: Rows, when: Moment, event: JobExtended) -> None:
    """The newest attempt's limit moves with the job's."""
    row = job_row(rows, when, event.job_id)
    before, row.max_runtime_s = row.max_runtime_s, event.max_runtime_s
    attempt = rows.find(AttemptRow, event.job_id, row.attempt)
    if attempt is None or attempt.released_at is not None or attempt.limit_at is None or before is None:
        return
    attempt = rows.change(AttemptRow, event.job_id, row.attempt)
    attempt.limit_at = row.limit_at = (attempt.limit_at or 0) + (event.max_runtime_s - before) * 1000


def cancel_requested(rows: Rows, when: Moment, event: JobCancelRequested) -> None:
    row = job_row(rows, when, event.job_id)
    row.cancel_requested_at = row.cancel_requested_at or when.at
    if row.elements_open:
        row.state = JobState.CANCELLING.value
    if (array := _array_of(rows, when, row)) is not None:
        array.elements_cancelled += 1


def finished(rows: Rows, when: Moment, event: JobFinished) -> None:
    """An end is written once (R-3): the first holds."""
    row = job_row(rows, when, event.job_id)
    if row.state in ENDED_STATES:
        return
    row.state, row.ended_at = event.state.value, when.at
    row.end_reason, row.exit_code, row.waits_on = event.reason.value, event.exit_code, []
    if (array := _array_of(rows, when, row)) is not None:
        array.elements_open -= 1
        array.elements_cancelled -= row.cancel_requested_at is not None
        array.elements_succeeded += event.state is JobState.SUCCEEDED


def dependency_ended(rows: Rows, when: Moment, event: JobDependencyEnded) -> None:
    row = job_row(rows, when, event.job_id)
    row.waits_on = [job_id for job_id in row.waits_on if job_id != event.on]


def element_made(rows: Rows, when: Moment, event: JobElementMade) -> None:
    """A row of its own, with what the array's has; the array is shown as running once no element waits any more."""
    array = job_row(rows, when, event.array)
    element = replace(
        array,
        job_id=event.job_id,
        labels=dict(array.labels),
        spec={**array.spec, "array": None, "depends_on": []},
        made_seq=when.seq,
        element_of=event.array,
        element=event.index,
        elements_made=0,
        elements_open=0,
        elements_cancelled=0,
        elements_succeeded=0,
        reservation=None,
        pledge=None,
    )
    rows.add(element)
    array.elements_made, array.elements_open = array.elements_made + 1, array.elements_open + 1
    if array.elements_made > array.spec["array"]["last"] - array.spec["array"]["first"]:
        array.state = JobState.RUNNING.value


def _array_of(rows: Rows, when: Moment, row: JobRow) -> JobRow | None:
    """The array that the job is an element of, to be changed."""
    return job_row(rows, when, row.element_of) if row.element_of is not None else None


def checkpoint_recorded(rows: Rows, when: Moment, event: CheckpointRecorded) -> None:
    """The resume point is the highest sequence of any attempt (R-50); a new one is progress (R-6)."""
    row = job_row(rows, when, event.job_id)
    rows.put(
        CheckpointRow(
            cluster=rows.cluster,
            seq=when.seq,
            job_id=event.job_id,
            attempt=event.attempt,
            node_index=event.node,
            sequence=event.sequence,
            uri=event.uri,
            size_bytes=event.size_bytes,
            step=event.step,
            at=when.at,
        )
    )
    if row.checkpoint_sequence is not None and event.sequence < row.checkpoint_sequence:
        return
    row.faults = 0
    row.checkpoint_sequence, row.checkpoint_uri, row.checkpoint_step = event.sequence, event.uri, event.step
    row.checkpoint_attempt, row.checkpoint_at = event.attempt, when.at


RULES: dict[type[Any], Rule] = {
    JobSubmitted: submitted,
    JobRejected: rejected,
    JobQueued: queued,
    JobHeld: held,
    JobReleased: released,
    JobPriorityChanged: priority_changed,
    JobLabelsChanged: labels_changed,
    JobExtended: extended,
    JobCancelRequested: cancel_requested,
    JobFinished: finished,
    JobDependencyEnded: dependency_ended,
    JobElementMade: element_made,
    CheckpointRecorded: checkpoint_recorded,
}
