"""Run time: what counts of it, who gets more, and what a failure costs in the queue (R-5, R-6, C-7, C-8, C-47)."""

from __future__ import annotations

import pytest

from commands.refusal import RefusalCode
from events.gang import GangAllocated
from events.job import JobExtended, JobQueued, QueueReason
from events.reservation import BlocksReserved
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    after,
    all_started,
    cancel,
    checkpointed,
    cluster,
    due,
    ended,
    ending,
    extend,
    granted,
    hold,
    lost,
    plan,
    release,
    runs,
    stopped,
    submit,
)

A, B = job_id("a"), job_id("b")


@pytest.fixture
def ready() -> Scenario:
    """Two nodes of eight GPUs and two teams."""
    return Scenario().given(cluster("b0: [8] [8]"), quota(), quota("blue"))


class TestExtension:
    """Granted unless a reservation depends on the end (R-5)."""

    def reserved(self, ready: Scenario) -> Scenario:
        """`a` runs on n0 for an hour, `b` on n1 for two; `big` is to have both when `b` is over."""
        ready.given(
            runs("a", gpus_per_replica=8, max_runtime_s=3600), runs("b", gpus_per_replica=8, max_runtime_s=7200)
        )
        return ready.given(submit("big", replicas=2, gpus_per_replica=8)).when(plan()).then(BlocksReserved)

    def test_within_the_hole(self, ready: Scenario) -> None:
        """Up to the start of the reservation there is time, and so it is granted."""
        self.reserved(ready).when(extend("a", 3600)).then(JobExtended)

    def test_beyond_the_start(self, ready: Scenario) -> None:
        """One second more would move the start: refused, with the job that waits and when it is to start."""
        start_at = self.reserved(ready).events[0].start_at
        ready.when(extend("b", 1)).then_refused(RefusalCode.PROMISED, "by", str(start_at))
        assert ready.events[0].value == job_id("big")

    def test_elsewhere(self) -> None:
        """A job on nodes that nobody waits for is extended as it likes."""
        ready = Scenario().given(cluster("b0: [8] [8] [8]"), quota())
        ready.given(runs("c", gpus_per_replica=8, max_runtime_s=9000))
        self.reserved(ready).when(extend("c", 9000)).then(JobExtended)

    def test_when_the_reservation_is_gone(self, ready: Scenario) -> None:
        """What depended on the end is cancelled: nothing is in the way any more."""
        self.reserved(ready).given(cancel("big"), plan())
        ready.when(extend("b", 3600)).then(JobExtended)

    def test_a_job_that_waits(self, ready: Scenario) -> None:
        """It holds no nodes, so it breaks no promise; it is planned with its new limit."""
        self.reserved(ready).given(submit("d")).when(extend("d", 3600)).then(JobExtended)


class TestAttempts:
    """Over several attempts only the time up to the last accepted checkpoint counts (R-5)."""

    def test_lost_work_does_not_count(self, ready: Scenario) -> None:
        """After a fault the time since the last checkpoint is given back."""
        ready.given(runs("a", max_runtime_s=3600))
        granted_at = ready.attempt("a").granted_at
        ready.given(after(1000), checkpointed("a", 1))
        spent_s = (ready.at - granted_at) // 1000
        ready.given(after(900), lost("n0"), plan())
        attempt = ready.attempt("a")
        assert attempt.number == 2
        assert attempt.limit_at == attempt.granted_at + (3600 - spent_s) * 1000

    def test_without_a_checkpoint_nothing_counts(self, ready: Scenario) -> None:
        """A job that never saved anything begins anew with its whole time."""
        ready.given(runs("a", max_runtime_s=3600), after(3000), ending("a", "preempted"), stopped("a"), plan())
        attempt = ready.attempt("a")
        assert attempt.limit_at == attempt.granted_at + 3_600_000

    def test_nor_while_it_waits(self, ready: Scenario) -> None:
        """A limit does not run while a job waits, however long (C-47)."""
        ready.given(submit("a", max_runtime_s=60), hold("a"), after(86_400), release("a"), plan())
        attempt = ready.attempt("a")
        assert attempt.limit_at == attempt.granted_at + 60_000

    def test_an_extension_survives_the_attempt(self, ready: Scenario) -> None:
        """The next attempt has what is left of the extended time."""
        ready.given(runs("a", max_runtime_s=3600), extend("a", 600), ending("a", "preempted"), stopped("a"), plan())
        attempt = ready.attempt("a")
        assert attempt.limit_at == attempt.granted_at + 4_200_000

    def test_the_last_of_it_is_a_second(self, ready: Scenario) -> None:
        """A job that saved at its very limit gets no attempt without time: one that ends at once."""
        ready.given(runs("a", max_runtime_s=60, grace_s=10), after(55), checkpointed("a", 1), after(1))
        ready.given(lost("n0"), plan())
        attempt = ready.attempt("a")
        assert attempt.limit_at is not None
        assert attempt.limit_at - attempt.granted_at >= 1000
        ready.given(after(60), due("a", attempt.number))
        assert ready.attempt("a").ending == "timed_out"


class TestInversion:
    """What failed never gains by it (C-7, C-8)."""

    def test_a_victim_is_back_at_its_own_place(self, ready: Scenario) -> None:
        """After a preemption a job stands where its submission puts it: before later ones, behind earlier ones."""
        ready.given(submit("first", gpus_per_replica=8), hold("first"))
        ready.given(runs("a", gpus_per_replica=8), runs("b", gpus_per_replica=8), submit("later", gpus_per_replica=8))
        ready.given(ending("a", "preempted"), stopped("a"), release("first"))
        ready.when(plan())
        assert started_jobs(ready) == ["j_first"]
        ready.given(ending("b", "requeued"), stopped("b"))
        ready.when(plan())
        assert started_jobs(ready) == ["j_a"]

    def test_a_job_that_cannot_start_is_set_back(self, ready: Scenario) -> None:
        """The second failed start of a job is followed by a wait, in which the next in line has its GPUs."""
        ready.given(granted("a", gpus_per_replica=8), granted("x", gpus_per_replica=8), submit("b", gpus_per_replica=8))
        ready.when(ended("a", end="start_failed", exit_code=None))
        assert queued_again(ready) == JobQueued(job_id=A, attempt=2, reason=QueueReason.START_FAILED)
        ready.when(plan())
        assert started_jobs(ready) == ["j_a"]
        ready.when(ended("a", end="start_failed", exit_code=None))
        assert queued_again(ready).not_before_at == ready.at + 30_000
        ready.when(plan())
        assert started_jobs(ready) == ["j_b"]

    def test_and_at_last_it_fails(self, ready: Scenario) -> None:
        """Three in a row without progress end it: it does not win every cycle."""
        for _ in range(3):
            ready.given(after(1000))
            if ready.state.jobs.get(A) is None:
                ready.given(submit("a"))
            ready.given(plan(), ended("a", end="start_failed", exit_code=None))
        assert ready.job_state("a") == "FAILED"

    def test_progress_clears_its_record(self, ready: Scenario) -> None:
        """A checkpoint between faults is progress: they are counted anew, and the first retry is at once."""
        ready.given(runs("a"))
        for sequence in range(1, 6):
            ready.given(checkpointed("a", sequence))
            ready.when(ended("a", end="lost", exit_code=None))
            assert queued_again(ready).not_before_at is None
            ready.given(plan())
            ready.given(all_started("a"))
        assert ready.job_state("a") == "RUNNING"

    def test_backoff_is_no_waiting(self, ready: Scenario) -> None:
        """Time that a job has to wait for its own failures does not ease its team's share (R-21)."""
        ready.given(granted("a"), ended("a", end="start_failed", exit_code=None), plan())
        ready.given(ended("a", end="start_failed", exit_code=None))
        job = ready.job("a")
        assert job.waits_since == job.not_before_at
        ready.given(after(20), hold("a"))
        assert ready.job("a").waited_ms == job.waited_ms
        ready.given(release("a"))
        assert ready.job("a").waits_since == job.not_before_at

    def test_faults_stand_before_their_class_but_not_before_a_higher_one(self, ready: Scenario) -> None:
        """A job that lost its node goes first among its own, and after every job of a higher class."""
        ready.given(runs("a", gpus_per_replica=8), runs("x", gpus_per_replica=8))
        ready.given(submit("old", gpus_per_replica=8), submit("high", gpus_per_replica=8, priority_class="prod-batch"))
        ready.given(lost("n0"), ended("x"))
        ready.when(plan())
        assert started_jobs(ready) == ["j_high"]
        ready.given(all_started("high"), ended("high"))
        ready.when(plan())
        assert started_jobs(ready) == ["j_a"]


def started_jobs(scenario: Scenario) -> list[str]:
    """Jobs that the last step granted."""
    return [event.job_id for event in scenario.events if isinstance(event, GangAllocated)]


def queued_again(scenario: Scenario) -> JobQueued:
    """The one return to the queue in the last step."""
    (event,) = [event for event in scenario.events if isinstance(event, JobQueued)]
    return event
