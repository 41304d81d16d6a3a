"""Tasks as real processes: what starts, what stops, what is left, and what an agent's death changes."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.book import LeaseRecord
from agent.clock import LoopClock, boottime
from agent.ports import Observed
from agent.process_runtime import ProcessRuntime, ProcessSettings
from agent.processes import all_pids, marked, send_signal, start_of
from events.ids import LeaseId
from events.task import TaskEnd
from scheduler.link import Phase
from tests.agent.builders import GPU, LEASE, task
from tests.servers.waiting import until


class Machine:
    """A runtime over a state directory, what it observed, and another one after the first was lost."""

    def __init__(self, state: Path, settings: ProcessSettings | None = None) -> None:
        self.state = state
        self.settings = settings or ProcessSettings(margin_s=0.0)
        self.runtime = ProcessRuntime(state, LoopClock(), self.settings)
        self.seen: list[Observed] = []

    def restart(self, *records: LeaseRecord) -> list[int]:
        """Forget the runtime, as an agent's kill -9 does; the next adopts these leases. Returns the orphans' pids."""
        self.runtime = ProcessRuntime(self.state, LoopClock(), self.settings)
        self.seen.clear()
        return [orphan.pid for orphan in self.runtime.adopt(records)]

    def look(self) -> list[Observed]:
        self.seen += self.runtime.poll()
        return self.seen

    def until_phase(self, phase: Phase, within_s: float = 15.0) -> Observed:
        return until(
            lambda: next((seen for seen in self.look() if seen.phase is phase), None), within_s=within_s, what=phase
        ) or pytest.fail(phase)

    def ended(self, within_s: float = 15.0) -> Observed:
        return self.until_phase(Phase.ENDED, within_s)

    def processes(self) -> dict[int, str]:
        return marked(str(self.state.resolve()))

    def output(self, lease: LeaseId = LEASE) -> str:
        path = self.state / "leases" / lease / "output.log"
        return path.read_text() if path.exists() else ""

    def status(self) -> str:
        path = self.state / "leases" / LEASE / "status.json"
        return path.read_text() if path.exists() else ""

    def shims(self) -> list[int]:
        wanted = str(self.state / "leases").encode()
        return [pid for pid in all_pids() if wanted in _command_line(pid)]

    def until_output(self, words: str) -> None:
        until(lambda: words in self.output(), what=words)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine that is clean afterwards."""
    machine = Machine(tmp_path)
    yield machine
    send_signal([*machine.shims(), *machine.processes()], signal.SIGKILL)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def record(phase: Phase = Phase.RUNNING, *, started: bool = True, read_to: int = 0) -> LeaseRecord:
    """What a journal says of LEASE."""
    return LeaseRecord(lease_id=LEASE, grant=(1, 10), phase=phase, gpu_uuids=(GPU,), started=started, read_to=read_to)


TRAINER = """
import os, signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    time.sleep({saving_s})
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True:
    time.sleep(0.05)
"""


def trainer(tmp_path: Path, saving_s: float = 0.3) -> str:
    """A program that saves for a while when it is told to end."""
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER.format(saving_s=saving_s))
    return str(path)


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
    ("command", "workdir", "words"),
    [
        (("/does/not/exist",), None, "/does/not/exist"),
        (("true",), "/no/such/place", "/no/such/place"),
        (("/etc/passwd",), None, "Permission denied"),
    ],
)
def test_what_cannot_start_says_why(machine: Machine, command: tuple[str], workdir: str | None, words: str) -> None:
    """A missing program or directory is START_FAILED, and the detail names it."""
    machine.runtime.start(task(*command, workdir=workdir))
    ended = machine.ended()
    assert ended.end is TaskEnd.START_FAILED
    assert words in ended.detail


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


# C-50


@pytest.mark.parametrize("form", ["plain", "sh -c", "script without exec", "child of python", "daemon"])
def test_c_50_sigterm_reaches_the_trainer_and_it_may_save(machine: Machine, tmp_path: Path, form: str) -> None:
    """However the trainer was started, a stop lets it save within the grace, and nothing survives."""
    program = trainer(tmp_path)
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\n{sys.executable} {program}\necho unreached\n")
    script.chmod(0o755)
    spawner = f"import subprocess, sys; subprocess.run([sys.executable, {program!r}])"
    daemon = f"setsid {sys.executable} {program} & sleep 100"
    commands = {
        "plain": (sys.executable, program),
        "sh -c": ("sh", "-c", f"{sys.executable} {program}; true"),
        "script without exec": (str(script),),
        "child of python": (sys.executable, "-c", spawner),
        "daemon": ("sh", "-c", daemon),
    }
    machine.runtime.start(task(*commands[form]))
    machine.until_output("training")
    machine.runtime.stop(LEASE, grace_s=10)
    assert machine.ended().end is TaskEnd.STOPPED
    assert "saved" in machine.output()
    assert machine.processes() == {}


def test_c_50_what_ignores_sigterm_is_killed_at_the_end_of_the_grace(machine: Machine) -> None:
    """A process tree that ignores SIGTERM lives as long as the grace, not longer."""
    machine.runtime.start(task("sh", "-c", "trap '' TERM; (trap '' TERM; sleep 100) & echo up; sleep 100; sleep 100"))
    machine.until_output("up")
    before = time.monotonic()
    machine.runtime.stop(LEASE, grace_s=1)
    ended = machine.ended()
    assert (ended.end, ended.exit_code) == (TaskEnd.STOPPED, 137)
    assert 1.0 <= time.monotonic() - before < 3.0
    assert machine.processes() == {}


def test_a_second_stop_hastens_the_first(machine: Machine) -> None:
    """A stop with a shorter grace is obeyed while a longer one runs."""
    machine.runtime.start(task("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"))
    machine.until_output("up")
    machine.runtime.stop(LEASE, grace_s=100)
    machine.until_phase(Phase.STOPPING)
    machine.runtime.stop(LEASE, grace_s=0)
    assert machine.ended().exit_code == 137


def test_what_a_task_leaves_behind_ends_with_it(machine: Machine) -> None:
    """A task that exits by itself leaves no daemon, whatever session that has moved to."""
    machine.runtime.start(task("sh", "-c", "setsid sh -c 'trap \"\" TERM; echo up; sleep 100' & sleep 0.3"))
    machine.until_output("up")
    assert machine.ended().end is TaskEnd.EXITED
    assert machine.processes() == {}


def test_a_process_that_hides_its_environment_is_found_too(machine: Machine) -> None:
    """A descendant without our marker, in another session and orphaned, is killed all the same."""
    machine.runtime.start(task("sh", "-c", "setsid env -i sh -c 'echo $$; sleep 100' & sleep 0.5; exit 0"))
    hidden = int(until(lambda: machine.output().strip()))
    assert start_of(hidden) is not None
    machine.ended()
    assert start_of(hidden) is None


# P-17, P-18


def test_p_17_a_stop_that_overtakes_its_start_prevents_it(machine: Machine, tmp_path: Path) -> None:
    """A stop that comes before the shim has begun the task means that it never runs."""
    ran = tmp_path / "ran"
    machine.runtime.start(task("touch", str(ran)))
    machine.runtime.stop(LEASE, grace_s=5)
    assert machine.ended().end is TaskEnd.NEVER_STARTED
    assert not ran.exists()


def test_p_18_the_shim_starts_nothing_after_its_time(machine: Machine, tmp_path: Path) -> None:
    """A task whose heartbeat has grown too old between the agent and exec never runs."""
    ran = tmp_path / "ran"
    machine.runtime.start(task("touch", str(ran), exec_before=boottime()))
    assert machine.ended().end is TaskEnd.NEVER_STARTED
    assert not ran.exists()


# limits


def test_r_5_the_shim_keeps_the_limit_without_an_agent(machine: Machine) -> None:
    """Nobody looks, and the task still ends at its limit: SIGTERM before it, SIGKILL at it."""
    limit_at = boottime() + 1.5
    machine.runtime.start(task("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", limit_at=limit_at, grace_s=1))
    until(lambda: boottime() > limit_at + 0.7)
    assert machine.processes() == {}
    machine.restart(record())
    assert machine.ended().end is TaskEnd.TIMED_OUT


def test_r_5_an_extension_moves_the_limit(machine: Machine) -> None:
    """A task whose limit was moved while it ran outlives the first limit."""
    limit_at = boottime() + 2.5
    machine.runtime.start(task("sh", "-c", "sleep 3; echo done", limit_at=limit_at, grace_s=0))
    machine.until_phase(Phase.RUNNING)
    machine.runtime.extend(LEASE, limit_at + 100)
    assert machine.ended().exit_code == 0
    assert machine.output() == "done\n"


def test_p_22_overlap_never_ends_itself_in_isolation(tmp_path: Path) -> None:
    """Without word of a leader the shim of an `overlap: never` task stops it, agent or not; another task runs on."""
    machine = Machine(tmp_path, ProcessSettings(isolation_s=0.8))
    other = LeaseId("j_2.1.0")
    machine.runtime.start(task("sleep", "100", overlap_never=True))
    machine.runtime.start(task("sleep", "3", lease_id=other))
    ended = machine.ended()
    assert (ended.lease_id, ended.end) == (LEASE, TaskEnd.LOST)
    assert set(machine.processes().values()) == {other}
    machine.runtime.stop(other, 0)
    until(lambda: not machine.runtime.running(other) or machine.look() is None)


# Adoption


def test_r_65_a_running_task_is_adopted(machine: Machine) -> None:
    """A task that runs on while the agent is dead belongs to the next one, which sees its exit code."""
    machine.runtime.start(task("sh", "-c", "sleep 1; exit 7"))
    machine.until_phase(Phase.RUNNING)
    assert machine.restart(record()) == []
    machine.until_phase(Phase.RUNNING)
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
    (machine.state / "leases" / LEASE / "work" / "go").touch()
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


def test_the_shim_is_light(machine: Machine) -> None:
    """From the order to the running task it takes well under 200 ms."""
    took = []
    for number in range(5):
        before = time.monotonic()
        machine.runtime.start(task("sleep", "0", lease_id=LeaseId(f"j_1.1.{number}")))
        until(lambda: any(seen.phase is Phase.ENDED for seen in machine.look()))
        machine.seen.clear()
        took.append(time.monotonic() - before)
    assert min(took) < 0.2
