"""Reservations and backfill: the first blocked gang starts when it was promised, and others fill the hole (R-23)."""

from __future__ import annotations

from typing import Any

import pytest

from commands.messages import DrainNode
from commands.pools import PoolKind, PoolRule
from events.ids import NodeId
from events.job import PriorityClass, Topology
from events.preemption import PreemptionOrdered
from events.reservation import BlocksFreed, BlocksMoved, BlocksReserved, FreedBecause
from tests.builders import BLUE, L40S, job_id, pack, quota, spread
from tests.scenario import Scenario
from tests.unit.steps import after, cancel, cluster, ended, hold, plan, policy, quietly, runs, submit

BATCH, PREEMPTIBLE = PriorityClass.PROD_BATCH, PriorityClass.PREEMPTIBLE
HOUR_S = 3_600
SPARE = " [8 drained] [8 drained]"
"""Nodes that count for guarantees, and for nothing else."""


def gang(nodes: int, **fields: Any) -> dict[str, Any]:
    return {"replicas": nodes, "gpus_per_replica": 8, **fields}


def start_in_s(scenario: Scenario) -> int:
    """In how many seconds the only reservation starts."""
    (held,) = scenario.state.reservations.rows.values()
    return (held.start_at - scenario.at) // 1000


def held(scenario: Scenario) -> dict[str, str]:
    """Job -> the nodes that are held for it."""
    return {
        row.job_id.removeprefix("j_"): " ".join(scenario.state.nodes[index].id for index in row.nodes)
        for _, row in sorted(scenario.state.reservations.rows.items())
    }


@pytest.fixture
def half() -> Scenario:
    """Two nodes; on one of them a job of team red for an hour, and a gang of red waits for both. Red is covered, blue
    borrows."""
    scenario = Scenario().given(cluster(f"b0: [8] [8]{SPARE}"), quota(guaranteed=32), quota("blue"))
    return scenario.given(runs("long", max_runtime_s=HOUR_S, gpus_per_replica=8), submit("big", **gang(2)), plan())


class TestWhoGetsOne:
    """The first that is blocked, of a node or more, of each type and pool."""

    def test_within_one_cycle_at_the_end_of_what_runs(self, half: Scenario) -> None:
        """The time is that of the run-time limit (C-1, C-3)."""
        assert isinstance(half.events[0], BlocksReserved)
        assert held(half) == {"big": "n0 n1"}
        assert HOUR_S - 10 < start_in_s(half) <= HOUR_S
        quietly(half)

    def test_the_first_only(self, half: Scenario) -> None:
        """Whoever is blocked behind it gets nothing held."""
        half.when(submit("more", **gang(2)), submit("third", **gang(2, team=BLUE)), plan())
        assert held(half) == {"big": "n0 n1"}
        quietly(half)

    def test_less_than_a_node_gets_none(self) -> None:
        """Small jobs find a place by themselves."""
        scenario = Scenario().given(cluster("b0: [xxxxxxx.]"), quota(), submit("a", gpus_per_replica=2))
        quietly(scenario)

    def test_one_for_each_type(self) -> None:
        """A gang that waits for one type is no obstacle on another (C-2)."""
        scenario = Scenario().given(cluster("b0: [x.......] [8]\nb1 l40s 48: [x...] [4]"))
        scenario.given(quota(), quota(gpu_type=L40S), submit("a", **gang(2)))
        scenario.given(submit("b", gpu_type=L40S, replicas=2, gpus_per_replica=4), plan())
        assert held(scenario) == {"a": "n0 n1", "b": "n2 n3"}
        quietly(scenario)

    def test_not_who_is_over_his_limit(self) -> None:
        """Nodes held for him would stand idle for nothing; and if he comes over it, they are free again."""
        scenario = Scenario().given(cluster("b0: [8] [x.......]"), quota(borrow_limit=16))
        scenario.given(submit("a", **gang(2)), plan())
        assert held(scenario) == {"a": "n0 n1"}
        scenario.when(quota(borrow_limit=8), plan())
        assert scenario.events[-1] == BlocksFreed(job_id=job_id("a"), because=FreedBecause.GONE)
        quietly(scenario)

    @pytest.mark.parametrize("gone", [cancel("big"), hold("big")], ids=["cancelled", "held"])
    def test_it_ends_with_its_job(self, half: Scenario, gone: Any) -> None:
        """And the next takes its place in the same cycle."""
        half.given(submit("next", **gang(2, team=BLUE)), gone, plan())
        assert held(half) == {"next": "n0 n1"}

    def test_it_goes_with_its_job_into_another_pool(self, half: Scenario) -> None:
        """A pool is declared that the gang belongs to: it has one reservation still, and the pool's."""
        large = PoolRule(name="large", kind=PoolKind.WHOLE, nodes=("n0", "n1"), gpus_min=16)
        half.given(policy(pools=(large,))).when(plan())
        assert [(type(event), event.job_id) for event in half.events] == [
            (BlocksFreed, job_id("big")),
            (BlocksReserved, job_id("big")),
        ]
        assert [row.pool for row in half.state.reservations.rows.values()] == ["large"]
        quietly(half)

    def test_a_job_without_a_limit_ends_at_a_horizon(self) -> None:
        """Never is no estimate (C-3)."""
        scenario = Scenario().given(cluster("b0: [8]"), quota(guaranteed=8), policy(unlimited_horizon_s=7_200))
        scenario.given(runs("a", max_runtime_s=None, priority_class=PriorityClass.PROD_SERVING))
        scenario.given(submit("b", **gang(1)), plan())
        assert start_in_s(scenario) == 7_200
        quietly(scenario)

    def test_nodes_of_several_memories_add_up(self) -> None:
        """As they do when it starts."""
        scenario = Scenario().given(cluster("b0 h100 80: [x.......]\nb1 h100 141: [8]"), quota())
        scenario.given(submit("a", **gang(2)), plan())
        assert held(scenario) == {"a": "n0 n1"}


class TestBackfill:
    """Inside a reservation runs what is sure to end before its start."""

    @pytest.mark.parametrize(
        ("limit_s", "where"),
        [(60, "n1*1"), (1_800, "n1*1"), (3_400, "n1*1"), (3_600, "waits"), (4_000, "waits"), (30 * 86_400, "waits")],
    )
    def test_only_what_ends_in_time(self, half: Scenario, limit_s: int, where: str) -> None:
        """By its run-time limit, whatever it may take in fact."""
        half.given(submit("small", max_runtime_s=limit_s), plan())
        assert half.table("small") == {"small": where}
        quietly(half)

    def test_one_that_lasts_too_long_may_run_elsewhere(self) -> None:
        """Only the nodes that are held are hidden."""
        scenario = Scenario().given(cluster("b0: [8] [8]\nb1: [xxxxxx..]"), quota(guaranteed=16), quota("blue"))
        scenario.given(runs("long", max_runtime_s=HOUR_S, gpus_per_replica=8), submit("big", **gang(2)), plan())
        scenario.given(submit("small", team=BLUE, max_runtime_s=86_400), plan())
        assert scenario.table("small") == {"small": "n2*1"}

    def test_the_first_starts_as_promised_among_an_endless_flood(self, half: Scenario) -> None:
        """Small jobs go on filling the hole, and the gang starts no later than was said (C-1)."""
        (promise,) = (row.start_at for row in half.state.reservations.rows.values())
        filled, number = 0, 0
        while half.at < promise - 1000:
            name = f"s{number}"
            half.given(submit(name, max_runtime_s=600, team=BLUE), plan())
            number += 1
            if half.job_state(name) == "STARTING":
                filled += 1
                half.given(after(590), ended(name))
            else:
                half.given(after(60))
            (row,) = half.state.reservations.rows.values()
            assert row.start_at <= promise
        assert filled >= 4
        half.given(ended("long"), plan())
        assert half.job_state("big") == "STARTING"
        assert half.at <= promise + 60_000

    def test_borrowers_of_other_teams_fill_it_too(self, half: Scenario) -> None:
        """Nobody's backlog stops another team's borrowing (C-2)."""
        half.given(submit("small", team=BLUE, max_runtime_s=60, priority_class=PREEMPTIBLE), plan())
        assert half.table("small") == {"small": "n1*1"}

    def test_one_that_stands_behind_others_of_its_shape_still_starts(self) -> None:
        """A later one came to stand before it; what is held for it is no use to that one."""
        scenario = Scenario().given(
            cluster(f"b0: [8] [8]{SPARE}"), quota(guaranteed=32), policy(ease_per_hour_percent=0)
        )
        scenario.given(runs("long", gpus_per_replica=8), submit("big", **gang(2)), plan())
        assert held(scenario) == {"big": "n0 n1"}
        scenario.given(submit("urgent", **gang(2, deadline_at=scenario.at + 10**7)), ended("long"), plan())
        assert scenario.table("urgent", "big") == {"urgent": "waits", "big": "n0*8 n1*8"}


class TestWhenItMoves:
    """Earlier, when nodes come free sooner; later only for what nobody started."""

    def test_earlier_when_what_runs_ends_sooner(self) -> None:
        """Three run; one of those that take longest ends, and the gang of two now waits for the shortest alone."""
        scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota(guaranteed=24))
        scenario.given(runs("a", max_runtime_s=HOUR_S, gpus_per_replica=8))
        scenario.given(runs("b", "c", max_runtime_s=2 * HOUR_S, gpus_per_replica=8))
        scenario.given(submit("big", **gang(2)), plan())
        assert start_in_s(scenario) > HOUR_S
        scenario.when(ended("b"), plan())
        assert [type(event) for event in scenario.events[-1:]] == [BlocksMoved]
        assert start_in_s(scenario) <= HOUR_S
        quietly(scenario)

    def test_to_other_nodes_when_one_is_drained(self) -> None:
        """Later than before, but for no start of ours."""
        scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota(guaranteed=24))
        scenario.given(runs("a", max_runtime_s=HOUR_S, gpus_per_replica=8))
        scenario.given(runs("b", max_runtime_s=2 * HOUR_S, gpus_per_replica=8))
        scenario.given(submit("big", **gang(2)), plan())
        assert held(scenario) == {"big": "n0 n2"}
        scenario.given(DrainNode(node_id=NodeId("n2"), reason="repair"), plan())
        assert held(scenario) == {"big": "n0 n1"}
        assert HOUR_S < start_in_s(scenario) <= 2 * HOUR_S
        quietly(scenario)

    @pytest.mark.parametrize("word", ["suspect", "unconfirmed"])
    def test_an_overdue_start_is_no_news(self, word: str) -> None:
        """While nothing better is known it stands as it is, cycle after cycle."""
        scenario = Scenario().given(cluster(f"b0: [8] [8 {word}]"), quota(guaranteed=16), submit("a", **gang(2)))
        scenario.given(plan(), after(600))
        quietly(scenario)
        assert held(scenario) == {"a": "n0 n1"}

    def test_what_should_be_free_by_now_is_no_better_than_what_is(self) -> None:
        """Of two sizes of nodes the free one stays held, though a lease on the other is overdue meanwhile (C-16)."""
        scenario = Scenario().given(cluster(f"b0: [4] [4]\nb1: [8 suspect]{SPARE}"), quota(guaranteed=16))
        scenario.given(runs("late", max_runtime_s=HOUR_S, gpus_per_replica=4))
        scenario.given(submit("a", replicas=2, gpus_per_replica=4), plan())
        assert held(scenario) == {"a": "n2"}
        scenario.given(after(2 * HOUR_S), plan())
        assert held(scenario) == {"a": "n2"}

    def test_a_long_stream_of_starts_never_makes_it_later(self) -> None:
        """On its own nodes and on others, of its own team and of others."""
        scenario = Scenario().given(cluster(f"b0: [8] [8]\nb1: [8] [8]{SPARE}{SPARE}"))
        scenario.given(quota(guaranteed=64), quota("blue"))
        scenario.given(runs("a", "b", "c", max_runtime_s=HOUR_S, gpus_per_replica=8), submit("big", **gang(4)), plan())
        (start_at,) = (row.start_at for row in scenario.state.reservations.rows.values())
        for number in range(12):
            team, limit_s = [BLUE, BLUE, "red"][number % 3], [300, 900, 2_000, 9_000][number % 4]
            scenario.given(submit(f"s{number}", team=team, max_runtime_s=limit_s), plan(), after(60))
            (row,) = scenario.state.reservations.rows.values()
            assert row.start_at <= start_at
            start_at = row.start_at


class TestWhoOvertakes:
    """A higher group or class takes the nodes; a mere turn in fairness does not."""

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"priority_class": BATCH}, "n1*8"),
            ({}, "waits"),
            ({"priority_class": PREEMPTIBLE}, "waits"),
            ({"team": BLUE}, "waits"),
            ({"team": BLUE, "priority_class": BATCH}, "waits"),
        ],
        ids=["higher class", "equal", "lower class", "borrowing", "borrowing, of a higher class"],
    )
    def test_the_nodes_that_are_free(self, half: Scenario, fields: dict[str, Any], where: str) -> None:
        """Of a job that is too long for backfill."""
        half.given(submit("other", gpus_per_replica=8, max_runtime_s=86_400, **fields), plan())
        assert half.table("other") == {"other": where}
        quietly(half)

    def test_a_gang_of_a_higher_class_that_is_blocked_too(self) -> None:
        """It takes the place of the first, which is told so."""
        scenario = Scenario().given(cluster(f"b0: [8] [8]{SPARE}"), quota(guaranteed=32))
        scenario.given(runs("long", gpus_per_replica=8, priority_class=BATCH), submit("big", **gang(2)), plan())
        scenario.when(submit("top", **gang(2, priority_class=BATCH)), plan())
        assert BlocksFreed(job_id=job_id("big"), because=FreedBecause.OVERTAKEN) in scenario.events
        assert held(scenario) == {"top": "n0 n1"}
        quietly(scenario)

    def test_one_for_which_room_can_be_made_in_the_same_cycle(self, half: Scenario) -> None:
        """It displaces what runs there, in one step: nothing is held for it first."""
        half.when(submit("top", **gang(2, priority_class=BATCH)), plan())
        assert BlocksFreed(job_id=job_id("big"), because=FreedBecause.OVERTAKEN) in half.events
        assert [event.job_id for event in half.events if isinstance(event, PreemptionOrdered)] == [job_id("top")]
        quietly(half)

    def test_covered_before_borrowing(self) -> None:
        """The holder borrows; who is covered goes first, whatever his class."""
        scenario = Scenario().given(cluster("b0: [8] [8]"), quota(guaranteed=8), quota("blue", 0))
        scenario.given(runs("long", team=BLUE, gpus_per_replica=8))
        scenario.given(submit("big", **gang(2, team=BLUE)), plan())
        scenario.given(submit("small", gpus_per_replica=8, max_runtime_s=86_400, priority_class=PREEMPTIBLE), plan())
        assert scenario.table("small") == {"small": "n1*8"}

    def test_not_by_its_own_team_for_being_covered(self) -> None:
        """All of the fleet is red's: while anything runs its gang borrows, and small jobs would come first for ever.
        That its room is too small is no limit of its own: it waits for ends, and the nodes are held."""
        scenario = Scenario().given(cluster("b0: [8] [8]"), quota(guaranteed=16, borrow_limit=0))
        scenario.given(runs("long", max_runtime_s=HOUR_S, gpus_per_replica=8), submit("big", **gang(2)), plan())
        assert held(scenario) == {"big": "n0 n1"}
        scenario.given(submit("small", max_runtime_s=2 * HOUR_S), submit("short", max_runtime_s=60), plan())
        assert scenario.table("small", "short") == {"small": "waits", "short": "n1*1"}
        assert held(scenario) == {"big": "n0 n1"}
        quietly(scenario)


@pytest.mark.parametrize(
    ("hint", "nodes"),
    [(pack("block"), "n0 n1"), (pack("rack"), "n2 n3"), (spread("block"), "n1 n2"), (spread("rack", 1), "n0 n1")],
    ids=["one block", "one rack", "a block each", "a rack each, in one block"],
)
def test_what_is_held_is_what_the_hint_asks_for(hint: Topology, nodes: str) -> None:
    """b0 has two racks of one node, one of them free; b1 a rack of two nodes and one of one, all busy."""
    picture = "b0: [x.......] | [8]\nb1: [x.......] [x.......] | [x.......]"
    scenario = Scenario().given(cluster(picture), quota(), submit("a", **gang(2, hint=hint)), plan())
    assert held(scenario) == {"a": nodes}
    quietly(scenario)
