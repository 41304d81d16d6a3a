"""Memory of a planner that goes on and on: bytes that a cycle leaves behind."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from random import Random

from bench.figure import Figure
from bench.plan import fleets
from bench.plan.sites import Site, end
from commands.decide.attempts import end_attempt
from events.job import EndReason
from events.task import TaskEnd

CYCLES = 10_000
WARM = 3_000
"""Cycles after which every row and every index has been made anew at least once."""
BYTES_MAX = 2
"""What 100,000 cycles leave behind is less than a bucket of a dictionary that grew."""


def main() -> Iterator[Figure]:
    """A full fleet in which somebody always has to begin anew, and somebody else comes in."""
    site = crowded()
    draw = Random(3)
    tracemalloc.start()
    try:
        for _ in range(WARM):
            begin_anew(site, draw)
        before = held()
        for _ in range(CYCLES):
            begin_anew(site, draw)
        per_cycle = (held() - before) / CYCLES
    finally:
        tracemalloc.stop()
    yield Figure(
        bench="plan.memory",
        case=f"left behind by each of {CYCLES:,} cycles",
        unit="bytes",
        median=round(per_cycle, 3),
        p99=round(per_cycle, 3),
        n=CYCLES,
        target=BYTES_MAX,
    )


def held() -> int:
    """Bytes that are in use and were allocated since tracing began."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def crowded() -> Site:
    """Two blocks, and twice the work that they hold."""
    crowd = fleets.empty(16, in_block=8)
    names = fleets.teams(3)
    for team in names:
        crowd.quota(team, 40)
    kinds = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))
    more = {"max_runtime_s": 20 * fleets.DAY_S}
    fleets.submit(
        crowd, ((f"j{number:03}", *kinds[number % 5], {"team": names[number % 3], **more}) for number in range(160))
    )
    site = Site(crowd)
    site.settle()
    return site


def begin_anew(site: Site, draw: Random) -> None:
    """One of those that run waits again, and the next cycle starts what now fits."""
    key = draw.choice(sorted(key for key, row in site.state.attempts.rows.items() if row.ending is None))
    draft = site.draft()
    end_attempt(draft, key, EndReason.REQUEUED)
    end(draft, key, TaskEnd.STOPPED)
    site.keep()
    site.settle()
