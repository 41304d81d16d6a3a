"""What agents say: registrations and reports, as facts. Late, doubled and impossible ones change nothing (C-42)."""

from collections.abc import Sequence
from typing import assert_never

from commands.decide.attempts import Draft, settle
from commands.decide.elastic import lose_ranks
from commands.decide.following import follow
from commands.decide.register import all_owned, register
from commands.entities import Attempt, Node, RankPhase
from commands.reports import (
    CheckpointReport,
    FromNode,
    Register,
    Report,
    TaskEndedReport,
    TaskStartedReport,
    ZombieReport,
)
from commands.rows import maker
from events.checkpoint import CheckpointRecorded, CheckpointRefused
from events.gang import GangRunning
from events.ids import LeaseId, NodeId, NodeIndex, parse_lease_id
from events.job import ENDS, EndReason
from events.node import NodesConfirmed
from events.task import ReportDropped, TaskEnd, TaskEnded, TaskStarted, ZombieReclaimed

END_REASONS = {
    TaskEnd.EXITED: EndReason.NONZERO_EXIT,
    TaskEnd.STOPPED: EndReason.LEASE_MISSING,
    TaskEnd.TIMED_OUT: EndReason.TIMED_OUT,
    TaskEnd.START_FAILED: EndReason.START_FAILED,
    TaskEnd.NEVER_STARTED: EndReason.LEASE_MISSING,
    TaskEnd.LOST: EndReason.LEASE_MISSING,
}
"""Why an attempt fails when a rank ends so while the attempt was to run."""
_running, _recorded = maker(GangRunning), maker(CheckpointRecorded)
_task_started, _task_ended = maker(TaskStarted), maker(TaskEnded)


def decide_messages(draft: Draft, batch: Sequence[FromNode]) -> dict[NodeId, str]:
    """Facts from a batch of messages, one after the other, and which nodes are confirmed with it (P-16): those that
    registered, of whose reports none is outstanding, and on which nothing runs that no lease covers (R-65). Returns
    the registrations that were refused, with why."""
    refused: dict[NodeId, str] = {}
    registered: dict[NodeIndex, int] = {}
    for said in batch:
        why = _decide_message(draft, said)
        if why is not None:
            refused[said.node_id] = why
        elif isinstance(said.message, Register):
            node = draft.state.node_by_id(said.node_id)
            if node is not None and all_owned(draft.state, node, said.message):
                registered[node.index] = said.message.last_report
    nodes, epoch = draft.state.nodes, draft.state.meta.epoch
    confirmed = tuple(
        index
        for index, written in registered.items()
        if nodes[index].confirmed != epoch and nodes[index].last_report >= written
    )
    if confirmed:
        draft.add(NodesConfirmed(nodes=confirmed))
    return refused


def _decide_message(draft: Draft, said: FromNode) -> str | None:
    """Facts from one message. Why a registration was refused, else None."""
    node, why = draft.state.node_by_id(said.node_id), None
    if isinstance(said.message, Register):
        why = register(draft, said.message, said.other_live)
    elif node is not None and said.message.number > node.last_report:
        report(draft, node, said.message)
    if why is None:
        follow(draft)
    return why


def report(draft: Draft, node: Node, said: Report) -> None:
    """One report, not taken before."""
    if isinstance(said, ZombieReport):
        draft.add(ZombieReclaimed(node=node.index, report=said.number, gpu=said.gpu, pid=said.pid))
        return
    found = _find(draft, node, said.lease_id)
    if isinstance(found, str):
        draft.add(ReportDropped(node=node.index, report=said.number, reason=found))
        return
    attempt, rank = found
    match said:
        case TaskStartedReport():
            _started(draft, node, said, attempt, rank)
        case TaskEndedReport():
            _ended(draft, node, said, attempt, rank)
        case CheckpointReport():
            _checkpoint(draft, node, said, attempt)
        case _:
            assert_never(said)


def _find(draft: Draft, node: Node, lease: LeaseId) -> tuple[Attempt, int] | str:
    """The live lease that a report is about, held by this very node; else why there is none."""
    try:
        job_id, number, rank = parse_lease_id(lease)
    except ValueError:
        return "not_a_lease"
    attempt = draft.state.attempts.get((job_id, number))
    if attempt is None or not 0 <= rank < len(attempt.ranks):
        return "lease_unknown_or_ended"
    if attempt.ranks[rank][0] != node.index:
        return "lease_of_another_node"
    return (attempt, rank) if attempt.live(rank) else "lease_ended"


def _started(draft: Draft, node: Node, said: TaskStartedReport, attempt: Attempt, rank: int) -> None:
    if attempt.phases[rank] != RankPhase.GRANTED:
        draft.add(ReportDropped(node=node.index, report=said.number, reason="started_before"))
        return
    draft.add(
        _task_started(job_id=attempt.job_id, attempt=attempt.number, rank=rank, node=node.index, report=said.number)
    )
    _check_running(draft, attempt)


def _check_running(draft: Draft, attempt: Attempt) -> None:
    now = draft.state.attempts.get(attempt.key)
    if now is None or now.running_at is not None or now.ending is not None:
        return
    if RankPhase.GRANTED not in now.phases and RankPhase.ENDED_BAD not in now.phases:
        draft.add(_running(job_id=now.job_id, attempt=now.number))


def _ended(draft: Draft, node: Node, said: TaskEndedReport, attempt: Attempt, rank: int) -> None:
    draft.add(
        _task_ended(
            job_id=attempt.job_id,
            attempt=attempt.number,
            rank=rank,
            node=node.index,
            report=said.number,
            end=said.end,
            exit_code=said.exit_code,
            finished=said.finished,
            detail=said.detail[:500],
        )
    )
    now = draft.state.attempts[attempt.key]
    if now.phases[rank] == RankPhase.ENDED_BAD:
        lose_ranks(draft, attempt.key, [rank], END_REASONS[said.end])
    else:
        _check_running(draft, attempt)
    settle(draft, attempt.key)


def _checkpoint(draft: Draft, node: Node, said: CheckpointReport, attempt: Attempt) -> None:
    """Accepted under a live lease of the newest attempt, if it is newer than what there is (R-50)."""
    job = draft.state.jobs[attempt.job_id]
    newest = job.checkpoint.sequence if job.checkpoint is not None else 0
    if job.attempt != attempt.number or job.state in ENDS:
        reason = "a_later_attempt_was_granted" if job.state not in ENDS else "job_ended"
    elif said.sequence <= newest:
        reason = f"sequence_not_above_{newest}"
    else:
        draft.add(
            _recorded(
                job_id=job.id,
                attempt=attempt.number,
                node=node.index,
                report=said.number,
                sequence=said.sequence,
                uri=said.uri[:1000],
                size_bytes=said.size_bytes,
                step=said.step,
            )
        )
        return
    draft.add(
        CheckpointRefused(
            job_id=job.id,
            attempt=attempt.number,
            node=node.index,
            report=said.number,
            sequence=said.sequence,
            reason=reason,
        )
    )
