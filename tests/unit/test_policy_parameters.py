"""Parameters make the difference that they say, from the next cycle on; a bad policy is refused with the field."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from commands.entities import FairUse
from commands.evolve.fair import decayed, used_gpu_s
from commands.messages import SetPolicy
from commands.policy import DEFAULT, NOT_BELOW, Policy
from commands.pools import pool_of
from commands.refusal import RefusalCode
from events.ids import Instant
from events.leadership import CommandDone
from events.policy import PolicyChanged
from tests.builders import H100, RED, job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import after, cluster, ended, plan, policy, runs, submit


@pytest.fixture
def ready() -> Scenario:
    """Two nodes and two teams."""
    return Scenario().given(cluster("b0: [8] [8]"), quota("red", 8, 8), quota("blue", 8, 8))


class TestChange:
    """A policy is put in force whole, by an event."""

    def test_it_has_a_version_and_a_reason(self, ready: Scenario) -> None:
        """What is not named has its default; the next version is one higher."""
        ready.when(SetPolicy(policy={"queued_jobs_max": 7}, reason="a trial")).then(PolicyChanged)
        event = ready.events[0]
        assert (event.version, event.reason) == (1, "a trial")
        assert Policy.model_validate(event.policy) == Policy(queued_jobs_max=7)
        ready.when(SetPolicy(policy={"queued_jobs_max": 7})).then(CommandDone)
        ready.when(SetPolicy(policy={})).then(PolicyChanged)
        assert (ready.state.policy, ready.state.meta.policy_version) == (DEFAULT, 2)

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"no_such": 1}, "no_such"),
            ({"queued_jobs_max": 0}, "queued_jobs_max"),
            ({"array_elements_max": 50_001}, "array_elements_max"),
            ({"preset": "lifo"}, "preset"),
            ({"default_classes": ["vip"]}, "default_classes.0"),
            ({"node_suspect_s": 91}, "node_lost_s"),
            ({"retry_backoff_s": 901}, "retry_backoff_max_s"),
            ({"shield_after_two_s": 60}, "shield_after_two_s"),
            ({"fair_half_life_h": 0}, "fair_half_life_h"),
            ({"borrow_runtime_max_s": -1}, "borrow_runtime_max_s"),
        ],
    )
    def test_a_bad_one_is_refused(self, ready: Scenario, given: dict[str, Any], field: str) -> None:
        """With the field; and the one before stays in force."""
        ready.when(SetPolicy(policy=given)).then_refused(RefusalCode.BAD_POLICY, field)
        assert ready.state.policy == DEFAULT

    def test_figures_that_belong_together(self) -> None:
        """Of each pair the later field comes later in the model, so that the other one is known when it is checked."""
        order = list(Policy.model_fields)
        assert all(order.index(low) < order.index(high) for high, low in NOT_BELOW.items())

    def test_every_parameter_says_what_it_is(self) -> None:
        """Each has a description, and a default within its own bounds."""
        assert all(info.description for info in Policy.model_fields.values())
        assert Policy.model_validate_json(DEFAULT.model_dump_json(), strict=True) == DEFAULT

    @pytest.mark.timeout(100)
    def test_a_pool_may_name_very_many_nodes(self, ready: Scenario) -> None:
        """Neither to read it nor to look every node up takes long: else one policy would stop each leader in turn.
        With a look at each name for each name, or for each node, it would be half an hour here."""
        pool = {"name": "a", "kind": "whole", "nodes": [f"n{number:05}" for number in range(20_000)]}
        ready.when(SetPolicy(policy={"pools": [pool]})).then(PolicyChanged)
        assert not ready.when(plan()).events
        ready.when(SetPolicy(policy={"pools": [pool]})).then(CommandDone)
        node, many = ready.node("n0"), [f"n{number:06}" for number in range(400_000)]
        pools = Policy.model_validate({"pools": [{**pool, "nodes": many}]}).pools
        assert [pool_of(pools, node) for _ in range(200_000)] == [None] * 200_000

    def test_a_name_that_is_there_twice_is_told(self, ready: Scenario) -> None:
        """Of nodes, blocks and pools."""
        pools = [{"name": "a", "kind": "whole", "nodes": ["n9", "n1", "n9"]}]
        ready.when(SetPolicy(policy={"pools": pools})).then_refused(RefusalCode.BAD_POLICY, "pools")
        assert "node n9 is named twice" in ready.events[0].limit


class TestFairShare:
    """What a team used, and how long it counts (R-21)."""

    @pytest.mark.parametrize("half_life_h", [1, 24, 168, 720])
    def test_half_after_the_half_life(self, half_life_h: int) -> None:
        """To a part in a million; it never grows, and is the same in every process."""
        once = decayed(10**12, half_life_h, half_life_h)
        assert abs(once - 10**12 // 2) < 10**6
        hours = [decayed(10**12, hour, half_life_h) for hour in range(0, 4 * half_life_h, max(1, half_life_h // 10))]
        assert all(later < earlier for earlier, later in pairwise(hours))

    def test_the_half_life_of_the_policy(self, ready: Scenario) -> None:
        """With a half-life of an hour nearly nothing is left of it a day later; with a week's nearly all."""
        ready.given(runs("a", gpus_per_replica=8), after(3000), ended("a"))
        use = ready.state.fair_use[RED, H100]
        tomorrow = Instant(ready.at + 86_400_000)
        assert used_gpu_s(use, tomorrow, 168) > use.settled * 9 // 10
        assert used_gpu_s(use, tomorrow, 1) == 0

    @pytest.mark.parametrize(("given", "charged_s"), [({}, 3600), ({"fair_advance_s": 60}, 60)])
    def test_what_is_charged_in_advance(self, ready: Scenario, given: dict[str, int], charged_s: int) -> None:
        """A start counts at once for so many seconds of each of its GPUs."""
        ready.given(policy(**given), runs("a", gpus_per_replica=4, max_runtime_s=7200))
        use: FairUse = ready.state.fair_use[RED, H100]
        assert use.advance == 4 * charged_s


class TestNextCycle:
    """A change is in force from the next cycle on."""

    def test_waiting_stops_to_count(self) -> None:
        """Ten hours of waiting bring the team that used more to the front, until waiting eases nothing any more."""
        for given, first in (({}, "red"), ({"ease_per_hour_percent": 0}, "blue")):
            ready = Scenario().given(cluster("b0: [8]"), quota("red", 4, 20), quota("blue", 4, 20))
            ready.given(runs("x", gpus_per_replica=8), submit("r", gpus_per_replica=8), after(36_000))
            ready.given(submit("b", team="blue", gpus_per_replica=8), policy(**given), ended("x"), plan())
            started = "red" if ready.job_state("r") == "STARTING" else "blue"
            assert started == first

    def test_when_an_unlimited_job_is_expected_to_end(self) -> None:
        """A reservation behind it is for that time."""
        for given, days in (({}, 7), ({"unlimited_horizon_s": 86_400}, 1)):
            ready = Scenario().given(cluster("b0: [8] [8]"), quota("red", 16, 16), policy(**given))
            ready.given(runs("a", gpus_per_replica=8, priority_class="prod-serving", max_runtime_s=None))
            ready.given(submit("b", replicas=2, gpus_per_replica=8), plan())
            (held,) = ready.state.reservations.rows.values()
            assert held.job_id == job_id("b")
            assert round((held.start_at - ready.at) / 86_400_000) == days
