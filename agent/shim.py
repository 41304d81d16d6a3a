"""The parent of one task: starts it at most once, outlives the agent, and sees to it that nothing of it is left.

`python -m agent.shim LEASE_DIRECTORY`, the task's environment as JSON on standard input (secrets never touch the disk).
Standard library only, and little of it: it starts with every task and stays resident with it.

In the directory: `spec.json` (from the agent), `claim` (who decides whether this task ever runs: whoever links it
first), `control.json` (stop and limit, from the agent, announced by SIGUSR1), `status.json` (ours, replaced whole),
`output.log`. Instants are of CLOCK_BOOTTIME.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time

from agent.processes import boot_id, descendants, send_signal, start_of
from agent.refusals import refused
from agent.shim_log import OutputLog

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_S = 5.0
"""How long what the task leaves behind may take to end after a SIGTERM."""
_NEVER = float("inf")
_LATE = b"late"


def boottime() -> float:
    """As the agent reads it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def link_claim(directory: str, who: str) -> bool:
    """Become the one who decides whether the task runs. False: somebody was first. Atomic, content included."""
    mine = os.path.join(directory, f"claim.{os.getpid()}")
    with open(mine, "w") as file:
        file.write(who)
    try:
        os.link(mine, os.path.join(directory, "claim"))
    except FileExistsError:
        return False
    finally:
        os.unlink(mine)
    return True


class Shim:
    """One task, from the claim to the end."""

    def __init__(self, directory: str, spec: dict[str, object], env: dict[str, str]) -> None:
        self.directory = directory
        self.env = env
        self.command = [str(word) for word in _list(spec["command"])]
        self.workdir = str(spec["workdir"] or "/")
        self.exec_before = _float(spec["exec_before"])
        self.limit_at = _optional(spec["limit_at"])
        self.grace_s = _float(spec["grace_s"])
        self.margin_s = _float(spec["margin_s"])
        self.isolation_s = _optional(spec["isolation_s"])
        self.unkillable_s = _float(spec["unkillable_s"])
        self.renewed = str(spec["renewed"])
        self.renewed_at = boottime()
        self.cgroup = str(spec["cgroup"]) if spec["cgroup"] else None
        self.task = 0
        self.exit_code: int | None = None
        self.end = "exited"
        self.detail = ""
        self.kill_at = _NEVER
        self.killing_since: float | None = None
        self.unkillable = False
        self.status: dict[str, object] = {"state": "starting"}
        self.log = OutputLog(directory, int(_float(spec["log_bytes_max"])))

    # Starting

    def run(self) -> None:
        """All of it."""
        wake, wake_out = os.pipe()
        for fd in (wake, wake_out):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.write_status()
        failed = self.spawn()
        if failed is not None:
            self.finish(*failed)
            return
        self.write_status(state="running", task=[self.task, start_of(self.task)])
        self.supervise(wake)
        self.finish(self.end, self.detail)

    def on_signal(self, number: int, _: object) -> None:
        """Everything happens in the loop, but a SIGTERM has to be told from the others: the machine is going down."""
        if number == signal.SIGTERM:
            self.order_stop(boottime() + self.grace_s, "lost", "the shim was told to end")

    def spawn(self) -> tuple[str, str] | None:
        """Start the task; (end, detail) if it does not run. Stop and lateness are looked at as late as can be (P-17,
        P-18)."""
        self.make_cgroup()
        self.read_control()
        if self.kill_at < _NEVER:
            return "never_started", "stopped before it began"
        errors, errors_out = os.pipe()
        shim = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.become_task(errors_out, shim)
        os.close(errors_out)
        with os.fdopen(errors, "rb") as file:
            said = file.read()
        if said and said != _LATE:
            os.write(self.log.input, b"[signalbox: %s]\n" % said.partition(b" ")[2])
        self.log.close_input()
        if not said:
            self.task = pid
            return None
        os.waitpid(pid, 0)
        if said == _LATE:
            return "never_started", "too late: its leader may have given this node up"
        code, _, words = said.decode(errors="replace").partition(" ")
        self.exit_code = int(code) or None
        return "exited" if self.exit_code else "start_failed", words

    def become_task(self, errors: int, shim: int) -> None:
        """In the child: turn into the task, or say why not (exit code, sentence). Does not return."""
        step: dict[str, str] = {}
        try:
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals():
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            os.setsid()
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != shim:
                os._exit(127)  # killed since the fork, it is not noticed any more: nobody would keep the task
            self.enter_cgroup()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(self.log.input, 1)
            os.dup2(self.log.input, 2)
            step = {"workdir": self.workdir}
            os.chdir(self.workdir)
            step = {"program": self.command[0]}
            if boottime() > self.exec_before:
                os.write(errors, _LATE)
            else:
                os.execvpe(self.command[0], self.command, self.env)
        except OSError as failure:
            code, words = refused(failure, **step)
            os.write(errors, f"{code} {words}".encode(errors="replace"))
        except BaseException as failure:
            os.write(errors, f"0 {type(failure).__name__}: {failure}"[:500].encode(errors="replace"))
        os._exit(127)

    # Supervising

    def supervise(self, wake: int) -> None:
        """Until the task and everything it started is gone."""
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        poller.register(self.log.output, select.POLLIN)
        while True:
            ready = dict(poller.poll(max(0.0, self.next_s()) * 1000))
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self.read_control()
            if self.log.output in ready and self.log.pump() == 0:
                poller.unregister(self.log.output)
            self.reap()
            now = boottime()
            self.obey_limits(now)
            if self.exit_code is not None or self.kill_at < _NEVER:
                left = self.left()
                if self.exit_code is not None and not left:
                    break
                self.press(left, now)

    def next_s(self) -> float:
        """How long nothing needs to be looked at."""
        now = boottime()
        if self.exit_code is not None or self.kill_at < _NEVER:
            return 1.0 if self.unkillable else min(0.05, max(0.001, self.kill_at - now))
        dues = [now + 3600.0]
        if self.limit_at is not None:
            dues.append(self.limit_at - self.grace_s + self.margin_s)
        if self.isolation_s is not None:
            dues.append(now + min(10.0, self.isolation_s / 4))
        return min(dues) - now

    def reap(self) -> None:
        """Take the exit status of every child, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.task:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code
                if self.kill_at == _NEVER:
                    self.leave_nothing()

    def leave_nothing(self) -> None:
        """The task has ended by itself: what it left behind follows."""
        self.kill_at = boottime() + LEFTOVER_S
        self.terminate()

    def order_stop(self, kill_at: float, end: str, detail: str) -> None:
        """SIGTERM to all, SIGKILL at `kill_at`. The first reason is the end's; a later order only hastens."""
        first, self.kill_at = self.kill_at == _NEVER, min(self.kill_at, kill_at)
        if first:
            self.end, self.detail = end, detail
            if self.task:
                self.write_status(state="stopping")
                self.terminate()

    def terminate(self) -> None:
        """SIGTERM to every process of the task; one that is stopped has to go on to see it."""
        left = self.left()
        send_signal(left, signal.SIGTERM)
        send_signal(left, signal.SIGCONT)

    def press(self, left: list[int], now: float) -> None:
        """SIGKILL from `kill_at` on, again and again: a process may fork while it is looked at."""
        if now < self.kill_at:
            return
        if self.killing_since is None:
            self.killing_since = now
        if self.cgroup is not None:
            with contextlib.suppress(OSError):
                _write(os.path.join(self.cgroup, "cgroup.kill"), "1")
        send_signal(left, signal.SIGKILL)
        if not self.unkillable and now - self.killing_since > self.unkillable_s:
            self.unkillable = True
            self.write_status(unkillable=left)

    def left(self) -> list[int]:
        """Processes of the task that are still there."""
        left = set(descendants(os.getpid()))
        if self.cgroup is not None:
            with contextlib.suppress(OSError), open(os.path.join(self.cgroup, "cgroup.procs")) as file:
                left |= {pid for pid in map(int, file.read().split()) if start_of(pid) is not None}
        return sorted(left)

    # Orders

    def read_control(self) -> None:
        """What the agent wants."""
        try:
            with open(os.path.join(self.directory, "control.json")) as file:
                control = json.load(file)
        except FileNotFoundError:
            return
        self.limit_at = control["limit_at"]
        if control["kill_at"] is not None and self.exit_code is None:
            self.order_stop(control["kill_at"], "stopped", "")

    def obey_limits(self, now: float) -> None:
        """Stop by ourselves at the limit (R-5), and when nobody has heard of a leader for long (P-22)."""
        if self.exit_code is not None or self.kill_at < _NEVER:
            return
        if self.limit_at is not None and now >= self.limit_at - self.grace_s + self.margin_s:
            self.order_stop(self.limit_at + self.margin_s, "timed_out", "")
        elif self.isolation_s is not None and now - self.last_renewed() >= self.isolation_s:
            self.order_stop(now + self.grace_s, "lost", "no leader was heard for too long (overlap: never)")

    def last_renewed(self) -> float:
        """When the agent last heard a leader; a task began because one was heard."""
        with contextlib.suppress(OSError, ValueError), open(self.renewed) as file:
            self.renewed_at = max(self.renewed_at, float(file.read()))
        return self.renewed_at

    # Cgroup

    def make_cgroup(self) -> None:
        """A group of its own, where that is allowed: then not even a fork bomb escapes."""
        if self.cgroup is not None:
            try:
                os.mkdir(self.cgroup)
            except OSError:
                self.cgroup = None

    def enter_cgroup(self) -> None:
        if self.cgroup is not None:
            _write(os.path.join(self.cgroup, "cgroup.procs"), "0")

    # Ending

    def finish(self, end: str, detail: str) -> None:
        """Nothing is left: say how it ended, for good."""
        while self.log.pump():
            pass
        self.log.close()
        if self.cgroup is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self.cgroup)
        ended: dict[str, object] = {"state": "ended", "end": end, "exit_code": self.exit_code, "detail": detail}
        self.write_status(**ended)

    def write_status(self, **changes: object) -> None:
        """Replace the status as a whole, on disk. A full disk ends no task: the end is told when there is room."""
        self.status |= changes
        while True:
            try:
                self.replace_status()
                return
            except OSError as failure:
                if failure.errno == errno.ENOENT:
                    raise
                if self.status["state"] != "ended":
                    # The next change says it too.
                    return
                time.sleep(1.0)

    def replace_status(self) -> None:
        """One attempt."""
        beside = os.path.join(self.directory, "status.new")
        with open(beside, "w") as file:
            json.dump(self.status, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, os.path.join(self.directory, "status.json"))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _optional(value: object) -> float | None:
    return None if value is None else _float(value)


def main(directory: str) -> None:
    """Leave the agent, claim the task, run it."""
    if os.fork() > 0:
        os._exit(0)
    # Whatever the agent had open: a connection that is held here would seem alive after the agent's death.
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir("/")
    try:
        env = json.load(sys.stdin)
    except ValueError:
        # The agent died in mid-sentence. Without a claim of ours the next one says that it never started.
        return
    # From the claim on the agent may signal us; what it wants is read before the task starts.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with open(os.path.join(directory, "spec.json")) as file:
        spec = json.load(file)
    if not link_claim(directory, f"{os.getpid()} {start_of(os.getpid())} {boot_id()}"):
        return
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        Shim(directory, spec, env).run()
    except OSError as failure:
        if failure.errno != errno.ENOENT:
            raise
        # The directory was taken away: there is nobody left to tell.


if __name__ == "__main__":
    main(sys.argv[1])
