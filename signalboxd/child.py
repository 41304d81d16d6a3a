"""Child processes that never outlive this one, and ports for them.

Everything that this program starts beside itself (embedded Postgres, the servers of the tests) goes through
`spawn`: the kernel then signals the child when we die, whatever we die of, so that a `kill -9` leaves nothing
behind. The job processes of an agent are the opposite (they outlive it on purpose) and must not be started
here.

Linux only: it rests on PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Below the range from which Linux takes the ports of outgoing connections (32768 up): a port in that range
# may be taken by any client while our server is down, and then the server cannot come back on it.
_PORTS = range(10_240, 32_768)
_given: set[int] = set()
"""Ports that this process was given: none is given twice."""


def spawn(
    argv: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    uid: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own; it gets `death_signal` when this process ends.

    Both its outputs are appended to `log`; it reads nothing. A session of its own keeps a terminal's Ctrl-C
    from it, so that the caller decides in which order things stop. `uid` (with the group of the same number)
    needs root.
    """
    return _spawner(os.getpid()).submit(_popen, argv, log, cwd, env, death_signal, uid).result()


def end(child: subprocess.Popen[bytes], *signals: signal.Signals, patience_s: float = 20.0) -> int:
    """Send the signals in turn, each with time to work, and SIGKILL last; returns the exit status."""
    for number in signals:
        child.send_signal(number)
        try:
            return child.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    child.kill()
    return child.wait()


def free_port() -> int:
    """A loopback TCP port that nobody listens on now, and that this process was not given before: what is to listen
    there may not have begun. A stranger may take it first: be ready to ask again."""
    for port in random.sample(_PORTS, k=200):
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise OSError("no free TCP port found on 127.0.0.1")


@functools.cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    """One thread that starts every child and lives as long as the process (another after a fork).

    The death signal comes when the *thread* that started the child ends: from a worker of `asyncio.to_thread`
    the child would be killed as soon as the loop closes its executor.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"spawn-{pid}")


def _popen(
    argv: Sequence[str | Path],
    log: Path,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    death_signal: signal.Signals,
    uid: int | None,
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else dict(env),
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            start_new_session=True,
            preexec_fn=functools.partial(_die_with, os.getpid(), int(death_signal)),
        )


def _die_with(parent: int, death_signal: int) -> None:
    """Runs in the child between fork and exec: ask for the signal, then see that the parent still lives."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(127)
