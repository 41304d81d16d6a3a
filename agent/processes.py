"""What /proc says about processes. Standard library only: the shim imports it.

A process is named by (pid, start): pids come round, start times since boot do not.
"""

import os
import signal
from collections.abc import Iterable

MARKER = "SIGNALBOX_LEASE"
"""In the environment of everything that runs for a lease: `<owner> <lease id>`. An owner is an agent's state
directory, so that two agents on one machine leave each other's tasks alone."""


def boot_id() -> str:
    """Tells this boot of the machine from all others."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name: state, ppid, pgrp, session, ... Empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def start_of(pid: int) -> int | None:
    """When it started, in clock ticks since boot. None if it is gone, or dead and not yet waited for."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def alive(pid: int, start: int) -> bool:
    """Whether that very process lives."""
    return start_of(pid) == start


def all_pids() -> list[int]:
    """Every process there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(root: int) -> list[int]:
    """All living processes below `root`, near ones first. Needs `root` to adopt orphans (PR_SET_CHILD_SUBREAPER)."""
    children: dict[int, list[int]] = {}
    dead = set()
    for pid in all_pids():
        fields = stat_fields(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
            if fields[0] in "ZX":
                dead.add(pid)
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        found += level
    return [pid for pid in found if pid not in dead]


def marked(owner: str) -> dict[int, str]:
    """Processes that run for a lease of this owner: pid -> lease id."""
    wanted = f"{MARKER}={owner} ".encode()
    found = {}
    for pid in all_pids():
        lease = _marked(pid, wanted)
        if lease is not None and start_of(pid) is not None:
            found[pid] = lease
    return found


def _marked(pid: int, wanted: bytes) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode(errors="replace")
    return None


def environ_of(pid: int) -> dict[str, str]:
    """The environment it was started with; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """To each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
