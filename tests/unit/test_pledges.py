"""What is freed for a job is its own until it starts, or until it cannot start there any more (R-45, C-10)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from commands.plan import Plan
from events.envelope import Event
from events.gang import GangAllocated
from events.ids import BlockId, GpuMask, GpuType, JobId, NodeIndex
from events.job import EndReason, JobCancelRequested, JobFinished, JobHeld, JobState
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
from events.preemption import PledgeEnd, PreemptionEnded
from scheduler.planning import pledges
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
    """How the pledge ends with the next cycle."""
    placements, over = pledges.settle(made.trial())
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
    placements, over = pledges.settle(made.trial())
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
    placements, over = pledges.settle(made.trial())
    made.commit(NodeDrained(node=NodeIndex(0), reason="repair"))
    plan = Plan(n=made.state.meta.n - 1, pledges_over=tuple(over), placements=tuple(placements))
    assert made.stale(plan) == [(W, "node_not_in_service")]
    assert W in made.state.pledges
