"""When a type is used up nobody's turn could give anything, so that none is given (C-5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from events.ids import Instant
from events.job import PriorityClass
from scheduler.planning import reserve
from scheduler.planning.plan import Planner
from scheduler.planning.trial import Trial
from scheduler.planning.turns import Turns
from scheduler.planning.used_up import Chances
from tests.crowds import BATCH, H100, PREEMPTIBLE, SERVING, Crowd

FULL = 0xFF
HALF = 0x0F


def crowd(*masks: int, serving: bool = True) -> Crowd:
    """Nodes of eight with these GPUs in the hands of a team inside its guarantee; `serving`: it gives way to nobody."""
    found = Crowd()
    found.nodes(*[8] * len(masks))
    found.quota("owner", 8 * len(masks))
    found.quota("red", 8 * len(masks))
    for index, mask in enumerate(masks):
        found.run(f"full{index}", (index, mask), team="owner", **({"cls": SERVING} if serving else {}))
    return found


def held(found: Crowd, cls: PriorityClass = SERVING) -> Crowd:
    """With a gang for which nodes are held: of the highest tier there is, unless another class is given."""
    found.queue("gang", 2, 8, team="red", cls=cls)
    planner = Planner(found.state)
    found.apply(planner.plan(Instant(found.at + 1000)))
    assert found.state.reservations.rows
    return found


def asked(planner: Planner, trial: Trial) -> bool:
    """Whether the type is used up for all that waits, as the walk asks it."""
    planner.queue.begin(trial.now)
    planner.fair.begin(trial.now)
    reserve.keep(trial)
    for line in planner.queue.lines.values():
        line.charge = line.gpus
    return Chances(planner, trial, H100).used_up(planner.queue.lines.values())


def gives(planner: Planner, trial: Trial) -> list[str]:
    """The jobs that would be given something, were each to have its turn."""
    turns = Turns(planner, trial, 1 << 30)
    given: list[str] = []
    for line in planner.queue.lines.values():
        for _, job_id in list(line.entries):
            before = turns.given
            taken = turns.take(line, job_id)
            given += [job_id] if taken or turns.given > before else []
    planner.capacity.undo()
    planner.shares.undo()
    planner.victims.undo()
    return given


def small(found: Crowd) -> Crowd:
    """One that needs half a node."""
    found.queue("small", 1, 4, team="red")
    return found


def of(found: Crowd, replicas: int, each: int, **more: object) -> Crowd:
    found.queue("wanted", replicas, each, team="red", **more)
    return found


CASES: dict[str, tuple[Callable[[], Crowd], bool]] = {
    "nothing is free, and less than a node is asked for": (lambda: small(crowd(FULL, FULL)), True),
    "as much is free as the least asks for": (lambda: small(crowd(FULL, HALF)), False),
    "something is free, and everybody asks for more": (lambda: small(crowd(FULL, 0x7F)), True),
    "a gang has no nodes held yet": (lambda: of(small(crowd(FULL, FULL)), 2, 8), False),
    "a gang has nodes held, and nobody overtakes it": (lambda: of(held(crowd(FULL, FULL)), 2, 8), True),
    "a gang has nodes held, and one overtakes it": (
        lambda: of(held(crowd(FULL, FULL), BATCH), 2, 8, cls=SERVING),
        False,
    ),
    "a gang is larger than the fleet": (lambda: of(crowd(FULL, FULL), 3, 8), False),
    "a lower class runs": (lambda: of(crowd(FULL, FULL, serving=False), 1, 8, cls=BATCH), False),
    "the same class runs": (lambda: of(crowd(FULL, FULL, serving=False), 1, 4), True),
    "one that could displace nobody waits": (lambda: of(crowd(FULL, FULL), 1, 4, cls=PREEMPTIBLE), True),
}


@pytest.mark.parametrize("case", CASES)
def test_used_up(case: str) -> None:
    """Where it is said that the type is used up, no turn of anybody gives anything."""
    make, expected = CASES[case]
    found = make()
    planner = Planner(found.state)
    trial = planner.trial(Instant(found.at + 1000))
    assert asked(planner, trial) is expected
    if expected:
        assert gives(planner, trial) == []
