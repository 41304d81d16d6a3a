"""The job's own side: say how far it is, save checkpoints that are whole or absent, and stop in time when asked to.

    from signalbox import job

    state = load(job.resume_uri()) if job.resume_uri() else fresh()
    job.on_preempt(lambda: save(state))
    for step in range(state.step, steps):
        train(state)
        job.report_step(step)
        if step % 1000 == 0:
            with job.atomic_checkpoint(job.checkpoint_dir() / f"step-{step}") as partial:
                torch.save(state, partial)
            job.report_checkpoint(job.checkpoint_dir() / f"step-{step}", step=step)
    job.report_finished()

Reports are lines of JSON, appended to the file that $SIGNALBOX_REPORT names; the node's agent reads it. Outside
Signalbox there is no such file, and reporting does nothing, so that the same script runs on a laptop. Standard
library only, and nothing slow to import. Must not raise into training because a report cannot be written.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import FrameType

STEP_EVERY_S = 1.0
"""Steps are reported at most so often; the newest one is never lost, only late."""
SEQUENCES_PER_ATTEMPT = 1_000_000
"""Where the resume's sequence is not told, attempts are kept apart by this much."""
EXIT_PREEMPTED = 128 + signal.SIGTERM


class _Reporter:
    """What this process has reported. A forked child begins anew, with a lock that nobody holds."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sequence: int | None = None
        self.pending_step: int | None = None
        self.last_step_at = -STEP_EVERY_S


_reporter = _Reporter()


def begin_anew() -> None:
    """Forget what this process has reported: for a forked child, and for tests."""
    global _reporter
    _reporter = _Reporter()


os.register_at_fork(after_in_child=begin_anew)


def report_step(step: int) -> None:
    """The job has done step `step`. Cheap: call it every step. Standing still for long is taken for a hang (R-72)."""
    with _reporter.lock:
        now = time.monotonic()
        if now - _reporter.last_step_at < STEP_EVERY_S:
            _reporter.pending_step = step
            return
        _reporter.pending_step = None
        _reporter.last_step_at = now
        _append({"step": step})


def report_checkpoint(
    path_or_uri: str | os.PathLike[str], step: int | None = None, size_bytes: int | None = None
) -> bool:
    """A checkpoint is complete, and a restart may resume from it. True if that was written down for the agent.

    Only rank 0 reports; on the others this does nothing, so that a gang has one line of checkpoints. A path has to
    exist, and is reported as an absolute one. `size_bytes` is measured where it is a path and none is given.
    """
    if int(os.environ.get("RANK") or 0) != 0:
        return False
    uri, local = _uri(path_or_uri)
    if local is not None and not local.exists():
        raise FileNotFoundError(f"checkpoint {local} does not exist: report it when it is complete")
    if size_bytes is None:
        size_bytes = _size(local) if local is not None else 0
    with _reporter.lock:
        _flush_step()
        sequence = _next_sequence()
        line: dict[str, Any] = {"sequence": sequence, "uri": uri, "size_bytes": size_bytes, "step": step}
        if not _append({"checkpoint": line}):
            return False
        _reporter.sequence = sequence
        return True


def report_finished() -> None:
    """The job is done: an exit from here on is its end, also if it is being preempted at this moment (R-41)."""
    with _reporter.lock:
        _flush_step()
        _append({"finished": True})


def resume_uri() -> str | None:
    """Where to resume from: the newest checkpoint that the log has accepted. None: start from the beginning."""
    return os.environ.get("SIGNALBOX_RESUME_URI") or None


def checkpoint_uri() -> str | None:
    """The place below which this rank of this attempt keeps its checkpoints; no other attempt writes there (R-50)."""
    return os.environ.get("SIGNALBOX_CHECKPOINT_URI") or None


def checkpoint_dir() -> Path:
    """A local folder for checkpoints, made if need be: $SIGNALBOX_CHECKPOINT_DIR, else the checkpoint URI where it is
    a path, else ./checkpoints. Upload from there (`upload_behind`) where the URI is a remote one.
    """
    given = os.environ.get("SIGNALBOX_CHECKPOINT_DIR")
    local = Path(given) if given else _uri(checkpoint_uri() or "checkpoints")[1]
    folder = local if local is not None else Path("checkpoints").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def atomic_checkpoint(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a checkpoint, a file or a folder, so that `path` is whole or absent, whenever the process dies (R-51).

    Gives a temporary path beside it to write to. When the block ends, that is flushed to disk and renamed; when it
    raises, removed. A file replaces an older one; a folder that exists already is refused (FileExistsError), since
    no rename replaces it in one step.
    """
    final = Path(path).absolute()
    if final.is_dir():
        raise FileExistsError(f"checkpoint {final} exists already: give each step a path of its own")
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.partial-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield partial
        if not partial.exists():
            raise FileNotFoundError(f"nothing was written to {partial}")
        _sync_tree(partial)
        os.replace(partial, final)
        _sync(final.parent)
    except BaseException:
        _remove(partial)
        raise


def upload_behind(
    path: str | os.PathLike[str], upload: Callable[[Path], str], *, step: int | None = None
) -> Future[str]:
    """Upload a complete checkpoint while training goes on, and report it once `upload(path)` has returned its URI.

    The future holds the URI, or what `upload` raised; a checkpoint whose upload failed is never reported. The process
    does not end before it is done.
    """
    from concurrent.futures import Future

    local = Path(path)
    done: Future[str] = Future()

    def work() -> None:
        try:
            size_bytes = _size(local)
            uri = upload(local)
            report_checkpoint(uri, step=step, size_bytes=size_bytes)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(uri)

    threading.Thread(target=work, name="signalbox-upload").start()
    return done


def on_preempt(callback: Callable[[], object], *, then_exit: bool = True) -> None:
    """Call `callback` once when the job is told to stop (SIGTERM), to save what it has; then exit with 143.

    There is the grace of the job (60 s by default) until SIGKILL. The callback runs in the main thread, between two
    lines of Python: a long call into a library is not broken off. Call from the main thread. Forked children, such as
    data loaders, do not run it. With `then_exit` False the program goes on and has to end by itself.
    """
    owner = os.getpid()
    asked = False

    def stop(number: int, at: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != owner:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if asked:
            return
        asked = True
        callback()
        if then_exit:
            sys.exit(EXIT_PREEMPTED)

    signal.signal(signal.SIGTERM, stop)


def _append(line: dict[str, Any]) -> bool:
    """One line in one write, so that lines of several processes do not mix. False where there is nobody to tell."""
    target = os.environ.get("SIGNALBOX_REPORT")
    if not target:
        return False
    raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    try:
        handle = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            return os.write(handle, raw) == len(raw)
        finally:
            os.close(handle)
    except OSError as error:
        print(f"signalbox: cannot report to {target}: {error}", file=sys.stderr)
        return False


def _next_sequence() -> int:
    """One above all that this attempt has reported; the first one is above whatever it resumed from."""
    if _reporter.sequence is not None:
        return _reporter.sequence + 1
    told = os.environ.get("SIGNALBOX_RESUME_SEQUENCE")
    attempt = int(os.environ.get("SIGNALBOX_ATTEMPT") or 1)
    base = int(told) if told else (attempt - 1) * SEQUENCES_PER_ATTEMPT
    return max(base, _highest_reported()) + 1


def _highest_reported() -> int:
    """The highest sequence in the report file: an earlier process of the same attempt may have written some."""
    target = Path(os.environ.get("SIGNALBOX_REPORT") or os.devnull)
    highest = 0
    if not target.is_file():
        return highest
    with target.open("rb") as lines:
        for line in lines:
            if b'"checkpoint"' not in line:
                continue
            try:
                highest = max(highest, int(json.loads(line)["checkpoint"]["sequence"]))
            except (ValueError, KeyError, TypeError):
                continue
    return highest


def _flush_step() -> None:
    """Write the step that the rate limit has held back."""
    with _reporter.lock:
        if _reporter.pending_step is not None:
            _append({"step": _reporter.pending_step})
            _reporter.pending_step = None


def _uri(path_or_uri: str | os.PathLike[str]) -> tuple[str, Path | None]:
    """(what to report, the local path if it is one)."""
    text = os.fspath(path_or_uri)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return text, Path(unquote(parts.path))
    if "://" in text:
        return text, None
    local = Path(text).absolute()
    return str(local), local


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())
    return path.stat().st_size


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(path: Path) -> None:
    for inner in path.rglob("*") if path.is_dir() else ():
        if not inner.is_symlink():
            _sync(inner)
    _sync(path)


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


atexit.register(_flush_step)
