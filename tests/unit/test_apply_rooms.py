"""Rooms of one plan are checked against each other, and folded together they come to what each by itself would."""

from __future__ import annotations

from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft
from commands.evolve import begin, evolve
from commands.plan import Plan, Room
from events.envelope import Event
from events.gang import GangEnding
from events.ids import Epoch, Instant, JobId, NodeIndex
from events.preemption import PreemptionOrdered, PreemptionRule
from scheduler.planning.plan import Planner
from tests.crowds import Crowd


def room(name: str, mask: int, *victims: str) -> Room:
    """By others' end, on the first node."""
    return Room(
        job_id=JobId(name),
        ranks=((NodeIndex(0), mask),),
        victims=tuple((JobId(victim), 1) for victim in victims),
        awaited=(),
        rule=PreemptionRule.RECLAIM,
    )


def borrowed(nodes: int = 1) -> Crowd:
    """Nodes that a team borrows, a GPU for each of its jobs, and jobs of the team whose they are."""
    crowd = Crowd()
    crowd.nodes(*[8] * nodes)
    crowd.quota("red", 8 * nodes)
    crowd.quota("blue", 0, 1_000)
    for number in range(8 * nodes):
        crowd.run(f"v{number}", (number // 8, 1 << number % 8), team="blue")
    for name in ["a", "b", "c", *[f"w{number:02}" for number in range(8 * nodes - 3)]]:
        crowd.queue(name, 1, 1, team="red")
    return crowd


def decided(crowd: Crowd, plan: Plan) -> tuple[list[Event], list[tuple[JobId, str]]]:
    """The facts of a plan, on trial, and what was objected to."""
    state = crowd.state
    begin(state, Epoch(1), state.meta.n + 1, Instant(crowd.at + 1000))
    draft = Draft(state)
    stale = apply(draft, plan)
    return draft.events, stale


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (room("b", 0b01, "v1"), "gpus_not_free"),
        (room("a", 0b10, "v1"), "pledged_already"),
        (room("b", 0b10, "v0"), "victim_ends_already"),
    ],
)
def test_what_one_room_takes_no_other_of_the_plan_gets(second: Room, why: str) -> None:
    """Not its GPUs, nor its victim, and one room a job; those after it go on (C-6)."""
    crowd = borrowed()
    rooms = (room("a", 0b01, "v0"), second, room("c", 0b100, "v2"))
    events, stale = decided(crowd, Plan(n=crowd.state.meta.n, rooms=rooms))
    assert stale == [(second.job_id, why)]
    assert [type(event) for event in events] == [PreemptionOrdered, GangEnding] * 2
    assert sorted(crowd.state.pledges) == ["a", "c"]
    assert crowd.state.nodes[NodeIndex(0)].pledged == 0b101


@pytest.mark.parametrize("together", [1, 3, 1_000])
def test_rooms_that_are_folded_together_are_those_folded_one_by_one(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many at once."""
    monkeypatch.setattr("commands.apply_rooms.TOGETHER", together)
    crowd = borrowed(nodes=3)
    events, stale = decided(crowd, Planner(crowd.state).plan(Instant(crowd.at + 1000)))
    rows = _rows(crowd)
    crowd.state.discard()
    begin(crowd.state, Epoch(1), crowd.state.meta.n + 1, Instant(crowd.at + 1000))
    for event in events:
        evolve(crowd.state, event)
    assert not stale
    assert len(events) == 2 * 24
    assert _rows(crowd) == rows


def _rows(crowd: Crowd) -> dict[str, Any]:
    return {name: dict(table.rows) for name, table in crowd.state.tables.items()}
