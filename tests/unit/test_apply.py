"""The applier: whatever a planner proposes, only what the newest state allows becomes a fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commands.apply import apply
from commands.messages import DrainNode
from commands.plan import Placement, Plan
from events.gang import GangAllocated
from events.ids import GpuMask, NodeId, NodeIndex
from events.job import JobHeld
from events.leadership import InputRefused
from tests.builders import job_id, pack, quota, spread
from tests.scenario import Scenario
from tests.unit.steps import cancel, cluster, ended, hold, plan, runs, silent, submit, takeover

FLEET = "b0: [8] [8] [xx......]\nb1: [8]\nb2 l40s 48: [4]"


def propose(name: str, *ranks: tuple[int, int]) -> Placement:
    return Placement(job_id=job_id(name), ranks=tuple((NodeIndex(node), GpuMask(mask)) for node, mask in ranks))


def applied(*placements: Placement, poisoned: tuple[Any, ...] = ()) -> Callable[[Scenario], None]:
    """A plan is applied; what was objected to is in `stale`."""

    def step(scenario: Scenario) -> None:
        made = Plan(n=scenario.state.meta.n, placements=placements, poisoned=poisoned)

        def decide(draft: Any) -> None:
            scenario.stale = apply(draft, made)

        scenario.decide(scenario._input("cycle", None), decide)

    return step


@pytest.fixture
def ready() -> Scenario:
    """Four nodes of one type, one of another; job `small` asks one GPU, `whole` two nodes."""
    return Scenario().given(cluster(FLEET), quota(), submit("small"), submit("whole", replicas=2, gpus_per_replica=8))


WHOLE = 0xFF
OBJECTIONS: list[tuple[Any, Placement, str]] = [
    (cancel("small"), propose("small", (0, 1)), "job_not_queued"),
    (plan(), propose("small", (0, 1)), "job_not_queued"),
    (hold("small"), propose("small", (0, 1)), "job_held"),
    (None, propose("whole", (0, WHOLE)), "ranks_missing"),
    (None, propose("small", (9, 1)), "no_such_node"),
    (None, propose("small", (4, 1)), "no_such_node"),
    (DrainNode(node_id=NodeId("n0"), reason="x"), propose("small", (0, 1)), "node_not_in_service"),
    (silent(30, "n0"), propose("small", (0, 1)), "node_not_in_service"),
    (takeover(), propose("small", (0, 1)), "node_not_confirmed"),
    (None, propose("small", (2, 1)), "gpus_not_free"),
    (None, propose("small", (0, 1 << 8)), "gpus_not_free"),
    (None, propose("whole", (0, WHOLE), (0, WHOLE)), "gpus_not_free"),
    (None, propose("small", (0, 0)), "too_few_gpus"),
    (None, propose("whole", (0, WHOLE), (1, 0x7F)), "too_few_gpus"),
    (submit("lots", gpu_memory_gb_min=80, replicas=8), propose("lots", *[(2, 4 << k) for k in range(8)]), ""),
    (submit("half", replicas=3, gpus_per_replica=4), propose("half", (0, 0x0F), (0, 0xF0), (1, 0x0F)), "node_divided"),
    (submit("p", replicas=2, hint=pack("node")), propose("p", (0, 1), (1, 1)), "hint_broken"),
    (submit("s", replicas=2, hint=spread("node")), propose("s", (0, 1), (0, 2)), "hint_broken"),
    (quota(borrow_limit=15), propose("whole", (0, WHOLE), (1, WHOLE)), "over_quota"),
]


@pytest.mark.parametrize(("before", "placement", "why"), OBJECTIONS)
def test_what_the_state_does_not_allow_is_left_out(
    ready: Scenario, before: Any, placement: Placement, why: str
) -> None:
    """An operator's change that lands while a cycle is in flight wins; the stale placement is named (C-6)."""
    if before is not None:
        ready.given(before)
    ready.when(applied(placement)).then_nothing()
    assert [objection for _, objection in ready.stale] == [why or "gpus_not_free"]


def test_the_others_go_on(ready: Scenario) -> None:
    """One stale placement stops no other; two for one GPU are one (C-31)."""
    ready.given(submit("b"), hold("whole"))
    ready.when(applied(propose("whole", (0, WHOLE), (1, WHOLE)), propose("small", (0, 1)), propose("b", (0, 1)))).then(
        GangAllocated
    )
    assert [objection for _, objection in ready.stale] == ["job_held", "gpus_not_free"]


def test_the_quota_is_counted_over_the_plan(ready: Scenario) -> None:
    """Two placements that each fit, and together do not."""
    ready.given(quota(borrow_limit=1), submit("b"))
    ready.when(applied(propose("small", (0, 1)), propose("b", (0, 2)))).then(GangAllocated)
    assert [objection for _, objection in ready.stale] == ["over_quota"]


def test_a_job_that_waits_out_a_backoff_is_not_granted(ready: Scenario) -> None:
    """Whoever proposes it (C-8)."""
    fails = ended("small", end="start_failed", exit_code=None)
    ready.given(hold("whole"), plan(), fails, plan(), fails)
    ready.when(applied(propose("small", (0, 1)))).then_nothing()
    assert [objection for _, objection in ready.stale] == ["job_waits_out_a_backoff"]


def test_a_poisonous_job_is_held_and_the_others_go_on(ready: Scenario) -> None:
    """With the reason on record; an operator may release it (C-46)."""
    ready.when(applied(propose("whole", (0, WHOLE), (1, WHOLE)), poisoned=((job_id("small"), "KeyError: 1"),))).then(
        InputRefused(input=job_id("small"), why="KeyError: 1"), JobHeld(job_id=job_id("small")), GangAllocated
    )
    assert ready.job("small").held


def test_a_poisonous_job_that_is_gone_is_no_poison(ready: Scenario) -> None:
    """It was cancelled, or started, meanwhile."""
    ready.given(runs("b"), cancel("small"))
    ready.when(applied(poisoned=((job_id("small"), "x"), (job_id("b"), "x"), (job_id("never"), "x")))).then_nothing()
