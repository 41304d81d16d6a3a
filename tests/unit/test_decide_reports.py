"""What agents report: late, doubled, out of order or impossible, the outcome is that of the clean sequence (C-42)."""

from __future__ import annotations

import pytest

from commands.reports import TaskStartedReport
from events.checkpoint import CheckpointRecorded, CheckpointRefused
from events.gang import GangEnding, GangReleased, GangRunning
from events.ids import LeaseId
from events.job import EndReason, JobFinished, JobQueued, JobState, QueueReason
from events.task import ReportDropped, TaskEnded, TaskStarted, ZombieReclaimed
from tests.builders import job_id, lease, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    after,
    cancel,
    checkpointed,
    cluster,
    ended,
    ending,
    extend,
    granted,
    lost,
    plan,
    registers,
    reports,
    requeue,
    runs,
    started,
    stopped,
    submit,
    takeover,
    zombie,
)

A = job_id("a")
GANG = {"replicas": 2, "gpus_per_replica": 8}


@pytest.fixture
def ready() -> Scenario:
    """Three nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8] [8]"), quota())


class TestStarts:
    """TaskStarted and GangRunning."""

    def test_a_gang_runs_when_its_last_rank_does(self, ready: Scenario) -> None:
        """Every start is a fact; the last one makes the job RUNNING."""
        ready.given(granted("a", **GANG)).when(started("a", 1)).then(TaskStarted)
        assert ready.job_state("a") == JobState.STARTING
        ready.when(started("a", 0)).then(TaskStarted, GangRunning(job_id=A, attempt=1))
        assert ready.job_state("a") == JobState.RUNNING

    def test_a_rank_that_was_done_before_the_last_began_counts_as_run(self, ready: Scenario) -> None:
        """A short rank does not keep its gang from running."""
        ready.given(granted("a", **GANG), started("a", 0), ended("a", 0))
        ready.when(started("a", 1)).then(TaskStarted, GangRunning)

    def test_a_second_start_of_a_rank_is_dropped(self, ready: Scenario) -> None:
        """Under another number: impossible, counted, acknowledged."""
        ready.given(runs("a"))
        ready.when(started("a")).then(ReportDropped(node=ready.node("n0").index, report=2, reason="started_before"))

    def test_a_start_of_an_attempt_that_is_to_stop_is_no_running_gang(self, ready: Scenario) -> None:
        """The fact is kept; the job goes on being cancelled."""
        ready.given(granted("a"), cancel("a")).when(started("a")).then(TaskStarted)
        assert ready.job_state("a") == JobState.CANCELLING


class TestEnds:
    """TaskEnded, and what it makes of the job."""

    def test_exit_0_of_all_ranks_is_success(self, ready: Scenario) -> None:
        """GPUs are free rank by rank; the job succeeds with the last."""
        ready.given(runs("a", **GANG)).when(ended("a", 0)).then(TaskEnded)
        assert (ready.charged("red"), ready.node("n0").used) == (8, 0)
        ready.when(ended("a", 1)).then(
            TaskEnded,
            JobFinished(job_id=A, state=JobState.SUCCEEDED, reason=EndReason.COMPLETED, exit_code=0),
            GangReleased(job_id=A, attempt=1),
        )
        assert ready.charged("red") == 0

    def test_a_rank_that_fails_fails_its_attempt(self, ready: Scenario) -> None:
        """The others are stopped; the job has the first exit code that was not 0 (R-6)."""
        ready.given(runs("a", **GANG)).when(ended("a", 0, exit_code=3)).then(
            TaskEnded, GangEnding(job_id=A, attempt=1, reason=EndReason.NONZERO_EXIT, grace_s=60)
        )
        ready.when(ended("a", 1, end="stopped", exit_code=143)).then(
            TaskEnded,
            JobFinished(job_id=A, state=JobState.FAILED, reason=EndReason.NONZERO_EXIT, exit_code=3),
            GangReleased,
        )

    def test_an_end_without_a_start_is_an_end(self, ready: Scenario) -> None:
        """The start's report may have been taken as doubled, or never written."""
        ready.given(granted("a"), ended("a"))
        assert ready.job_state("a") == JobState.SUCCEEDED

    @pytest.mark.parametrize(
        ("end", "state"),
        [
            ("start_failed", JobState.QUEUED),
            ("lost", JobState.QUEUED),
            ("stopped", JobState.QUEUED),
            ("never_started", JobState.QUEUED),
            ("timed_out", JobState.TIMED_OUT),
        ],
    )
    def test_each_kind_of_end(self, ready: Scenario, end: str, state: JobState) -> None:
        """Without our asking: a fault queues the job again, its limit ends it."""
        ready.given(runs("a"), ended("a", end=end, exit_code=None))
        assert ready.job_state("a") == state

    @pytest.mark.parametrize("reason", ["preempted", "drained", "requeued"])
    def test_exit_0_while_stopping_is_no_success(self, ready: Scenario, reason: str) -> None:
        """Most trainers save and exit 0 on SIGTERM: that is a preemption (C-51)."""
        ready.given(runs("a"), ending("a", reason)).when(ended("a", exit_code=0)).then(
            TaskEnded, JobQueued, GangReleased
        )
        assert ready.job("a").preemptions == (reason == "preempted")

    @pytest.mark.parametrize("reason", ["preempted", "drained", "requeued"])
    def test_finished_while_stopping_is_success(self, ready: Scenario, reason: str) -> None:
        """Unless the job had reported itself finished."""
        ready.given(runs("a"), ending("a", reason), stopped("a", finished=True))
        assert ready.job_state("a") == JobState.SUCCEEDED

    def test_one_rank_finished_and_one_not_is_no_success(self, ready: Scenario) -> None:
        """A gang is finished when all of it is."""
        ready.given(runs("a", **GANG), requeue("a"), stopped("a", 0, finished=True), stopped("a", 1))
        assert ready.job_state("a") == JobState.QUEUED

    def test_an_end_is_written_once(self, ready: Scenario) -> None:
        """Whatever comes after it changes nothing."""
        ready.given(runs("a"), ended("a", exit_code=3))
        assert ready.job_state("a") == JobState.FAILED
        ready.when(ended("a", 0, 1)).then(ReportDropped)
        assert ready.job_state("a") == JobState.FAILED


class TestDoubledAndImpossible:
    """Reports that change nothing."""

    def test_a_number_that_was_taken_is_passed_over_in_silence(self, ready: Scenario) -> None:
        """The same report again leaves no trace at all: it is only acknowledged again."""
        ready.given(granted("a"), started("a", number=1), ended("a", 0, 1, number=2))
        ready.when(started("a", 0, 1, number=1), ended("a", 0, 1, number=2)).then_nothing()

    @pytest.mark.parametrize(
        ("held", "reason"),
        [
            ("nonsense", "not_a_lease"),
            ("j_a.x.y", "not_a_lease"),
            (lease("nobody"), "lease_unknown_or_ended"),
            (lease("a", 7), "lease_unknown_or_ended"),
            (lease("a", -1), "lease_unknown_or_ended"),
            (lease("a", 0, 2), "lease_unknown_or_ended"),
            (lease("a", 1), "lease_of_another_node"),
        ],
    )
    def test_a_report_about_no_lease_of_the_node(self, ready: Scenario, held: str, reason: str) -> None:
        """Is dropped with its reason, and its number taken."""
        ready.given(granted("a", **GANG))
        ready.when(reports("n0", TaskStartedReport(number=0, lease_id=LeaseId(held)))).then(
            ReportDropped(node=ready.node("n0").index, report=1, reason=reason)
        )
        assert ready.node("n0").last_report == 1

    def test_a_rank_that_ended_starts_no_more(self, ready: Scenario) -> None:
        """While the rest of its gang runs on."""
        ready.given(runs("a", **GANG), ended("a", 0))
        ready.when(started("a", 0)).then(ReportDropped)
        ready.when(ended("a", 0, exit_code=1)).then(ReportDropped)
        assert ready.job_state("a") == JobState.RUNNING

    def test_a_node_that_was_never_registered_is_not_heard(self, ready: Scenario) -> None:
        """Its reports are no input."""
        ready.when(reports("n9", TaskStartedReport(number=0, lease_id=lease("a")))).then_nothing()

    def test_a_zombie_is_on_record(self, ready: Scenario) -> None:
        """Killed by the agent, and counted once (R-63)."""
        ready.when(zombie("n0", 3)).then(ZombieReclaimed)
        ready.when(zombie("n0", 3, number=1)).then_nothing()

    def test_reports_go_on_under_the_next_leader(self, ready: Scenario) -> None:
        """They are fenced by lease and attempt, never by the leader's epoch (P-19)."""
        ready.given(runs("a"), takeover())
        ready.when(ended("a")).then(TaskEnded, JobFinished, GangReleased)


class TestLateSuccess:
    """An old attempt that comes through after all (P-22)."""

    def test_before_the_next_attempt(self, ready: Scenario) -> None:
        """The job that waits again has succeeded, and waits no more."""
        ready.given(runs("a"), lost("n0"), registers("n0")).when(ended("a")).then(TaskEnded, JobFinished, GangReleased)
        assert ready.job_state("a") == JobState.SUCCEEDED

    def test_stops_the_newer_attempt(self, ready: Scenario) -> None:
        """The newer one is told to stop; its GPUs are freed when it is gone; the end is written once."""
        ready.given(runs("a"), lost("n0"), plan(), started("a"), registers("n0"))
        ready.when(ended("a", 0, 1)).then(
            TaskEnded,
            GangEnding(job_id=A, attempt=2, reason=EndReason.COMPLETED, grace_s=60),
            JobFinished(job_id=A, state=JobState.SUCCEEDED, reason=EndReason.COMPLETED, exit_code=0),
            GangReleased(job_id=A, attempt=1),
        )
        assert ready.charged("red") == 1
        ready.when(stopped("a", 0, 2)).then(TaskEnded, GangReleased)
        assert ready.job_state("a") == JobState.SUCCEEDED
        assert ready.charged("red") == 0

    def test_of_only_some_ranks_is_none(self, ready: Scenario) -> None:
        """The stopped rank of a gang tells that it did not come through."""
        ready.given(runs("a", **GANG), lost("n0"), stopped("a", 1), registers("n0"), ended("a", 0))
        assert ready.job_state("a") == JobState.QUEUED

    def test_after_the_job_failed_changes_nothing(self, ready: Scenario) -> None:
        """The end that was written stands."""
        ready.given(runs("a"), lost("n0"), plan(), started("a"), ended("a", exit_code=3), registers("n0"))
        assert ready.job_state("a") == JobState.FAILED
        ready.when(ended("a", 0, 1)).then(TaskEnded, GangReleased)
        assert ready.job_state("a") == JobState.FAILED


class TestCheckpoints:
    """Resume points (R-50)."""

    def test_the_highest_sequence_is_the_resume_point(self, ready: Scenario) -> None:
        """One that is not newer is refused, on record."""
        ready.given(runs("a")).when(checkpointed("a", 7)).then(CheckpointRecorded)
        ready.when(checkpointed("a", 7)).then(CheckpointRefused)
        ready.when(checkpointed("a", 6)).then(CheckpointRefused)
        point = ready.job("a").checkpoint
        assert point is not None
        assert (point.sequence, point.attempt) == (7, 1)

    def test_accepted_until_the_next_attempt_is_granted(self, ready: Scenario) -> None:
        """Also while the job waits again; never after its next grant: a zombie writer cannot move the resume point."""
        ready.given(runs("a"), lost("n0"), registers("n0")).when(checkpointed("a", 1)).then(CheckpointRecorded)
        ready.given(plan()).when(checkpointed("a", 2, attempt=1)).then(CheckpointRefused)
        (refused,) = ready.events
        assert refused.reason == "a_later_attempt_was_granted"
        ready.given(started("a")).when(checkpointed("a", 2)).then(CheckpointRecorded)

    def test_not_after_the_lease_ended_nor_after_the_job(self, ready: Scenario) -> None:
        """A checkpoint needs a live lease and a job that goes on."""
        ready.given(runs("a"), ended("a", exit_code=1)).when(checkpointed("a", 1, attempt=1)).then(ReportDropped)
        ready.given(runs("b"), lost("n0"), cancel("b"), registers("n0"))
        ready.when(checkpointed("b", 1, attempt=1)).then(CheckpointRefused)
        (refused,) = ready.events
        assert refused.reason == "job_ended"

    def test_is_progress(self, ready: Scenario) -> None:
        """Faults are counted anew (R-6)."""
        ready.given(runs("a"), ended("a", end="lost", exit_code=None), plan(), started("a"))
        assert ready.job("a").faults == 1
        ready.given(checkpointed("a", 1))
        assert ready.job("a").faults == 0


class TestRunTime:
    """Over several attempts the time up to the last accepted checkpoint counts, lost work does not (R-5)."""

    def test_work_that_was_saved_counts(self, ready: Scenario) -> None:
        """The next attempt has what was left at the checkpoint."""
        ready.given(runs("a", max_runtime_s=3600))
        granted_at = ready.attempt("a").granted_at
        ready.given(after(600), checkpointed("a", 1), after(900), requeue("a"), stopped("a"), plan())
        saved_s = ready.job("a").consumed_s
        point = ready.job("a").checkpoint
        assert point is not None
        assert saved_s == (point.at - granted_at) // 1000 == 602
        attempt = ready.attempt("a")
        assert attempt.limit_at == attempt.granted_at + (3600 - saved_s) * 1000

    def test_work_that_was_lost_does_not(self, ready: Scenario) -> None:
        """Without a checkpoint the next attempt has it all."""
        ready.given(runs("a", max_runtime_s=3600), after(900), requeue("a"), stopped("a"), plan())
        attempt = ready.attempt("a")
        assert attempt.limit_at == attempt.granted_at + 3_600_000

    def test_adds_up_over_attempts_and_checkpoints(self, ready: Scenario) -> None:
        """Each second once, extensions apart."""
        ready.given(runs("a", max_runtime_s=3600), after(99), checkpointed("a", 1), after(99), checkpointed("a", 2))
        first = ready.job("a").consumed_s
        assert first == 201
        ready.given(requeue("a"), stopped("a"), plan(), started("a"), extend("a", 1000), after(97))
        ready.given(checkpointed("a", 3))
        assert ready.job("a").consumed_s == first + 100

    def test_an_unlimited_job_consumes_nothing(self, ready: Scenario) -> None:
        """There is nothing to count against."""
        ready.given(quota(guaranteed=8), runs("a", priority_class="prod-serving", max_runtime_s=None))
        ready.given(after(9), checkpointed("a", 1))
        assert ready.job("a").consumed_s == 0


def test_retries_of_a_jobs_own_failures(ready: Scenario) -> None:
    """As many as asked for: the first at once, the next after a backoff, then the end (R-6)."""
    ready.given(submit("a", retries=2), plan(), started("a"))
    ready.when(ended("a", exit_code=1)).then(
        TaskEnded, GangEnding, JobQueued(job_id=A, attempt=2, reason=QueueReason.RETRY), GangReleased
    )
    ready.given(plan(), started("a"), ended("a", exit_code=1))
    until = ready.job("a").not_before_at
    assert until == ready.at + 30_000
    ready.when(plan()).then_nothing()
    ready.given(after(30), plan(), started("a"), ended("a", exit_code=1))
    assert ready.job_state("a") == JobState.FAILED
