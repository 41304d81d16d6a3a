"""Elastic jobs (R-44): the size at which they start, growth, what they give back, and replicas that they lose."""

from __future__ import annotations

from typing import Any

import pytest

from commands.entities import RankPhase
from commands.reports import TaskEndedReport, TaskStartedReport
from events.gang import GangAllocated, GangEnding, GangReleased, GangResized, ResizeReason
from events.ids import lease_id
from events.job import Elastic, EndReason, JobFinished, JobState, PriorityClass
from events.node import NodeLost
from events.preemption import PreemptionOrdered
from events.task import TaskEnd, TaskEnded, TaskStarted
from scheduler import effects
from scheduler.claiming import all_claims, claims_of
from scheduler.link import StartTask, StopTask
from tests.builders import BLUE, RED, at_most, job_id, pack, quota, spread
from tests.scenario import Scenario, with_number
from tests.unit.steps import (
    Step,
    after,
    all_started,
    cancel,
    cluster,
    due,
    ended,
    lost,
    missing,
    plan,
    registers,
    stopped,
    submit,
)

FOUR = "b0: [4] [4] [4] [4]"


def elastic(low: int, high: int) -> dict[str, Any]:
    """Fields of a spec: replicas of 4 GPUs."""
    return {"elastic": Elastic(min_replicas=low, max_replicas=high), "replicas": low, "gpus_per_replica": 4}


def reported(name: str, rank: int, end: TaskEnd | None = None) -> Step:
    """A rank runs, or is gone; also one that came later."""

    def step(scenario: Scenario) -> None:
        attempt = scenario.attempt(name)
        node = scenario.state.nodes[attempt.ranks[rank][0]]
        held = lease_id(attempt.job_id, attempt.number, rank)
        report: Any = TaskStartedReport(number=0, lease_id=held)
        if end is not None:
            report = TaskEndedReport(number=0, lease_id=held, end=end, exit_code=143)
        scenario.take(with_number(scenario, node.id, report, None))

    return step


def running(picture: str = FOUR, low: int = 1, high: int = 4, **fields: Any) -> Scenario:
    """An elastic job `e` of red runs on all that it can have."""
    return (
        Scenario()
        .given(cluster(picture), quota(), quota(BLUE, 16))
        .given(submit("e", **elastic(low, high), **fields), plan(), all_started("e"))
    )


class TestStart:
    @pytest.mark.parametrize(
        ("picture", "placed"),
        [
            (FOUR, "n0*4 n1*4 n2*4 n3*4"),
            ("b0: [4] [xxxx] [4] [xxxx]", "n0*4 n2*4"),
            ("b0: [xxxx] [xxxx] [4] [xxxx]", "waits"),
        ],
    )
    def test_at_the_largest_size_that_fits(self, picture: str, placed: str) -> None:
        """Not below its smallest."""
        scenario = Scenario().given(cluster(picture), quota(), submit("e", **elastic(2, 4)), plan())
        assert scenario.table("e") == {"e": placed}

    @pytest.mark.parametrize(("guaranteed", "borrow", "ranks"), [(8, 0, 2), (0, 12, 3), (8, 100, 2), (3, 100, 4)])
    def test_as_the_quota_allows(self, guaranteed: int, borrow: int, ranks: int) -> None:
        """What can start covered does not borrow for being larger."""
        scenario = Scenario().given(cluster(FOUR), quota(RED, guaranteed, borrow), submit("e", **elastic(1, 4)))
        scenario.when(plan())
        assert len(scenario.attempt("e").ranks) == ranks

    def test_the_world_is_as_large_as_the_gang(self) -> None:
        """What the replicas are told."""
        scenario = Scenario().given(cluster(FOUR), quota(), submit("e", **elastic(2, 3)), plan())
        messages = effects.of_attempt(scenario.state, job_id("e"), 1, {})
        assert [(message.rank, message.replicas) for _, message in messages if isinstance(message, StartTask)] == [
            (0, 3),
            (1, 3),
            (2, 3),
        ]


class TestGrow:
    def test_onto_what_nobody_could_use(self) -> None:
        """As soon as it is idle; then all is quiet. The new rank has a grant of its own, and its claims."""
        scenario = Scenario().given(
            cluster(FOUR), quota(), submit("a", gpus_per_replica=4), plan(), submit("e", **elastic(1, 4)), plan()
        )
        scenario.given(all_started("a"), all_started("e"), ended("a"))
        scenario.when(plan())
        (resized,) = scenario.events
        assert isinstance(resized, GangResized)
        assert (resized.because, len(resized.grown)) == (ResizeReason.GREW, 1)
        assert len(claims_of(scenario.state, scenario.events)) == 4
        assert len(all_claims(scenario.state)) == 16
        started = [message for _, message in effects.of_events(scenario.state, scenario.events, {})]
        assert [(each.rank, each.replicas) for each in started if isinstance(each, StartTask)] == [(3, 4)]
        assert started[0].grant > scenario.attempt("e").grant  # type: ignore[union-attr]
        for _ in range(5):
            scenario.when(plan()).then_nothing()
        scenario.when(reported("e", 3)).then(TaskStarted)

    def test_not_while_somebody_waits(self) -> None:
        """A queued job may not be able to use it now, but growth is for when nobody waits."""
        scenario = Scenario().given(
            cluster(FOUR), quota(), submit("a", gpus_per_replica=4), plan(), submit("e", **elastic(1, 4)), plan()
        )
        scenario.given(all_started("a"), all_started("e"), submit("w", replicas=4, gpus_per_replica=4), ended("a"))
        scenario.when(plan())
        assert not any(isinstance(event, GangResized) and event.grown for event in scenario.events)

    def test_again_after_it_gave_back(self) -> None:
        """One that shares a node may grow beside the other as long as it stays below a node's worth: ranks that it had
        once do not count."""
        one_each = {"elastic": Elastic(min_replicas=1, max_replicas=3), "gpus_per_replica": 1}
        scenario = Scenario().given(cluster("b0: [4]"), quota(), quota(BLUE, 2))
        scenario.given(submit("other"), plan(), submit("e", **one_each), plan(), all_started("e"))
        scenario.given(submit("w", team=BLUE, gpus_per_replica=2), plan())
        scenario.given(*(reported("e", rank, TaskEnd.STOPPED) for rank in (1, 2)), plan(), all_started("w"))
        scenario.given(ended("w")).when(plan())
        (resized,) = [event for event in scenario.events if isinstance(event, GangResized)]
        assert (resized.because, len(resized.grown)) == (ResizeReason.GREW, 2)

    @pytest.mark.parametrize(
        ("hint", "placed"),
        [
            (pack("block"), ["n0", "n1"]),
            (pack("rack"), ["n0"]),
            (spread("block"), ["n0", "n2"]),
            (at_most(2), ["n0", "n1", "n2"]),
        ],
    )
    def test_the_hint_holds_for_old_and_new_together(self, hint: Any, placed: list[str]) -> None:
        """C-30."""
        scenario = Scenario().given(cluster("b0: [4] | [xxxx]\nb1: [xxxx]"), quota())
        scenario.given(submit("e", **elastic(1, 4), hint=hint), plan(), all_started("e"))
        for name in ("other1", "other2"):
            scenario.given(all_started(name), ended(name))
        scenario.when(plan())
        nodes = [scenario.state.nodes[index].id for index, _ in scenario.attempt("e").ranks]
        assert nodes == placed

    def test_a_rank_that_does_not_start_is_given_up(self) -> None:
        """The gang goes on without it (R-30)."""
        scenario = Scenario().given(
            cluster("b0: [4] [xxxx]"), quota(), submit("e", **elastic(1, 2)), plan(), all_started("e")
        )
        scenario.given(all_started("other1"), ended("other1"), plan(), after(601))
        scenario.when(due("e")).then(GangResized)
        assert scenario.attempt("e").stopping == (1,)


class TestGiveBack:
    def test_before_anybody_is_awaited_or_preempted(self) -> None:
        """What it borrows goes back to a job that waits; it runs on with the rest, and nobody is preempted (R-43)."""
        scenario = running()
        scenario.when(submit("w", team=BLUE, gpus_per_replica=4), plan())
        order, resized = [event for event in scenario.events if isinstance(event, PreemptionOrdered | GangResized)]
        assert isinstance(order, PreemptionOrdered)
        assert order.victims == ()
        assert isinstance(resized, GangResized)
        assert (resized.because, resized.on_behalf_of) == (ResizeReason.GAVE_BACK, job_id("w"))
        (rank,) = resized.stopped
        told = [message for _, message in effects.of_events(scenario.state, scenario.events, {})]
        assert [type(message) for message in told] == [StopTask]
        assert scenario.charged(RED) == 16
        scenario.given(reported("e", rank, TaskEnd.STOPPED)).when(plan())
        assert scenario.job_state("e") == JobState.RUNNING
        assert scenario.table("w") == {"w": f"n{rank}*4"}
        assert scenario.charged(RED) == 12

    def test_down_to_its_smallest(self) -> None:
        """Not below; then the whole of it is a victim like any other that borrows."""
        scenario = running(low=3)
        scenario.when(submit("w", team=BLUE, replicas=2, gpus_per_replica=4), plan())
        assert [event.reason for event in scenario.events if isinstance(event, GangEnding)] == [EndReason.PREEMPTED]

    def test_what_it_has_of_its_own_is_kept(self) -> None:
        """A covered job that did not grow gives nothing back to its equals."""
        scenario = Scenario().given(
            cluster(FOUR), quota(RED, 16), quota(BLUE, 0), submit("e", **elastic(1, 4)), plan(), all_started("e")
        )
        scenario.when(submit("w", team=BLUE, gpus_per_replica=4), plan())
        assert not any(isinstance(event, GangResized | PreemptionOrdered) for event in scenario.events)

    def test_success_without_those_that_were_given_back(self) -> None:
        """The ranks that are left end well: the job has succeeded."""
        scenario = running(low=1, high=2, picture="b0: [4] [4]")
        scenario.given(submit("w", team=BLUE, gpus_per_replica=4), plan(), reported("e", 1, TaskEnd.STOPPED))
        assert scenario.attempt("e").phases[1] == RankPhase.GIVEN_BACK
        scenario.when(ended("e", 0)).then(TaskEnded, JobFinished, GangReleased)
        assert scenario.job_state("e") == JobState.SUCCEEDED


class TestLoss:
    def test_of_a_node(self) -> None:
        """It runs on without the replica; the lost GPUs stay quarantined until somebody knows (P-15)."""
        scenario = running(low=2)
        scenario.when(lost("n2"))
        assert [type(event) for event in scenario.events][-2:] == [NodeLost, GangResized]
        assert scenario.job_state("e") == JobState.RUNNING
        assert scenario.charged(RED) == 12
        scenario.when(registers("n2", running=()))
        assert scenario.attempt("e").phases[2] == RankPhase.GIVEN_BACK
        assert scenario.attempt("e").ending is None

    @pytest.mark.parametrize(("node", "low"), [("n0", 1), ("n3", 4)], ids=["rank 0", "below the smallest"])
    def test_that_it_cannot_do_without(self, node: str, low: int) -> None:
        """The others meet at rank 0's address; and below the smallest size it fails."""
        scenario = running(low=low)
        scenario.when(lost(node))
        assert scenario.attempt("e").ending is EndReason.NODE_LOST

    def test_of_a_lease(self) -> None:
        """A lease that its node does not have is stopped, and the others go on."""
        scenario = running()
        scenario.when(missing("e", rank=2)).then(GangResized)
        scenario.when(missing("e", rank=2)).then_nothing()

    def test_by_its_own_failure(self) -> None:
        """Exit 1 of a replica fails the attempt as ever (R-6)."""
        scenario = running()
        scenario.when(ended("e", 2, exit_code=1))
        assert scenario.attempt("e").ending is EndReason.NONZERO_EXIT

    def test_before_all_of_them_run(self) -> None:
        """A gang starts whole or not at all (R-30)."""
        scenario = Scenario().given(cluster(FOUR), quota(), submit("e", **elastic(1, 4)), plan())
        scenario.when(lost("n3"))
        assert scenario.attempt("e").ending is EndReason.NODE_LOST

    def test_a_cancel_stops_all_that_is_left(self) -> None:
        """Ranks that were being stopped, too."""
        scenario = running()
        scenario.given(submit("w", team=BLUE, gpus_per_replica=4), plan())
        scenario.when(cancel("e"))
        told = effects.of_events(scenario.state, scenario.events, {})
        assert [type(message) for _, message in told] == [StopTask] * 4
        for rank in range(4):
            scenario.given(stopped("e", rank))
        assert scenario.job_state("e") == JobState.CANCELLED


def test_a_preemptor_asks_for_its_smallest_size() -> None:
    """Nobody has to go for more than that."""
    scenario = Scenario().given(cluster(FOUR), quota(RED, 16), quota(BLUE, 0))
    for name in ("a", "b", "c", "d"):
        scenario.given(submit(name, team=BLUE, gpus_per_replica=4, priority_class=PriorityClass.RESEARCH), plan())
        scenario.given(all_started(name))
    scenario.when(submit("e", **elastic(2, 4)), plan())
    (order,) = [event for event in scenario.events if isinstance(event, PreemptionOrdered)]
    assert (len(order.victims), len(order.ranks)) == (2, 2)
    for name, _ in order.victims:
        scenario.given(stopped(name.removeprefix("j_")))
    scenario.when(plan())
    assert any(isinstance(event, GangAllocated) and len(event.ranks) == 2 for event in scenario.events)
