"""What each event makes of a job, its attempts and its leases."""

from __future__ import annotations

from typing import Any

import pytest

from events import catalogue
from events.checkpoint import CheckpointRecorded
from events.gang import GangEnding, GangReleased, GangRunning, LeaseReleased, ReleasedBy
from events.ids import JobId, NodeIndex
from events.job import (
    EndReason,
    JobCancelRequested,
    JobExtended,
    JobFinished,
    JobHeld,
    JobLabelsChanged,
    JobPriorityChanged,
    JobRejected,
    JobReleased,
    JobState,
    JobSubmitted,
    PriorityClass,
    QueueReason,
)
from events.task import TaskEnd, TaskEnded, TaskStarted
from projections.fold import ROWS_UNCHANGED, RULES
from projections.rows import AttemptRow, CheckpointRow, JobRow, LeaseRow, TimelineRow
from projections.store import Unprojectable
from tests.projections.story import ADA, T0, Story, job_spec, queued


@pytest.fixture
async def story() -> Story:
    """Two nodes of eight GPUs, and a job `j_a` that waits."""
    made = await Story().begun()
    await made.node(0)
    await made.node(1)
    await made.job("a", replicas=2, gpus_per_replica=4, labels={"run": "a"}, name="llm")
    return made


A = JobId("j_a")


def started(rank: int, attempt: int = 1) -> TaskStarted:
    return TaskStarted(job_id=A, attempt=attempt, rank=rank, node=NodeIndex(rank), report=1)


def ended(rank: int, code: int | None = 0, attempt: int = 1) -> TaskEnded:
    return TaskEnded(
        job_id=A, attempt=attempt, rank=rank, node=NodeIndex(rank), report=2, end=TaskEnd.EXITED, exit_code=code
    )


def ending(reason: EndReason, attempt: int = 1) -> GangEnding:
    return GangEnding(job_id=A, attempt=attempt, reason=reason, grace_s=60)


def finished(state: JobState = JobState.SUCCEEDED, code: int | None = 0) -> JobFinished:
    return JobFinished(job_id=A, state=state, reason=EndReason.COMPLETED, exit_code=code)


def test_every_event_type_is_projected_or_listed_as_on_the_timeline_only() -> None:
    """No event type of the catalogue is forgotten, and none is both."""
    assert RULES.keys() | ROWS_UNCHANGED == {entry.cls for entry in catalogue.entries()}
    assert RULES.keys() & ROWS_UNCHANGED == set()


async def test_a_submitted_job_is_queued_with_all_that_was_asked_for(story: Story) -> None:
    """The row has the spec, who and when, its place in the queue, and no grant."""
    job = story.row(JobRow, A)
    assert (job.state, job.attempt, job.queue_reason, job.front) == ("QUEUED", 1, "submitted", False)
    assert (job.team, job.principal, job.name, job.labels) == ("research", "user:ada", "llm", {"run": "a"})
    assert (job.gpus, job.gpu_type, job.priority_class, job.class_rank) == (8, "h100", "research", 2)
    assert (job.submitted_at, job.submit_seq, job.queued_at) == (T0 + 3000, 3, T0 + 3000)
    assert job.spec["command"] == ["train"]
    assert (job.granted_at, job.started_at, job.ended_at) == (None, None, None)


async def test_a_rejected_job_has_ended_and_says_what_it_broke(story: Story) -> None:
    """REJECTED is an end, with field, value and limit."""
    spec = job_spec(gpus_per_replica=99)
    refusal = {"code": "over_node", "field": "gpus_per_replica", "value": "99", "limit": "8"}
    await story.commit(JobRejected(job_id=JobId("j_r"), spec=spec, principal=ADA, **refusal))
    job = story.row(JobRow, "j_r")
    assert (job.state, job.ended_at) == ("REJECTED", story.at)
    assert (job.rejected_code, job.rejected_field) == ("over_node", "gpus_per_replica")
    assert (job.rejected_value, job.rejected_limit) == ("99", "8")


async def test_a_job_starts_runs_and_succeeds(story: Story) -> None:
    """STARTING at the grant, RUNNING when every rank runs, then its end; leases and attempt follow."""
    await story.grant(A, 1, (0, 0b11110000), (1, 0b1111), limit_at=T0 + 4_000_000)
    job, lease = story.row(JobRow, A), story.row(LeaseRow, A, 1, 0)
    assert (job.state, job.granted_at, job.started_at, job.limit_at) == ("STARTING", story.at, None, T0 + 4_000_000)
    assert (lease.phase, lease.node_id, lease.gpus, lease.gpu_count) == ("granted", "n-0", [4, 5, 6, 7], 4)
    await story.commit(started(0))
    assert story.row(LeaseRow, A, 1, 0).phase == "running"
    assert story.row(JobRow, A).state == "STARTING"
    await story.commit(started(1), GangRunning(job_id=A, attempt=1))
    assert (story.row(JobRow, A).state, story.row(JobRow, A).started_at) == ("RUNNING", story.at)
    await story.commit(ended(0))
    assert story.row(AttemptRow, A, 1).released_at is None
    await story.commit(ended(1), GangReleased(job_id=A, attempt=1), finished())
    job, attempt, lease = story.row(JobRow, A), story.row(AttemptRow, A, 1), story.row(LeaseRow, A, 1, 1)
    assert (job.state, job.ended_at, job.end_reason, job.exit_code) == ("SUCCEEDED", story.at, "completed", 0)
    assert (attempt.nodes, attempt.blocks, attempt.gpus, attempt.ranks) == (["n-0", "n-1"], ["b0"], 8, 2)
    assert (attempt.released_at, attempt.exit_code) == (story.at, None)
    assert (lease.phase, lease.end_how, lease.exit_code, lease.ended_at) == ("ended", "exited", 0, story.at)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (EndReason.CANCELLED, "CANCELLING"),
        (EndReason.PREEMPTED, "PREEMPTING"),
        (EndReason.NODE_LOST, "STARTING"),
        (EndReason.TIMED_OUT, "STARTING"),
    ],
)
async def test_an_ending_attempt_shows_where_a_person_or_another_job_wanted_it(
    story: Story, reason: EndReason, state: str
) -> None:
    """Only cancelling and preempting are states of the job; other ends of its attempt leave the state as it is."""
    await story.grant(A, 1, (0, 15), (1, 15))
    await story.commit(JobCancelRequested(job_id=A), ending(reason))
    assert story.row(JobRow, A).state == state
    assert story.row(JobRow, A).cancel_requested_at == story.at
    assert story.row(AttemptRow, A, 1).ending_reason == reason.value


async def test_an_older_attempt_never_changes_the_state(story: Story) -> None:
    """The job waits again at once; what becomes of the old attempt shows there, not in the job."""
    await story.grant(A, 1, (0, 15), (1, 15))
    await story.commit(ending(EndReason.NODE_LOST), queued(A, 2, QueueReason.FAULT, front=True))
    job = story.row(JobRow, A)
    assert (job.state, job.attempt, job.front, job.faults, job.limit_at) == ("QUEUED", 2, True, 1, None)
    await story.commit(started(0), started(1), GangRunning(job_id=A, attempt=1), ending(EndReason.PREEMPTED))
    assert story.row(JobRow, A).state == "QUEUED"
    await story.grant(A, 2, (1, 0b11110000), (1, 0b1111))
    await story.commit(ending(EndReason.CANCELLED), ended(0, 137), GangReleased(job_id=A, attempt=1))
    assert (story.row(JobRow, A).state, story.row(JobRow, A).front) == ("STARTING", False)
    assert story.row(AttemptRow, A, 1).exit_code == 137


async def test_an_end_is_written_once(story: Story) -> None:
    """Whatever is said of the job afterwards, its end stays the first one."""
    await story.grant(A, 1, (0, 15), (1, 15))
    await story.commit(finished())
    before = story.row(JobRow, A)
    await story.commit(finished(JobState.FAILED, 1), ending(EndReason.CANCELLED), queued(A, 2))
    after = story.row(JobRow, A)
    assert (after.state, after.ended_at, after.exit_code) == ("SUCCEEDED", before.ended_at, 0)
    assert after.attempt == 1


async def test_preemptions_faults_and_retries_are_counted_apart(story: Story) -> None:
    """Each way back into the queue counts for itself, and a checkpoint forgives the faults."""
    await story.commit(queued(A, 2, QueueReason.PREEMPTED), queued(A, 3, QueueReason.FAULT))
    await story.commit(queued(A, 4, QueueReason.START_FAILED), queued(A, 5, QueueReason.RETRY, not_before_at=T0))
    job = story.row(JobRow, A)
    assert (job.preemptions, job.faults, job.retried, job.not_before_at) == (1, 2, 1, T0)
    await story.grant(A, 5, (0, 15))
    names: dict[str, Any] = {"job_id": A, "attempt": 5, "node": NodeIndex(0), "report": 3}
    for sequence in (1, 2):
        uri = f"s3://c/{sequence}"
        await story.commit(CheckpointRecorded(**names, sequence=sequence, uri=uri, size_bytes=10, step=7))
    job = story.row(JobRow, A)
    assert (job.checkpoint_uri, job.checkpoint_sequence, job.checkpoint_step) == ("s3://c/2", 2, 7)
    assert (job.faults, job.checkpoint_attempt, job.checkpoint_at) == (0, 5, story.at)
    assert [row.uri for row in story.rows.rows_of(CheckpointRow)] == ["s3://c/1", "s3://c/2"]


async def test_a_waiting_job_is_held_released_and_changed(story: Story) -> None:
    """Hold, class and labels show at once; the spec stays as it was submitted."""
    await story.commit(
        JobHeld(job_id=A),
        JobPriorityChanged(job_id=A, priority_class=PriorityClass.PROD_BATCH),
        JobLabelsChanged(job_id=A, labels={"run": "b"}),
    )
    job = story.row(JobRow, A)
    assert (job.state, job.held, job.class_rank, job.labels) == ("QUEUED", True, 1, {"run": "b"})
    assert (job.spec["priority_class"], job.spec["labels"]) == ("research", {"run": "a"})
    await story.commit(JobReleased(job_id=A))
    assert not story.row(JobRow, A).held


async def test_an_extension_moves_the_limit_of_the_attempt(story: Story) -> None:
    """By as much as max_runtime grew; a job that waits has no limit to move."""
    await story.commit(JobExtended(job_id=A, max_runtime_s=4000))
    assert (story.row(JobRow, A).max_runtime_s, story.row(JobRow, A).limit_at) == (4000, None)
    await story.grant(A, 1, (0, 15), (1, 15), limit_at=T0)
    await story.commit(JobExtended(job_id=A, max_runtime_s=5000))
    assert story.row(JobRow, A).limit_at == story.row(AttemptRow, A, 1).limit_at == T0 + 1_000_000


async def test_a_lease_that_ended_stays_ended(story: Story) -> None:
    """A lease freed by reconciliation says so, and a late report does not bring it back."""
    await story.grant(A, 1, (0, 15), (1, 15))
    await story.commit(LeaseReleased(job_id=A, attempt=1, rank=0, by=ReleasedBy.RECONCILED))
    at = story.at
    await story.commit(started(0), ended(0, 1))
    lease = story.row(LeaseRow, A, 1, 0)
    assert (lease.phase, lease.end_how, lease.ended_at, lease.exit_code) == ("ended", "reconciled", at, None)


async def test_the_timeline_says_what_each_event_is_about(story: Story) -> None:
    """Job, team, node and GPUs are filled in, also where the event names only one of them."""
    await story.grant(A, 1, (0, 0b110), (1, 15))
    await story.commit(started(0), cause="because")
    row = story.rows.rows_of(TimelineRow)[-1]
    assert (row.type, row.job_id, row.attempt, row.team) == ("task.started", A, 1, "research")
    assert (row.node_id, row.gpus, row.actor, row.cause) == ("n-0", [1, 2], "user:ada", "because")
    assert (row.seq, row.at, row.input_kind) == (story.head.seq, story.at, "tick")


@pytest.mark.parametrize("event", [JobHeld(job_id=JobId("j_none")), started(0), GangReleased(job_id=A, attempt=3)])
async def test_an_event_about_nothing_known_stops_the_fold(story: Story, event: object) -> None:
    """What cannot be folded is never passed over."""
    await story.commit(event)
    with pytest.raises(Unprojectable, match="seq 5"):
        _ = story.rows


async def test_a_job_id_is_taken_once(story: Story) -> None:
    """A second job under an id that is taken stops the fold: it would overwrite the first."""
    await story.commit(JobSubmitted(job_id=A, spec=job_spec(), principal=ADA))
    with pytest.raises(Unprojectable, match="already"):
        _ = story.rows
