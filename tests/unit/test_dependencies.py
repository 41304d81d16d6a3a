"""Jobs that wait for others: after_ok and after_any (R-7)."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest

from commands.decide import following
from commands.refusal import RefusalCode
from commands.reports import Tick
from events.envelope import RECORD_BYTES_MAX
from events.ids import JobId
from events.job import (
    Dependency,
    DependsWhen,
    EndReason,
    JobCancelRequested,
    JobDependencyEnded,
    JobFinished,
    JobQueued,
    JobRejected,
    JobState,
    JobSubmitted,
    QueueReason,
)
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    after,
    all_started,
    array,
    cancel,
    cluster,
    ended,
    hold,
    lost,
    plan,
    release,
    runs,
    submit,
    takeover,
)

A, B, C = job_id("a"), job_id("b"), job_id("c")


def after_ok(*names: str) -> tuple[Dependency, ...]:
    return tuple(Dependency(job=job_id(name), when=DependsWhen.AFTER_OK) for name in names)


def after_any(*names: str) -> tuple[Dependency, ...]:
    return tuple(Dependency(job=job_id(name), when=DependsWhen.AFTER_ANY) for name in names)


def cancelled(job: JobId, reason: EndReason = EndReason.DEPENDENCY) -> JobFinished:
    return JobFinished(job_id=job, state=JobState.CANCELLED, reason=reason)


@pytest.fixture
def ready() -> Scenario:
    """Two nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8]"), quota())


class TestSubmit:
    """What a dependency is, when the job comes."""

    def test_an_unknown_job(self, ready: Scenario) -> None:
        """Nobody can wait for a job that is not there: so no circle can come about either."""
        ready.when(submit("b", depends_on=after_ok("a"))).then(JobRejected)
        (rejected,) = ready.events
        assert (rejected.code, rejected.field) == (RefusalCode.UNKNOWN_DEPENDENCY, "depends_on[0].job")
        ready.when(submit("b2", depends_on=after_any("b2"))).then(JobRejected)

    def test_a_job_that_runs(self, ready: Scenario) -> None:
        """The job is QUEUED, outside the queue: nothing starts it, and no waiting time counts."""
        ready.given(runs("a"))
        ready.when(submit("b", depends_on=after_ok("a")), after(60), plan())
        ready.when(after(7200), plan()).then_nothing()
        assert ready.job_state("b") == "QUEUED"
        assert (ready.job("b").waits_since, ready.job("b").waited_ms) == (None, 0)
        assert B not in ready.planner.queue
        assert ready.state.teams[ready.job("b").spec.team].queued == 1

    def test_one_that_has_ended(self, ready: Scenario) -> None:
        """An end that is remembered is judged at once: as asked, it is as if nothing had been asked."""
        ready.given(runs("a"), ended("a"))
        ready.when(submit("b", depends_on=after_ok("a"))).then(
            JobSubmitted, JobQueued(job_id=B, attempt=1, reason=QueueReason.SUBMITTED)
        )
        ready.when(plan())
        assert ready.job_state("b") == "STARTING"

    def test_one_that_has_failed(self, ready: Scenario) -> None:
        """Otherwise the job ends at once, cancelled, with a reason of its own; after_any does not mind."""
        ready.given(runs("a"), ended("a", exit_code=1))
        ready.when(submit("b", depends_on=after_ok("a"))).then(JobSubmitted, JobQueued, cancelled(B))
        ready.when(submit("c", depends_on=after_any("a")), plan())
        assert ready.job_state("c") == "STARTING"

    def test_a_rejected_one(self, ready: Scenario) -> None:
        """A job that was rejected has ended, and not well."""
        ready.given(submit("a", team="nobody"), submit("b", depends_on=after_ok("a")))
        assert ready.job_state("b") == "CANCELLED"


class TestEnds:
    """What the end of a job means for those that wait for it."""

    def test_well(self, ready: Scenario) -> None:
        """With a good end the next job is eligible in the same commit, and its waiting begins."""
        ready.given(runs("a"), submit("b", depends_on=after_ok("a")), after(500))
        ready.when(ended("a"))
        assert ready.events[-1] == JobDependencyEnded(job_id=B, on=A)
        assert ready.job("b").waits_since == ready.at
        ready.when(plan())
        assert ready.job_state("b") == "STARTING"
        assert ready.job("b").waited_ms == 1000

    def test_badly(self, ready: Scenario) -> None:
        """After a bad one after_ok can never be met: the job ends. after_any goes on."""
        ready.given(runs("a"), submit("b", depends_on=after_ok("a")), submit("c", depends_on=after_any("a")))
        ready.when(ended("a", exit_code=3))
        assert ready.events[-2:] == (cancelled(B), JobDependencyEnded(job_id=C, on=A))

    def test_not_yet(self, ready: Scenario) -> None:
        """A failure that is retried is no end."""
        ready.given(runs("a", retries=1), submit("b", depends_on=after_ok("a")))
        ready.when(ended("a", exit_code=3))
        assert ready.job_state("a") == ready.job_state("b") == "QUEUED"

    def test_by_cancelling(self, ready: Scenario) -> None:
        """A job cancelled while it waits takes a whole chain with it, in one commit."""
        ready.given(submit("a"), submit("b", depends_on=after_ok("a")), submit("c", depends_on=after_ok("b")))
        ready.when(cancel("a")).then(
            JobCancelRequested(job_id=A), cancelled(A, EndReason.CANCELLED), cancelled(B), cancelled(C)
        )
        assert not ready.state.dependents.rows

    def test_several(self, ready: Scenario) -> None:
        """All of them have to end; what has ended is remembered, however long the others take."""
        ready.given(runs("a"), runs("b"), submit("c", depends_on=(*after_ok("a"), *after_any("b"))))
        ready.when(ended("a"))
        assert ready.job("c").waits_on == (B,)
        ready.given(after(40 * 86400))
        ready.when(ended("b", exit_code=1), plan())
        assert ready.job_state("c") == "STARTING"

    def test_two_ends_at_once(self, ready: Scenario) -> None:
        """Two jobs that were cancelled go with their node: the first end settles what waits for both of them."""
        ready.given(runs("a"), runs("b"), submit("c", depends_on=after_ok("a", "b")), cancel("a"), cancel("b"))
        ready.when(lost("n0"))
        assert [ready.job_state(name) for name in "abc"] == ["CANCELLED"] * 3
        assert ready.events.count(cancelled(C)) == 1
        assert not ready.state.dependents.rows
        assert not ready.state.follow_ups.rows

    def test_an_array_ends_whoever_waits_for_it(self, ready: Scenario) -> None:
        """Its last element goes with a job whose end cancels the only dependent of both: the array ends too."""
        ready.given(runs("a"), submit("b", array=array(0, 0)), plan(), all_started("b_0"))
        ready.given(submit("c", depends_on=(*after_ok("a"), *after_any("b"))), cancel("a"), cancel("b_0"))
        ready.when(lost("n0"))
        assert [ready.job_state(name) for name in ("a", "b_0", "b", "c")] == [
            "CANCELLED",
            "CANCELLED",
            "FAILED",
            "CANCELLED",
        ]

    def test_a_job_that_was_cancelled_waits_for_nothing(self, ready: Scenario) -> None:
        """A dependent that is gone is not woken, and not ended twice."""
        ready.given(runs("a"), submit("b", depends_on=after_ok("a")), cancel("b"))
        ready.when(ended("a"))
        assert not any(getattr(event, "job_id", None) == B for event in ready.events)

    def test_held(self, ready: Scenario) -> None:
        """A hold and a dependency are apart: both have to go before the job is eligible."""
        ready.given(runs("a"), submit("b", depends_on=after_ok("a")), hold("b"), ended("a"))
        ready.when(plan()).then_nothing()
        ready.given(release("b")).when(plan())
        assert ready.job_state("b") == "STARTING"
        ready.given(submit("c", depends_on=after_ok("b")), hold("c"), release("c"))
        assert ready.job("c").waits_since is None


class TestMany:
    """A record of the log does not grow with what hangs on one job."""

    def test_a_long_chain(self, ready: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
        """It ends a bounded piece a tick, in order, until nothing is left."""
        monkeypatch.setattr(following, "FACTS_MAX", 10)
        names = [f"c{number}" for number in range(25)]
        ready.given(runs("a"), submit(names[0], depends_on=after_ok("a")))
        for before, name in pairwise(names):
            ready.given(submit(name, depends_on=after_ok(before)))
        ready.when(ended("a", exit_code=1))
        assert len(ready.events) == 10
        for left in (10, 9, 0):
            ready.when(Tick())
            assert len(ready.events) == left
        assert {ready.job_state(name) for name in names} == {"CANCELLED"}

    def test_many_that_wait_for_one(self, ready: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first of them start at once; the others with the next ticks, in the order of submission."""
        monkeypatch.setattr(following, "FACTS_MAX", 10)
        names = [f"d{number:02}" for number in range(25)]
        ready.given(runs("a"), *(submit(name, depends_on=after_any("a")) for name in names))
        ready.when(ended("a"))
        met = [event.job_id for event in ready.events if isinstance(event, JobDependencyEnded)]
        for _ in range(3):
            ready.when(Tick())
            met += [event.job_id for event in ready.events]
        assert met == [job_id(name) for name in names]
        ready.when(Tick()).then_nothing()

    def test_an_end_is_remembered_until_all_is_drawn_from_it(
        self, ready: Scenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody led for so long that ends of that time are forgotten, just as some waited for their turn to start."""
        monkeypatch.setattr(following, "FACTS_MAX", 2)
        ready.given(runs("a"), *(submit(f"b{number}", depends_on=after_ok("a")) for number in range(5)))
        ready.given(ended("a"), after(400 * 86400), takeover(), *[Tick()] * 4)
        assert not ready.state.follow_ups.rows
        assert not any(ready.job(f"b{number}").waits_on for number in range(5))
        ready.given(after(86400), Tick(), submit("c"))
        assert A not in ready.state.ended

    def test_a_piece_fits_a_record(self) -> None:
        """FACTS_MAX of the longest of these facts take less than half of what a record may hold."""
        longest = job_id("x" * 40 + "_49999")
        made = (cancelled(longest), JobDependencyEnded(job_id=longest, on=longest), JobCancelRequested(job_id=longest))
        sizes = [len(orjson.dumps(event)) + len('{"type":"job.dependency_ended","v":1,"body":},') for event in made]
        assert max(sizes) * following.FACTS_MAX < RECORD_BYTES_MAX / 2
