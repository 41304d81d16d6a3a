"""Admission: each reason why a job can never run, with its field and its limit (R-11)."""

from __future__ import annotations

from typing import Any

import pytest

from commands.messages import RemoveNode
from commands.pools import PoolKind, PoolRule
from commands.refusal import RefusalCode
from commands.shape import breaks_hint
from events.ids import GpuType, Instant, JobId, NodeId, TeamId
from events.job import (
    ArrayRange,
    CheckpointPlan,
    Dependency,
    DependsWhen,
    Elastic,
    JobRejected,
    JobSubmitted,
    PriorityClass,
    Span,
    Topology,
)
from scheduler.planning.explain import Factor, Reason, explain
from tests.builders import BLUE, L40S, at_most, job_id, pack, quota, spread
from tests.scenario import Scenario
from tests.unit.steps import cluster, plan, policy, runs, submit

FLEET = """
    b0: [8] [8] | [8] [8]
    b1: [8] [8]
    b2 l40s 48: [4]
    b3 l40s 24: [4]
"""


def admitted(scenario: Scenario, **fields: Any) -> tuple[str, str, str, str] | None:
    """(code, field, value, limit) of the rejection; None where the job was accepted."""
    scenario.take(submit(fields.pop("name", f"job{scenario.state.meta.seq}"), **fields))
    found = scenario.events[0]
    assert isinstance(found, JobRejected | JobSubmitted), found
    return (found.code, found.field, found.value, found.limit) if isinstance(found, JobRejected) else None


@pytest.fixture
def ready() -> Scenario:
    """48 H100s in two blocks and 8 L40S of two kinds; team red has 32 H100s in all, and all L40S."""
    limits = quota(guaranteed=16, borrow_limit=16), quota(gpu_type=L40S)
    return Scenario().given(cluster(FLEET), *limits)


REASONS: list[tuple[dict[str, Any], tuple[str, str, str, str]]] = [
    ({"team": TeamId("nobody")}, (RefusalCode.UNKNOWN_TEAM, "team", "nobody", "a team with a quota")),
    (
        {"max_runtime_s": None},
        (RefusalCode.NO_MAX_RUNTIME, "max_runtime", "unlimited", f"{30 * 86400}s"),
    ),
    (
        {"max_runtime_s": 30 * 86400 + 1},
        (RefusalCode.MAX_RUNTIME_TOO_LONG, "max_runtime", f"{30 * 86400 + 1}s", f"{30 * 86400}s"),
    ),
    ({"image": "evil.example/x"}, (RefusalCode.IMAGE_NOT_ALLOWED, "image", "evil.example/x", "good.example/, b/")),
    (
        {"array": ArrayRange(first=0, last=50_000)},
        (RefusalCode.ARRAY_TOO_LARGE, "array", "50001 elements", "50000 elements"),
    ),
    (
        {"depends_on": (Dependency(job=JobId("j_x"), when=DependsWhen.AFTER_OK),)},
        (RefusalCode.UNKNOWN_DEPENDENCY, "depends_on[0].job", "j_x", "a job of this cluster"),
    ),
    (
        {"elastic": Elastic(min_replicas=5, max_replicas=9), "replicas": 6, "gpus_per_replica": 8},
        (RefusalCode.OVER_QUOTA, "replicas", "40 GPUs", "32 GPUs"),
    ),
    ({"gpu_type": GpuType("tpu")}, (RefusalCode.UNKNOWN_GPU_TYPE, "gpu_type", "tpu", "h100, l40s")),
    (
        {"gpu_type": L40S, "gpu_memory_gb_min": 80},
        (RefusalCode.GPU_MEMORY, "gpu_memory_gb_min", "80", "48"),
    ),
    ({"gpus_per_replica": 9}, (RefusalCode.OVER_NODE, "gpus_per_replica", "9", "8")),
    ({"replicas": 49}, (RefusalCode.OVER_CLUSTER, "replicas", "56 GPUs", "48 GPUs")),
    ({"replicas": 5, "gpus_per_replica": 8}, (RefusalCode.OVER_QUOTA, "replicas", "40 GPUs", "32 GPUs")),
    (
        {"replicas": 2, "gpus_per_replica": 8, "hint": pack("node")},
        (RefusalCode.HINT_IMPOSSIBLE, "topology.pack", "2 replicas", "1 replicas"),
    ),
    (
        {"replicas": 3, "gpus_per_replica": 8, "hint": pack("rack")},
        (RefusalCode.HINT_IMPOSSIBLE, "topology.pack", "3 replicas", "2 replicas"),
    ),
    (
        {"gpu_type": L40S, "replicas": 2, "gpus_per_replica": 4, "gpu_memory_gb_min": 40},
        (RefusalCode.OVER_CLUSTER, "replicas", "8 GPUs", "4 GPUs"),
    ),
    (
        {"replicas": 3, "hint": spread("block")},
        (RefusalCode.HINT_IMPOSSIBLE, "topology.spread", "3 replicas", "2 replicas"),
    ),
    (
        {"replicas": 4, "hint": spread("rack")},
        (RefusalCode.HINT_IMPOSSIBLE, "topology.spread", "4 replicas", "3 replicas"),
    ),
    (
        {"replicas": 7, "hint": spread("node")},
        (RefusalCode.HINT_IMPOSSIBLE, "topology.spread", "7 replicas", "6 replicas"),
    ),
    (
        {"replicas": 3, "hint": spread("rack", 1)},
        (RefusalCode.HINT_IMPOSSIBLE, "topology.spread", "3 replicas", "2 replicas"),
    ),
]


@pytest.mark.parametrize(("fields", "expected"), REASONS)
def test_what_can_never_run_is_rejected(
    ready: Scenario, fields: dict[str, Any], expected: tuple[str, str, str, str]
) -> None:
    """The answer names the field, what it was and the limit that it broke."""
    ready.given(policy(image_registries=("good.example/", "b/")))
    assert admitted(ready, **fields) == expected


def test_blocks_that_do_not_hold_it() -> None:
    """max_blocks counts the blocks that there are, the largest first, not the largest block k times."""
    scenario = Scenario().given(cluster("b0: [8] [8] [8]\nb1: [8]\nb2: [8]"), quota())
    assert admitted(scenario, replicas=5, gpus_per_replica=8, hint=at_most(2)) == (
        RefusalCode.HINT_IMPOSSIBLE,
        "topology.max_blocks",
        "5 replicas",
        "4 replicas",
    )
    assert admitted(scenario, replicas=4, gpus_per_replica=8, hint=at_most(2)) is None


ACCEPTED: list[dict[str, Any]] = [
    {"replicas": 4, "gpus_per_replica": 8},
    {"replicas": 4, "gpus_per_replica": 8, "hint": pack("block")},
    {"replicas": 2, "gpus_per_replica": 8, "hint": pack("rack")},
    {"replicas": 3, "gpus_per_replica": 8, "hint": pack("rack", strict=False)},
    {"replicas": 7, "hint": spread("node", strict=False)},
    {"priority_class": PriorityClass.PROD_SERVING, "max_runtime_s": None},
    {"gpu_type": L40S, "gpu_memory_gb_min": 24},
    {"image": "good.example/x"},
    {"image": None},
    {"replicas": 1, "hint": spread("block", 1)},
    {"gpu_type": L40S, "replicas": 2, "gpus_per_replica": 4, "hint": spread("block")},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_what_could_run_is_accepted_and_runs_on_the_idle_cluster(ready: Scenario, fields: dict[str, Any]) -> None:
    """Admission and planner agree: the hardware is there, and the hint a mere wish where it is not strict."""
    ready.given(policy(image_registries=("good.example/",)))
    assert admitted(ready, name="a", **fields) is None
    ready.given(plan())
    assert ready.job_state("a") == "STARTING"


def test_a_team_without_quota_of_the_type(ready: Scenario) -> None:
    """Is refused for that type; the limit says so."""
    ready.given(quota("blue"))
    found = admitted(ready, team=BLUE, gpu_type=L40S)
    assert found == (RefusalCode.NO_QUOTA, "gpu_type", "l40s", "team blue has no quota of it")


def test_classes_by_default_and_as_set() -> None:
    """Research and preemptible unless others were set."""
    scenario = Scenario().given(cluster("b0: [8]"), quota(classes=None))
    found = admitted(scenario, priority_class=PriorityClass.PROD_BATCH)
    assert found == (RefusalCode.CLASS_NOT_ALLOWED, "priority_class", "prod-batch", "research, preemptible")
    scenario.given(quota(classes=(PriorityClass.PROD_BATCH,)))
    assert admitted(scenario, priority_class=PriorityClass.RESEARCH) is not None
    assert admitted(scenario, priority_class=PriorityClass.PROD_BATCH) is None


class TestChargedGpus:
    """Quota and R-11 count what is charged: whole nodes from a node's worth up (R-32)."""

    def test_three_times_four_is_two_nodes(self) -> None:
        """12 asked, 16 charged."""
        fields = {"replicas": 3, "gpus_per_replica": 4}
        scenario = Scenario().given(cluster("b0: [8] [8]"), quota(borrow_limit=15))
        assert admitted(scenario, **fields) == (RefusalCode.OVER_QUOTA, "replicas", "16 GPUs", "15 GPUs")
        scenario.given(quota(borrow_limit=16))
        assert admitted(scenario, **fields) is None

    def test_a_strict_spread_charges_a_node_for_each_replica(self) -> None:
        """Three half nodes apart are 24 GPUs; where the spread is a wish, 16."""
        fields = {"replicas": 3, "gpus_per_replica": 4}
        scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota(borrow_limit=16))
        assert admitted(scenario, **fields, hint=spread("node")) == (
            RefusalCode.OVER_QUOTA,
            "replicas",
            "24 GPUs",
            "16 GPUs",
        )
        assert admitted(scenario, **fields, hint=spread("node", strict=False)) is None

    def test_by_the_size_of_node_that_costs_least(self) -> None:
        """Small nodes would charge 12: a quota of 12 is enough, though large nodes charge 16."""
        scenario = Scenario().given(cluster("b0: [4] [4] [4]\nb1: [8] [8]"), quota(borrow_limit=12))
        assert admitted(scenario, replicas=3, gpus_per_replica=4) is None

    def test_a_gang_fits_within_one_size_of_node(self) -> None:
        """Two whole large nodes cannot be had where there is one, whatever the small ones add up to."""
        scenario = Scenario().given(cluster("b0: [4] [4] [4]\nb1: [8]"), quota())
        found = admitted(scenario, replicas=2, gpus_per_replica=8)
        assert found == (RefusalCode.OVER_CLUSTER, "replicas", "16 GPUs", "8 GPUs")


SERVING: dict[str, Any] = {"priority_class": PriorityClass.PROD_SERVING}
PROTECTED: dict[str, Any] = {"checkpoint": CheckpointPlan(preemptible=False)}


class TestOnlyInsideTheGuarantee:
    """What is never preempted starts only covered: larger than the guarantee, it would wait for ever (R-40, C-73)."""

    @pytest.mark.parametrize("fields", [SERVING, PROTECTED])
    def test_larger_than_the_guarantee(self, ready: Scenario, fields: dict[str, Any]) -> None:
        """Refused with the field and the guarantee, however much may be borrowed; at the guarantee it is taken, also
        while that is in use."""
        over = (RefusalCode.OVER_GUARANTEE, "replicas", "24 GPUs", "16 GPUs")
        assert admitted(ready, replicas=3, gpus_per_replica=8, **fields) == over
        ready.given(runs("x", replicas=2, gpus_per_replica=8))
        assert admitted(ready, replicas=2, gpus_per_replica=8, **fields) is None

    def test_what_is_charged_counts(self, ready: Scenario) -> None:
        """Two and a half nodes are three; and where its hint needs the larger nodes, those are charged."""
        assert admitted(ready, replicas=5, gpus_per_replica=4, **SERVING) is not None
        scenario = Scenario().given(cluster("b0: [4]\nb1: [4]\nb2: [4]\nb3: [8] [8]"), quota(guaranteed=12))
        fields: dict[str, Any] = {"replicas": 3, "gpus_per_replica": 4, **SERVING}
        assert admitted(scenario, **fields) is None
        over = (RefusalCode.OVER_GUARANTEE, "replicas", "16 GPUs", "12 GPUs")
        assert admitted(scenario, **fields, hint=pack("block")) == over

    def test_an_elastic_job_by_its_least_size(self, ready: Scenario) -> None:
        """Two replicas of a node will do."""
        fields: dict[str, Any] = {"replicas": 4, "gpus_per_replica": 8, **SERVING}
        assert admitted(ready, **fields, elastic=Elastic(min_replicas=3, max_replicas=4)) is not None
        assert admitted(ready, **fields, elastic=Elastic(min_replicas=2, max_replicas=4)) is None

    @pytest.mark.parametrize(
        ("fields", "taken"), [(SERVING, True), (PROTECTED, False), ({**SERVING, "replicas": 4}, False)]
    )
    def test_a_pool_where_it_may_start(self, ready: Scenario, fields: dict[str, Any], taken: bool) -> None:
        """prod-serving starts in a pool that is there for it, if that is large enough; nobody else does so."""
        pool = PoolRule(name="fast", kind=PoolKind.LATENCY, nodes=("n0", "n1", "n2"))
        ready.given(policy(pools=(pool,)))
        found = admitted(ready, name="a", **{"replicas": 3, "gpus_per_replica": 8, **fields})
        assert (found is None) is taken
        if taken:
            ready.given(plan())
            assert ready.job_state("a") == "STARTING"

    def test_the_baselines_know_no_coverage(self, ready: Scenario) -> None:
        """Under a plain preset it starts, and so is taken."""
        ready.given(policy(preset="fifo"))
        assert admitted(ready, name="a", replicas=3, gpus_per_replica=8, **SERVING) is None
        ready.given(plan())
        assert ready.job_state("a") == "STARTING"

    def test_one_that_comes_to_be_too_large_waits_and_says_so(self, ready: Scenario) -> None:
        """A quota that is lowered below a queued job ends nothing; the figures say that no end of another helps."""
        assert admitted(ready, name="a", replicas=2, gpus_per_replica=8, **SERVING) is None
        ready.given(quota(guaranteed=8, borrow_limit=24), plan())
        (told,) = explain(ready.planner, job_id("a"), Instant(ready.at))
        assert told == Reason(Factor.NOT_COVERED, {"asked": 16, "covered": 0, "guaranteed": 8})


def test_nodes_that_are_down_or_drained_count_and_removed_ones_do_not() -> None:
    """Admission is about hardware, not about today."""
    scenario = Scenario().given(cluster("b0: [8 lost] [8 drained]"), quota())
    assert admitted(scenario, replicas=2, gpus_per_replica=8) is None
    scenario.given(RemoveNode(node_id=NodeId("n0"), reason="sold"))
    scenario.when(submit("b", replicas=2, gpus_per_replica=8)).then(JobRejected)


@pytest.mark.parametrize(
    ("hint", "places", "broken"),
    [
        (Topology(), "n0 n5", False),
        (pack("node"), "n0 n0", False),
        (pack("node"), "n0 n1", True),
        (pack("rack"), "n0 n1", False),
        (pack("rack"), "n1 n2", True),
        (pack("block"), "n0 n2", False),
        (pack("block"), "n0 n4", True),
        (pack("block", 2), "n0 n4", False),
        (at_most(1), "n0 n4", True),
        (spread("node"), "n0 n1", False),
        (spread("node"), "n0 n0", True),
        (spread("rack"), "n0 n2", False),
        (spread("rack"), "n0 n1", True),
        (spread("block"), "n0 n4", False),
        (spread("block"), "n0 n2", True),
        (Topology(spread=Span.RACK, pack=Span.BLOCK), "n0 n4", True),
    ],
)
def test_when_a_hint_is_broken(ready: Scenario, hint: Topology, places: str, broken: bool) -> None:
    """Each level of packing and spreading, and both at once."""
    ranks = [(ready.node(name).index, 1) for name in places.split()]
    assert breaks_hint(ready.state, hint, ranks) is broken
