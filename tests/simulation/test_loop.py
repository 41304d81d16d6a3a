"""The ground that the simulation stands on: its time, and its processes."""

import random

import pytest

from tests.simulation.loop import Hang, Process, VirtualLoop
from tests.simulation.waiting import pause


async def _notes(notes: list[float], loop: VirtualLoop) -> None:
    while True:
        await pause(1.0)
        notes.append(round(loop.now, 1))


def _ran(until_s: float, fault: str) -> list[float]:
    """When a process that notes the time each second did so, with a fault at 2.5 s."""
    loop = VirtualLoop()
    process, notes = Process(loop, "p", random.Random(1)), list[float]()
    process.spawn(_notes(notes, loop))
    if fault == "freeze":
        loop.call_outside(2.5, process.freeze, 4.0)
    elif fault == "end":
        loop.call_outside(2.5, process.end, "killed")
    loop.run_until_complete(loop.task_outside(pause(until_s)))
    process.end("over")
    loop.run_until_complete(pause(0.1))
    assert process.left() == []
    loop.close()
    return notes


def test_time_jumps_to_the_next_timer() -> None:
    """A day of virtual time passes at once."""
    assert len(_ran(86_400.5, "none")) == 86_400


def test_a_frozen_process_runs_nothing_until_it_is_thawed() -> None:
    """Time goes on without it; what fell due meanwhile runs then."""
    assert _ran(9.0, "freeze") == [1.0, 2.0, 6.5, 7.5, 8.5]


def test_a_dead_process_runs_nothing_more() -> None:
    """Its timers never fire."""
    assert _ran(9.0, "end") == [1.0, 2.0]


def test_waiting_for_nothing_is_found() -> None:
    """A run in which nothing can happen any more ends as an error, and not never."""
    loop = VirtualLoop()
    never = loop.create_future()
    with pytest.raises(Hang, match="nothing is ready"):
        loop.run_until_complete(never)
    loop.close()
