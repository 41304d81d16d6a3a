"""Commands about a job that is there: cancel, hold, release, change, extend, requeue."""

from __future__ import annotations

import pytest

from commands.refusal import RefusalCode
from events.gang import GangEnding, GangReleased
from events.job import (
    EndReason,
    JobCancelRequested,
    JobExtended,
    JobFinished,
    JobHeld,
    JobLabelsChanged,
    JobPriorityChanged,
    JobQueued,
    JobReleased,
    JobState,
    PriorityClass,
    QueueReason,
)
from events.leadership import CommandDone
from events.task import TaskEnded
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    cancel,
    change,
    cluster,
    ended,
    ending,
    extend,
    granted,
    hold,
    lost,
    plan,
    policy,
    release,
    requeue,
    runs,
    silent,
    started,
    stopped,
    submit,
    takeover,
)

A = job_id("a")


@pytest.fixture
def ready() -> Scenario:
    """Two nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8]"), quota())


@pytest.mark.parametrize("command", [cancel, hold, release, requeue, lambda name: extend(name, 1), change])
def test_a_job_must_be_there_and_not_over(ready: Scenario, command: object) -> None:
    """Every command about a job is refused for one that never was, and for one that has ended."""
    assert callable(command)
    ready.when(command("a")).then_refused(RefusalCode.UNKNOWN_JOB, "job_id")
    ready.given(submit("a"), cancel("a"))
    ready.when(command("a")).then_refused(RefusalCode.JOB_ENDED, "job_id")


class TestCancel:
    """A cancel in every state (C-43)."""

    def test_queued(self, ready: Scenario) -> None:
        """A job that waits is cancelled in the answer, and its team's queue is shorter."""
        ready.given(submit("a"))
        ready.when(cancel("a")).then(
            JobCancelRequested(job_id=A),
            JobFinished(job_id=A, state=JobState.CANCELLED, reason=EndReason.CANCELLED),
        )
        assert ready.state.teams[ready.state.ended[A].team].queued == 0

    def test_held(self, ready: Scenario) -> None:
        """So is one that is held."""
        ready.given(submit("a"), hold("a"), cancel("a"))
        assert ready.job_state("a") == JobState.CANCELLED

    def test_between_grant_and_start(self, ready: Scenario) -> None:
        """A granted job is stopped before it starts; its GPUs stay claimed until the agent has confirmed it."""
        ready.given(granted("a", gpus_per_replica=4))
        ready.when(cancel("a")).then(
            JobCancelRequested(job_id=A),
            GangEnding(job_id=A, attempt=1, reason=EndReason.CANCELLED, grace_s=60),
        )
        assert ready.job_state("a") == JobState.CANCELLING
        assert ready.charged("red") == 4
        ready.when(ended("a", end="never_started", exit_code=None)).then(TaskEnded, JobFinished, GangReleased)
        assert ready.job_state("a") == JobState.CANCELLED
        assert ready.charged("red") == 0

    def test_running(self, ready: Scenario) -> None:
        """A running job ends when its last task is gone; an exit 0 on the way out is no success."""
        ready.given(runs("a", replicas=2, gpus_per_replica=8), cancel("a"), ended("a", 0))
        assert ready.job_state("a") == JobState.CANCELLING
        ready.when(ended("a", 1)).then(TaskEnded, JobFinished, GangReleased)
        assert ready.job_state("a") == JobState.CANCELLED

    def test_twice(self, ready: Scenario) -> None:
        """A second cancel finds all done."""
        ready.given(runs("a"), cancel("a"))
        ready.when(cancel("a")).then(CommandDone)

    @pytest.mark.parametrize("reason", ["requeued", "preempted", "drained"])
    def test_while_it_is_being_stopped_for_another_reason(self, ready: Scenario, reason: str) -> None:
        """A job that would have waited again is cancelled instead, and not failed."""
        ready.given(runs("a"), ending("a", reason))
        ready.when(cancel("a")).then(JobCancelRequested)
        ready.when(stopped("a")).then(
            TaskEnded,
            JobFinished(job_id=A, state=JobState.CANCELLED, reason=EndReason.CANCELLED, exit_code=143),
            GangReleased,
        )

    def test_while_it_is_being_stopped_to_be_retried(self, ready: Scenario) -> None:
        """A failed attempt with a retry left is not retried after a cancel."""
        ready.given(runs("a", replicas=2, gpus_per_replica=8, retries=1), ended("a", 0, exit_code=3), cancel("a"))
        ready.given(stopped("a", 1))
        assert ready.job_state("a") == JobState.CANCELLED

    def test_after_it_failed_of_itself(self, ready: Scenario) -> None:
        """Where the attempt's end is the job's own, a late cancel does not rewrite the cause (C-62)."""
        ready.given(runs("a", replicas=2, gpus_per_replica=8), ended("a", 0, exit_code=3), cancel("a"))
        ready.when(stopped("a", 1)).then(
            TaskEnded,
            JobFinished(job_id=A, state=JobState.FAILED, reason=EndReason.NONZERO_EXIT, exit_code=3),
            GangReleased,
        )

    def test_while_its_old_attempt_is_on_a_lost_node(self, ready: Scenario) -> None:
        """A job that waits again after a loss is over at once; its GPUs stay quarantined."""
        ready.given(runs("a"), lost("n0"), cancel("a"))
        assert ready.job("a").state is JobState.CANCELLED
        assert ready.node("n0").used == 1

    def test_whose_node_is_lost_before_it_stopped(self, ready: Scenario) -> None:
        """With no node left that could answer, the job is over; nothing waits for the lost one."""
        ready.given(runs("a"), cancel("a"), lost("n0"))
        assert ready.job("a").state is JobState.CANCELLED

    def test_a_cancelled_job_never_succeeds(self, ready: Scenario) -> None:
        """An old attempt's success after the cancel of the newer one changes nothing."""
        ready.given(runs("a"), lost("n0"), plan(), started("a"), cancel("a"))
        ready.given(ended("a", 0, 1))
        assert ready.job_state("a") == JobState.CANCELLING
        ready.given(stopped("a", 0, 2))
        assert ready.job_state("a") == JobState.CANCELLED


class TestHold:
    """Hold and release of a job that waits."""

    def test_a_held_job_is_not_placed_until_released(self, ready: Scenario) -> None:
        """The planner passes over it."""
        ready.given(submit("a"))
        ready.when(hold("a")).then(JobHeld(job_id=A))
        ready.when(plan()).then_nothing()
        ready.when(release("a")).then(JobReleased(job_id=A))
        ready.given(plan())
        assert ready.job_state("a") == JobState.STARTING

    def test_twice_is_as_good_as_once(self, ready: Scenario) -> None:
        """A held job is held, a released one is released."""
        ready.given(submit("a")).when(release("a")).then(CommandDone)
        ready.given(hold("a")).when(hold("a")).then(CommandDone)

    @pytest.mark.parametrize("command", [hold, release])
    def test_a_started_job_is_neither_held_nor_released(self, ready: Scenario, command: object) -> None:
        """Only what waits."""
        assert callable(command)
        ready.given(runs("a"))
        ready.when(command("a")).then_refused(RefusalCode.WRONG_STATE, "state", JobState.QUEUED)


class TestChange:
    """Class and labels of a job that waits (R-4)."""

    def test_both(self, ready: Scenario) -> None:
        """Each is a fact of its own; what is as asked already is no fact."""
        ready.given(submit("a"))
        ready.when(change("a", priority_class=PriorityClass.PROD_BATCH, labels={"x": "1"})).then(
            JobPriorityChanged(job_id=A, priority_class=PriorityClass.PROD_BATCH),
            JobLabelsChanged(job_id=A, labels={"x": "1"}),
        )
        ready.when(change("a", priority_class=PriorityClass.PROD_BATCH, labels={"x": "1"})).then(CommandDone)

    def test_the_order_follows(self, ready: Scenario) -> None:
        """A raised job goes before one that was submitted earlier."""
        ready.given(submit("a", replicas=16), submit("b", replicas=16))
        ready.given(change("b", priority_class=PriorityClass.PROD_BATCH), plan())
        assert (ready.job_state("a"), ready.job_state("b")) == (JobState.QUEUED, JobState.STARTING)

    def test_a_class_must_be_the_teams(self) -> None:
        """By default research and preemptible only."""
        scenario = Scenario().given(cluster("b0: [8]"), quota(classes=None), submit("a"))
        scenario.when(change("a", priority_class=PriorityClass.PROD_BATCH, labels={"x": "1"})).then_refused(
            RefusalCode.CLASS_NOT_ALLOWED, "priority_class", "research, preemptible"
        )

    def test_an_unlimited_job_stays_in_the_class_that_may_be(self, ready: Scenario) -> None:
        """Only prod-serving may run without a limit: no other class is reached by a change (R-5)."""
        ready.given(quota(guaranteed=8))
        ready.given(submit("a", priority_class=PriorityClass.PROD_SERVING, max_runtime_s=None))
        ready.when(change("a", priority_class=PriorityClass.RESEARCH)).then_refused(
            RefusalCode.NO_MAX_RUNTIME, "priority_class"
        )

    def test_a_started_job_is_not_changed(self, ready: Scenario) -> None:
        """Its place in the queue is past."""
        ready.given(runs("a"))
        ready.when(change("a", labels={})).then_refused(RefusalCode.WRONG_STATE, "state")


class TestExtend:
    """More run time (R-5)."""

    def test_of_a_running_job_moves_its_limit(self, ready: Scenario) -> None:
        """The newest attempt's limit moves by as much as the job's."""
        ready.given(runs("a", max_runtime_s=3600))
        before = ready.attempt("a").limit_at
        assert before is not None
        ready.when(extend("a", 600)).then(JobExtended(job_id=A, max_runtime_s=4200))
        assert ready.attempt("a").limit_at == before + 600_000

    def test_of_a_job_that_waits(self, ready: Scenario) -> None:
        """Its next grant has the new limit."""
        ready.given(submit("a", max_runtime_s=3600), extend("a", 600), plan())
        attempt = ready.attempt("a")
        assert attempt.limit_at == attempt.granted_at + 4_200_000

    def test_ends_at_the_policys_longest(self, ready: Scenario) -> None:
        """Not a second beyond."""
        ready.given(policy(max_runtime_max_s=4200), runs("a", max_runtime_s=3600))
        ready.when(extend("a", 601)).then_refused(RefusalCode.MAX_RUNTIME_TOO_LONG, "by", "4200s")
        ready.when(extend("a", 600)).then(JobExtended)

    def test_needs_a_limit(self, ready: Scenario) -> None:
        """An unlimited job has nothing to extend."""
        ready.given(quota(guaranteed=8))
        ready.given(submit("a", priority_class=PriorityClass.PROD_SERVING, max_runtime_s=None))
        ready.when(extend("a", 1)).then_refused(RefusalCode.WRONG_STATE, "max_runtime")

    @pytest.mark.parametrize("reason", ["cancelled", "preempted", "timed_out"])
    def test_comes_too_late_for_what_is_being_stopped(self, ready: Scenario, reason: str) -> None:
        """An attempt that is being stopped, by its limit too, runs no longer for it."""
        ready.given(runs("a"), ending("a", reason))
        ready.when(extend("a", 600)).then_refused(RefusalCode.WRONG_STATE, "state")


class TestRequeue:
    """Stop the attempt, and wait again."""

    def test_a_running_job_waits_again_once_it_is_gone(self, ready: Scenario) -> None:
        """It saves its work first: it is queued when its tasks are gone, at its own place."""
        ready.given(runs("a"))
        ready.when(requeue("a")).then(GangEnding(job_id=A, attempt=1, reason=EndReason.REQUEUED, grace_s=60))
        ready.when(ended("a")).then(
            TaskEnded, JobQueued(job_id=A, attempt=2, reason=QueueReason.REQUEUED), GangReleased
        )

    def test_a_job_that_waits_already_is_refused(self, ready: Scenario) -> None:
        """There is nothing to stop."""
        ready.given(submit("a")).when(requeue("a")).then_refused(RefusalCode.WRONG_STATE, "state")

    def test_twice_is_as_good_as_once(self, ready: Scenario) -> None:
        """A job on its way back to the queue is there already."""
        ready.given(runs("a"), requeue("a")).when(requeue("a")).then(CommandDone)

    def test_a_job_that_comes_to_its_end_is_refused(self, ready: Scenario) -> None:
        """It is not told that it will wait again."""
        ready.given(runs("a"), ending("a", "timed_out"))
        ready.when(requeue("a")).then_refused(RefusalCode.WRONG_STATE, "state")

    def test_a_job_whose_nodes_are_all_lost_meanwhile_waits_again(self, ready: Scenario) -> None:
        """Nobody waits for an answer that cannot come."""
        ready.given(runs("a"), requeue("a"), lost("n0"))
        assert ready.job_state("a") == JobState.QUEUED

    def test_one_of_its_nodes_is_lost_meanwhile(self, ready: Scenario) -> None:
        """The rank that answers is waited for, and no longer."""
        ready.given(runs("a", replicas=2, gpus_per_replica=8), requeue("a"), lost("n0"))
        assert ready.job_state("a") == JobState.RUNNING
        ready.given(stopped("a", 1))
        assert ready.job_state("a") == JobState.QUEUED
        assert ready.node("n0").used == 0xFF

    def test_finished_within_the_grace_is_a_success(self, ready: Scenario) -> None:
        """Unless a job says itself that it is finished, an exit while it is stopped is none (C-51)."""
        ready.given(runs("a"), requeue("a"), stopped("a", finished=True))
        assert ready.job_state("a") == JobState.SUCCEEDED


def test_a_takeover_forgets_nothing_of_what_was_asked(ready: Scenario) -> None:
    """Cancel, hold and limit stand under the next leader."""
    ready.given(submit("held"), hold("held"), runs("a"), cancel("a"), takeover(), silent(30, "n1"))
    assert ready.job("held").held
    assert ready.job_state("a") == JobState.CANCELLING
