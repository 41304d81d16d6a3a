"""Jobs that wait, each with the factors that hold it back and their figures: data for test_explain. Those that their
team's quota keeps back are in explain_quota_cases."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from commands.pools import PoolKind, PoolRule
from events.job import CheckpointPlan, Dependency, DependsWhen, Elastic, PriorityClass
from scheduler.planning.explain import Factor
from tests.builders import BLUE, RED, at_most, job_id, pack, quota, spread
from tests.scenario import Stimulus
from tests.unit.steps import (
    after,
    all_started,
    array,
    cluster,
    ended,
    hold,
    plan,
    policy,
    release,
    runs,
    stopped,
    submit,
    takeover,
)

SERVING, BATCH, RESEARCH, PREEMPTIBLE = PriorityClass
HOUR_S = 3600
FULL = "b0: [xxxxxxxx]"
PROTECTED = CheckpointPlan(preemptible=False)
T = Factor


class Case(NamedTuple):
    """`figures`: of the first reason of that factor, as far as they matter. `all`: every factor, if there are more."""

    factor: Factor
    name: str
    steps: tuple[Stimulus, ...]
    figures: dict[str, Any]
    all: tuple[Factor, ...] = ()


def on(picture: str, *steps: Stimulus, guaranteed: int = 0) -> tuple[Stimulus, ...]:
    """A cluster on which red may use what it likes."""
    return (cluster(picture), quota(guaranteed=guaranteed), *steps)


def gang(nodes: int, **fields: Any) -> dict[str, Any]:
    return {"replicas": nodes, "gpus_per_replica": 8, **fields}


def following(*names: str) -> tuple[Dependency, ...]:
    return tuple(Dependency(job=job_id(name), when=DependsWhen.AFTER_OK) for name in names)


def latency(*nodes: str, lend: bool = True) -> PoolRule:
    return PoolRule(name="fast", kind=PoolKind.LATENCY, nodes=nodes, lend=lend)


def failing(times: int) -> tuple[Stimulus, ...]:
    """Job a fails so often; the first retry is at once."""
    found: list[Stimulus] = [runs("a", retries=9)]
    for number in range(times):
        found += [ended("a", exit_code=1)]
        found += [after(600), plan(), all_started("a")] if number < times - 1 else []
    return tuple(found)


def about(seconds: int) -> Any:
    """A commit is a second."""
    return pytest.approx(seconds, abs=5)


def reclaiming(*more: Stimulus, name: str = "a") -> tuple[Stimulus, ...]:
    """Blue borrows both nodes, and that of w is made free for a job of red."""
    steps = (cluster("b0: [8] [8]"), quota(RED, 8, 0), quota(BLUE, 8, 8))
    victims = runs("v", "w", team=BLUE, gpus_per_replica=8)
    return (*steps, victims, submit(name, gpus_per_replica=8), plan(), *more)


def reserving(*more: Stimulus, limit_s: int | None = HOUR_S) -> tuple[Stimulus, ...]:
    """Of three nodes two run something for an hour; `wide` waits for all of them."""
    use = runs("x", "y", gpus_per_replica=8, max_runtime_s=limit_s)
    return (*on("b0: [8] [8] [8]"), use, submit("wide", **gang(3)), plan(), *more)


CASES = [
    # Steered, or waiting for something else
    Case(T.HELD, "with room", on("b0: [8]", submit("a"), hold("a")), {}),
    Case(T.HELD, "without", on(FULL, submit("a"), hold("a")), {}, (T.HELD, T.CAPACITY)),
    Case(
        T.HELD,
        "over its limit",
        (cluster("b0: [8] [8]"), quota(borrow_limit=8), runs("x", gpus_per_replica=8), submit("a"), hold("a")),
        {},
        (T.HELD, T.OVER_LIMIT),
    ),
    Case(
        T.DEPENDENCIES,
        "one",
        on("b0: [8]", runs("x"), submit("a", depends_on=following("x"))),
        {"jobs": 1, "first": job_id("x")},
    ),
    Case(
        T.DEPENDENCIES,
        "two",
        on("b0: [8]", runs("x", "y"), submit("a", depends_on=following("x", "y"))),
        {"jobs": 2, "first": job_id("x")},
    ),
    Case(
        T.DEPENDENCIES,
        "the one that is left",
        on("b0: [8]", runs("x", "y"), submit("a", depends_on=following("x", "y")), ended("x")),
        {"jobs": 1, "first": job_id("y")},
    ),
    Case(
        T.THROTTLED,
        "two at a time",
        on("b0: [8]", submit("a", array=array(0, 9, 2)), plan()),
        {"elements": 2, "waiting": 8},
    ),
    Case(
        T.THROTTLED,
        "one at a time",
        on("b0: [8]", submit("a", array=array(0, 3, 1)), plan()),
        {"elements": 1, "waiting": 3},
    ),
    Case(
        T.THROTTLED,
        "and no room either",
        on("b0: [4]", submit("a", array=array(0, 9, 4)), plan()),
        {"elements": 4, "waiting": 6},
        (T.THROTTLED, T.CAPACITY),
    ),
    Case(T.BACKOFF, "the second", on("b0: [8]", *failing(2)), {"retries": 2, "left_s": about(30)}),
    Case(T.BACKOFF, "the third", on("b0: [8]", *failing(3)), {"retries": 3, "left_s": about(60)}),
    Case(
        T.BACKOFF,
        "and somebody has its place",
        on("b0: [8]", *failing(2), runs("x", gpus_per_replica=8)),
        {"retries": 2},
        (T.BACKOFF, T.CAPACITY),
    ),
    # Room is made for it
    Case(T.PLEDGED, "a victim", reclaiming(), {"gpus": 8, "victims": 1, "awaited": 0}),
    Case(
        T.PLEDGED,
        "two victims",
        (
            *(cluster("b0: [8] [8]"), quota(RED, 16, 0), quota(BLUE, 0, 16)),
            *(runs("v", "w", team=BLUE, gpus_per_replica=8), submit("a", **gang(2)), plan()),
        ),
        {"gpus": 16, "victims": 2},
    ),
    Case(
        T.PLEDGED,
        "an end that is near",
        on("b0: [8]", runs("x", gpus_per_replica=8, max_runtime_s=50), submit("a", gpus_per_replica=8), plan()),
        {"rule": "nobody", "gpus": 8, "victims": 0, "awaited": 1},
    ),
    # What the fleet has
    Case(
        T.CAPACITY,
        "GPUs",
        on("b0: [xxxxxx..] [xxxxxxx.]", submit("a", gpus_per_replica=4), plan()),
        {"gpus_needed": 4, "gpus_free": 3, "largest_free_on_one_node": 2},
    ),
    Case(
        T.CAPACITY,
        "whole nodes",
        on("b0: [8] [x.......]\nb1: [8]", submit("a", **gang(3)), plan()),
        {
            "gpus_needed": 24,
            "gpus_free": 23,
            "whole_nodes_needed": 3,
            "whole_nodes_free": 2,
            "best_block_whole_nodes": 1,
        },
    ),
    Case(
        T.CAPACITY,
        "expected when what runs ends",
        on("b0: [8]", runs("x", gpus_per_replica=8, max_runtime_s=HOUR_S), submit("a", gpus_per_replica=8), plan()),
        {"gpus_free": 0, "expected_in_s": about(HOUR_S)},
    ),
    Case(
        T.CAPACITY,
        "idle and pledged to another",
        reclaiming(stopped("w"), quota(RED, 8, 8), submit("a", gpus_per_replica=8), name="p"),
        {"gpus_free": 0, "gpus_pledged": 8},
    ),
    Case(
        T.CAPACITY,
        "an elastic job's least size",
        on(FULL, submit("a", replicas=3, gpus_per_replica=2, elastic=Elastic(min_replicas=2, max_replicas=4))),
        {"gpus_needed": 4, "gpus_free": 0},
    ),
    Case(
        T.HINT,
        "one block",
        on("b0: [8] [xxxxxxxx]\nb1: [8] [xxxxxxxx]", submit("a", **gang(2, topology=pack("block"))), plan()),
        {"pack": "block", "max_blocks": 1, "best_block_whole_nodes": 1, "whole_nodes_needed": 2},
    ),
    Case(
        T.HINT,
        "other racks",
        on("b0: [8] [8] | [xxxxxxxx]", submit("a", **gang(2, topology=spread("rack"))), plan()),
        {"spread": "rack", "whole_nodes_free": 2},
    ),
    Case(
        T.HINT,
        "two blocks at most",
        on("b0: [8]\nb1: [8]\nb2: [8] [xxxxxxxx]", submit("a", **gang(3, topology=at_most(2))), plan()),
        {"max_blocks": 2, "best_block_whole_nodes": 1},
    ),
    Case(
        T.GPU_MEMORY,
        "the large ones are taken",
        on("b0 h100 80: [8]\nb1 h100 141: [xxxxxxxx]", submit("a", gpu_memory_gb_min=100)),
        {"gpu_memory_gb_min": 100, "nodes_with": 1, "nodes_of_type": 2},
    ),
    Case(
        T.GPU_MEMORY,
        "too few of them",
        on("b0 h100 80: [8] [8]\nb1 h100 141: [8] [xxxxxxxx]", submit("a", **gang(2, gpu_memory_gb_min=141))),
        {"nodes_with": 2, "nodes_of_type": 4},
    ),
    Case(
        T.GPU_MEMORY,
        "and those that there are do not work",
        on("b0 h100 80: [8]\nb1 h100 141: [8 drained]", submit("a", gpu_memory_gb_min=100)),
        {"nodes_with": 1},
        (T.GPU_MEMORY, T.OUT_OF_SERVICE),
    ),
    Case(
        T.SET_APART,
        "a pool for interactive jobs",
        on("b0: [xxxxxxxx] [8]", policy(pools=(latency("n1"),)), submit("a")),
        {"nodes": 1, "gpus_free": 8},
    ),
    Case(
        T.SET_APART,
        "a pool that lends nothing",
        on(
            "b0: [xxxxxxxx] [8] [8]",
            policy(pools=(latency("n1", "n2", lend=False),)),
            submit("a", priority_class=PREEMPTIBLE),
        ),
        {"nodes": 2, "gpus_free": 16},
    ),
    Case(
        T.SET_APART,
        "hot spares of a gang",
        on(
            "b0: [8] [8] [8]",
            policy(spare_gang_gpus_min=16),
            *(runs("x", **gang(2)), submit("a"), plan()),
        ),
        {"nodes": 1, "gpus_free": 8},
    ),
    Case(
        T.RESERVED,
        "it might outlast the start",
        reserving(submit("a", max_runtime_s=2 * HOUR_S)),
        {"job": job_id("wide"), "nodes": 3, "ends_in_s": about(2 * HOUR_S)},
    ),
    Case(
        T.RESERVED,
        "it has no limit",
        (
            *(cluster("b0: [8] [8] [8] [8 drained] [8 drained]"), quota(RED, 24, 0), quota(BLUE, 16, 0)),
            runs("x", "y", gpus_per_replica=8, team=BLUE, priority_class=SERVING),
            *(submit("wide", **gang(3, priority_class=SERVING)), plan()),
            submit("a", max_runtime_s=None, priority_class=SERVING),
        ),
        {"job": job_id("wide"), "ends_at": 0},
        (T.RESERVED, T.OUT_OF_SERVICE),
    ),
    Case(
        T.RESERVED,
        "a gang among gangs",
        reserving(submit("a", **gang(1, max_runtime_s=HOUR_S + 1))),
        {"nodes": 3},
    ),
    Case(
        T.OUT_OF_SERVICE,
        "drained and silent",
        on("b0: [8 drained] [8 suspect] [8 lost]", submit("a")),
        {"drained": 1, "silent": 2},
        (T.CAPACITY, T.OUT_OF_SERVICE),
    ),
    Case(
        T.OUT_OF_SERVICE,
        "not confirmed by the new leader",
        on("b0: [8]", submit("a"), takeover()),
        {"unconfirmed": 1},
        (T.CAPACITY, T.OUT_OF_SERVICE),
    ),
    Case(
        T.OUT_OF_SERVICE,
        "never confirmed",
        on("b0: [8 unconfirmed] [xxxxxxxx]", submit("a")),
        {"unconfirmed": 1},
        (T.CAPACITY, T.OUT_OF_SERVICE),
    ),
    # Plain presets
    Case(
        T.ORDER,
        "fifo",
        on(
            "b0: [8] [8]",
            policy(preset="fifo"),
            runs("x", gpus_per_replica=8),
            submit("b", **gang(2)),
            submit("a"),
            plan(),
        ),
        {"preset": "fifo", "ahead": 1},
    ),
    Case(
        T.ORDER,
        "easy",
        on(
            *("b0: [8] [8]", policy(preset="easy"), runs("x", gpus_per_replica=8, max_runtime_s=60)),
            *(submit("b", **gang(2)), submit("c", **gang(2)), submit("a", gpus_per_replica=8), plan()),
        ),
        {"preset": "easy", "ahead": 2},
    ),
    Case(
        T.ORDER,
        "and over the limit",
        (
            *(cluster("b0: [8] [8]"), policy(preset="fifo"), quota(borrow_limit=8), quota(BLUE)),
            *(runs("x", gpus_per_replica=8), submit("b", **gang(2, team=BLUE)), submit("a"), plan()),
        ),
        {"ahead": 1},
        (T.OVER_LIMIT, T.ORDER),
    ),
    # Nothing
    Case(T.NEXT, "a job that just came", on("b0: [8]", submit("a")), {}),
    Case(
        T.NEXT,
        "its pool, though it is not covered",
        (
            *(cluster("b0: [8] [8]"), quota(RED, 8, 8), runs("x", gpus_per_replica=8, priority_class=SERVING)),
            *(policy(pools=(latency("n1"),)), submit("a", priority_class=SERVING)),
        ),
        {},
    ),
    Case(T.NEXT, "a hold that is over", on("b0: [8]", submit("a"), hold("a"), release("a")), {}),
    Case(
        T.NEXT,
        "a higher class overtakes a reservation",
        reserving(submit("a", max_runtime_s=2 * HOUR_S, priority_class=BATCH)),
        {},
    ),
    Case(T.NEXT, "backfill that is sure to end in time", reserving(submit("a", max_runtime_s=600)), {}),
]
