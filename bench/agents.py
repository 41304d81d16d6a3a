"""What agents cost: a fleet of 3,000 over real gRPC against a leader that does nothing but answer.

Both sides share this machine. The fleet spreads its start over one heartbeat (5 s), and reconnects with pauses of up
to 4.5 s, so that times below those would be no merit.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import psutil

from agent.gateway import GrpcGateway
from bench.figure import Figure, Stopwatch
from events.ids import Epoch, JobId, LeaseId, NodeId, lease_id
from scheduler.link import (
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Register,
    Registered,
    ReportAck,
    StartTask,
    TaskEndedReport,
    TaskStartedReport,
)

ROOT = Path(__file__).parents[1]
NODES = 3000
IDLE_S = 20.0
AGENT = (
    "import argparse, asyncio; from agent.main import add_arguments, run; "
    "parser = argparse.ArgumentParser(); add_arguments(parser); asyncio.run(run(parser.parse_args()))"
)


class Leader:
    """Says yes to everything. `heard`: messages by kind; `nodes`: those registered, with their last heartbeat."""

    def __init__(self, epoch: int) -> None:
        self.gateway = GrpcGateway(leader=lambda: None)
        self.epoch = Epoch(epoch)
        self.heard: Counter[str] = Counter()
        self.nodes: dict[NodeId, int] = {}
        self._changed = asyncio.Event()

    def hear(self, node: NodeId, message: FromAgent) -> None:
        self.heard[type(message).__name__] += 1
        self._changed.set()
        if isinstance(message, Register):
            self.nodes[node] = 0
            self.gateway.send(node, Registered(epoch=self.epoch))
        elif isinstance(message, Heartbeat):
            self.nodes[node] = message.number
            self.gateway.send(node, HeartbeatAck(epoch=self.epoch, number=message.number))
        else:
            self.gateway.send(node, ReportAck(epoch=self.epoch, number=message.number))

    async def until(self, count: int, kind: type[FromAgent]) -> float:
        """Seconds until so many have been heard of that kind."""
        watch = Stopwatch()
        async with asyncio.timeout(120):
            while self.heard[kind.__name__] < count:
                self._changed.clear()
                await self._changed.wait()
        return watch.s

    def start_all(self) -> None:
        """A short task on the first GPU of every node."""
        for number, (node, beat) in enumerate(sorted(self.nodes.items())):
            job = JobId(f"j_{number}")
            self.gateway.send(node, _start(self.epoch, node, lease_id(job, 1, 0), beat))


def _start(epoch: Epoch, node: NodeId, lease: LeaseId, beat: int) -> StartTask:
    return StartTask(
        epoch=epoch,
        grant=(epoch, 1),
        last_heartbeat=beat,
        lease_id=lease,
        job_id=JobId(lease.split(".")[0]),
        attempt=1,
        rank=0,
        replicas=1,
        gpus_per_replica=1,
        command=("train",),
        gpu_uuids=(f"GPU-{node}-0",),
        master_addr=node,
        master_port=29500,
        limit_s=None,
        grace_s=60,
        env={"SIGNALBOX_SIM_DURATION_S": "2"},
    )


async def main() -> Iterable[Figure]:
    """Register, stand idle, take over, start a task on every node."""
    first, second = Leader(1), Leader(2)
    ports = [await leader.gateway.start("127.0.0.1:0") for leader in (first, second)]
    await first.gateway.open(first.epoch, first.hear)
    schedulers = ",".join(f"127.0.0.1:{port}" for port in ports)
    with tempfile.TemporaryDirectory() as state:
        flags = ["--schedulers", schedulers, "--state-dir", state, "--simulate", str(NODES)]
        fleet = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, *flags, cwd=ROOT)
        try:
            return [*await _quiet(first, psutil.Process(fleet.pid)), *await _busy(first, second)]
        finally:
            fleet.kill()
            await fleet.wait()
            for leader in (first, second):
                await leader.gateway.shutdown()


async def _quiet(leader: Leader, fleet: psutil.Process) -> list[Figure]:
    registered_s = await leader.until(NODES, Register)
    await leader.until(NODES * 2, Heartbeat)
    of_fleet, of_leader = await asyncio.gather(_core_percent(fleet), _core_percent(psutil.Process()))
    return [
        _figure("all registered", "s", registered_s, target=15.0),
        _figure("idle fleet", "% of a core", of_fleet, target=30.0),
        _figure("idle leader's gateway", "% of a core", of_leader, target=30.0),
        _figure("idle fleet, memory", "MB", fleet.memory_info().rss >> 20),
    ]


async def _busy(first: Leader, second: Leader) -> list[Figure]:
    await first.gateway.close()
    await second.gateway.open(second.epoch, second.hear)
    taken_s = await second.until(NODES, Register)
    await second.until(NODES, Heartbeat)
    second.start_all()
    started_s = await second.until(NODES, TaskStartedReport)
    await second.until(NODES, TaskEndedReport)
    return [
        _figure("all with the successor", "s", taken_s, target=10.0),
        _figure("a task on every node, started and reported", "s", started_s, target=10.0),
    ]


async def _core_percent(process: psutil.Process) -> float:
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(IDLE_S)
    return 100 * (sum(process.cpu_times()[:2]) - before) / IDLE_S


def _figure(case: str, unit: str, value: float, target: float | None = None) -> Figure:
    value = round(value, 2)
    return Figure(
        bench="agents", case=f"{case}, {NODES} agents", unit=unit, median=value, p99=value, n=1, target=target
    )
