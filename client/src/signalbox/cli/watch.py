"""Standing by a job until it ends: its progress on stderr, its ranks' output on stdout, Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import BinaryIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from signalbox.cli.app import complain
from signalbox.client import Client
from signalbox.errors import Refused, SignalboxError
from signalbox.shapes import Job, blame, failure, rejected
from signalbox.times import ago, humane

RANKS_MAX = 32
"""Of larger gangs only so many ranks are shown: each is a connection."""
DRAIN_S = 15.0
"""How long the last output may take to arrive after the job has ended."""
LOG_PAUSE_S = 0.5
FAILURES = frozenset({"start_failed", "fault", "retry"})
"""Why a job may be queued again that failed."""


class Progress:
    """What becomes of the job, on stderr: a line that changes on a terminal, a line per change elsewhere."""

    def __init__(self, said: str) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status: Status | None = None
        self._said = said

    def say(self, text: str, *, spin: bool) -> None:
        """Show `text`; `spin`: something is still to come, and no output is expected meanwhile."""
        if not self._console.is_terminal:
            if text != self._said:
                complain(text)
            self._said = text
            return
        self.stop()
        if spin:
            self._status = self._console.status(Text(text))
            self._status.start()
        else:
            self._console.print(Text(text, style="bright_black"))

    def stop(self) -> None:
        """Leave the terminal to others."""
        if self._status is not None:
            self._status.stop()
            self._status = None


class Output:
    """The ranks' bytes on one stream. Several ranks: whole lines, each behind [rank]; one: as they come."""

    def __init__(self, target: BinaryIO, *, prefixed: bool) -> None:
        self._target = target
        self._prefixed = prefixed
        self._lock = threading.Lock()

    def pump(self, chunks: Iterator[bytes], rank: int) -> None:
        """Write all that `chunks` gives."""
        rest = b""
        for chunk in chunks:
            if not self._prefixed:
                self._write(chunk)
                continue
            *whole, rest = (rest + chunk).split(b"\n")
            self._write(b"".join(b"[%d] %s\n" % (rank, line) for line in whole))
        if rest:
            self._write(b"[%d] %s\n" % (rank, rest))

    def _write(self, piece: bytes) -> None:
        with self._lock:
            self._target.write(piece)
            self._target.flush()


class Watcher:
    """One job, watched. `cancels`: Ctrl-C cancels it, else it leaves it; `said`: what was told of it already."""

    def __init__(self, api: Client, id: str, output: BinaryIO, *, cancels: bool, said: str = "") -> None:
        self._api = api
        self._id = id
        self._target = output
        self._cancels = cancels
        self._progress = Progress(said)
        self._threads: list[threading.Thread] = []
        self._streamed: set[int] = set()
        self._explained = 1
        self._over = threading.Event()
        self._cancelled = False

    def until_end(self) -> Job:
        """The job once it has ended. With `cancels` the first Ctrl-C cancels it (a terminal is asked), the second
        leaves it.
        """
        try:
            with _terminated_as_interrupted():
                job = self._wait()
        finally:
            self._progress.stop()
        self._over.set()
        self._drain()
        failed = job.state == "FAILED" and job.reason != "nonzero_exit"
        why = rejected(job) or (self._failure(job, job.attempt) if failed else "")
        self._progress.say(": ".join(filter(None, [ended(job), why])), spin=False)
        return job

    def _failure(self, job: Job, attempt: int) -> str:
        """What its nodes say of a failure; empty where that cannot be had: the end itself is known."""
        told = job.raw.get("failure") or {}
        if told.get("attempt") == attempt:
            return blame(told)
        try:
            return failure(self._api.job_events(self._id), attempt)
        except SignalboxError:
            return ""

    def _wait(self) -> Job:
        while True:
            try:
                return self._api.wait(self._id, self._changed)
            except KeyboardInterrupt:
                if not self._cancels or self._cancelled or not self._cancel():
                    complain(f"left {self._id} as it is; `signalbox show {self._id}` tells what becomes of it")
                    raise

    def _cancel(self) -> bool:
        """Cancel the job, unless the one at the terminal wants it to go on; False then."""
        self._progress.stop()
        if sys.stdin.isatty() and sys.stderr.isatty():
            print(f"\nCancel {self._id}? [Y]es, or [n]o: leave it running  ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower().startswith("n"):
                return False
        complain(f"cancelling {self._id} (Ctrl-C again: do not wait for it)")
        self._cancelled = True
        self._api.cancel(self._id)
        return True

    def _changed(self, job: Job) -> None:
        if job.attempt not in self._streamed and (job.state == "RUNNING" or (job.ended and job.started_at)):
            self._streamed.add(job.attempt)
            self._stream(job)
        again = (job.raw.get("waiting") or {}).get("queue_reason")
        if again in FAILURES and job.attempt > self._explained:
            self._explained = job.attempt
            if why := self._failure(job, job.attempt - 1):
                self._progress.stop()
                complain(f"attempt {job.attempt - 1} failed: {why}")
        if not job.ended:
            self._progress.say(standing(job), spin=job.state != "RUNNING")

    def _stream(self, job: Job) -> None:
        """Follow the ranks of the attempt, each on a thread of its own."""
        output = Output(self._target, prefixed=job.replicas > 1)
        if job.replicas > RANKS_MAX:
            complain(f"showing ranks 0 to {RANKS_MAX - 1} of {job.replicas}; `signalbox logs --rank` has the others")
        for rank in range(min(job.replicas, RANKS_MAX)):
            thread = threading.Thread(target=self._follow, args=(output, job, rank), name=f"rank-{rank}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self, output: Output, job: Job, rank: int) -> None:
        deadline = time.monotonic() + DRAIN_S
        while True:
            try:
                output.pump(self._api.logs(self._id, rank, follow=True, attempt=job.attempt), rank)
                return
            except Refused as error:  # not there yet: the agent has still to open it
                if job.ended:
                    return  # its last attempt was never granted
                if error.status not in (404, 409) or time.monotonic() > deadline:
                    complain(f"no output of rank {rank}: {error}")
                    return
                self._over.wait(LOG_PAUSE_S)
            except SignalboxError as error:
                complain(f"no more output of rank {rank}: {error}")
                return

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            complain(f"the end of the output has not come; `signalbox logs {self._id}` has it later")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM (a CI that gives up) counts as Ctrl-C, so that the job does not outlive whoever waits for it."""

    def interrupt(number: int, at: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def standing(job: Job) -> str:
    """The job's state in a line, with its place, its estimate and what it waits for."""
    said = [f"{job.id} {job.state}{' (held)' if job.held else ''}"]
    if job.state == "QUEUED":
        said += [f"position {job.queue_position}"] if job.queue_position is not None else []
        said += [f"estimated start {ago(job.estimated_start)}"] if job.estimated_start else []
        waiting = job.waiting if job.queue_position is None else job.waiting_beyond_place
        said += [waiting] if waiting else []
    elif job.nodes:
        said.append(f"on {', '.join(job.nodes[:4])}{f' and {len(job.nodes) - 4} more' if len(job.nodes) > 4 else ''}")
    if job.attempt > 1:
        said.append(f"attempt {job.attempt}")
    return ", ".join(said)


def ended(job: Job) -> str:
    """How the job ended, in a line."""
    said = [f"{job.id} {job.state}"]
    if job.exit_code:
        said.append(f"exit code {job.exit_code}")
    if job.reason and job.state != "SUCCEEDED":
        said.append(job.reason.replace("_", " "))
    if job.started_at and job.ended_at:
        said.append(f"ran {humane((job.ended_at - job.started_at).total_seconds())}")
    return ", ".join(said)
