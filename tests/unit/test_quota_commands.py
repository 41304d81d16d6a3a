"""Quotas as commands: in GPUs or percent, within what there is, and without a stop for anybody (R-12, R-14, C-15)."""

from __future__ import annotations

import pytest

from commands.messages import QuotaLine, SetQuota
from commands.refusal import RefusalCode
from events.ids import TeamId
from events.leadership import CommandDone
from events.quota import QuotaChanged
from tests.builders import BLUE, H100, RED, quota
from tests.scenario import Scenario
from tests.unit.steps import cluster, lost, plan, policy, runs, submit


def percent(team: TeamId, guaranteed: int | None = None, borrow: int | None = None, gpus: int = 0) -> SetQuota:
    """Either figure in percent; the one that is not given in GPUs."""
    line = QuotaLine(
        gpu_type=H100,
        guaranteed=gpus,
        borrow_limit=gpus,
        guaranteed_percent=guaranteed,
        borrow_limit_percent=borrow,
    )
    return SetQuota(team=team, lines=(line,), reason="plan 7")


@pytest.fixture
def ready() -> Scenario:
    """Two blocks of two nodes."""
    return Scenario().given(cluster("b0: [8] [8]\nb1: [8] [8]"))


class TestPercent:
    """Resolved when it is set (R-12)."""

    def test_of_the_registered_gpus(self, ready: Scenario) -> None:
        """The event has both: the GPUs that hold from now on, and the percent that was said."""
        ready.when(percent(RED, 25, 50)).then(
            QuotaChanged(
                team=RED,
                gpu_type=H100,
                guaranteed=8,
                borrow_limit=16,
                reason="plan 7",
                guaranteed_percent=25,
                borrow_limit_percent=50,
            )
        )

    def test_a_part_of_a_gpu_is_nobodys(self, ready: Scenario) -> None:
        """10% of 32 GPUs are 3; with ten teams of 10% two are nobody's."""
        for number in range(10):
            ready.given(percent(TeamId(f"t{number}"), 10))
        assert {line.guaranteed for line in ready.state.quotas.rows.values()} == {3}

    def test_it_does_not_follow_the_fleet(self, ready: Scenario) -> None:
        """A node that comes later changes no quota; setting it anew does."""
        ready.given(percent(RED, 50), cluster("b2: [8] [8]"))
        assert ready.state.quotas[RED, H100].guaranteed == 16
        ready.when(percent(RED, 50)).then(QuotaChanged)
        assert ready.state.quotas[RED, H100].guaranteed == 24


class TestSum:
    """What may be guaranteed."""

    def test_no_more_than_there_is(self, ready: Scenario) -> None:
        """The guarantees of all teams together are at most the registered GPUs; the answer says what is left."""
        ready.given(quota("red", 20))
        ready.when(quota("blue", 13)).then_refused(
            RefusalCode.OVER_INVENTORY,
            "h100.guaranteed",
            "12 of 32 registered GPUs outside pools are not guaranteed to other teams",
        )
        ready.when(quota("blue", 12, classes=None)).then(QuotaChanged)

    def test_pools_are_no_part_of_it(self, ready: Scenario) -> None:
        """What is in a pool is guaranteed to nobody."""
        ready.given(policy(pools=({"name": "serving", "kind": "latency", "blocks": ("b1",)},)))
        ready.when(quota("red", 17)).then_refused(RefusalCode.OVER_INVENTORY)
        ready.given(percent(RED, 100))
        assert ready.state.quotas[RED, H100].guaranteed == 16

    def test_all_lines_or_none(self, ready: Scenario) -> None:
        """One line too many: nothing changes."""
        good, bad = QuotaLine(gpu_type=H100, guaranteed=1), QuotaLine(gpu_type=H100, guaranteed=99)
        ready.when(SetQuota(team=RED, lines=(good, bad))).then_refused(RefusalCode.OVER_INVENTORY)
        assert not ready.state.quotas.rows

    def test_lowering_always_helps(self, ready: Scenario) -> None:
        """Where capacity was lost below the sum of guarantees, one may be lowered, though not yet far enough."""
        ready.given(quota("red", 16), quota("blue", 16))
        ready.given(policy(pools=({"name": "serving", "kind": "latency", "blocks": ("b1",)},)))
        ready.when(quota("blue", 15, classes=None)).then(QuotaChanged)
        ready.when(quota("blue", 16, classes=None)).then_refused(RefusalCode.OVER_INVENTORY)

    def test_what_is_so_already(self, ready: Scenario) -> None:
        """Setting what holds changes nothing, and is answered."""
        ready.given(quota("red", 16))
        ready.when(quota("red", 16)).then(CommandDone)


class TestBelowUse:
    """Lowering a quota, or losing nodes, stops nobody by itself (C-15)."""

    def test_lowered_below_its_use(self, ready: Scenario) -> None:
        """What runs goes on: beyond the new limit nothing more starts, and nothing is stopped for it."""
        ready.given(quota("red", 32, 0), *(runs(f"a{number}", gpus_per_replica=8) for number in range(3)))
        ready.given(quota("red", 8, 0))
        ready.when(plan(), plan(), plan(), plan(), plan()).then_nothing()
        assert ready.charged("red") == 24
        ready.given(submit("a3", gpus_per_replica=8))
        ready.when(*[plan()] * 5).then_nothing()

    def test_capacity_lost_below_the_guarantees(self, ready: Scenario) -> None:
        """Guarantees stay what they are, and running work is left alone."""
        ready.given(quota("red", 16), quota("blue", 16), runs("a", gpus_per_replica=8), lost("n3"))
        assert ready.state.quotas[BLUE, H100].guaranteed == 16
        ready.when(*[plan()] * 5).then_nothing()
        assert ready.job_state("a") == "RUNNING"
