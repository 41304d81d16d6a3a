"""Fleets of simulated agents in real processes, over real gRPC."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from agent.fleet import AppendedFile, Fleet, FleetBooks, FleetPlan
from agent.simulated import overlaps
from events.ids import LeaseId, NodeId
from events.task import TaskEnd
from scheduler.link import Phase
from tests.agent.builders import start_task
from tests.agent.leader import Leader
from tests.servers.waiting import WITHIN_S, until

ROOT = Path(__file__).parents[2]
NODE = NodeId("n-0003")


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    """A leader, not started."""
    leader = Leader()
    yield leader
    await leader.gateway.shutdown()


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    """The fleet, while it runs in this process."""
    task = asyncio.create_task(fleet.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to be ended."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def agent_process(port: int, state: Path, *flags: str) -> subprocess.Popen[bytes]:
    """`signalboxd agent` as a process of its own."""
    code = (
        "import argparse, asyncio; from agent.main import add_arguments, run; "
        "parser = argparse.ArgumentParser(); add_arguments(parser); asyncio.run(run(parser.parse_args()))"
    )
    command = [sys.executable, "-c", code, "--schedulers", f"127.0.0.1:{port}", "--state-dir", str(state), *flags]
    return subprocess.Popen(command, cwd=ROOT)


def start(node: str, lease: str, seconds: float, n: int = 1) -> dict[str, object]:
    """Changes to a start on the first GPU of a node."""
    return {
        "lease_id": LeaseId(lease),
        "gpu_uuids": (f"GPU-{node}-0",),
        "grant": (1, n),
        "env": {"SIGNALBOX_SIM_DURATION_S": str(seconds), "SIGNALBOX_SIM_EXIT_CODE": "4"},
    }


async def test_every_node_of_the_plan_registers(leader: Leader, tmp_path: Path) -> None:
    """Nodes are numbered, grouped in blocks and racks, and bring their GPUs."""
    port = await leader.start()
    plan = FleetPlan(nodes=40, gpus_per_node=4, gpu_type="a100-80")
    async with running(Fleet(plan, tmp_path, (f"127.0.0.1:{port}",), spread_s=0.2)):
        await leader.until_beats(*plan.node_ids())
    first = leader.registers[NodeId("n-0033")][0]
    assert (first.block, first.rack, first.gpu_type, len(first.gpus)) == ("n-b001", "n-r0008", "a100-80", 4)
    assert len({register[0].journal for register in leader.registers.values()}) == 40


async def test_virtual_tasks_survive_the_kill_of_their_fleet(
    leader: Leader, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """kill -9 of the fleet: the next process adopts what still runs with the time that is left, has the exit code of
    what ended meanwhile, and starts nothing twice."""
    port = await leader.start()
    processes.append(agent_process(port, tmp_path, "--simulate", "5"))
    await leader.until_beats(NODE)
    leader.start_task(NODE, start_task(**start(NODE, "j_long.1.0", 2.5)))
    leader.start_task(NODE, start_task(**start(NODE, "j_short.1.0", 0.5) | {"gpu_uuids": (f"GPU-{NODE}-1",)}))
    ledger = tmp_path / "ledger.jsonl"
    await asyncio.to_thread(until, lambda: ledger.read_bytes().count(b'"task"') == 2, what="both have begun")
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    processes.append(agent_process(port, tmp_path, "--simulate", "5"))
    await leader.until_registered(NODE, 2)
    await leader.until_beats(NODE)
    leader.start_task(NODE, start_task(**start(NODE, "j_long.1.0", 2.5)))
    for lease in ("j_long.1.0", "j_short.1.0"):
        ended = await leader.until_ended(LeaseId(lease))
        assert (ended.end, ended.exit_code) == (TaskEnd.EXITED, 4)
    lines = [orjson.loads(line) for line in ledger.read_bytes().splitlines()]
    assert overlaps(lines) == []
    begun = {line["lease"]: line["task"]["begun_at"] for line in lines if "task" in line}
    took = {line["lease"]: line["ended_at"] - begun[line["lease"]] for line in lines if "ended_at" in line}
    assert took == pytest.approx({"j_long.1.0": 2.5, "j_short.1.0": 0.5}, abs=0.001)
    assert len([line for line in lines if "task" in line]) == 2


async def test_nodes_can_be_silenced_and_powered_off(leader: Leader, tmp_path: Path) -> None:
    """A silenced node's task runs on; a node that lost power has lost it, and says another boot id."""
    port = await leader.start()
    fleet = Fleet(FleetPlan(nodes=5), tmp_path, (f"127.0.0.1:{port}",), spread_s=0.0)
    async with running(fleet):
        await leader.until_beats(NODE)
        leader.start_task(NODE, start_task(**start(NODE, "j_1.1.0", 60)))
        await leader.until_phase(NODE, LeaseId("j_1.1.0"), Phase.RUNNING)
        await fleet.silence(NODE)
        fleet.wake(NODE)
        await leader.until_registered(NODE, 2)
        await leader.until_phase(NODE, LeaseId("j_1.1.0"), Phase.RUNNING)
        await fleet.power_off(NODE)
        fleet.wake(NODE)
        assert (await leader.until_ended(LeaseId("j_1.1.0"))).end is TaskEnd.LOST
    boots = [register.boot_id for register in leader.registers[NODE]]
    assert boots[0] == boots[1] != boots[2]
    assert fleet.violations() == []


async def test_agents_follow_a_new_leader(tmp_path: Path) -> None:
    """When the leader goes, all agents come to its successor by themselves, and tell it what runs."""
    first, second = Leader(epoch=1), Leader(epoch=2)
    ports = [await first.start(), await second.gateway.start("127.0.0.1:0")]
    plan = FleetPlan(nodes=50)
    fleet = Fleet(plan, tmp_path, tuple(f"127.0.0.1:{port}" for port in ports), spread_s=0.0)
    async with running(fleet):
        await first.until_beats(*plan.node_ids())
        first.start_task(NODE, start_task(**start(NODE, "j_1.1.0", 60)))
        await first.until_phase(NODE, LeaseId("j_1.1.0"), Phase.RUNNING)
        await first.gateway.shutdown()
        await second.gateway.open(second.epoch, second._hear)
        await second.until_beats(*plan.node_ids())
        assert second.registers[NODE][-1].running[0].lease_id == "j_1.1.0"
        assert second.registers[NODE][-1].epoch_floor == 1
    await second.gateway.shutdown()


def test_the_ledger_shows_a_gpu_that_ran_two_leases() -> None:
    """The check of the ledger finds an overlap, a nested one too, and accepts what follows at the same instant."""

    def task(lease: str, begun_at: float, ended_at: float | None) -> list[dict[str, object]]:
        lines: list[dict[str, object]] = [{"lease": lease, "task": {"begun_at": begun_at, "gpus": ["g"]}}]
        return lines if ended_at is None else [*lines, {"lease": lease, "ended_at": ended_at}]

    fine = [task("a", 0, 5), task("b", 5, 9), task("c", 9, None)]
    assert overlaps(itertools.chain(*fine)) == []
    assert len(overlaps(itertools.chain(*fine, task("d", 8, 8.5)))) == 1
    assert len(overlaps(itertools.chain(task("a", 0, 50), task("b", 1, 2), task("c", 3, 4)))) == 2


def test_a_torn_line_is_not_read(tmp_path: Path) -> None:
    """What a writer had not finished when it died is passed over, and does not spoil what is appended after it."""
    books = FleetBooks(AppendedFile(tmp_path / "books.jsonl"))
    book = books.load("n-1", "journal")
    book.last_report = 7
    books.save("n-1", book)
    books.file.append({"node": "n-1"} | {"x": "y"})
    os.truncate(tmp_path / "books.jsonl", (tmp_path / "books.jsonl").stat().st_size - 4)
    torn = AppendedFile(tmp_path / "books.jsonl")
    torn.append({"node": "n-2", "book": {"journal": "j"}})
    assert [line["node"] for line in torn.lines()][-1] == "n-2"
    torn.close()
    again = FleetBooks(AppendedFile(tmp_path / "books.jsonl"))
    assert again.load("n-1", "other") == book
    books.file.close()
    again.file.close()


async def test_r_65_tasks_of_a_real_agent_survive_its_kill(
    leader: Leader, tmp_path: Path, processes: list[subprocess.Popen[bytes]], request: pytest.FixtureRequest
) -> None:
    """kill -9 and SIGTERM of a real agent leave a real task running; the agent after it reports its exit code."""
    port, node, lease = await leader.start(), NodeId("real"), LeaseId("j_1.1.0")
    flags = ("--node-id", node, "--gpus", "declared:h100:1:80")
    processes.append(agent_process(port, tmp_path, *flags))
    await leader.until_beats(node)
    go = tmp_path / "go"
    request.addfinalizer(go.touch)  # or the task of a test that failed would wait for ever
    script = f"while ! test -e {go}; do sleep 0.05; done; exit 9"
    leader.start_task(node, start_task("sh", "-c", script, gpu_uuids=(f"GPU-{node}-0",)))
    for number in (signal.SIGKILL, signal.SIGTERM):
        await leader.until_phase(node, lease, Phase.RUNNING)
        processes[-1].send_signal(number)
        assert processes[-1].wait(WITHIN_S) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        processes.append(agent_process(port, tmp_path, *flags))
        await leader.until_registered(node, len(processes))
    await leader.until_phase(node, lease, Phase.RUNNING)
    assert leader.ends(lease) == []
    go.touch()
    assert (await leader.until_ended(lease)).exit_code == 9
    assert len({register.incarnation for register in leader.registers[node]}) == 3
    assert len({register.journal for register in leader.registers[node]}) == 1


def test_one_agent_per_state_directory(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """A second agent over the same state does not start."""
    flags = ("--node-id", "n", "--gpus", "declared:h100:1:80")
    processes.append(agent_process(1, tmp_path, *flags))
    until((tmp_path / "book.json").exists)
    processes.append(agent_process(1, tmp_path, *flags))
    assert processes[1].wait(WITHIN_S) != 0
