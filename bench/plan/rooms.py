"""The index of victims: how long it takes to follow the log, and to be made."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figure import Figure, latency
from bench.plan import fleets
from bench.plan.fleets import FLEET, WHOLE, full
from bench.plan.sites import cpu
from events.ids import Instant, JobId
from scheduler.planning.victims import VictimIndex
from tests.crowds import RESEARCH

SAMPLES = 30


def main() -> Iterator[Figure]:
    """On a full fleet of eight-GPU jobs of which nobody may be displaced."""
    crowd = full(FLEET, lambda index: [(f"j{index}", WHOLE if index else 15, "blue", RESEARCH)])
    crowd.quota("blue", FLEET * 8)
    fleets.submit(crowd, [("wanted", 10, 8, {"team": "red"})])
    now = Instant(crowd.at)
    seconds = []
    for _ in range(SAMPLES):
        watch = cpu()
        VictimIndex(crowd.state, crowd.shares).refresh(now)
        seconds.append(watch.s)
    yield latency("plan.rooms", f"index of victims made for {FLEET:,} full nodes", seconds, target_ms=200)
    crowd.rooms("wanted")
    seconds = []
    for number in range(SAMPLES):
        if number % 2:
            crowd.commit(*crowd.gone(crowd.state.attempts[JobId(f"s{number - 1}"), 1]))
        else:
            crowd.run(f"s{number}", (0, 16), team="blue")
        watch = cpu()
        assert crowd.rooms("wanted") == [None]
        seconds.append(watch.s)
    case = f"index follows a start or an end, {FLEET:,} full nodes, and nobody can make room"
    yield latency("plan.rooms", case, seconds, target_ms=1)
