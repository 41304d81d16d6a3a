"""Tasks as real processes: what starts, what is reported, and what an agent's death changes."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock import LoopClock
from agent.ports import Orphan
from agent.process_runtime import ProcessRuntime, ProcessSettings, _Task
from agent.processes import send_signal, start_of
from agent.refusals import refused
from agent.reported import ReportFile
from events.task import TaskEnd
from scheduler.link import Phase
from tests.agent.builders import GPU, LEASE, shim_spec, task
from tests.agent.machine import Machine, record
from tests.servers.waiting import WITHIN_S, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine that is clean afterwards."""
    machine = Machine(tmp_path)
    yield machine
    send_signal([*machine.shims(), *machine.processes()], signal.SIGKILL)


def test_the_exit_code_and_the_output_of_a_task_are_kept(machine: Machine) -> None:
    """A task's exit code, and what it wrote to either stream, outlive it."""
    machine.runtime.start(task("sh", "-c", "echo out; echo err >&2; exit 3"))
    ended = machine.ended()
    assert (ended.end, ended.exit_code) == (TaskEnd.EXITED, 3)
    assert machine.output() == "out\nerr\n"


def test_a_signal_is_128_plus_its_number(machine: Machine) -> None:
    """A task that a signal ended has exit code 128 + n."""
    machine.runtime.start(task("sh", "-c", "kill -SEGV $$"))
    assert machine.ended().exit_code == 128 + signal.SIGSEGV


@pytest.mark.parametrize(
    ("command", "workdir", "code", "words"),
    [
        (("/does/not/exist",), None, 127, "/does/not/exist: No such file or directory"),
        (("nosuchprog", "-x"), None, 127, "nosuchprog: command not found"),
        (("true",), "/no/such/place", 127, "working directory /no/such/place: No such file or directory"),
        (("true",), "/etc/passwd", 127, "working directory /etc/passwd: Not a directory"),
        (("/etc/passwd",), None, 126, "/etc/passwd: Permission denied"),
    ],
)
def test_r_6_a_command_that_is_not_there_ends_as_a_shell_would_end_it(
    machine: Machine, command: tuple[str, ...], workdir: str | None, code: int, words: str
) -> None:
    """A missing program or directory is the job's own doing, with exit code 127 or 126: no other try would mend it.
    The same sentence is in the detail and in the output."""
    machine.runtime.start(task(*command, workdir=workdir))
    ended = machine.ended()
    assert (ended.end, ended.exit_code, ended.detail) == (TaskEnd.EXITED, code, words)
    assert machine.output() == f"[signalbox: {words}]\n"


def test_a_script_without_its_interpreter_says_so(machine: Machine, tmp_path: Path) -> None:
    """The script is there, so that its own name and ENOENT alone would mislead."""
    script = tmp_path / "run.sh"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o755)
    machine.runtime.start(task(str(script)))
    ended = machine.ended()
    assert (ended.exit_code, "interpreter" in ended.detail) == (127, True)


def test_what_the_node_cannot_do_is_no_fault_of_the_job() -> None:
    """An I/O error of the program's disk may be gone at the next try, on another node: no exit code."""
    failure = OSError(errno.EIO, os.strerror(errno.EIO), "x")
    assert refused(failure, program="x") == (0, "x: Input/output error")
    assert refused(FileNotFoundError(errno.ENOENT, "No such file", "/sys/x")) == (0, "/sys/x: No such file")


def test_a_secret_that_is_missing_is_named_and_no_value_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unresolvable secret fails the start with its name; the value of another one appears nowhere on disk."""
    monkeypatch.setenv("THE_TOKEN", "s3cr3t-value")
    machine.runtime.start(task(secrets={"TOKEN": "env:THE_TOKEN", "KEY": "file:/no/such/file"}))
    ended = machine.ended()
    assert ended.end is TaskEnd.START_FAILED
    assert "KEY" in ended.detail
    assert "s3cr3t" not in ended.detail


def test_secrets_reach_the_task_and_not_the_disk(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is in the environment of the task, and in no file of the agent's."""
    monkeypatch.setenv("THE_TOKEN", "s3cr3t-value")
    machine.runtime.start(task("sh", "-c", 'echo "${#TOKEN} characters"', secrets={"TOKEN": "env:THE_TOKEN"}))
    assert machine.ended().exit_code == 0
    assert machine.output() == "12 characters\n"
    kept = [path.read_bytes() for path in machine.state.rglob("*") if path.is_file()]
    assert not any(b"s3cr3t-value" in content for content in kept)


# Adoption


def test_r_65_a_running_task_is_adopted(machine: Machine) -> None:
    """A task that runs on while the agent is dead belongs to the next one, which sees its exit code."""
    machine.runtime.start(task("sh", "-c", "while ! test -e go; do sleep 0.05; done; exit 7"))
    machine.until_phase(Phase.RUNNING)
    assert machine.restart(record()) == []
    machine.until_phase(Phase.RUNNING)
    machine.touch("go")
    assert machine.ended().exit_code == 7


def test_r_65_a_task_that_ended_meanwhile_is_no_loss(machine: Machine) -> None:
    """The exit code of a task that ended while no agent ran is on disk."""
    machine.runtime.start(task("sh", "-c", "exit 5"))
    until(lambda: "ended" in machine.status())
    machine.restart(record())
    assert (machine.ended().end, machine.seen[-1].exit_code) == (TaskEnd.EXITED, 5)


def test_a_task_without_its_shim_is_killed_and_lost(machine: Machine) -> None:
    """When the shim is killed nothing of the task survives, and it is reported lost only when nothing is left."""
    machine.runtime.start(task("sh", "-c", "setsid sleep 100 & sleep 100"))
    machine.until_phase(Phase.RUNNING)
    until(lambda: len(machine.processes()) >= 3)
    os.kill(machine.shims()[0], signal.SIGKILL)
    assert machine.ended().end is TaskEnd.LOST
    assert machine.processes() == {}


def test_a_task_does_not_outlive_its_shim(machine: Machine) -> None:
    """Without shim and without agent nobody would keep the limit: the task's process dies with its shim."""
    machine.runtime.start(task("sh", "-c", "echo $$; sleep 100"))
    own = int(until(lambda: machine.output().strip()))
    send_signal(machine.shims(), signal.SIGKILL)
    until(lambda: start_of(own) is None)


@pytest.mark.parametrize(("shim", "ran"), [("os.getppid()", True), ("1 << 22", False)])
def test_what_is_to_become_a_task_does_not_without_its_shim(tmp_path: Path, shim: str, ran: bool) -> None:
    """The shim died between the fork and the moment from which its death would be noticed: nothing runs."""
    spec = shim_spec("touch", str(tmp_path / "ran"))
    code = f"import os; from agent.shim import Shim; shim = Shim({str(tmp_path)!r}, {spec}, dict(os.environ))"
    done = subprocess.run([sys.executable, "-c", f"{code}; shim.become_task(2, {shim})"], cwd=ROOT, check=False)
    assert (done.returncode, (tmp_path / "ran").exists()) == (0 if ran else 127, ran)


def test_a_status_of_the_same_tick_is_read(tmp_path: Path) -> None:
    """File numbers come round, and the clock of files stands still for milliseconds: the end is seen all the same."""
    status, seen = tmp_path / "status.json", _Task(tmp_path, ReportFile(tmp_path / "report"), since=0.0)
    for state in ("starting", "ended"):
        status.write_text(f'{{"state": "{state}"}}')
        os.utime(status, ns=(0, 0))
        seen.refresh()
    assert seen.status == {"state": "ended"}


def test_r_65_a_task_of_no_known_lease_is_killed_and_told(machine: Machine) -> None:
    """An agent that does not know a lease kills its task, wherever it has moved to, and names one process of it."""
    machine.runtime.start(task("sh", "-c", "setsid sleep 100 & sleep 100"))
    until(lambda: len(machine.processes()) >= 3)
    before = set(machine.processes())
    orphans = machine.restart()
    assert len(orphans) == 1
    assert orphans[0] in before
    until(lambda: not machine.processes())


def test_a_lease_that_nobody_began_never_begins(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that died between its journal and the shim: the next one makes sure that a late shim starts nothing."""
    ran = tmp_path / "ran"
    spawned: list[tuple[Path, dict[str, str]]] = []
    monkeypatch.setattr(machine.runtime, "_spawn", lambda *late: spawned.append(late))
    machine.runtime.start(task("touch", str(ran)))
    machine.restart(record(Phase.ACCEPTED, started=False))
    assert machine.ended().end is TaskEnd.NEVER_STARTED
    machine.runtime._spawn(*spawned[0])
    until(lambda: machine.look() and not machine.runtime._children)
    until(lambda: not machine.shims())
    assert not ran.exists()


def test_two_agents_on_one_machine_leave_each_other_alone(machine: Machine, tmp_path: Path) -> None:
    """An agent's hunt for orphans does not touch the tasks of another state directory."""
    machine.runtime.start(task("sleep", "100"))
    machine.until_phase(Phase.RUNNING)
    assert Machine(tmp_path / "other").restart() == []
    assert LEASE in machine.processes().values()


def test_r_63_a_stranger_on_a_gpu_is_killed_when_it_stays(tmp_path: Path) -> None:
    """A process on a GPU that belongs to no task is killed and told at the second look; a task's own is not."""
    stranger = subprocess.Popen(["sleep", "100"])
    held: list[tuple[str, int]] = [("GPU-9", stranger.pid)]
    runtime = ProcessRuntime(tmp_path, LoopClock(), ProcessSettings(orphan_scan_s=0.0), lambda: held)
    runtime.start(task("sh", "-c", "echo $$; sleep 100"))
    output = tmp_path / "leases" / LEASE / "output.log"
    own = int(until(lambda: output.exists() and output.read_text().strip()))
    held.append((GPU, own))
    assert runtime.orphans() == ()
    assert runtime.orphans() == (Orphan(gpu_uuid="GPU-9", pid=stranger.pid),)
    assert stranger.wait(WITHIN_S) == -signal.SIGKILL
    assert start_of(own) is not None
    runtime.stop(LEASE, 0)
    until(lambda: runtime.poll() and not runtime.running(LEASE))


def test_a_task_inherits_nothing_of_the_agent(machine: Machine, tmp_path: Path) -> None:
    """Of all that an agent has open, even carelessly, a task and its shim hold nothing: a connection held there would
    outlive the agent."""
    with open(tmp_path / "open", "w") as careless:
        os.set_inheritable(careless.fileno(), True)
        machine.runtime.start(task("sh", "-c", "ls -l /proc/$$/fd; echo done"))
        machine.ended()
    assert str(tmp_path / "open") not in machine.output()
    assert "done" in machine.output()


def test_p_22_the_agents_restart_does_not_end_the_isolation(machine: Machine) -> None:
    """An agent that restarts without hearing a leader leaves the time of the last word as it was."""
    machine.runtime.renew(123.5)
    machine.restart()
    assert float((machine.state / "renewed").read_text()) == 123.5


# What jobs report


def test_checkpoints_are_told_once_over_a_restart(machine: Machine) -> None:
    """Every checkpoint line is told once, junk is passed over, and `finished` is not forgotten by a restart."""
    lines = r"""
    echo '{"step": 1}' >> $SIGNALBOX_REPORT
    echo '{"checkpoint": {"sequence": 1, "uri": "s3://a", "size_bytes": 5, "step": 1}}' >> $SIGNALBOX_REPORT
    echo 'junk' >> $SIGNALBOX_REPORT
    echo '{"finished": true}' >> $SIGNALBOX_REPORT
    while ! test -e go; do sleep 0.05; done
    printf '{"checkpoint": {"sequence": 2, "uri": "s3://b", "size_bytes": 6}}\n{"half' >> $SIGNALBOX_REPORT
    """
    machine.runtime.start(task("sh", "-c", lines))
    first = until(lambda: next((seen for seen in machine.look() if seen.checkpoints), None))
    assert first is not None
    until(lambda: (machine.look() is not None) and machine.runtime._tasks[LEASE].report.finished)
    read_to = machine.runtime._tasks[LEASE].report.read_to
    machine.restart(record(read_to=read_to))
    machine.touch("go")
    ended = machine.ended()
    told = [checkpoint.sequence for seen in machine.seen for checkpoint in seen.checkpoints]
    assert [checkpoint.uri for checkpoint in first.checkpoints] == ["s3://a"]
    assert told == [2]
    assert ended.finished


def test_output_is_bounded_and_says_what_is_missing(tmp_path: Path) -> None:
    """A task that writes without end keeps about the bound on disk: the newest part, with a note."""
    machine = Machine(tmp_path, ProcessSettings(log_bytes_max=200_000))
    machine.runtime.start(task("sh", "-c", "seq 1 400000; echo last"))
    assert machine.ended().exit_code == 0
    logs = list((tmp_path / "leases" / LEASE).glob("output.log*"))
    assert sum(path.stat().st_size for path in logs) < 400_000
    assert machine.output().startswith("[signalbox: ")
    assert machine.output().endswith("last\n")


LIGHT = 60
"""Modules beyond those of a bare interpreter: 46 with Python 3.11, most of them for json and ctypes."""


def test_the_shim_is_light() -> None:
    """It starts with every task and stays with it: it loads next to nothing, and nothing that is slow to load."""
    code = "import sys; bare = set(sys.modules); import agent.shim; print(*set(sys.modules) - bare)"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "agent.shim" in loaded
    assert len(loaded) < LIGHT
    assert not {"asyncio", "dataclasses", "logging", "pathlib", "socket", "subprocess", "typing"} & {*loaded}
