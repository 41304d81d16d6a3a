"""Submitting, and what an idempotency key is good for."""

from __future__ import annotations

import pytest

from commands.refusal import RefusalCode
from events.job import JobFinished, JobQueued, JobRejected, JobState, JobSubmitted, QueueReason
from events.leadership import CommandDone, CommandRefused, CommandRepeated, LeaderElected
from tests.builders import job_id, quota, spec
from tests.scenario import ADA, Scenario
from tests.unit.steps import after, cancel, cluster, hold, keyed, plan, policy, requeue, stopped, submit, takeover

DAY_S = 86_400


@pytest.fixture
def ready() -> Scenario:
    """Two nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8]"), quota())


def test_an_accepted_job_is_submitted_and_queued_in_one_commit(ready: Scenario) -> None:
    """The answer to a submission holds the job with its spec, and its place in the queue."""
    ready.when(submit("a", gpus_per_replica=2)).then(
        JobSubmitted(job_id=job_id("a"), spec=spec(gpus_per_replica=2), principal=ADA),
        JobQueued(job_id=job_id("a"), attempt=1, reason=QueueReason.SUBMITTED),
    )
    assert ready.job_state("a") == JobState.QUEUED


def test_what_can_never_run_is_rejected_which_is_an_end(ready: Scenario) -> None:
    """A rejected job exists, has ended, and names the field and its limit."""
    ready.when(submit("a", gpus_per_replica=9)).then(JobRejected)
    (rejected,) = ready.events
    assert (rejected.code, rejected.field, rejected.value, rejected.limit) == (
        "over_node",
        "gpus_per_replica",
        "9",
        "8",
    )
    assert ready.job_state("a") == JobState.REJECTED
    ready.when(cancel("a")).then_refused(RefusalCode.JOB_ENDED, "job_id")


def test_a_job_id_is_given_once(ready: Scenario) -> None:
    """A second job under the id of a live, an ended or a rejected one is refused."""
    ready.given(submit("a"), submit("b"), cancel("b"), submit("c", gpus_per_replica=9))
    for name in ("a", "b", "c"):
        ready.when(submit(name)).then_refused(RefusalCode.JOB_EXISTS, "job_id")


def test_guards_come_in_order_existence_then_admission_then_the_cap(ready: Scenario) -> None:
    """An id that exists is told before what is impossible, and that before a full queue."""
    ready.given(policy(queued_jobs_max=1), submit("a"))
    ready.when(submit("a", gpus_per_replica=9)).then_refused(RefusalCode.JOB_EXISTS)
    ready.when(submit("b", gpus_per_replica=9)).then(JobRejected)
    ready.when(submit("c")).then_refused(RefusalCode.QUEUE_FULL, "team", "1")


def test_the_cap_counts_jobs_that_wait_and_never_refuses_a_requeue(ready: Scenario) -> None:
    """Held jobs count, started ones do not; a requeue passes a full queue (R-13)."""
    ready.given(policy(queued_jobs_max=2), submit("a"), plan(), submit("b", replicas=16), submit("c", replicas=16))
    ready.given(hold("b"))
    ready.when(submit("d")).then_refused(RefusalCode.QUEUE_FULL)
    ready.given(requeue("a"), stopped("a"))
    assert ready.job_state("a") == JobState.QUEUED
    assert ready.state.teams[spec().team].queued == 3


class TestKeys:
    """Idempotency keys (R-2, P-14)."""

    def test_the_same_request_again_is_answered_with_the_first_answer(self, ready: Scenario) -> None:
        """Same key, same body: job id and seq of the first answer, and nothing else happens."""
        ready.when(keyed(submit("a"), "k", "body"))
        first = ready.state.meta.seq - 1
        ready.when(keyed(submit("a"), "k", "body")).then(CommandRepeated(job_id=job_id("a"), seq=first))
        assert len(ready.state.jobs) == 1

    def test_another_request_under_the_same_key_is_a_conflict(self, ready: Scenario) -> None:
        """Same key, other body: refused, and the first answer still stands."""
        ready.given(keyed(submit("a"), "k", "body"))
        ready.when(keyed(submit("b"), "k", "other")).then_refused(RefusalCode.KEY_CONFLICT, "Idempotency-Key")
        ready.when(keyed(submit("a"), "k", "body")).then(CommandRepeated)

    def test_a_key_outlives_leaders_and_the_job(self, ready: Scenario) -> None:
        """A retry after a takeover and after the job's end is still the same request."""
        ready.given(keyed(submit("a"), "k", "body"), cancel("a"), takeover())
        ready.when(keyed(submit("a"), "k", "body")).then(CommandRepeated)

    def test_a_rejected_job_uses_its_key(self, ready: Scenario) -> None:
        """A rejection is an end: the same request is not judged anew, though it could run by now."""
        ready.given(keyed(submit("a", replicas=99), "k", "body"))
        ready.when(keyed(submit("a", replicas=99), "k", "body")).then(CommandRepeated)

    def test_a_refused_command_does_not_use_its_key(self, ready: Scenario) -> None:
        """What changed nothing may be tried again under its key, with success."""
        ready.given(policy(queued_jobs_max=1), submit("first"))
        ready.when(keyed(submit("a"), "k", "body")).then_refused(RefusalCode.QUEUE_FULL)
        ready.given(cancel("first"))
        ready.when(keyed(submit("a"), "k", "body")).then(JobSubmitted, JobQueued)

    def test_a_command_that_found_all_done_uses_its_key(self, ready: Scenario) -> None:
        """`CommandDone` is an acceptance: the same request is not carried out later, when it would do something."""
        ready.given(submit("a"), hold("a"))
        ready.when(keyed(hold("a"), "k", "body")).then(CommandDone)
        ready.when(keyed(hold("a"), "k", "body")).then(CommandRepeated)

    def test_a_key_is_kept_thirty_days_by_the_time_of_the_log(self, ready: Scenario) -> None:
        """On the thirtieth day the key still answers; two days later it is free, and its job's end forgotten."""
        ready.given(keyed(submit("a"), "k", "body"), cancel("a"), after(30 * DAY_S))
        ready.when(keyed(submit("a"), "k", "body")).then(CommandRepeated)
        ready.given(after(2 * DAY_S), takeover())
        ready.when(keyed(submit("a"), "k", "body")).then(JobSubmitted, JobQueued)

    def test_keys_of_other_digests_do_not_meet(self, ready: Scenario) -> None:
        """The digest is of caller and key: the same body under another digest is another request."""
        ready.given(keyed(submit("a"), "k1", "body"))
        ready.when(keyed(submit("b"), "k2", "body")).then(JobSubmitted, JobQueued)


def test_every_command_names_its_place_in_the_commands_log(ready: Scenario) -> None:
    """Accepted, refused and repeated commands alike move the position up to which commands were taken (I-7)."""
    before = ready.state.meta.command_position
    ready.given(keyed(submit("a"), "k", "b"), keyed(submit("a"), "k", "b"), cancel("nobody"))
    assert isinstance(ready.events[0], CommandRefused)
    meta = ready.state.meta
    assert (meta.command_position, meta.command_log) == (before + 3, "commands")


def test_a_cancelled_job_that_waits_is_over_at_once(ready: Scenario) -> None:
    """Cancel answers with the end (R-3)."""
    ready.given(submit("a")).when(cancel("a"))
    assert isinstance(ready.events[-1], JobFinished)
    assert ready.job_state("a") == JobState.CANCELLED


def test_a_new_leader_is_on_record(ready: Scenario) -> None:
    """The first commit of a term says who leads."""
    ready.when(takeover()).then(LeaderElected)
    assert ready.state.meta.epoch == 2
