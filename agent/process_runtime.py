"""The `process` runtime: each task is a process tree under a shim of its own, which outlives the agent.

What is known of a task is in its directory, `<state>/leases/<lease id>/`; this object can be lost at any moment and be
made again from there (`adopt`). See agent.shim for the files.
"""

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import structlog

from agent.book import LeaseRecord
from agent.environment import SecretMissing, task_environment
from agent.journal import replace_file
from agent.ports import Checkpoint, Clock, Observed, Orphan, TaskStart
from agent.processes import alive, boot_id, marked, send_signal
from agent.reported import ReportFile
from agent.shim import link_claim
from agent.strays import Strays
from events.ids import LeaseId
from events.task import TaskEnd
from scheduler.link import Phase

_log = structlog.get_logger(__name__)
_ROOT = Path(__file__).parents[1]
_SHIM = f"import sys; sys.path.append({str(_ROOT)!r}); from agent.shim import main; main(sys.argv[1])"
_DIRECTORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
SHIM_START_S = 20.0
KILLED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """`margin_s`: by how much the shim waits longer for the limit than the leader, whose StopTask is the rule.
    `saved_s`: what is left of a grace once a checkpoint holds all that the job has reported (C-51).
    `unkillable_s`: what survives SIGKILL so long is told (C-52). `cgroup`: a directory of cgroup v2 that may be written
    to; None: none."""

    margin_s: float = 5.0
    saved_s: float = 5.0
    unkillable_s: float = 10.0
    isolation_s: float = 900.0
    log_bytes_max: int = 64 << 20
    logs_kept_s: float = 7 * 86400.0
    orphan_scan_s: float = 60.0
    cgroup: Path | None = None


@dataclass(slots=True)
class _Task:
    """A task as far as it was looked at."""

    directory: Path
    report: ReportFile
    since: float
    limit_at: float | None = None
    kill_at: float | None = None
    status: dict[str, Any] = field(default_factory=dict)
    status_stamp: tuple[int, int, int] = (0, 0, 0)
    said: tuple[object, ...] = ()

    def refresh(self) -> None:
        """Read the status again if it was replaced."""
        path = self.directory / "status.json"
        try:
            stat = path.stat()
            # The size too: a status may have the number of the last but one, and be written in the same tick.
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self.status_stamp != stamp:
                self.status = orjson.loads(path.read_bytes())
                self.status_stamp = stamp
        except FileNotFoundError:
            return

    def shim(self) -> tuple[int, int] | None:
        """(pid, start) of its shim, once that has the claim; no process at all if that was in another boot."""
        try:
            words = (self.directory / "claim").read_text().split()
        except FileNotFoundError:
            return None
        if len(words) != 3:
            return None
        return (int(words[0]), int(words[1])) if words[2] == boot_id() else (0, 0)


class ProcessRuntime:
    """See Runtime. One agent per state directory: the directory is locked.

    `holders`: (GPU uuid, pid) of the processes on the node's GPUs, where the node is ours alone: those that belong to
    no task, and still do at the next scan, are killed (R-63).
    """

    def __init__(
        self,
        state: Path,
        clock: Clock,
        settings: ProcessSettings | None = None,
        holders: Callable[[], Collection[tuple[str, int]]] = tuple,
    ) -> None:
        self.settings = settings or ProcessSettings()
        self._clock = clock
        self._leases = state / "leases"
        self._leases.mkdir(parents=True, exist_ok=True)
        self._renewed = state / "renewed"
        self._owner = str(state.resolve())
        self._tasks: dict[LeaseId, _Task] = {}
        self._children: list[int] = []
        self._fresh: list[Observed] = []
        self._scan_at = 0.0
        self._strays = Strays(self._owner, holders)
        if not self._renewed.exists():
            # The isolation of what an earlier agent started goes on (P-22).
            self.renew(clock.now())

    # The port

    def adopt(self, leases: Sequence[LeaseRecord]) -> tuple[Orphan, ...]:
        """See Runtime. Waits for what it kills, some seconds at most."""
        known = {record.lease_id for record in leases}
        for record in leases:
            self._adopt(record)
        for directory in self._leases.iterdir():
            if LeaseId(directory.name) not in known:
                self._end_foreign(directory)
        orphans = self._strays.kill_unknown(self._tasks)
        deadline = time.monotonic() + KILLED_WITHIN_S
        while self._strays.kill_unknown(self._tasks) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._scan_at = self._clock.now() + self.settings.orphan_scan_s
        self._sweep()
        return orphans

    def start(self, task: TaskStart) -> None:
        """See Runtime."""
        message, now = task.message, self._clock.now()
        directory = self._leases / message.lease_id
        try:
            if not _DIRECTORY.fullmatch(message.lease_id):
                raise OSError(f"lease id {message.lease_id!r} is no file name")
            if not message.command:
                raise OSError("the command is empty")
            report = directory / "report.jsonl"
            env = task_environment(message, report=report, owner=self._owner)
            (directory / "work").mkdir(parents=True)
            replace_file(directory / "spec.json", orjson.dumps(self._spec(task, directory)))
            self._spawn(directory, env)
        except (OSError, SecretMissing) as failure:
            self._end(message.lease_id, TaskEnd.START_FAILED, detail=str(failure))
            return
        self._tasks[message.lease_id] = _Task(directory, ReportFile(report), since=now, limit_at=task.limit_at)

    def stop(self, lease: LeaseId, grace_s: float) -> None:
        """See Runtime."""
        task = self._tasks.get(lease)
        if task is None:
            return
        kill_at = self._clock.now() + grace_s
        task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
        self._control(task)

    def extend(self, lease: LeaseId, limit_at: float | None) -> None:
        """See Runtime."""
        if task := self._tasks.get(lease):
            task.limit_at = limit_at
            self._control(task)

    def renew(self, now: float) -> None:
        """See Runtime."""
        beside = self._renewed.with_suffix(".new")
        beside.write_text(repr(now))
        beside.replace(self._renewed)

    def poll(self) -> list[Observed]:
        """See Runtime."""
        self._reap()
        for lease, task in list(self._tasks.items()):
            self._look(lease, task)
        fresh, self._fresh = self._fresh, []
        return fresh

    def next_poll(self, now: float) -> float | None:
        """See Runtime."""
        if self._fresh:
            return 0.0
        if not self._tasks:
            return None
        return 0.5 if all(task.said[:1] == (Phase.RUNNING,) for task in self._tasks.values()) else 0.05

    def orphans(self) -> tuple[Orphan, ...]:
        """See Runtime."""
        now = self._clock.now()
        if now < self._scan_at:
            return ()
        self._scan_at = now + self.settings.orphan_scan_s
        self._sweep()
        shims = [shim[0] for task in self._tasks.values() if (shim := task.shim())]
        return self._strays.kill_unknown(self._tasks) + self._strays.kill_strangers(shims)

    def forget(self, lease: LeaseId) -> None:
        """See Runtime. The directory stays for its log; what sweeps goes by its age."""
        self._tasks.pop(lease, None)

    def disk_free_bytes(self) -> int:
        """Of the file system of the state directory."""
        return shutil.disk_usage(self._leases).free

    def log_directory(self, lease: LeaseId) -> Path | None:
        """Where its output is, if it is still kept."""
        directory = self._leases / lease
        return directory if _DIRECTORY.fullmatch(lease) and (directory / "output.log").exists() else None

    def running(self, lease: LeaseId) -> bool:
        """Whether more output may come."""
        return lease in self._tasks

    # Starting

    def _spec(self, task: TaskStart, directory: Path) -> dict[str, Any]:
        message = task.message
        cgroup = self.settings.cgroup
        return {
            "command": message.command,
            "workdir": message.workdir or str(directory / "work"),
            "exec_before": task.exec_before,
            "limit_at": task.limit_at,
            "grace_s": message.grace_s,
            "margin_s": self.settings.margin_s,
            "isolation_s": self.settings.isolation_s if message.overlap_never else None,
            "renewed": str(self._renewed),
            "unkillable_s": self.settings.unkillable_s,
            "cgroup": None if cgroup is None else str(cgroup / f"signalbox-{message.lease_id}"),
            "log_bytes_max": self.settings.log_bytes_max,
        }

    def _spawn(self, directory: Path, env: dict[str, str]) -> None:
        """Isolated and without site: a shim starts in a fraction of the time. It leaves us by a second fork."""
        take, give = os.pipe()
        log = os.open(directory / "shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _SHIM, str(directory)],
                {"PATH": os.defpath},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((take, 0), (log, 1), (log, 2))],
                setsid=True,
            )
            self._children.append(pid)
            os.close(take)
            take = -1
            # A pipe takes 64 KiB at once, more than an environment usually is; the rest waits for the shim to read.
            with open(give, "wb", closefd=False) as pipe:
                pipe.write(orjson.dumps(env))
        finally:
            for fd in (take, give, log):
                if fd >= 0:
                    os.close(fd)

    def _reap(self) -> None:
        """Wait for those that made a shim and are done."""
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.remove(pid)

    def _control(self, task: _Task) -> None:
        """Tell the shim, which reads this before it starts the task, and again whenever it is signalled."""
        control = {"kill_at": task.kill_at, "limit_at": task.limit_at}
        replace_file(task.directory / "control.json", orjson.dumps(control))
        task.refresh()
        if (shim := task.shim()) and alive(*shim):
            send_signal([shim[0]], signal.SIGUSR1)

    # Looking

    def _look(self, lease: LeaseId, task: _Task) -> None:
        shim = task.shim()
        # Before the status, lest a shim that ends between the two seems to have died without one.
        gone = shim is not None and not alive(*shim)
        task.refresh()
        if task.status.get("state") == "ended":
            made = task.report.read()
            status = task.status
            self._end(lease, TaskEnd(status["end"]), task=task, made=made, exit_code=status["exit_code"])
        elif gone or (shim is None and self._clock.now() - task.since > SHIM_START_S):
            self._end_without_shim(lease, task)
        else:
            self._say(lease, task)

    def _say(self, lease: LeaseId, task: _Task) -> None:
        made = task.report.read()
        if task.kill_at is not None and any(self._holds_all(task, checkpoint) for checkpoint in made):
            self.stop(lease, self.settings.saved_s)
        unkillable = bool(task.status.get("unkillable"))
        said = (Phase(task.status.get("state", "starting")), unkillable)
        if said != task.said or made:
            task.said = said
            self._fresh.append(
                Observed(
                    lease_id=lease,
                    phase=said[0],
                    checkpoints=made,
                    read_to=task.report.read_to,
                    unkillable=unkillable,
                    detail=f"survive SIGKILL: {task.status['unkillable']}" if unkillable else "",
                )
            )

    def _holds_all(self, task: _Task, checkpoint: Checkpoint) -> bool:
        """Whether nothing that the job has reported is newer. A checkpoint of an earlier step, whose upload happens to
        end now, must not cut the last one short."""
        return checkpoint.step is not None and checkpoint.step >= (task.report.step or 0)

    def _end_without_shim(self, lease: LeaseId, task: _Task) -> None:
        """Its shim is gone, or never came: what it left is killed, and only then is the task at an end."""
        if left := [pid for pid, of in marked(self._owner).items() if of == lease]:
            send_signal(left, signal.SIGKILL)
        elif task.shim() is not None:
            self._end(lease, TaskEnd.LOST, task=task, made=task.report.read(), detail="its shim died")
        elif link_claim(str(task.directory), "agent"):
            self._end(lease, TaskEnd.START_FAILED, task=task, detail="its shim did not start")

    def _end(
        self,
        lease: LeaseId,
        end: TaskEnd,
        *,
        task: _Task | None = None,
        made: tuple[Checkpoint, ...] = (),
        exit_code: int | None = None,
        detail: str = "",
    ) -> None:
        self._tasks.pop(lease, None)
        self._fresh.append(
            Observed(
                lease_id=lease,
                phase=Phase.ENDED,
                end=end,
                exit_code=exit_code,
                finished=task is not None and task.report.finished,
                detail=detail or (str(task.status.get("detail", "")) if task is not None else ""),
                checkpoints=made,
                read_to=task.report.read_to if task is not None else 0,
            )
        )

    # Adopting

    def _adopt(self, record: LeaseRecord) -> None:
        lease = record.lease_id
        directory = self._leases / lease
        if not directory.exists():
            end = TaskEnd.LOST if record.started else TaskEnd.NEVER_STARTED
            self._end(lease, end, detail="nothing of it is on this node")
            return
        task = _Task(directory, ReportFile(directory / "report.jsonl", record.read_to), since=self._clock.now())
        task.limit_at = record.limit_at
        task.report.recover_finished()
        task.refresh()
        if task.shim() is None and link_claim(str(directory), "agent"):
            # Nobody had decided that it runs; now nobody can.
            self._end(lease, TaskEnd.NEVER_STARTED, task=task)
            return
        self._tasks[lease] = task

    def _end_foreign(self, directory: Path) -> None:
        """A directory of no lease of ours: nothing may start from it, and its shim goes."""
        link_claim(str(directory), "agent")
        task = _Task(directory, ReportFile(directory / "report.jsonl"), since=0.0)
        task.refresh()
        if task.status.get("state") != "ended" and (shim := task.shim()) and alive(*shim):
            send_signal([shim[0]], signal.SIGKILL)

    def _sweep(self) -> None:
        """Remove what is over and old."""
        oldest = time.time() - self.settings.logs_kept_s
        for directory in self._leases.iterdir():
            status = directory / "status.json"
            if LeaseId(directory.name) in self._tasks or not (directory / "claim").exists():
                continue
            stamp = status if status.exists() else directory
            if stamp.stat().st_mtime < oldest:
                shutil.rmtree(directory, ignore_errors=True)
