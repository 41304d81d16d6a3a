"""Starts that are found in a row are those that each turn by itself would have given (R-20, C-46)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from commands.entities import Job
from commands.plan import Plan, Ranks, Room
from commands.state import State
from events.ids import Instant, JobId
from events.job import ArrayRange, JobSpec
from scheduler.planning import fit, preempt, sure
from scheduler.planning.capacity import Capacity
from scheduler.planning.plan import Cycle, Planner
from scheduler.planning.preempt_own import Own
from scheduler.planning.preempt_swaps import Swaps
from tests.crowds import BATCH, PREEMPTIBLE, RESEARCH, SERVING, Crowd, queued
from tests.properties.test_follows import Wild

TEAMS = ("red", "blue", "green")
DIVISIONS = [
    (0xFF,),
    (0x0F, 0xF0),
    (0x03, 0x1C, 0xE0),
    (0x0F, 0x70),
    (0x03, 0x0C, 0x30, 0xC0),
    [1 << n for n in range(8)],
]
SHAPES = [*[(1, 1)] * 12, *[(1, 2)] * 5, *[(1, 4)] * 3, (1, 8), (1, 6), (2, 1), (2, 8), (3, 4)]


def by_rows(state: State, now: Instant, ranks_max: int = 4_000) -> Plan:
    """A cycle by rows, in which all have their turns. It fails where one of a row does not fit: there `plan` would
    begin anew without rows."""
    planner = Planner(state)
    trial = planner.trial(now)
    trial.leaves_out = False
    return Cycle(planner, trial, ranks_max).run()


def singly(state: State, now: Instant, ranks_max: int = 4_000) -> Plan:
    """The same cycle with a turn for each job."""
    planner = Planner(state)
    trial = planner.trial(now)
    trial.in_rows = trial.leaves_out = False
    return Cycle(planner, trial, ranks_max).run()


def crowd(draw: Random) -> Crowd:
    """Nodes of several sizes and memories, some in use, and more jobs than fit, of three teams, few of them gangs."""
    found = Crowd()
    for block in range(4):
        sizes = [draw.choice([4, 8, 8, 8]) for _ in range(draw.randrange(2, 9))]
        found.nodes(*sizes, block=f"b{block}", rack=f"r{block}", memory_gb=draw.choice([40, 80]))
    for team in TEAMS:
        found.quota(team, draw.choice([0, 8, 40, 200]), draw.choice([0, 10, 1_000]))
    for index in range(0, len(found.state.nodes), 3):
        found.run(
            f"r{index}", (index, draw.choice([0b1, 0b11, 0b1111])), team="red", cls=draw.choice([RESEARCH, SERVING])
        )
    for number in range(draw.randrange(40, 200)):
        found.commit(*queued(f"j{number:03}", *draw.choice(SHAPES), **fields(draw)))
    return found


def fields(draw: Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "team": draw.choice(TEAMS),
        "cls": draw.choice([RESEARCH, RESEARCH, PREEMPTIBLE, SERVING]),
        "max_runtime_s": draw.choice([600, 610, 86_400, None]),
        "gpu_memory_gb_min": draw.choice([0, 0, 0, 60]),
    }
    if draw.random() < 0.1:
        found["array"] = ArrayRange(first=0, last=draw.randrange(9), throttle=draw.choice([None, 1, 3]))
    return found


def test_a_row_of_starts_is_what_each_turn_would_have_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits, of whatever team, class, size and memory, and however little a commit holds."""
    in_rows: list[Ranks] = []

    def seen(state: State, capacity: Capacity, spec: JobSpec, count: int) -> list[Ranks]:
        found = fit.find_many(state, capacity, spec, count)
        in_rows.extend(found)
        return found

    monkeypatch.setattr(sure, "find_many", seen)
    for seed in range(40):
        draw = Random(seed)
        found = crowd(draw)
        now, ranks_max = Instant(found.at + 1000), draw.choice([4_000, 30])
        assert by_rows(found.state, now, ranks_max) == singly(found.state, now, ranks_max), seed
    assert len(in_rows) > 600


def full(draw: Random) -> Crowd:
    """Nodes that several teams use wholly, some above their guarantee, and more jobs of few kinds than have room."""
    found = Crowd()
    found.nodes(*[8] * draw.randrange(2, 8))
    for team in TEAMS:
        found.quota(team, draw.choice([4, 16, 48]), draw.choice([0, 4, 1_000]))
    for index in range(len(found.state.nodes)):
        for place, mask in enumerate(draw.choice(DIVISIONS)):
            found.pass_time(draw.choice([0, 60]))
            cls = draw.choice([RESEARCH, PREEMPTIBLE, BATCH])
            found.run(f"r{index}.{place}", (index, mask), team=draw.choice(TEAMS), cls=cls)
    found.pass_time(7_200)
    kinds = [(draw.choice(SHAPES), fields(draw)) for _ in range(3)]
    for number in range(40):
        shape, more = draw.choice(kinds)
        found.commit(*queued(f"j{number:03}", *shape, **more))
    return found


def test_room_after_room_is_what_each_turn_would_have_made() -> None:
    """The search that goes on for the next job that is alike finds what one from its beginning would."""
    rooms = 0
    for seed in range(60):
        found = full(Random(seed))
        now = Instant(found.at + 1000)
        plan = by_rows(found.state, now)
        assert plan == singly(found.state, now), seed
        rooms += len(plan.rooms)
    assert rooms > 200


def lent(draw: Random) -> Crowd:
    """Nodes that others fill mostly with jobs of one size, above their guarantees, and a team that wants them back."""
    found = Crowd()
    size, others = draw.choice([1, 1, 2, 4]), ("blue", "green", "white")
    found.nodes(*[8] * draw.randrange(2, 6))
    found.quota("red", 40, draw.choice([0, 1_000]))
    for team in others:
        found.quota(team, draw.choice([0, 2, 8]), 1_000)
    for index in range(len(found.state.nodes)):
        for first in range(0, 8, size):
            found.pass_time(draw.choice([0, 0, 60]))
            each, cls = draw.choice([size] * 9 + [1]), draw.choice([RESEARCH, RESEARCH, PREEMPTIBLE, BATCH])
            team = draw.choice(others) if draw.random() < 0.95 else "red"
            found.run(f"r{index}.{first}", (index, ((1 << each) - 1) << first), team=team, cls=cls)
    found.pass_time(draw.choice([600, 7_200]))
    for number in range(30):
        each = size if draw.random() < 0.9 else draw.choice([1, 2, 3])
        cls = draw.choice([RESEARCH] * 9 + [BATCH, SERVING])
        found.commit(*queued(f"j{number:03}", 1, each, team="red" if draw.random() < 0.95 else "blue", cls=cls))
    return found


def test_swaps_in_a_row_are_what_each_turn_would_have_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is in the way, and whatever else comes between."""
    in_rows: list[Room] = []

    class Seen(Swaps):
        def another(self, job: Job, own: Own) -> Room | None:
            room = super().another(job, own)
            in_rows.extend([room] if room is not None else [])
            return room

    monkeypatch.setattr(preempt, "Swaps", Seen)
    for seed in range(60):
        found = lent(Random(seed))
        now, planner = Instant(found.at + 1000), Planner(found.state)
        plan = planner.plan(now)
        assert plan == singly(found.state, now), seed
        assert plan == planner.plan(now), f"{seed}: the trial left something behind"
    assert len(in_rows) > 400


class InRows(Wild):
    """A wild history of which every cycle is planned with rows however short, and singly."""

    def cycle(self) -> None:
        now = Instant(self.crowd.at + 1000)
        if not self.crowd.state.policy.pools:
            assert by_rows(self.crowd.state, now) == singly(self.crowd.state, now)
        Wild.cycle(self)


@pytest.mark.parametrize("seed", range(3))
def test_rows_change_no_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens, and whatever the planner remembers of failures."""
    monkeypatch.setattr(sure, "ROW_MIN", 1)
    history = InRows(Random(seed))
    for _ in range(100):
        history.step()
    assert history.cycles == 300


def test_one_poisonous_job_in_a_row_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that is met in a row is nobody's: each job has a turn by itself, and then it is known whose (C-46)."""
    find_many, one_rank = fit.find_many, fit.one_rank

    def rows_fail(state: State, capacity: Capacity, spec: JobSpec, count: int) -> Any:
        found = find_many(state, capacity, spec, count)
        return [1 // (spec.gpus_per_replica - 2) and ranks for ranks in found]

    def one_fails(capacity: Capacity, spec: JobSpec, among: int | None) -> Any:
        found = one_rank(capacity, spec, among)
        return 1 // (spec.gpus_per_replica - 2) and found

    monkeypatch.setattr(sure, "find_many", rows_fail)
    monkeypatch.setattr("scheduler.planning.turns.one_rank", one_fails)
    found = Crowd()
    found.nodes(8, 8, 8)
    found.quota("red", 24)
    for number in range(12):
        found.queue(f"j{number:02}", 1, 2 if number == 5 else 1, team="red")
    plan = Planner(found.state).plan(Instant(found.at + 1000))
    assert plan == singly(found.state, Instant(found.at + 1000))
    assert [job_id for job_id, _ in plan.poisoned] == ["j05"]
    assert [placement.job_id for placement in plan.placements] == [JobId(f"j{n:02}") for n in range(12) if n != 5]


def test_a_row_that_finds_too_few_places_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were one that is sure to fit not to, each would have a turn by itself as well."""

    def one_short(state: State, capacity: Capacity, spec: JobSpec, count: int) -> list[Ranks]:
        return fit.find_many(state, capacity, spec, count)[:-1]

    monkeypatch.setattr(sure, "find_many", one_short)
    found = Crowd()
    found.nodes(8, 8)
    found.quota("red", 16)
    for number in range(12):
        found.queue(f"j{number:02}", 1, 1, team="red")
    plan = Planner(found.state).plan(Instant(found.at + 1000))
    assert len(plan.placements) == 12
    assert plan == singly(found.state, Instant(found.at + 1000))


def test_room_after_room_is_not_made_on_nodes_that_are_held_meanwhile() -> None:
    """Of three jobs of a team the first and the last are alike; between them nodes are held for a gang."""
    found = Crowd()
    found.nodes(8, 8, 8)
    found.quota("red", 32)
    found.quota("green", 0)
    found.quota("owner", 8)
    for index, fields in enumerate([{"team": "green"}, {"team": "green"}, {"team": "owner", "cls": SERVING}]):
        found.run(f"r{index}", (index, 0xFF), **fields)
    for name, replicas in (("first", 1), ("gang", 2), ("last", 1)):
        found.queue(name, replicas, 8, team="red", max_runtime_s=40 * 86_400)
    plan = by_rows(found.state, Instant(found.at + 1000))
    assert [room.job_id for room in plan.rooms] == ["first"]
    assert [hold.job_id for hold in plan.holds] == ["gang"]
    assert plan == singly(found.state, Instant(found.at + 1000))
