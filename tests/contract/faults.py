"""A broker that stands still, and what waits in its sockets meanwhile (Linux)."""

from __future__ import annotations

from pathlib import Path

from tests.servers.kafka import KafkaBroker
from tests.servers.waiting import until


def freeze(broker: KafkaBroker) -> None:
    """Pause it, and return when it does stand still: SIGSTOP takes a moment to reach a thread on another core."""
    broker.pause()
    process = Path(f"/proc/{broker.pid}")
    if (process / "comm").read_text() == "java\n":  # else a container's, whose client has waited
        until(lambda: all(_state(thread) == "T" for thread in (process / "task").iterdir()), what="all threads stand")


def requests_waiting(broker: KafkaBroker) -> int:
    """How many connections to it hold bytes that it has not read (rx_queue)."""
    port = int(broker.bootstrap.rpartition(":")[2])
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            mine = int(fields[1].rpartition(":")[2], 16) == port
            count += mine and int(fields[4].partition(":")[2], 16) > 0
    return count


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
