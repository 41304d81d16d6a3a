"""Nodes that are not for everybody, in the plan: pools, hot spares; and what takes over when the search fails (R-34,
R-35, R-37)."""

from __future__ import annotations

from typing import Any

import pytest

from commands.pools import PoolKind, PoolRule
from events.gang import GangAllocated
from events.job import CheckpointPlan, PriorityClass, Span
from scheduler.planning import fit
from scheduler.planning.cover import StepsSpent
from tests.builders import BLUE, quota, spread
from tests.scenario import Scenario
from tests.unit.steps import after, change, cluster, ended, lost, plan, policy, quietly, runs, submit

SERVING, BATCH, RESEARCH, PREEMPTIBLE = PriorityClass
HOUR_S = 3_600


def latency(*nodes: str, lend: bool = True) -> PoolRule:
    return PoolRule(name="fast", kind=PoolKind.LATENCY, nodes=nodes, lend=lend)


def whole(*nodes: str, gpus_min: int = 16) -> PoolRule:
    return PoolRule(name="large", kind=PoolKind.WHOLE, nodes=nodes, gpus_min=gpus_min)


class TestLatencyPool:
    """For prod-serving and interactive jobs; lent to class preemptible (R-37)."""

    def ready(self, **fields: Any) -> Scenario:
        """n0 is for everybody, n1 is the pool's."""
        scenario = Scenario().given(cluster("b0: [8] [8]"), policy(pools=(latency("n1", **fields),)))
        return scenario.given(quota(guaranteed=8), quota("blue"))

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"interactive": True}, "n1*1"),
            ({"priority_class": SERVING}, "n1*1"),
            ({}, "n0*1"),
            ({"priority_class": BATCH}, "n0*1"),
        ],
        ids=["interactive", "serving", "research", "batch"],
    )
    def test_each_goes_where_it_belongs(self, fields: dict[str, Any], where: str) -> None:
        """Its own pool first, and no pool that is for others."""
        assert self.ready().given(submit("a", **fields), plan()).table("a") == {"a": where}

    def test_a_training_backlog_never_delays_it(self) -> None:
        """However much of it there is, before and after."""
        scenario = self.ready().given(*[submit(f"t{number}", team=BLUE, gpus_per_replica=8) for number in range(5)])
        scenario.given(submit("now", interactive=True), plan())
        assert scenario.table("now", "t0", "t1") == {"now": "n1*1", "t0": "n0*8", "t1": "waits"}
        quietly(scenario)

    def test_it_lends_idle_gpus_to_the_lowest_class(self) -> None:
        """Unless it is told not to."""
        low = submit("a", gpus_per_replica=8, priority_class=PREEMPTIBLE, team=BLUE)
        scenario = self.ready().given(runs("full", gpus_per_replica=8), low, plan())
        assert scenario.table("a") == {"a": "n1*8"}
        scenario = self.ready(lend=False).given(runs("full", gpus_per_replica=8), low, plan())
        assert scenario.table("a") == {"a": "waits"}

    def test_outside_the_guarantee_prod_serving_starts_in_its_pool_only(self) -> None:
        """Its team has used up what it has (R-40)."""
        scenario = self.ready().given(runs("full", gpus_per_replica=8, max_runtime_s=60), ended("full"))
        scenario.given(runs("full2", gpus_per_replica=8))
        scenario.given(cluster("b1: [8]"), submit("a", priority_class=SERVING), plan())
        assert scenario.table("a") == {"a": "n1*1"}
        scenario.given(submit("b", priority_class=SERVING, gpus_per_replica=8), plan())
        assert scenario.table("b") == {"b": "waits"}

    def test_it_starts_there_within_the_limit_only(self) -> None:
        """Whole nodes of the pool count for more than the nodes that it could do with; what they count is what matters
        (R-32)."""
        scenario = Scenario().given(cluster("b0: [4] [4]\nb1: [8] [8]"), policy(pools=(latency("n2", "n3"),)))
        stays = CheckpointPlan(preemptible=False)
        scenario.given(quota(guaranteed=8, borrow_limit=4), runs("full", gpus_per_replica=4, checkpoint=stays))
        gang: dict[str, Any] = {"replicas": 2, "gpus_per_replica": 4, "topology": spread(Span.NODE)}
        scenario.given(submit("a", priority_class=SERVING, **gang), plan())
        assert scenario.table("a") == {"a": "waits"}
        quietly(scenario)
        scenario.given(quota(guaranteed=8, borrow_limit=12), plan())
        assert scenario.table("a") == {"a": "n2*8 n3*8"}

    def test_a_reservation_of_its_own(self) -> None:
        """The first blocked job of each has its nodes held, and neither holds what is not for it."""
        scenario = self.ready().given(runs("i", interactive=True), runs("t", team=BLUE))
        scenario.given(submit("big", team=BLUE, gpus_per_replica=8))
        scenario.given(submit("call", team=BLUE, gpus_per_replica=8, interactive=True), plan())
        held = {row.job_id: (row.pool, row.nodes) for row in scenario.state.reservations.rows.values()}
        assert held == {"j_big": ("", (0,)), "j_call": ("fast", (1,))}
        quietly(scenario)


class TestPoolOfWholeMachines:
    """For the largest jobs, lent to what is soon over (R-34)."""

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"replicas": 2, "gpus_per_replica": 8}, "n1*8 n2*8"),
            ({"gpus_per_replica": 8, "max_runtime_s": 600}, "n0*8"),
            ({"gpus_per_replica": 8, "max_runtime_s": 9_000}, "n0*8"),
        ],
        ids=["large", "short", "long"],
    )
    def test_each_goes_where_it_belongs(self, fields: dict[str, Any], where: str) -> None:
        """Where it may go to either, to what is for nobody in particular or fills a block."""
        scenario = Scenario().given(cluster("b0: [8]\nb1: [8] [8]"), policy(pools=(whole("n1", "n2"),)), quota())
        assert scenario.given(submit("a", **fields), plan()).table("a") == {"a": where}

    def test_only_backfill_borrows_it(self) -> None:
        """Of two jobs of nearly equal limits one may and the other may not."""
        scenario = Scenario().given(cluster("b0: [8]\nb1: [8] [8]"), policy(pools=(whole("n1", "n2"),)), quota())
        scenario.given(runs("full", gpus_per_replica=8))
        scenario.given(submit("long", gpus_per_replica=8, max_runtime_s=3_601))
        scenario.given(submit("short", gpus_per_replica=8, max_runtime_s=3_600), plan())
        assert scenario.table("long", "short") == {"long": "waits", "short": "n1*8"}


class TestPoolsThatChange:
    """A job that waits belongs to another pool than when its nodes were held (R-23)."""

    def ready(self) -> Scenario:
        """A gang waits for a node that is in use, and for one that is free: both are held for it."""
        scenario = Scenario().given(cluster("b0: [8] [8]\nb1: [8]"), quota(), quota("blue"))
        scenario.given(runs("x", gpus_per_replica=8), runs("y", gpus_per_replica=8))
        scenario.given(submit("gang", team=BLUE, replicas=2, gpus_per_replica=8), plan())
        assert self.held(scenario) == [("j_gang", "")]
        return scenario

    def held(self, scenario: Scenario) -> list[tuple[str, str]]:
        return [(row.job_id, row.pool) for _, row in sorted(scenario.state.reservations.rows.items())]

    def test_by_the_policy(self) -> None:
        """Its reservation ends and another is made, in one cycle; it never has two, and then nothing moves."""
        scenario = self.ready().given(policy(pools=(whole("n1", "n2"),)), plan())
        assert self.held(scenario) == [("j_gang", "large")]
        quietly(scenario)
        scenario.given(policy(), plan())
        assert self.held(scenario) == [("j_gang", "")]
        quietly(scenario)

    def test_by_its_class(self) -> None:
        """prod-serving goes to the pool for latency, though nobody there makes room."""
        scenario = Scenario().given(cluster("b0: [8] [8]"), quota(guaranteed=8), quota("blue", guaranteed=8))
        scenario.given(policy(pools=(latency("n1"),)))
        fixed = {"checkpoint": CheckpointPlan(preemptible=False)}
        scenario.given(runs("x", gpus_per_replica=7, **fixed), runs("i", interactive=True, **fixed))
        scenario.given(submit("a", team=BLUE, gpus_per_replica=8), plan())
        assert self.held(scenario) == [("j_a", "")]
        scenario.given(change("a", priority_class=SERVING), plan())
        assert self.held(scenario) == [("j_a", "fast")]
        quietly(scenario)

    def test_by_its_nodes(self) -> None:
        """The first node of the pool registers."""
        large = PoolRule(name="large", kind=PoolKind.WHOLE, blocks=("b1",), gpus_min=8)
        scenario = Scenario().given(cluster("b0: [8]"), policy(pools=(large,)), quota())
        scenario.given(runs("x", gpus_per_replica=8), submit("a", gpus_per_replica=8), plan())
        assert self.held(scenario) == [("j_a", "")]
        scenario.given(cluster("b1: [xxxxxxxx]"), plan())
        assert self.held(scenario) == [("j_a", "large")]
        quietly(scenario)


class TestSpares:
    """One node beside each large gang, for restarts after faults (R-34)."""

    def ready(self) -> Scenario:
        """A gang of two nodes runs, one node is its spare and one is free."""
        scenario = Scenario().given(cluster("b0: [8] [8] [8] [8]"), quota(), policy(spare_gang_gpus_min=16))
        return scenario.given(runs("gang", replicas=2, gpus_per_replica=8, max_runtime_s=9 * HOUR_S))

    def test_a_spare_is_kept_from_new_jobs(self) -> None:
        """Two nodes are idle, and one job starts."""
        scenario = self.ready().given(submit("a", gpus_per_replica=8), submit("b", gpus_per_replica=8), plan())
        assert scenario.table("a", "b") == {"a": "n3*8", "b": "waits"}
        scenario.given(after(600), plan())
        assert scenario.table("b") == {"b": "waits"}

    def test_a_restart_after_a_fault_may_use_it(self) -> None:
        """Though nothing else is free."""
        scenario = self.ready().given(runs("a", gpus_per_replica=8, max_runtime_s=9 * HOUR_S), lost("n3"), plan())
        assert scenario.table("a") == {"a": "n2*8"}

    def test_it_is_lent_to_the_lowest_class(self) -> None:
        """Which any other may displace."""
        scenario = self.ready().given(runs("a", gpus_per_replica=8))
        scenario.given(submit("low", gpus_per_replica=8, priority_class=PREEMPTIBLE), plan())
        assert scenario.table("low") == {"low": "n2*8"}

    def test_it_is_free_for_all_when_the_gang_ends(self) -> None:
        """In the next cycle."""
        scenario = self.ready().given(submit("a", gpus_per_replica=8), submit("b", gpus_per_replica=8), plan())
        scenario.given(ended("gang", 0), ended("gang", 1), plan())
        assert scenario.job_state("b") == "STARTING"


def test_first_fit_takes_over_and_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search for the best seats spends its steps (R-35)."""

    def spends(*_: object) -> None:
        raise StepsSpent

    monkeypatch.setattr(fit, "seats", spends)
    scenario = Scenario().given(cluster("b0: [8] [8]"), quota())
    scenario.when(submit("a", replicas=2, gpus_per_replica=8), submit("b"), plan())
    marked = {event.job_id: event.fallback for event in scenario.events if isinstance(event, GangAllocated)}
    assert marked == {"j_a": True}


def test_a_place_that_charges_more_than_there_is_room_for_is_passed_over() -> None:
    """A spread that is but a wish would take three nodes; packed on two, the gang is within its quota (R-12, R-33)."""
    scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota(borrow_limit=16), quota("blue"))
    wish = spread("node", strict=False)
    scenario.given(submit("a", replicas=3, gpus_per_replica=4, hint=wish), submit("b", team=BLUE), plan())
    assert scenario.charged("red") == 16
