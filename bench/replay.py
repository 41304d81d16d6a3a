"""Replay: the generated day of 40,000 jobs on 24,000 GPUs, and the window of Philly's trace where its file is there.

SIGNALBOX_BENCH_PHILLY names that file, in the common CSV (68,510 jobs in the window; the repository does not ship it).
Each replay is by a process of its own, on one core: process time, the making of the scenario left out, and its peak of
memory. How fast a log is read and decided again is bench.verify's.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from bench.figure import Figure
from replay.contender import contender, under
from replay.engine import run
from replay.generated import day
from replay.scenario import Scenario
from replay.traces.options import AT_ONCE, parse_options
from replay.traces.read import read_trace
from replay.traces.scenario import scenario as imported

PHILLY = "SIGNALBOX_BENCH_PHILLY"
PHILLY_WINDOW = "2294959..7565359"
TIMES = 3
DAY_S_MAX = PHILLY_S_MAX = 60.0
MEMORY_MIB_MAX = 1024


def main() -> Iterator[Figure]:
    """Seconds and memory of each."""
    yield from _measured("generated day, 40,000 jobs on 24,000 GPUs", "day", DAY_S_MAX)
    if path := os.environ.get(PHILLY):
        yield from _measured("philly's window on 80x8", path, PHILLY_S_MAX)
    else:
        sys.stderr.write(f"philly's window is not measured: {PHILLY} names no file\n")


def _measured(case: str, what: str, target_s: float) -> Iterator[Figure]:
    found = [_in_process(what) for _ in range(TIMES)]
    seconds, memory = sorted(s for s, _ in found), max(mib for _, mib in found)
    middle, worst = round(seconds[len(seconds) // 2], 2), round(seconds[-1], 2)
    yield Figure(bench="replay", case=case, unit="s", median=middle, p99=worst, n=len(seconds), target=target_s)
    yield Figure(
        bench="replay", case=f"{case}: memory", unit="MiB", median=memory, p99=memory, n=TIMES, target=MEMORY_MIB_MAX
    )


def _in_process(what: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.replay", what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": "0"})
    seconds, mib = orjson.loads(done.stdout)
    return float(seconds), float(mib)


def _scenario(what: str) -> Scenario:
    """The generated day, or Philly's window: its virtual clusters are teams, with quotas in proportion to use."""
    if what == "day":
        return day(1)
    options = parse_options(fleet="80x8", window=PHILLY_WINDOW, quotas="use", estimate="duration", running=AT_ONCE)
    found, _ = imported(read_trace(Path(what), "common"), options)
    return found


def _replay(what: str) -> None:
    """Seconds of process time, and MiB at the peak, on standard output."""
    scenario = _scenario(what)
    scenario = under(scenario, contender("default", scenario.policy))
    begun = time.process_time()
    outcome = run(scenario, "default")
    took = time.process_time() - begun
    assert len(outcome.jobs) >= len(scenario.arrivals), "jobs were lost"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.buffer.write(orjson.dumps([took, used]))


if __name__ == "__main__":
    _replay(sys.argv[1])
