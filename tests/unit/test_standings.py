"""How the teams stand: what each has, is entitled to and used, by the figures that the planner goes by."""

from __future__ import annotations

from typing import Any

import pytest

from events.ids import Instant
from events.job import PriorityClass
from scheduler.planning.order import ONE
from scheduler.planning.plan import Planner
from scheduler.planning.standings import TeamStanding, standings
from tests.builders import BLUE, H100, L40S, RED, quota
from tests.properties.histories import History
from tests.scenario import Scenario
from tests.unit.steps import after, array, cluster, ended, hold, plan, runs, submit

NODE: dict[str, Any] = {"gpus_per_replica": 8}


@pytest.fixture
def ready() -> Scenario:
    """Three nodes; red is guaranteed one and may borrow another, blue two."""
    return Scenario().given(cluster("b0: [8] [8] [8]"), quota(RED, 8, 8), quota(BLUE, 16, 0))


def standing(scenario: Scenario, team: str = RED) -> TeamStanding:
    """Of one team, on its only type."""
    (found,) = (each for each in standings(scenario.planner, Instant(scenario.at)) if each.team == team)
    return found


class TestGpus:
    def test_what_is_covered_and_what_is_borrowed(self, ready: Scenario) -> None:
        """Inside the guarantee, and beyond it."""
        ready.given(runs("a", **NODE), runs("b", gpus_per_replica=4))
        found = standing(ready)
        assert (found.guaranteed, found.borrow_limit, found.in_use) == (8, 8, 12)
        assert (found.covered, found.borrowed, found.pledged) == (8, 4, 0)

    def test_room_that_is_made_is_pledged_and_covered(self, ready: Scenario) -> None:
        """To the owner at once, though its victim has the GPUs still."""
        ready.given(quota(RED, 0, 24), runs("a", "b", "c", **NODE), submit("x", team=BLUE, **NODE), plan())
        blue, red = standing(ready, BLUE), standing(ready)
        assert (blue.in_use, blue.pledged, blue.covered, blue.borrowed) == (0, 8, 8, 0)
        assert (red.in_use, red.borrowed, red.waiting) == (24, 24, 0)
        assert (blue.waiting, blue.entitled) == (0, 8)

    def test_what_waits_for_gpus_alone_is_waiting(self, ready: Scenario) -> None:
        """As it would be charged; an array as its throttle lets it; not what is held."""
        ready.given(submit("a", replicas=2, gpus_per_replica=6), submit("b", gpus_per_replica=2))
        ready.given(submit("h", gpus_per_replica=8), hold("h"), submit("c", array=array(0, 99, 5)))
        assert standing(ready).waiting == 16 + 2 + 5

    @pytest.mark.parametrize(("asked", "entitled"), [(0, 0), (3, 3), (8, 8), (15, 8)])
    def test_entitled_to_no_more_than_it_asks_for(self, ready: Scenario, asked: int, entitled: int) -> None:
        """And to no more than its guarantee; whether it runs or waits."""
        for number in range(asked):
            ready.given(submit(f"j{number}"))
        assert standing(ready).entitled == entitled
        ready.given(plan())
        assert standing(ready).entitled == entitled


class TestUse:
    def test_a_start_counts_in_advance_and_an_end_for_what_it_was(self, ready: Scenario) -> None:
        """An hour of each GPU at once; after that what it ran, on top."""
        ready.given(runs("a", **NODE, max_runtime_s=7200))
        assert 0 <= standing(ready).used_gpu_s - 8 * 3600 < 8 * 60
        ready.given(after(1800), ended("a"))
        assert 8 * 1800 <= standing(ready).used_gpu_s < 8 * 1860

    def test_it_decays(self, ready: Scenario) -> None:
        """Half of it a week later; and a team without quota that used something is still there."""
        ready.given(runs("a", **NODE), after(3000), ended("a"), quota(RED, 0, 0))
        used = standing(ready).used_gpu_s
        (week,) = standings(ready.planner, Instant(ready.at + 7 * 86_400_000), RED)
        assert abs(week.used_gpu_s * 2 - used) < used // 100
        assert week.share is None

    def test_the_share_is_the_planners(self, ready: Scenario) -> None:
        """What the order of teams goes by: the largest over the types."""
        ready.given(runs("a", **NODE), after(3000))
        now = Instant(ready.at // 60_000 * 60_000)
        ready.planner.fair.begin(now)
        found = standings(ready.planner, now, RED)
        assert max(each.share or 0 for each in found) * ONE == pytest.approx(ready.planner.fair.share(RED), rel=1e-6)

    def test_what_runs_counts_in_full(self, ready: Scenario) -> None:
        """Use of the guarantee for the half-life's mean, ten days, is a share of 1; it decays when it is settled."""
        serving = PriorityClass.PROD_SERVING
        ready.given(runs("a", **NODE, priority_class=serving, max_runtime_s=None))
        for week, share in ((1, 0.693), (8, 5.545)):
            (found,) = standings(ready.planner, Instant(ready.at + week * 7 * 86_400_000), RED)
            assert found.share == pytest.approx(share, rel=0.02)


def test_all_teams_and_types_in_order(ready: Scenario) -> None:
    """Each once; or those of one team."""
    ready.given(quota(BLUE, gpu_type=L40S))
    found = standings(ready.planner, Instant(ready.at))
    assert [(each.team, each.gpu_type) for each in found] == [(BLUE, H100), (BLUE, L40S), (RED, H100)]
    assert standings(ready.planner, Instant(ready.at), BLUE) == found[:2]


@pytest.mark.parametrize("seed", range(600, 604))
def test_the_figures_agree_whatever_happened(seed: int) -> None:
    """Covered and borrowed are all of use, covered never more than the guarantee, and another planner says the same."""
    history = History(seed)
    for _ in range(5):
        history.run(40)
        now = Instant(history.scenario.at)
        found = standings(history.scenario.planner, now)
        assert found == standings(Planner(history.state), now)
        for each in found:
            assert each.covered + each.borrowed == each.in_use + each.pledged
            assert 0 <= each.covered <= each.guaranteed
            assert each.entitled <= min(each.guaranteed, each.in_use + each.pledged + each.waiting)
            assert min(each.waiting, each.pledged, each.used_gpu_s) >= 0
        held = {key: use.charged for key, use in history.state.usage.rows.items() if use.charged}
        assert {(each.team, each.gpu_type): each.in_use for each in found if each.in_use} == held
