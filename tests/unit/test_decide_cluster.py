"""Quotas and policy: all or nothing, within the inventory, as facts with their reason."""

from __future__ import annotations

from typing import Any

import pytest

from commands.messages import QuotaLine, RemoveNode, SetPolicy, SetQuota
from commands.policy import DEFAULT, Policy
from commands.refusal import RefusalCode
from events.ids import NodeId
from events.job import PriorityClass
from events.leadership import CommandDone
from events.policy import PolicyChanged
from events.quota import QuotaChanged, TeamClassesChanged
from tests.builders import BLUE, H100, L40S, RED
from tests.scenario import Scenario
from tests.unit.steps import cluster, submit


def lines(**guaranteed: int) -> tuple[QuotaLine, ...]:
    return tuple(QuotaLine(gpu_type=kind, guaranteed=count, borrow_limit=0) for kind, count in guaranteed.items())  # type: ignore[arg-type]


@pytest.fixture
def ready() -> Scenario:
    """16 H100s and 4 L40S."""
    return Scenario().given(cluster("b0: [8] [8]\nb1 l40s 48: [4]"))


class TestQuota:
    """R-12, R-14."""

    def test_is_a_fact_for_each_type_with_its_reason(self, ready: Scenario) -> None:
        """And the classes are one of their own."""
        ready.when(
            SetQuota(team=RED, lines=lines(h100=8, l40s=4), classes=(PriorityClass.PROD_BATCH,), reason="budget")
        ).then(
            QuotaChanged(team=RED, gpu_type=H100, guaranteed=8, borrow_limit=0, reason="budget"),
            QuotaChanged(team=RED, gpu_type=L40S, guaranteed=4, borrow_limit=0, reason="budget"),
            TeamClassesChanged(team=RED, classes=("prod-batch",), reason="budget"),
        )

    def test_what_is_as_asked_is_no_fact(self, ready: Scenario) -> None:
        """Types that are not named stay as they are."""
        ready.given(SetQuota(team=RED, lines=lines(h100=8, l40s=4)))
        ready.when(SetQuota(team=RED, lines=lines(h100=8))).then(CommandDone)
        ready.when(SetQuota(team=RED, lines=lines(l40s=2, h100=8))).then(QuotaChanged)
        assert ready.state.quotas[RED, H100].guaranteed == 8

    def test_guarantees_of_all_teams_are_within_the_registered_gpus(self, ready: Scenario) -> None:
        """All lines or none."""
        ready.given(SetQuota(team=BLUE, lines=lines(h100=10)))
        ready.when(SetQuota(team=RED, lines=lines(l40s=1, h100=7))).then_refused(
            RefusalCode.OVER_INVENTORY,
            "h100.guaranteed",
            "6 of 16 registered GPUs outside pools are not guaranteed to other teams",
        )
        assert (RED, L40S) not in ready.state.quotas
        ready.when(SetQuota(team=RED, lines=lines(h100=6))).then(QuotaChanged)

    def test_a_guarantee_may_be_lowered_though_capacity_was_lost(self, ready: Scenario) -> None:
        """Capacity lost later drains nobody by itself, and forbids no step in the right direction."""
        ready.given(SetQuota(team=RED, lines=lines(h100=16)), RemoveNode(node_id=NodeId("n0"), reason="sold"))
        ready.when(SetQuota(team=RED, lines=lines(h100=15))).then(QuotaChanged)
        ready.when(SetQuota(team=RED, lines=lines(h100=16))).then_refused(RefusalCode.OVER_INVENTORY)

    def test_lost_nodes_count(self) -> None:
        """They are registered."""
        scenario = Scenario().given(cluster("b0: [8 lost]"))
        scenario.when(SetQuota(team=RED, lines=lines(h100=8))).then(QuotaChanged)


class TestPolicy:
    """Data, put in force by an event."""

    def test_holds_from_the_next_decision_on(self, ready: Scenario) -> None:
        """With its version in the commits that follow."""
        ready.when(SetPolicy(policy={"queued_jobs_max": 7}, reason="busy"))
        (changed,) = ready.events
        assert isinstance(changed, PolicyChanged)
        assert (changed.version, changed.reason) == (1, "busy")
        assert ready.state.policy == Policy(queued_jobs_max=7)

    def test_is_whole(self, ready: Scenario) -> None:
        """What is not named has its default again."""
        ready.given(SetPolicy(policy={"queued_jobs_max": 7}), SetPolicy(policy={"grace_s_max": 9}))
        assert ready.state.policy == Policy(grace_s_max=9)

    def test_the_same_again_is_done(self, ready: Scenario) -> None:
        """No new version."""
        ready.when(SetPolicy(policy=DEFAULT.model_dump(mode="json"))).then(CommandDone)

    @pytest.mark.parametrize(
        ("policy", "field"),
        [
            ({"queued_jobs_max": 0}, "queued_jobs_max"),
            ({"surprise": 1}, "surprise"),
            ({"grace_s_max": "x"}, "grace_s_max"),
        ],
    )
    def test_one_that_does_not_validate_is_refused_with_the_field(
        self, ready: Scenario, policy: dict[str, Any], field: str
    ) -> None:
        """And nothing changes."""
        ready.when(SetPolicy(policy=policy)).then_refused(RefusalCode.BAD_POLICY, field)
        assert ready.state.policy == DEFAULT


def test_quota_makes_a_team(ready: Scenario) -> None:
    """Jobs of a team are known from its first quota on."""
    ready.when(submit("a"))
    assert ready.events[0].code == RefusalCode.UNKNOWN_TEAM
    ready.given(SetQuota(team=RED, lines=lines(h100=1))).when(submit("b"))
    assert ready.job_state("b") == "QUEUED"
