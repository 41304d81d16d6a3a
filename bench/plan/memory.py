"""Memory of a planner that goes on and on: bytes that a cycle leaves behind."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from random import Random

from bench.figure import Figure
from bench.plan import fleets
from bench.plan.sites import Site, end
from commands.decide.attempts import end_attempt
from events.job import EndReason
from events.task import TaskEnd

CYCLES = 100_000
WARM = 5_000
"""Cycles after which every row and every index has been made anew at least once."""
LOOKS = 20
"""How often what is held is looked at: a leak shows as a slope, whatever the last look happens to find."""
BYTES_MAX = 2
"""What 100,000 cycles leave behind is less than a bucket of a dictionary that grew."""


def main() -> Iterator[Figure]:
    """A full fleet in which somebody always has to begin anew, and somebody else comes in. Some minutes: on stderr it
    says how far it is. The median is of the slope, p99 of the most that was held at any look."""
    site, draw = crowded(), Random(3)
    tracemalloc.start()
    try:
        go_on(site, draw, WARM)
        looks = [held()]
        for look in range(LOOKS):
            go_on(site, draw, CYCLES // LOOKS)
            looks.append(held())
            print(f"plan.memory: {(look + 1) * CYCLES // LOOKS:,} of {CYCLES:,} cycles", file=sys.stderr)
    finally:
        tracemalloc.stop()
    yield Figure(
        bench="plan.memory",
        case=f"left behind by each of {CYCLES:,} cycles",
        unit="bytes",
        median=round(slope(looks) * LOOKS / CYCLES, 3),
        p99=round((max(looks) - looks[0]) / CYCLES, 3),
        n=CYCLES,
        target=BYTES_MAX,
    )


def slope(looks: list[int]) -> float:
    """Bytes more from look to look: of the straight line that lies best (least squares)."""
    middle, mean = (len(looks) - 1) / 2, sum(looks) / len(looks)
    spread = sum((at - middle) ** 2 for at in range(len(looks)))
    return sum((at - middle) * (bytes_held - mean) for at, bytes_held in enumerate(looks)) / spread


def held() -> int:
    """Bytes that are in use and were allocated since tracing began."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def crowded() -> Site:
    """Two blocks, and twice the work that they hold."""
    crowd = fleets.empty(8, in_block=4)
    names = fleets.teams(3)
    for team in names:
        crowd.quota(team, 20)
    kinds = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))
    more = {"max_runtime_s": 200 * fleets.DAY_S}
    fleets.submit(
        crowd, ((f"j{number:03}", *kinds[number % 5], {"team": names[number % 3], **more}) for number in range(80))
    )
    site = Site(crowd)
    site.settle()
    return site


def go_on(site: Site, draw: Random, cycles: int) -> None:
    """One of those that run waits again, and cycles start what now fits until one finds nothing to do: so many in
    all."""
    while cycles > 0:
        key = draw.choice(sorted(key for key, row in site.state.attempts.rows.items() if row.ending is None))
        draft = site.draft()
        end_attempt(draft, key, EndReason.REQUEUED)
        end(draft, key, TaskEnd.STOPPED)
        site.keep()
        cycles -= site.settle()
