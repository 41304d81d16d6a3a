"""Where a gang goes: whole nodes, best fit, fewest blocks, hints; all of it or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from events.job import Topology
from tests.builders import L40S, at_most, pack, quota, spread
from tests.scenario import Scenario
from tests.unit.steps import cluster, ended, plan, registers, runs, submit

WAITS = "waits"


def placed(picture: str, **fields: Any) -> str:
    """Where a job goes in that cluster: "n0*8 n1*8" (node*GPUs of each rank); five more cycles move nothing."""
    scenario = Scenario().given(cluster(picture), quota(), quota(gpu_type=L40S), submit("a", **fields), plan())
    settled(scenario)
    return scenario.table("a")["a"]


def settled(scenario: Scenario) -> None:
    """Five more cycles, and nothing moves."""
    for _ in range(5):
        scenario.when(plan()).then_nothing()


def gang(replicas: int, **fields: Any) -> dict[str, Any]:
    return {"replicas": replicas, "gpus_per_replica": 8, **fields}


class TestSmallJobs:
    """Less than a node's worth: onto what is partly used already (R-32)."""

    @pytest.mark.parametrize(
        ("picture", "gpus", "expected"),
        [
            ("b0: [8] [xxxx....] [xxxxxx..]", 2, "n2*2"),
            ("b0: [8] [xxxx....] [xxxxxx..]", 3, "n1*3"),
            ("b0: [8] [xxxx....] [xxxxxx..]", 5, "n0*5"),
            ("b0: [8] [8]\nb1: [8]", 1, "n2*1"),
            ("b0: [xxxx....] [8]\nb1: [xxxx....] [xxxxxxxx]", 4, "n2*4"),
            ("b0: [xxxxxxxx]", 1, WAITS),
            ("b0: [xxxxxxx.] [xxxxxxx.]", 2, WAITS),
        ],
    )
    def test_best_fit(self, picture: str, gpus: int, expected: str) -> None:
        """The fullest node that holds it, in the block with the fewest free GPUs; one replica is never divided."""
        assert placed(picture, gpus_per_replica=gpus) == expected

    def test_several_replicas_go_on_one_node_where_one_holds_them(self) -> None:
        """Rather than filling two holes."""
        assert placed("b0: [xxxxxxx.] [xxxxxxx.] [8]", replicas=2) == "n2*1 n2*1"

    def test_else_over_several_in_as_few_blocks_as_it_takes(self) -> None:
        """b1 alone holds three replicas of two; b0 has the fuller nodes but holds two."""
        picture = "b0: [xxxxxx..] [xxxxxx..]\nb1: [xxxx....] [xxxxx...] [xxxxx...]"
        assert placed(picture, replicas=3, gpus_per_replica=2) == "n2*2 n2*2 n3*2"

    def test_the_island_with_the_fewest_free_gpus_that_holds_it(self) -> None:
        """GPUs of one job share an island where they can."""
        scenario = Scenario().given(cluster("b0: [x...|xx..]"), quota(), submit("a", gpus_per_replica=2), plan())
        assert scenario.placed("a") == "n0:6,7"
        scenario.given(submit("b", gpus_per_replica=3), plan())
        assert scenario.placed("b") == "n0:1,2,3"

    def test_over_islands_where_none_holds_it(self) -> None:
        """As many as one island has, and the rest of the other."""
        scenario = Scenario().given(cluster("b0: [xx..|x...]"), quota(), submit("a", gpus_per_replica=4), plan())
        assert scenario.placed("a") == "n0:2,5,6,7"


class TestWholeNodes:
    """From a node's worth up a job shares no node (R-32)."""

    def test_three_times_four_takes_two_nodes_and_charges_sixteen(self) -> None:
        """The last rank of a node claims what is left of it."""
        scenario = Scenario().given(cluster("b0: [8] [8]"), quota(), submit("a", replicas=3, gpus_per_replica=4))
        scenario.given(plan())
        assert scenario.placed("a") == "n0:0,1,2,3 n0:4,5,6,7 n1:0,1,2,3,4,5,6,7"
        assert scenario.charged("red") == 16

    def test_ranks_that_do_not_divide_a_node(self) -> None:
        """Three GPUs a rank: two ranks a node, and all of it charged."""
        assert placed("b0: [8] [8]", replicas=3, gpus_per_replica=3) == "n0*3 n0*5 n1*8"

    def test_eight_single_gpus_are_a_node(self) -> None:
        """They never go into two halves."""
        assert placed("b0: [xxxx....] [xxxx....]", replicas=8) == WAITS
        assert placed("b0: [xxxx....] [8]", replicas=8) == " ".join(["n1*1"] * 8)

    def test_all_or_nothing(self) -> None:
        """Two of three nodes are none."""
        assert placed("b0: [8] [8] [xxxxxxx.]", **gang(3)) == WAITS

    @pytest.mark.parametrize(
        ("picture", "replicas", "expected"),
        [
            ("b0: [8] [8] [8]\nb1: [8] [8]", 2, "n3*8 n4*8"),
            ("b0: [8] [8] [8]\nb1: [8] [8]", 3, "n0*8 n1*8 n2*8"),
            ("b0: [8] [8] [8]\nb1: [8] [8]\nb2: [8]", 4, "n0*8 n1*8 n2*8 n5*8"),
            ("b0: [8] [8] [xxxxxxx.]\nb1: [8] [8]", 2, "n3*8 n4*8"),
        ],
    )
    def test_fewest_blocks_and_of_those_the_one_with_the_fewest_free(
        self, picture: str, replicas: int, expected: str
    ) -> None:
        """Whole blocks first; the rest where it leaves least behind; equal ones by their free GPUs, then by name."""
        assert placed(picture, **gang(replicas)) == expected

    def test_then_fewest_racks(self) -> None:
        """Two nodes of one block: both in the rack that has just two."""
        assert placed("b0: [8] | [8] [8] | [8] [8] [8]", **gang(2)) == "n1*8 n2*8"
        assert placed("b0: [8] | [8] [8] | [8] [8] [8]", **gang(4)) == "n3*8 n4*8 n5*8 n0*8"


HINTED: list[tuple[str, dict[str, Any], str]] = [
    # pack, whole nodes
    ("b0: [8] [8]", gang(1, hint=pack("node")), "n0*8"),
    ("b0: [8] | [8]\nb1: [8] [8]", gang(2, hint=pack("rack")), "n2*8 n3*8"),
    ("b0: [8] [xx......]\nb1: [8] [xx......]", gang(2, hint=pack("rack")), WAITS),
    ("b0: [8] [xx......]\nb1: [8] [8]", gang(2, hint=pack("block")), "n2*8 n3*8"),
    ("b0: [8] [xx......]\nb1: [8] [xx......]", gang(2, hint=pack("block")), WAITS),
    ("b0: [8] [xx......]\nb1: [8] [xx......]", gang(2, hint=pack("block", 2)), "n0*8 n2*8"),
    ("b0: [8] [8]\nb1: [8] [xx......]\nb2: [8] [xx......]", gang(4, hint=at_most(2)), WAITS),
    ("b0: [8] [8]\nb1: [8] [xx......]\nb2: [8] [xx......]", gang(4, hint=at_most(3)), "n0*8 n1*8 n2*8 n4*8"),
    # spread, whole nodes
    ("b0: [8] [8]\nb1: [8]", gang(2, hint=spread("block")), "n2*8 n0*8"),
    ("b0: [8] [8]\nb1: [x.......]", gang(2, hint=spread("block")), WAITS),
    ("b0: [8] [8] | [8]", gang(2, hint=spread("rack")), "n2*8 n0*8"),
    ("b0: [8] [8] | [x.......]", gang(2, hint=spread("rack")), WAITS),
    ("b0: [8] | [x.......]\nb1: [8]", gang(2, hint=Topology(spread="rack", pack="block")), WAITS),  # type: ignore[arg-type]
    ("b0: [8] [8] [8]", {"replicas": 3, "gpus_per_replica": 4, "hint": spread("node")}, "n0*8 n1*8 n2*8"),
    # less than a node's worth
    ("b0: [xxxxxxx.] [xxxxxxx.]", {"replicas": 2, "hint": pack("node")}, WAITS),
    ("b0: [xxxxxxx.] [xxxxxxx.]", {"replicas": 2, "hint": pack("node", 1)}, WAITS),
    ("b0: [xxxxxxx.] | [xxxxxxx.]", {"replicas": 2, "hint": pack("rack")}, WAITS),
    ("b0: [xxxxxxx.] [xxxxxxx.] | [xxxxxxx.]", {"replicas": 2, "hint": pack("rack")}, "n0*1 n1*1"),
    ("b0: [xxxxxxx.]\nb1: [xxxxxxx.]", {"replicas": 2, "hint": pack("block")}, WAITS),
    ("b0: [xxxxxxx.]\nb1: [xxxxxxx.]", {"replicas": 2, "hint": at_most(2)}, "n0*1 n1*1"),
    ("b0: [8]\nb1: [8]", {"replicas": 2, "hint": spread("block")}, "n0*1 n1*1"),
    ("b0: [8] [8]", {"replicas": 2, "hint": spread("node")}, "n0*1 n1*1"),
    ("b0: [8] | [8]", {"replicas": 2, "hint": spread("rack")}, "n0*1 n1*1"),
    ("b0: [xxxxxx..] [xxxxxx..] [xxxxxx..]\nb1: [xxxx....]", {"replicas": 2, "gpus_per_replica": 3}, WAITS),
    (
        # The blocks with the most free GPUs hold no replica at all.
        "b0: [xxxxx...] [xxxxx...] [xxxxx...]\nb1: [xxxxx...] [xxxxx...] [xxxxx...]\nb2: [xxxx....]\nb3: [xxxx....]",
        {"replicas": 2, "gpus_per_replica": 4, "hint": spread("block", 2)},
        WAITS,
    ),
    (
        "b0: [16] [xxxxxxxxxxxxx...]\nb1: [xxxxxxxxxxxx....]\nb2: [xxxxxxxxxxxx....]\nb3: [xxxxxxxxxxxxx...] [16]",
        {"replicas": 3, "gpus_per_replica": 4, "hint": spread("block", 3)},
        "n2*4 n3*4 n0*4",
    ),
    # a wish
    ("b0: [8] [xx......]\nb1: [8] [xx......]", gang(2, hint=pack("block", strict=False)), "n0*8 n2*8"),
    ("b0: [8] [xx......]\nb1: [8] [8]", gang(2, hint=pack("block", strict=False)), "n2*8 n3*8"),
    ("b0: [8] [xxxxxxxx]", {"replicas": 2, "hint": spread("node", strict=False)}, "n0*1 n0*1"),
]


@pytest.mark.parametrize(("picture", "fields", "expected"), HINTED)
def test_hints(picture: str, fields: dict[str, Any], expected: str) -> None:
    """Strict hints are kept or the gang waits; a wish is kept where it can be, else passed over (R-33)."""
    assert placed(picture, **fields) == expected


class TestKindsOfNode:
    """Types, sizes, memory, and nodes that must not be used."""

    def test_the_type_is_kept(self) -> None:
        """An L40S job goes to L40S nodes."""
        assert placed("b0: [8]\nb1 l40s 48: [4]", gpu_type=L40S) == "n1*1"

    def test_memory_is_a_floor(self) -> None:
        """The node with the least memory that is enough."""
        assert placed("b0 h100 80: [8]\nb1 h100 141: [8]") == "n0*1"
        assert placed("b0 h100 80: [8]\nb1 h100 141: [8]", gpu_memory_gb_min=100) == "n1*1"

    def test_the_size_class_decides_what_a_node_is(self) -> None:
        """Four GPUs are a whole small node; where none is free, half a large one."""
        assert placed("b0: [8]\nb1: [4]", gpus_per_replica=4) == "n1*4"
        scenario = Scenario().given(cluster("b0: [8]\nb1: [x...]"), quota(), submit("a", gpus_per_replica=4), plan())
        assert (scenario.table("a"), scenario.charged("red")) == ({"a": "n0*4"}, 4)

    def test_a_rank_needs_a_node_that_holds_it(self) -> None:
        """Two small nodes are not one of eight."""
        assert placed("b0: [4] [4]\nb1: [8]", gpus_per_replica=8) == "n2*8"

    def test_a_size_over_the_quota_is_passed_over_for_one_within(self) -> None:
        """3 x 4 would charge 16 on 8-GPU nodes; on one of 16 it charges 12, which the team has."""
        scenario = Scenario().given(
            cluster("b0: [8] [8]\nb1: [16]"),
            quota(borrow_limit=12),
            submit("a", replicas=3, gpus_per_replica=4),
            plan(),
        )
        assert scenario.table("a") == {"a": "n2*4 n2*4 n2*4"}

    @pytest.mark.parametrize("word", ["drained", "suspect", "lost", "unconfirmed"])
    def test_a_node_that_is_not_in_service_gets_nothing(self, word: str) -> None:
        """Neither whole nor in part."""
        assert placed(f"b0: [8 {word}]") == WAITS
        assert placed(f"b0: [8 {word}] [8]", **gang(2)) == WAITS
        assert placed(f"b0: [8 {word}] [8]") == "n1*1"

    def test_a_node_is_used_as_soon_as_it_is_confirmed(self) -> None:
        """Registered and confirmed in one commit."""
        scenario = Scenario().given(cluster("b0: [8 unconfirmed]"), quota(), submit("a"), registers("n0"), plan())
        assert scenario.table("a") == {"a": "n0*1"}


def test_what_is_freed_is_found_again() -> None:
    """Churn of small jobs, then a whole block: no GPU is forgotten (C-32)."""
    scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota())
    for turn in range(3):
        names = [f"{turn}.{number}" for number in range(6)]
        scenario.given(*[runs(name, gpus_per_replica=4) for name in names])
        scenario.given(*[ended(name) for name in names])
    scenario.given(runs("big", replicas=3, gpus_per_replica=8))
    assert scenario.charged("red") == 24
