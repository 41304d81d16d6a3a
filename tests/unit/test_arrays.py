"""Arrays: one record until its elements are granted, each of which is then a job of its own (R-7, C-9)."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile

import orjson
import pytest

from commands.decide import following
from commands.plan import Placement
from commands.refusal import RefusalCode
from commands.reports import Tick
from events.envelope import RECORD_BYTES_MAX
from events.gang import GangAllocated, GangEnding
from events.ids import GpuMask, Instant, JobId, NodeIndex, array_named, element_id, lease_id, parse_lease_id
from events.job import (
    Dependency,
    DependsWhen,
    EndReason,
    JobCancelRequested,
    JobElementMade,
    JobFinished,
    JobQueued,
    JobRejected,
    JobState,
    JobSubmitted,
)
from scheduler import effects
from scheduler.link import StartTask
from scheduler.planning.queue import ELEMENT_RANKS
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    all_started,
    array,
    cancel,
    change,
    checkpointed,
    cluster,
    ended,
    ending,
    extend,
    hold,
    plan,
    policy,
    release,
    requeue,
    runs,
    stopped,
    submit,
)

A = job_id("a")


def elements(scenario: Scenario) -> tuple[int, int, int, int]:
    """(not made, open, cancelled, succeeded) of the array `a`."""
    job = scenario.job("a")
    assert job.elements is not None
    return (job.unmade, job.elements.open, job.elements.cancelled, job.elements.succeeded)


@pytest.fixture
def ready() -> Scenario:
    """One node of four GPUs, and a team."""
    return Scenario().given(cluster("b0: [4]"), quota())


class TestIds:
    """Names of elements."""

    def test_a_lease_of_an_element_keeps_its_parts(self) -> None:
        """The id of an element stands in lease ids like any other, and tells its array."""
        element = element_id(A, 17)
        assert parse_lease_id(lease_id(element, 2, 3)) == (element, 2, 3)
        assert (array_named(element), array_named(A), array_named("j_a_")) == (A, None, None)


class TestGrants:
    """How an array becomes jobs."""

    def test_one_record_until_it_starts(self, ready: Scenario) -> None:
        """An array of many is two events, one job, and one in its team's queue (R-13)."""
        ready.when(submit("a", array=array(0, 49_999))).then(JobSubmitted, JobQueued)
        assert len(ready.state.jobs) == len(ready.planner.queue) == 1
        assert ready.state.teams[ready.job("a").spec.team].queued == 1

    def test_too_many_elements(self, ready: Scenario) -> None:
        """An array has at most so many elements as the policy says."""
        ready.given(policy(array_elements_max=100)).when(submit("a", array=array(1, 101))).then(JobRejected)
        assert ready.events[0].code == RefusalCode.ARRAY_TOO_LARGE

    def test_as_many_as_fit(self, ready: Scenario) -> None:
        """In one cycle elements start by index until the fleet is full; five quiet cycles follow."""
        ready.given(submit("a", array=array(3, 9)))
        ready.when(plan()).then(*[JobElementMade, GangAllocated] * 4)
        assert [event.job_id for event in ready.events[1::2]] == [element_id(A, index) for index in (3, 4, 5, 6)]
        assert elements(ready) == (3, 4, 0, 0)
        ready.when(*[plan()] * 5).then_nothing()

    def test_as_many_as_the_throttle_lets(self, ready: Scenario) -> None:
        """At most `throttle` elements are there at once; when one ends the next starts."""
        ready.given(submit("a", array=array(0, 9, 2)), plan())
        assert elements(ready) == (8, 2, 0, 0)
        assert not ready.job("a").eligible
        ready.given(all_started("a_0"), ended("a_0"))
        ready.when(plan()).then(JobElementMade(job_id=element_id(A, 2), array=A, index=2), GangAllocated)

    def test_one_shape_costs_one_try(self, ready: Scenario) -> None:
        """What is left of an array that does not fit is one failed try."""
        ready.given(submit("a", array=array(0, 49_999)), plan())
        made = ready.planner.plan(ready.at + 1000)  # type: ignore[arg-type]
        assert (made.empty(), made.tries) == (True, 1)

    def test_an_element_has_what_the_array_has_now(self, ready: Scenario) -> None:
        """Class, labels and place in the queue are those of the array at the grant."""
        ready.given(submit("a", array=array(0, 1), labels={"run": "1"}), change("a", priority_class="prod-batch"))
        ready.given(plan())
        element, parent = ready.job("a_0"), ready.job("a")
        assert (element.priority_class, element.labels) == ("prod-batch", {"run": "1"})
        assert (element.submit_seq, element.element_of, element.spec.array) == (parent.submit_seq, A, None)

    def test_the_environment_says_which_it_is(self, ready: Scenario) -> None:
        """A task of an element finds its array, index and range in its environment."""
        ready.given(submit("a", array=array(5, 7), env={"A": "b"}), plan())
        attempt = ready.attempt("a_6")
        told = effects.of_lease(ready.state, attempt, 0, 0, ready.state.meta.at)
        assert isinstance(told, StartTask)
        assert dict(told.env) == {
            "A": "b",
            "SIGNALBOX_ARRAY_JOB": A,
            "SIGNALBOX_ARRAY_INDEX": "6",
            "SIGNALBOX_ARRAY_FIRST": "5",
            "SIGNALBOX_ARRAY_LAST": "7",
            "SIGNALBOX_ARRAY_COUNT": "3",
        }

    def test_an_array_that_waits_for_a_job(self, ready: Scenario) -> None:
        """Dependencies hold for the whole array; its elements have none left."""
        ready.given(runs("b"), submit("a", array=array(0, 1), depends_on=(_after("b"),)), plan())
        assert elements(ready) == (2, 0, 0, 0)
        ready.given(ended("b"), plan())
        assert elements(ready) == (0, 2, 0, 0)


class TestEnds:
    """When an array is over."""

    def test_well(self, ready: Scenario) -> None:
        """It succeeds with its last element, if all did; while none waits any more it is shown as running."""
        ready.given(submit("a", array=array(0, 1)), plan())
        assert ready.job_state("a") == "RUNNING"
        ready.given(all_started("a_0"), ended("a_0"), all_started("a_1"))
        ready.when(ended("a_1"))
        end = JobFinished(job_id=A, state=JobState.SUCCEEDED, reason=EndReason.COMPLETED, exit_code=0)
        assert ready.events[-1] == end
        assert not ready.state.jobs

    def test_not_all_well(self, ready: Scenario) -> None:
        """One bad element: the others go on, and at the end the array has failed."""
        ready.given(submit("a", array=array(0, 1)), plan(), all_started("a_0"), ended("a_0", exit_code=1))
        assert (ready.job_state("a_0"), ready.job_state("a"), elements(ready)) == ("FAILED", "RUNNING", (0, 1, 0, 0))
        ready.given(all_started("a_1")).when(ended("a_1"))
        assert ready.events[-1] == JobFinished(job_id=A, state=JobState.FAILED, reason=EndReason.ELEMENT_FAILED)

    def test_a_dependent_of_an_array(self, ready: Scenario) -> None:
        """A job that waits for an array waits for all of its elements."""
        ready.given(submit("a", array=array(0, 0)), submit("b", depends_on=(_after("a"),)), plan())
        ready.given(all_started("a_0"), ended("a_0"))
        ready.when(plan())
        assert ready.job_state("b") == "STARTING"

    def test_an_element_comes_back_by_itself(self, ready: Scenario) -> None:
        """An element that is stopped for another waits in the queue as a job of its own, where it was submitted."""
        ready.given(submit("a", array=array(0, 5)), plan(), all_started("a_1"), ending("a_1", "preempted"))
        ready.given(checkpointed("a_1", 1), stopped("a_1"))
        assert (ready.job_state("a_1"), elements(ready)) == ("QUEUED", (2, 4, 0, 0))
        assert ready.state.teams[ready.job("a").spec.team].queued == 2


class TestCommands:
    """What acts on an array acts on the elements that were not granted yet."""

    def test_hold_and_release(self, ready: Scenario) -> None:
        """A held array starts no more elements; those that run go on."""
        ready.given(submit("a", array=array(0, 5)), plan(), hold("a"), all_started("a_0"), ended("a_0"))
        ready.when(plan()).then_nothing()
        ready.given(release("a")).when(plan()).then(JobElementMade, GangAllocated)

    def test_cancel_before_it_starts(self, ready: Scenario) -> None:
        """An array of which nothing runs is gone in the answer."""
        ready.when(submit("a", array=array(0, 5)), cancel("a"))
        assert ready.events[2:] == (
            JobCancelRequested(job_id=A),
            JobFinished(job_id=A, state=JobState.CANCELLED, reason=EndReason.CANCELLED),
        )

    def test_cancel_while_it_runs(self, ready: Scenario) -> None:
        """All elements are stopped, and the array is over when the last of them is gone."""
        ready.given(submit("a", array=array(0, 5)), plan(), all_started("a_0"))
        ready.when(cancel("a"))
        assert sum(isinstance(event, GangEnding) for event in ready.events) == 4
        assert (ready.job_state("a"), elements(ready)) == ("CANCELLING", (2, 4, 4, 0))
        ready.when(plan()).then_nothing()
        for index in range(4):
            ready.given(stopped(f"a_{index}"))
        assert ready.job_state("a") == "CANCELLED"

    def test_cancel_of_many(self, ready: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
        """So many that a record would be too long are cancelled a piece a tick."""
        monkeypatch.setattr(following, "FACTS_MAX", 2)
        ready.given(submit("a", array=array(0, 3)), plan(), cancel("a"))
        assert elements(ready)[:3] == (0, 4, 1)
        ready.given(Tick(), Tick(), Tick())
        assert elements(ready)[:3] == (0, 4, 4)
        ready.when(Tick()).then_nothing()

    def test_what_is_left_over_outlives_who_waits_for_it(
        self, ready: Scenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The cancellation of many goes on where the only job that waits for the array is cancelled meanwhile."""
        monkeypatch.setattr(following, "FACTS_MAX", 2)
        waits = submit("b", depends_on=(Dependency(job=A, when=DependsWhen.AFTER_ANY),))
        ready.given(submit("a", array=array(0, 3)), plan(), waits, cancel("a"), cancel("b"))
        ready.given(Tick(), Tick(), Tick())
        assert elements(ready)[:3] == (0, 4, 4)

    def test_none_starts_of_what_is_cancelled(self, ready: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cancelled array whose end is left to a later tick starts nothing: its elements could not be cancelled any
        more, and a leader would try for ever."""
        monkeypatch.setattr(following, "FACTS_MAX", 2)
        waits = {"depends_on": (Dependency(job=A, when=DependsWhen.AFTER_ANY),)}
        ready.given(runs("a"), *(submit(f"b{number}", **waits) for number in range(9)))
        ready.given(*(hold(f"b{number}") for number in range(9)))
        ready.given(submit("c", array=array(0, 3)), hold("c"), ended("a"), release("c"), cancel("c"))
        assert ready.job("c").cancel_requested
        ready.when(plan()).then_nothing()
        ready.given(*[Tick()] * 5)
        assert ready.job_state("c") == "CANCELLED"

    def test_cancel_of_one_element(self, ready: Scenario) -> None:
        """An element can be cancelled by itself; then not all have succeeded."""
        ready.given(submit("a", array=array(0, 1)), plan(), cancel("a_1"), stopped("a_1"))
        assert ready.job_state("a") == "RUNNING"
        ready.given(all_started("a_0"), ended("a_0"))
        assert ready.job_state("a") == "FAILED"

    def test_requeue_and_extend(self, ready: Scenario) -> None:
        """Only an element can be requeued; what an array is extended by holds for the elements to come."""
        ready.given(submit("a", array=array(0, 4)), plan())
        ready.when(requeue("a")).then_refused(RefusalCode.WRONG_STATE, "array")
        ready.given(extend("a", 600), all_started("a_0"), ended("a_0"), plan())
        assert (ready.job("a_1").max_runtime_s, ready.job("a_4").max_runtime_s) == (3600, 4200)
        ready.when(extend("a", 600)).then_refused(RefusalCode.WRONG_STATE, "state")


class TestRoom:
    """Arrays and preemption: room is made for one element at a time."""

    def test_an_array_takes_back_what_is_lent(self) -> None:
        """Each cycle asks room for one element; it starts on what was pledged, and the next is asked for."""
        ready = Scenario().given(cluster("b0: [8] [8]"), quota("red", 16, 0), quota("blue", 0, 16))
        ready.given(runs("x", "y", team="blue", gpus_per_replica=8))
        ready.when(submit("a", array=array(0, 3), gpus_per_replica=8), plan())
        assert ready.state.pledges[A].gpus == 8
        ready.given(plan(), plan())
        victim = next(name for name in "xy" if ready.attempt(name).ending is not None)
        ready.given(stopped(victim), plan())
        assert ready.job_state("a_0") == "STARTING"
        ready.given(plan(), plan())
        other = "y" if victim == "x" else "x"
        assert ready.attempt(other).ending == "preempted"
        ready.given(stopped(other), plan())
        assert (ready.job_state("a_1"), elements(ready)) == ("STARTING", (2, 2, 0, 0))

    def test_a_cycle_of_elements_fits_a_record(self) -> None:
        """As many elements as one cycle starts, with the longest ids there are, make one record of the log."""
        ready = Scenario().given(quota())
        longest = job_id("x" * 38 + "_49999")
        made = JobElementMade(job_id=longest, array=job_id("x" * 38), index=49_999)
        ranks = ((NodeIndex(4_999), GpuMask(255)),)
        granted = GangAllocated(job_id=longest, attempt=1, ranks=ranks, limit_at=Instant(ready.at))
        written = '{"type":"gang.allocated","v":2,"body":},'
        size = sum(len(orjson.dumps(event)) + len(written) for event in (made, granted))
        assert size * 4_000 // (1 + ELEMENT_RANKS) < RECORD_BYTES_MAX


class TestOthers:
    """A large array costs the others nothing (C-9)."""

    def test_another_team_gets_its_share(self) -> None:
        """With an array of 50,000 before it, a job of another team starts in the same cycle."""
        ready = Scenario().given(cluster("b0: [8]"), quota("red", 4), quota("blue", 4))
        ready.given(submit("a", array=array(0, 49_999)), submit("b", team="blue"))
        ready.given(plan())
        assert ready.job_state("b") == "STARTING"

    def test_a_small_job_of_the_same_team(self, ready: Scenario) -> None:
        """A job of another shape that fits is not kept back by an array that does not."""
        ready.given(submit("a", array=array(0, 49_999), gpus_per_replica=3), plan(), submit("b"))
        ready.given(plan())
        assert ready.job_state("b") == "STARTING"

    def test_what_it_costs(self) -> None:
        """To submit 50,000 elements, and to plan with them, takes as many steps as for eight: four start of either."""

        def cost(elements: int) -> int:
            ready = Scenario().given(cluster("b0: [4]"), quota())
            made = steps_of(lambda: ready.given(submit("a", array=array(0, elements - 1))))
            ready.given(submit("b"))
            made += steps_of(lambda: placed.extend(ready.planner.plan(Instant(ready.at + 1000)).placements))
            return made

        placed: list[Placement] = []
        _, few, many = cost(8), cost(8), cost(50_000)  # the first time there is more to do
        assert many == pytest.approx(few, rel=0.02)
        assert len(placed) == 12


def steps_of(work: Callable[[], object]) -> int:
    """Calls that it makes, of functions in Python and in C: a measure of its cost that no other process moves."""
    profile = Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def _after(name: str) -> Dependency:
    return Dependency(job=JobId(job_id(name)), when=DependsWhen.AFTER_OK)
