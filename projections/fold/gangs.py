"""What the facts about gangs, leases and tasks make of read.attempts and read.leases, and so of their job.

What happens to an older attempt never changes the job's state.
"""

from typing import Any

from events.gang import GangAllocated, GangEnding, GangReleased, GangResized, GangRunning, LeaseReleased
from events.job import EndReason, JobState
from events.task import TaskEnded, TaskStarted
from projections.fold.jobs import job_row
from projections.fold.moment import Moment, Rule, slots_of
from projections.rows import AttemptRow, JobRow, LeaseRow, NodeRow
from projections.store import ENDED_STATES, Rows, Unprojectable

_ENDING_STATES = {EndReason.CANCELLED: JobState.CANCELLING, EndReason.PREEMPTED: JobState.PREEMPTING}


def allocated(rows: Rows, when: Moment, event: GangAllocated) -> None:
    job = rows.change(JobRow, event.job_id)
    leases = [_lease(rows, when, job, event, rank, placed) for rank, placed in enumerate(event.ranks)]
    for lease in leases:
        rows.put(lease)  # new because the attempt is
    rows.add(
        AttemptRow(
            cluster=rows.cluster,
            job_id=event.job_id,
            attempt=event.attempt,
            team=job.team,
            queued_at=job.queued_at,
            granted_at=when.at,
            granted_seq=when.seq,
            granted_n=when.commit.n,
            granted_epoch=when.commit.epoch,
            cycle=when.commit.cycle,
            limit_at=event.limit_at,
            fallback=event.fallback,
            ranks=len(leases),
            gpus=sum(lease.gpu_count for lease in leases),
            nodes=sorted({lease.node_id for lease in leases}),
            blocks=sorted({lease.block for lease in leases}),
        )
    )
    if event.attempt < job.attempt or job.state in ENDED_STATES:
        return
    job = job_row(rows, when, event.job_id)
    job.state, job.attempt = JobState.STARTING.value, event.attempt
    job.granted_at, job.started_at, job.limit_at = when.at, None, event.limit_at
    job.front, job.not_before_at = False, None


def _lease(
    rows: Rows, when: Moment, job: JobRow, event: GangAllocated | GangResized, rank: int, placed: tuple[int, int]
) -> LeaseRow:
    index, mask = placed
    node = rows.find(NodeRow, index)
    if node is None:
        raise Unprojectable(f"job {event.job_id} was granted GPUs of node {index}, which never registered")
    gpus = slots_of(mask)
    return LeaseRow(
        cluster=rows.cluster,
        job_id=event.job_id,
        attempt=event.attempt,
        rank=rank,
        node_index=index,
        node_id=node.node_id,
        generation=node.generation,
        block=node.block,
        team=job.team,
        gpu_type=node.gpu_type,
        gpus=gpus,
        gpu_count=len(gpus),
        granted_at=when.at,
        granted_seq=when.seq,
    )


def resized(rows: Rows, when: Moment, event: GangResized) -> None:
    """`ranks`: all there ever were, as they are numbered; what is stopped ends by events of its own."""
    if not event.grown:
        return
    attempt, job = rows.change(AttemptRow, event.job_id, event.attempt), rows.change(JobRow, event.job_id)
    for rank, placed in enumerate(event.grown, attempt.ranks):
        lease = _lease(rows, when, job, event, rank, placed)
        rows.put(lease)  # new because its number is
        attempt.gpus += lease.gpu_count
        attempt.nodes = sorted({*attempt.nodes, lease.node_id})
        attempt.blocks = sorted({*attempt.blocks, lease.block})
    attempt.ranks += len(event.grown)


def running(rows: Rows, when: Moment, event: GangRunning) -> None:
    rows.change(AttemptRow, event.job_id, event.attempt).running_at = when.at
    job = rows.change(JobRow, event.job_id)
    if job.attempt == event.attempt and job.state == JobState.STARTING:
        job = job_row(rows, when, event.job_id)
        job.state, job.started_at = JobState.RUNNING.value, when.at


def ending(rows: Rows, when: Moment, event: GangEnding) -> None:
    attempt = rows.change(AttemptRow, event.job_id, event.attempt)
    attempt.ending_at, attempt.ending_reason, attempt.grace_s = when.at, event.reason.value, event.grace_s
    shown = _ENDING_STATES.get(event.reason)
    job = rows.change(JobRow, event.job_id)
    if shown is not None and job.attempt == event.attempt and job.state not in ENDED_STATES:
        job_row(rows, when, event.job_id).state = shown.value


def released(rows: Rows, when: Moment, event: GangReleased) -> None:
    rows.change(AttemptRow, event.job_id, event.attempt).released_at = when.at


def lease_released(rows: Rows, when: Moment, event: LeaseReleased) -> None:
    lease = rows.change(LeaseRow, event.job_id, event.attempt, event.rank)
    if lease.ended_at is None:
        lease.phase, lease.ended_at, lease.end_how = "ended", when.at, event.by.value


def task_started(rows: Rows, when: Moment, event: TaskStarted) -> None:
    lease = rows.change(LeaseRow, event.job_id, event.attempt, event.rank)
    lease.started_at = when.at
    if lease.ended_at is None:
        lease.phase = "running"


def task_ended(rows: Rows, when: Moment, event: TaskEnded) -> None:
    lease = rows.change(LeaseRow, event.job_id, event.attempt, event.rank)
    if lease.ended_at is not None:
        return
    lease.phase, lease.ended_at, lease.end_how = "ended", when.at, event.end.value
    lease.exit_code, lease.finished, lease.detail = event.exit_code, event.finished, event.detail
    attempt = rows.change(AttemptRow, event.job_id, event.attempt)
    if attempt.exit_code is None and event.exit_code:
        attempt.exit_code, attempt.failed_rank = event.exit_code, event.rank


RULES: dict[type[Any], Rule] = {
    GangAllocated: allocated,
    GangResized: resized,
    GangRunning: running,
    GangEnding: ending,
    GangReleased: released,
    LeaseReleased: lease_released,
    TaskStarted: task_started,
    TaskEnded: task_ended,
}
