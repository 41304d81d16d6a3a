"""Replay: the generated day of 40,000 jobs on 24,000 GPUs, and the window of Philly's trace where its file is there.

SIGNALBOX_BENCH_PHILLY names that file, in the common CSV (68,510 jobs in the window; the repository does not ship it).
Under the default policy three times, and once under each plain preset, which it is compared with. Each replay is by a
process of its own, on one core: process time, the making of the scenario left out, and its peak of memory. How fast a
log is read and decided again is bench.verify's.
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
from commands.policy import Preset
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
    yield from _under_each("generated day, 40,000 jobs on 24,000 GPUs", "day", DAY_S_MAX)
    if path := os.environ.get(PHILLY):
        yield from _under_each("philly's window on 80x8", path, PHILLY_S_MAX)
    else:
        sys.stderr.write(f"philly's window is not measured: {PHILLY} names no file\n")


def _under_each(case: str, what: str, target_s: float) -> Iterator[Figure]:
    for preset in Preset:
        named, times = (case, TIMES) if preset is Preset.DEFAULT else (f"{case}: {preset}", 1)
        yield from _measured(named, [_in_process(what, preset) for _ in range(times)], target_s)


def _measured(case: str, found: list[tuple[float, float]], target_s: float) -> Iterator[Figure]:
    seconds, memory, n = sorted(s for s, _ in found), max(mib for _, mib in found), len(found)
    middle, worst = round(seconds[n // 2], 2), round(seconds[-1], 2)
    yield Figure(bench="replay", case=case, unit="s", median=middle, p99=worst, n=n, target=target_s)
    yield Figure(
        bench="replay", case=f"{case}: memory", unit="MiB", median=memory, p99=memory, n=n, target=MEMORY_MIB_MAX
    )


def _in_process(what: str, preset: Preset) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.replay", what, preset]
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


def _replay(what: str, preset: str) -> None:
    """Seconds of process time, and MiB at the peak, on standard output."""
    scenario = _scenario(what)
    scenario = under(scenario, contender(preset, scenario.policy))
    begun = time.process_time()
    outcome = run(scenario, preset)
    took = time.process_time() - begun
    assert len(outcome.jobs) >= len(scenario.arrivals), "jobs were lost"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.buffer.write(orjson.dumps([took, used]))


if __name__ == "__main__":
    _replay(sys.argv[1], sys.argv[2])
