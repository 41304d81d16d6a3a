"""Verify: chain and fold, and every decision recomputed, over the log of a generated day; and the memory that it takes.

The log is written by the production core in virtual time, beforehand, in a process of its own. Process time, one core.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure, rate
from events.log_file import LogFile, export
from replay.engine.run import CLUSTER, Replay
from replay.generated import Fleet, day
from replay.verify import Request, verify
from tests.replay.logs import memory_log
from tests.replay.scribe import Scribe

JOBS, NODES = 6_000, 128
TIMES = 5
MEMORY_MIB_MAX = 1024


def main() -> Iterator[Figure]:
    """The three figures."""
    with tempfile.TemporaryDirectory(prefix="signalbox-bench-") as home:
        path = Path(home) / "day.log"
        subprocess.run([sys.executable, "-m", "bench.verify", str(path)], check=True)
        for case, recompute, target in (("chain and fold", False, 50_000), ("every decision", True, 5_000)):
            rates = [asyncio.run(_rate(path, recompute)) for _ in range(TIMES)]
            yield rate("verify", case, rates, unit="events/s", target=target)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    yield Figure(
        bench="verify", case="memory", unit="MiB", median=used, p99=used, n=1, target=MEMORY_MIB_MAX, target_p99=None
    )


async def _rate(path: Path, recompute: bool) -> float:
    """Events a second, reading the file included."""
    log = LogFile(path)
    begun = time.process_time()
    report = await verify(log, Request(noted=log.noted, recompute=recompute))
    took = time.process_time() - begun
    await log.close()
    assert report.whole, "the log of the bench is not whole"
    assert not recompute or report.recomputed == report.commits
    return report.events / took


def write(path: Path) -> None:
    """The log of a day."""
    fleet = Fleet(nodes=NODES, nodes_in_block=16)
    replay = Replay(day(1, fleet=fleet, jobs=JOBS, load=0.9), lead=Scribe)
    replay.run("default")
    assert isinstance(replay.core, Scribe)
    with path.open("wb") as file:
        asyncio.run(export(memory_log(replay.core.records, CLUSTER), file, []))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
