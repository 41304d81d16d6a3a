"""Who may use which nodes: declared pools, and hot spares (R-34, R-37)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from commands.changed import by_table
from commands.entities import Attempt, Job
from commands.policy import Policy
from commands.state import State
from events.ids import BlockId, Instant, JobId, NodeId, NodeIndex, Principal
from events.job import CheckpointPlan, EndReason, JobState, PriorityClass, QueueReason
from scheduler.planning.capacity import indexes_of
from scheduler.planning.pools import Pools
from tests.fleets import H100, changed, fleet, job

PICTURE = "a r ........ ........\nb r ........ ........\nc r ........"
LATENCY = {"name": "serving", "kind": "latency", "blocks": ["a"]}
GIANTS = {"name": "giants", "kind": "whole", "nodes": ["n2", "n3"], "gpus_min": 16}


def declared(*pools: dict[str, Any], picture: str = PICTURE) -> State:
    """A fleet with these pools in force."""
    state = fleet(picture)
    state.policies.rows[""] = Policy.model_validate({"pools": pools})
    return state


def waiting(replicas: int = 1, priority_class: PriorityClass = PriorityClass.RESEARCH, **more: Any) -> Job:
    """A job in the queue."""
    queue_reason = more.pop("queue_reason", QueueReason.SUBMITTED)
    return Job(
        id=JobId("j_a"),
        spec=replace(job(replicas, 8), priority_class=priority_class, **more),
        principal=Principal("user:ada"),
        priority_class=priority_class,
        labels={},
        submitted_at=Instant(1),
        submit_seq=1,
        state=JobState.QUEUED,
        max_runtime_s=3600,
        queue_reason=queue_reason,
    )


def may_use(state: State, one: Job) -> list[int]:
    """Indexes of the nodes that the job may use."""
    mask = Pools(state).eligible(one)
    return [index for index in sorted(state.nodes) if mask is None or mask >> index & 1]


LONG: dict[str, Any] = {"max_runtime_s": 7200}


@pytest.mark.parametrize(
    ("why", "one", "nodes"),
    [
        ("training keeps out of both", waiting(**LONG), [4]),
        ("serving", waiting(priority_class=PriorityClass.PROD_SERVING, **LONG), [0, 1, 4]),
        ("someone waits at it", waiting(interactive=True, **LONG), [0, 1, 4]),
        ("lent to what anybody may displace", waiting(priority_class=PriorityClass.PREEMPTIBLE, **LONG), [0, 1, 4]),
        (
            "not lent to what nobody may displace",
            waiting(priority_class=PriorityClass.PREEMPTIBLE, checkpoint=CheckpointPlan(preemptible=False), **LONG),
            [4],
        ),
        ("a giant", waiting(2, **LONG), [2, 3, 4]),
        ("whole machines are lent to what is soon over", waiting(max_runtime_s=3600), [2, 3, 4]),
        ("not to what has no limit", waiting(max_runtime_s=None), [4]),
    ],
)
def test_who_may_use_which_nodes(why: str, one: Job, nodes: list[int]) -> None:
    """With a pool for serving in block a, and one for giants on n2 and n3."""
    assert may_use(declared(LATENCY, GIANTS), one) == nodes, why


def test_a_pool_that_lends_nothing_is_for_its_own_alone() -> None:
    """`lend: false`."""
    preemptible = waiting(priority_class=PriorityClass.PREEMPTIBLE)
    assert may_use(declared(LATENCY | {"lend": False}), preemptible) == [2, 3, 4]


def test_a_fleet_without_pools_is_open_to_all() -> None:
    """No mask at all."""
    assert Pools(declared()).eligible(waiting()) is None


def test_a_job_has_its_pool_to_try_first() -> None:
    """By name and nodes; the rest of the fleet comes after."""
    pools = Pools(declared(LATENCY, GIANTS))
    assert pools.home(waiting(interactive=True)) == ("serving", 0b00011)
    assert pools.home(waiting(4)) == ("giants", 0b01100)
    assert pools.home(waiting()) == ("", 0)


def test_a_node_that_is_named_is_not_in_the_pool_of_its_block() -> None:
    """n0 is of block a, and of the giants."""
    pools = Pools(declared(LATENCY, GIANTS | {"nodes": ["n0"]}))
    assert pools.home(waiting(interactive=True)) == ("serving", 0b00010)
    assert pools.home(waiting(4)) == ("giants", 0b00001)


def test_pools_follow_the_policy_and_the_fleet() -> None:
    """A new policy draws them anew, and so does a node that comes or moves."""
    state = declared(LATENCY)
    pools = Pools(state)
    state.nodes.put(NodeIndex(5), replace(state.nodes[NodeIndex(0)], index=NodeIndex(5), id=NodeId("n5")))
    changed(state, 1, block=BlockId("b"))
    pools.follow(by_table(state.accept()))
    assert pools.home(waiting(interactive=True)) == ("serving", 0b100001)
    state.policies.put("", Policy())
    pools.follow(by_table(state.accept()))
    assert pools.home(waiting(interactive=True)) == ("", 0)


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ([LATENCY, LATENCY | {"blocks": ["b"]}], "pool serving is named twice"),
        ([LATENCY, GIANTS | {"blocks": ["a"]}], "block a is named twice"),
        ([LATENCY | {"nodes": ["n1"]}, GIANTS | {"nodes": ["n1"]}], "node n1 is named twice"),
        ([LATENCY | {"blocks": []}], "names no node and no block"),
        ([LATENCY | {"kind": "fast"}], "kind"),
        ([LATENCY | {"gpus_min": 0}], "gpus_min"),
    ],
)
def test_a_policy_with_bad_pools_is_refused(pools: list[dict[str, Any]], said: str) -> None:
    """And says what is wrong."""
    with pytest.raises(ValidationError, match=said):
        Policy.model_validate({"pools": pools})


# Spares


def with_gang(nodes: int, picture: str, **more: Any) -> State:
    """A fleet on whose first nodes a gang runs that has them wholly."""
    state = fleet(picture)
    ranks = tuple((NodeIndex(index), 0xFF) for index in range(nodes))
    put_job(state, "j_gang", PriorityClass.RESEARCH)
    state.attempts.rows[JobId("j_gang"), 1] = Attempt(
        job_id=JobId("j_gang"),
        number=1,
        team=state.jobs[JobId("j_gang")].spec.team,
        gpu_type=H100,
        ranks=ranks,
        phases=bytes(nodes),
        grant=(1, 1),
        granted_at=Instant(1),
        limit_at=None,
        **more,
    )
    for index in range(nodes):
        run(state, index, "j_gang")
    state.accept()
    return state


def put_job(state: State, name: str, priority_class: PriorityClass) -> None:
    """A job that runs."""
    state.jobs.put(JobId(name), replace(waiting(priority_class=priority_class), id=JobId(name)))


def run(state: State, index: int, name: str) -> None:
    """A lease of the job has the node."""
    changed(state, index, used=0xFF, leases=((JobId(name), 1, index),))


def spares_of(pools: Pools) -> list[int]:
    """Nodes that are kept from research."""
    mask = pools.eligible(waiting())
    return [] if mask is None else list(indexes_of(~mask))


LARGE = "\n".join(["a r " + " ".join(["........"] * 32), *("b r " + "........ " * 34, "c r ........ ........")])


def test_one_percent_of_a_large_gang_rounded_up_near_its_blocks() -> None:
    """64 nodes: one spare, in the second of its blocks, since the first is full."""
    assert spares_of(Pools(with_gang(64, LARGE))) == [64]
    assert spares_of(Pools(with_gang(63, LARGE))) == []
    assert spares_of(Pools(with_gang(66, LARGE))) == [66], "where its blocks are full, in the next"


def test_spares_are_there_while_the_gang_runs() -> None:
    """They go when it ends."""
    state = with_gang(64, LARGE)
    pools = Pools(state)
    key = (JobId("j_gang"), 1)
    state.attempts.put(key, replace(state.attempts[key], ending=EndReason.CANCELLED))
    pools.follow(by_table(state.accept()))
    assert spares_of(pools) == []


def test_who_may_use_a_spare() -> None:
    """A restart after a fault, and class preemptible, to which it is lent; nobody else, however urgent."""
    pools = Pools(with_gang(64, LARGE))
    assert pools.eligible(waiting(queue_reason=QueueReason.FAULT)) is None
    assert pools.eligible(waiting(priority_class=PriorityClass.PREEMPTIBLE)) is None
    assert pools.eligible(waiting(queue_reason=QueueReason.PREEMPTED)) is not None
    assert pools.eligible(waiting(priority_class=PriorityClass.PROD_SERVING)) is not None


def test_a_spare_that_is_lent_stays_one() -> None:
    """No further node is held in its stead; one that a restart has taken, or that broke, is replaced."""
    state = with_gang(64, LARGE)
    pools = Pools(state)
    put_job(state, "j_lent", PriorityClass.PREEMPTIBLE)
    run(state, 64, "j_lent")
    pools.follow(by_table(state.accept()))
    assert spares_of(pools) == [64]
    put_job(state, "j_other", PriorityClass.RESEARCH)
    run(state, 64, "j_other")
    pools.follow(by_table(state.accept()))
    assert spares_of(pools) == [65]
    changed(state, 65, broken=1)
    pools.follow(by_table(state.accept()))
    assert spares_of(pools) == [66]


def test_spares_in_step_are_those_of_the_state_alone() -> None:
    """After leases, drains and a new epoch."""
    state = with_gang(64, LARGE)
    pools = Pools(state)
    changed(state, 64, drained="repair")
    state.meta = replace(state.meta, n=7)
    pools.follow(by_table(state.accept()))
    assert spares_of(pools) == spares_of(Pools(state)) == [65]
