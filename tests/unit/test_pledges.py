"""What is freed for a job is its own until it starts, or until it cannot start there any more (R-45, C-10)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from commands.plan import Plan
from commands.policy import Policy
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangResized, ResizeReason
from events.ids import BlockId, Epoch, GpuMask, GpuType, JobId, NodeIndex, TeamId
from events.job import Elastic, EndReason, JobCancelRequested, JobFinished, JobHeld, JobState
from events.node import (
    GpuFaulted,
    GpuSlot,
    NodeDrained,
    NodeLost,
    NodeRegistered,
    NodeReturned,
    NodesConfirmed,
    NodeSuspected,
)
from events.policy import PolicyChanged
from events.preemption import PledgeEnd, PreemptionEnded
from events.quota import QuotaChanged
from scheduler.planning.pledges import Pledges
from tests.crowds import Crowd, masks

WHOLE = 0b11111111
SAME = {"boot_id", "incarnation", "journal", "address", "block", "rack", "gpu_type", "gpu_memory_gb"}
W = JobId("w")


def pledged() -> Crowd:
    """Two nodes: a and b, borrowed, were told to go for w."""
    made = Crowd()
    made.nodes(8, 8)
    made.quota("red", 16)
    made.quota("blue", 0)
    made.run("a", (0, WHOLE), team="blue")
    made.run("b", (1, WHOLE), team="blue")
    made.queue("w", 2, 8, team="red")
    made.order("w")
    return made


def ended(made: Crowd) -> PledgeEnd | None:
    """How the first pledge ends with the next cycle, by the index that followed, as by one that is made now."""
    fresh = Pledges(made.state)
    assert list(made.pledges.given_up()) == list(fresh.given_up())
    placements, over = made.pledges.settle(made.trial())
    assert fresh.settle(made.trial()) == (placements, over)
    assert list(made.pledges.given_up()) == list(fresh.given_up())
    assert [placement.job_id for placement in placements] == [job for job, end in over if end is PledgeEnd.STARTED]
    return over[0][1] if over else None


def leave(made: Crowd, *names: str) -> None:
    """The victims are gone."""
    for name in names:
        made.commit(*made.gone(made.state.attempts[JobId(name), 1]), checked=True)


def test_it_starts_when_the_last_victim_is_gone() -> None:
    """Not before, and on exactly what was pledged; the pledge's end and the grant are one commit."""
    made = pledged()
    (pledge,) = made.state.pledges.rows.values()
    assert ended(made) is None
    leave(made, "a")
    assert ended(made) is None
    leave(made, "b")
    placements, over = made.pledges.settle(made.trial())
    events = made.apply(Plan(n=made.state.meta.n, pledges_over=tuple(over), placements=tuple(placements)))
    assert events[0] == PreemptionEnded(job_id=W, because=PledgeEnd.STARTED)
    assert isinstance(events[1], GangAllocated)
    assert events[1].ranks == pledge.ranks
    assert not made.state.pledges.rows
    assert all(not node.pledged for node in made.state.nodes.rows.values())


@pytest.mark.parametrize(
    "events",
    [
        [
            JobCancelRequested(job_id=W),
            JobFinished(job_id=W, state=JobState.CANCELLED, reason=EndReason.CANCELLED),
        ],
        [JobHeld(job_id=W)],
    ],
    ids=["cancelled", "held"],
)
def test_it_ends_with_its_job(events: list[Event]) -> None:
    """Who waits no more needs no room: what was pledged is free for others."""
    made = pledged()
    assert ended(made) is None
    made.commit(*events)
    assert ended(made) is PledgeEnd.GONE
    made.apply(Plan(n=made.state.meta.n, pledges_over=((W, PledgeEnd.GONE),)))
    assert all(not node.pledged for node in made.state.nodes.rows.values())


@pytest.mark.parametrize(
    "event",
    [
        NodeDrained(node=NodeIndex(1), reason="repair"),
        GpuFaulted(node=NodeIndex(1), mask=GpuMask(1), code="xid79"),
        NodeLost(node=NodeIndex(1), silent_s=90),
    ],
    ids=["drained", "faulty", "lost"],
)
def test_it_breaks_with_a_node(event: Event) -> None:
    """The job is planned anew."""
    made = pledged()
    assert ended(made) is None
    made.commit(event)
    assert ended(made) is PledgeEnd.BROKEN


@pytest.mark.parametrize(
    "other",
    [{"gpus": 4}, {"gpu_type": GpuType("a100")}, {"block": BlockId("b9")}, {}],
    ids=["smaller", "of another type", "elsewhere", "other gpus"],
)
def test_it_breaks_with_a_node_that_comes_back_as_another(other: dict[str, Any]) -> None:
    """Its pledge is gone with the old inventory. To start there would be refused, in each cycle, for ever."""
    made = pledged()
    leave(made, "a", "b")
    old = made.state.nodes[NodeIndex(1)]
    said = {field.name: getattr(old, field.name) for field in fields(NodeRegistered) if field.name in SAME}
    gpus = tuple(GpuSlot(uuid=f"new-{slot}", island=0) for slot in range(other.pop("gpus", 8)))
    news = NodeRegistered(node=old.index, node_id=old.id, **{**said, "generation": 2, "gpus": gpus, **other})
    made.commit(news, NodesConfirmed(nodes=(old.index,)), checked=True)
    assert ended(made) is PledgeEnd.BROKEN
    made.apply(Plan(n=made.state.meta.n, pledges_over=((W, PledgeEnd.BROKEN),)))
    assert all(not node.pledged for node in made.state.nodes.rows.values())


def test_a_fault_elsewhere_on_the_node_breaks_nothing() -> None:
    """Only the pledged GPUs count."""
    made = Crowd()
    made.nodes(8)
    made.quota("red", 8)
    made.quota("blue", 0)
    made.run("a", (0, WHOLE), team="blue")
    made.queue("w", 1, 4, team="red")
    room = made.order("w")
    spare = ~masks(room.ranks)[0] & WHOLE
    made.commit(GpuFaulted(node=NodeIndex(0), mask=GpuMask(spare & -spare), code="xid79"))
    assert ended(made) is None


def test_a_suspect_node_is_waited_for() -> None:
    """It may be heard again at any moment; until then nothing starts there."""
    made = pledged()
    leave(made, "a", "b")
    made.commit(NodeSuspected(node=NodeIndex(1), silent_s=30))
    assert ended(made) is None
    made.commit(NodeReturned(node=NodeIndex(1)))
    assert ended(made) is PledgeEnd.STARTED


def test_it_is_too_late_when_somebody_does_not_go() -> None:
    """The grace and a margin after it; then the job is planned anew, and does not wait for the same again."""
    made = pledged()
    leave(made, "a")
    made.pass_time(60 + 110)
    assert ended(made) is None
    made.pass_time(20)
    assert ended(made) is PledgeEnd.TOO_LATE
    made.apply(Plan(n=made.state.meta.n, pledges_over=((W, PledgeEnd.TOO_LATE),)))
    assert made.rooms("w") == [None]


def test_a_pledge_that_does_not_hold_any_more_is_not_granted_on() -> None:
    """An operator's word that came in between wins (C-6)."""
    made = pledged()
    leave(made, "a", "b")
    placements, over = made.pledges.settle(made.trial())
    made.commit(NodeDrained(node=NodeIndex(0), reason="repair"))
    plan = Plan(n=made.state.meta.n - 1, pledges_over=tuple(over), placements=tuple(placements))
    assert made.stale(plan) == [(W, "node_not_in_service")]
    assert W in made.state.pledges


def limit(gpus: int) -> Event:
    """What red may have, all of it guaranteed."""
    of: dict[str, Any] = {"team": TeamId("red"), "gpu_type": GpuType("h100"), "reason": ""}
    return QuotaChanged(guaranteed=gpus, borrow_limit=0, **of)


# What it rests on is followed: each of these looks once before something changes.


def test_it_breaks_when_its_team_may_not_have_so_much_any_more() -> None:
    """A lower limit; or more in use of the same limit (R-12)."""
    made = pledged()
    assert ended(made) is None
    made.commit(limit(16))
    assert ended(made) is None
    made.commit(limit(12))
    assert ended(made) is PledgeEnd.BROKEN


def test_it_breaks_when_others_of_its_team_fill_the_limit() -> None:
    """A node more, on which another of the team runs: 16 of 24 GPUs stay for the pledge, and then none."""
    made = pledged()
    made.nodes(8, 8)
    made.commit(limit(24))
    assert ended(made) is None
    made.run("c", (2, WHOLE))
    assert ended(made) is None
    made.run("d", (3, 1))
    assert ended(made) is PledgeEnd.BROKEN


def test_it_breaks_when_the_start_of_another_fills_the_limit() -> None:
    """Both were to start, and stood; what the team may have is less now, and enough for the first alone."""
    made = Crowd()
    made.nodes(8, 8)
    made.quota("red", 16)
    made.quota("blue", 0)
    for name, index in (("a", 0), ("b", 1)):
        made.run(name, (index, WHOLE), team="blue")
    for name in ("w", "x"):
        made.queue(name, 1, 8, team="red")
        made.order(name)
    made.commit(limit(8))
    assert ended(made) is None
    ((index, _),) = made.state.pledges[W].ranks
    leave(made, "ab"[index])
    assert ended(made) is PledgeEnd.STARTED
    _, over = made.pledges.settle(made.trial())
    assert over == [(W, PledgeEnd.STARTED), (JobId("x"), PledgeEnd.BROKEN)]


def test_how_long_it_is_waited_for_follows_the_policy() -> None:
    """A shorter margin than that with which it was made gives it up sooner."""
    made = pledged()
    made.pass_time(100)
    assert ended(made) is None
    shorter = Policy(pledge_margin_s=10, await_ends_s=10).model_dump(mode="json")
    made.commit(PolicyChanged(version=1, policy=shorter))
    assert ended(made) is PledgeEnd.TOO_LATE


def test_it_starts_once_its_nodes_said_what_they_run() -> None:
    """Under a new leader nothing starts on a node that has not (P-16)."""
    made = pledged()
    assert ended(made) is None
    leave(made, "a", "b")
    assert ended(made) is PledgeEnd.STARTED
    made.epoch = Epoch(2)
    made.commit(NodesConfirmed(nodes=(NodeIndex(0),)))
    assert ended(made) is None
    made.commit(NodesConfirmed(nodes=(NodeIndex(1),)))
    assert ended(made) is PledgeEnd.STARTED


def test_it_waits_as_long_as_ranks_that_others_go_on_without() -> None:
    """On the same node a rank is to stop that nobody was told to when the pledge was made (R-44)."""
    made = Crowd()
    made.nodes(8, 8)
    made.quota("red", 12)
    made.quota("blue", 0)
    made.run("e", (0, 0b11110000), (1, 0b11110000), elastic=Elastic(min_replicas=1, max_replicas=2), grace_s=200)
    made.run("a", (0, 0b1111), team="blue")
    made.run("b", (1, 0b1111), team="blue")
    made.queue("w", 1, 4, team="red")
    made.order("w")
    assert ended(made) is None
    (before,) = made.pledges.given_up()
    ((index, _),) = made.state.pledges[W].ranks
    made.commit(
        GangResized(job_id=JobId("e"), attempt=1, because=ResizeReason.GAVE_BACK, stopped=(index,)), checked=True
    )
    assert ended(made) is None
    (after,) = made.pledges.given_up()
    assert after > before


def test_it_waits_as_long_as_those_whose_end_is_awaited_have_grace() -> None:
    """Its end was near when the pledge was made; once it is over its limit it has so much time more (R-43)."""
    made = Crowd()
    made.nodes(8)
    made.quota("red", 8)
    made.run("a", (0, WHOLE), max_runtime_s=50)
    made.queue("w", 1, 8, team="red")
    made.order("w")
    assert not made.state.pledges[W].victims
    assert ended(made) is None
    made.pass_time(50)
    made.commit(GangEnding(job_id=JobId("a"), attempt=1, reason=EndReason.TIMED_OUT, grace_s=200))
    assert ended(made) is None
    made.pass_time(200)
    assert ended(made) is None
    made.pass_time(120)
    assert ended(made) is PledgeEnd.TOO_LATE
