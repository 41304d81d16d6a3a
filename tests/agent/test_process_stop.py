"""Tasks as real processes: whatever ends them, nothing of them is left, and nothing starts too late."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock import boottime
from agent.process_runtime import ProcessSettings
from agent.processes import send_signal, start_of
from agent.shim import Shim
from events.ids import LeaseId
from events.task import TaskEnd
from scheduler.link import Phase
from tests.agent.builders import LEASE, shim_spec, task
from tests.agent.machine import Machine, record
from tests.servers.waiting import WITHIN_S, until


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine that is clean afterwards."""
    machine = Machine(tmp_path)
    yield machine
    send_signal([*machine.shims(), *machine.processes()], signal.SIGKILL)


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
    assert time.monotonic() - before >= 1.0
    assert machine.processes() == {}


def test_c_50_the_kill_comes_at_the_end_of_the_grace_to_the_moment(tmp_path: Path) -> None:
    """Not before it, and with the first look from then on; meanwhile it looks every 50 ms."""
    shim, kill_at = Shim(str(tmp_path), shim_spec("true"), {}), boottime() + 100
    with subprocess.Popen(["sleep", "100"]) as stubborn:
        shim.order_stop(kill_at, "stopped", "")
        assert 0.0 < shim.next_s() <= 0.05
        for at, since in ((kill_at - 0.001, None), (kill_at, kill_at)):
            shim.press([stubborn.pid], at)
            assert shim.killing_since == since
        assert stubborn.wait(WITHIN_S) == -signal.SIGKILL
    shim.log.close_input()
    shim.log.close()


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
    left = "setsid sh -c 'trap \"\" TERM; echo up; touch up; sleep 100' &"
    machine.runtime.start(task("sh", "-c", f"{left} while ! test -e up; do sleep 0.05; done"))
    machine.until_output("up")
    assert machine.ended().end is TaskEnd.EXITED
    assert machine.processes() == {}


def test_a_process_that_hides_its_environment_is_found_too(machine: Machine) -> None:
    """A descendant without our marker, in another session and orphaned, is killed all the same."""
    hides = "setsid env -i sh -c 'echo $$; sleep 100' &"
    machine.runtime.start(task("sh", "-c", f"{hides} while ! test -e go; do sleep 0.05; done"))
    hidden = int(until(lambda: machine.output().strip()))
    assert start_of(hidden) is not None
    machine.touch("go")
    machine.ended()
    assert start_of(hidden) is None


# C-51, C-52


SAVER = """
import os, sys, time
def report(line):
    with open(os.environ["SIGNALBOX_REPORT"], "a") as file:
        file.write(line + "\\n")
import signal
def save(number, frame):
    report('{{"checkpoint": {{"sequence": 1, "uri": "s3://a", "size_bytes": 1, "step": {step}}}}}')
signal.signal(signal.SIGTERM, save)
report('{{"step": 7}}')
print("training", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("step", "grace_s", "early"), [(7, 100, True), (6, 2, False)])
def test_c_51_a_checkpoint_that_holds_everything_ends_the_grace(
    tmp_path: Path, step: int, grace_s: int, early: bool
) -> None:
    """A trainer that saves and then lingers is ended soon after its checkpoint; one whose checkpoint is older than
    what it has reported keeps its grace."""
    machine = Machine(tmp_path, ProcessSettings(saved_s=0.2))
    machine.runtime.start(task(sys.executable, "-c", SAVER.format(step=step)))
    machine.until_output("training")
    before = time.monotonic()
    machine.runtime.stop(LEASE, grace_s)
    assert machine.ended().end is TaskEnd.STOPPED
    assert (time.monotonic() - before < grace_s) is early


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs a freezer that may be written to")
def test_c_52_what_survives_sigkill_keeps_its_lease(tmp_path: Path) -> None:
    """A process that SIGKILL does not end leaves its task un-ended and flagged; the end comes when it is gone."""
    machine = Machine(tmp_path, ProcessSettings(unkillable_s=0.3))
    machine.runtime.start(task("sh", "-c", "sleep 100 & echo $!; wait"))
    sleeper = int(until(lambda: machine.output().strip()))
    group = FREEZER / f"signalbox-test-{sleeper}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(sleeper))
        (group / "freezer.state").write_text("FROZEN")
        machine.runtime.stop(LEASE, grace_s=0)
        seen = until(lambda: next((seen for seen in machine.look() if seen.unkillable), None))
        assert seen is not None
        assert seen.phase is Phase.STOPPING
        assert str(sleeper) in seen.detail
    finally:
        (group / "freezer.state").write_text("THAWED")
    assert machine.ended().end is TaskEnd.STOPPED
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


CGROUPS = next((path for path in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")) if
                (path / "cgroup.procs").exists() and os.access(path, os.W_OK)), None)  # fmt: skip


@pytest.mark.skipif(CGROUPS is None, reason="needs a cgroup v2 that may be written to")
def test_a_cgroup_of_its_own_holds_the_task_and_goes_with_it(tmp_path: Path) -> None:
    """Where cgroups may be made a task has one, daemons included, and none is left afterwards."""
    assert CGROUPS is not None
    machine = Machine(tmp_path, ProcessSettings(cgroup=CGROUPS))
    machine.runtime.start(task("sh", "-c", "setsid sleep 100 & echo up; sleep 100"))
    machine.until_output("up")
    group = CGROUPS / f"signalbox-{LEASE}"
    until(lambda: len((group / "cgroup.procs").read_text().split()) == 3)
    machine.runtime.stop(LEASE, grace_s=1)
    assert machine.ended().end is TaskEnd.STOPPED
    assert not group.exists()


# P-17, P-18


def test_p_17_a_stop_that_overtakes_its_start_prevents_it(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that comes before the shim has begun the task means that it never runs."""
    ran, spawn = tmp_path / "ran", machine.runtime._spawn
    spawned: list[tuple[Path, dict[str, str]]] = []
    monkeypatch.setattr(machine.runtime, "_spawn", lambda *late: spawned.append(late))
    machine.runtime.start(task("touch", str(ran)))
    machine.runtime.stop(LEASE, grace_s=5)
    spawn(*spawned[0])
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
    until(lambda: '"ended"' in machine.status())
    assert boottime() >= limit_at
    assert machine.processes() == {}
    machine.restart(record())
    assert machine.ended().end is TaskEnd.TIMED_OUT


def test_r_5_an_extension_moves_the_limit(machine: Machine) -> None:
    """A task whose limit was moved while it ran outlives the first limit."""
    limit_at = boottime() + 5.0
    waits = "while ! test -e go; do sleep 0.05; done; echo done"
    machine.runtime.start(task("sh", "-c", waits, limit_at=limit_at, grace_s=0))
    machine.until_phase(Phase.RUNNING)
    machine.runtime.extend(LEASE, limit_at + 1000)
    until(lambda: boottime() > limit_at + 0.5)
    machine.touch("go")
    assert machine.ended().exit_code == 0
    assert machine.output() == "done\n"


def test_p_22_overlap_never_ends_itself_in_isolation(tmp_path: Path) -> None:
    """Without word of a leader the shim of an `overlap: never` task stops it, agent or not; another task runs on."""
    machine = Machine(tmp_path, ProcessSettings(isolation_s=0.8))
    other = LeaseId("j_2.1.0")
    machine.runtime.start(task("sleep", "100", overlap_never=True))
    machine.runtime.start(task("sleep", "1000", lease_id=other))
    ended = machine.ended()
    assert (ended.lease_id, ended.end) == (LEASE, TaskEnd.LOST)
    assert LEASE not in machine.processes().values()
    until(lambda: set(machine.processes().values()) == {other})
    machine.runtime.stop(other, 0)
    until(lambda: not machine.runtime.running(other) or machine.look() is None)
