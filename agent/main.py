"""`signalboxd agent`: one real agent, or with --simulate a fleet of simulated ones.

A SIGTERM ends the agent and leaves its tasks running: the next one adopts them. (Under systemd the unit needs
KillMode=process.)
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import random
import signal
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import structlog

from agent.clock import LoopClock
from agent.fleet import Fleet, FleetPlan
from agent.gpus import DeclaredGpus, NvmlGpus, WatchedGpus
from agent.grpc_transport import GrpcTransport
from agent.journal import FileJournal
from agent.node import NodeAgent, World
from agent.ports import Gpus, Identity
from agent.process_runtime import ProcessRuntime, ProcessSettings
from agent.processes import boot_id
from agent.tail import HttpTails
from events.ids import BlockId, NodeId

_log = structlog.get_logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `signalboxd agent`."""
    parser.add_argument("--schedulers", required=True, help="host:port of every scheduler, comma-separated")
    parser.add_argument("--node-id", default=socket.gethostname(), help="unique in the cluster (default: host name)")
    parser.add_argument("--state-dir", type=Path, required=True, help="journal, tasks and their output")
    parser.add_argument(
        "--gpus", default="nvml", help="`nvml`, `declared:TYPE:COUNT:MEMORY_GB`, or a JSON file (default: nvml)"
    )
    parser.add_argument("--block", default="b000", help="leaf switch of the node (default: b000)")
    parser.add_argument("--rack", default="r000", help="rack of the node (default: r000)")
    parser.add_argument(
        "--address", default=socket.gethostname(), help="how other nodes reach this one (default: host name)"
    )
    parser.add_argument("--token", help="token of the agents (default: SIGNALBOX_AGENT_TOKEN)")
    parser.add_argument(
        "--reclaim-gpus", action="store_true", help="kill what computes on the node's GPUs and is no task (nvml only)"
    )
    parser.add_argument("--cgroup", type=Path, help="writable directory of cgroup v2 for the tasks")
    fleet = parser.add_argument_group("simulated fleet")
    fleet.add_argument("--simulate", type=int, metavar="N", help="run N simulated agents instead of a real one")
    fleet.add_argument("--node-prefix", default="n-", help="their ids are PREFIX0000 and so on (default: n-)")
    fleet.add_argument("--nodes-per-block", type=int, default=32, help="(default: 32)")
    fleet.add_argument("--scale", type=float, default=1.0, help="factor on all durations of virtual tasks")


async def run(args: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT."""
    token = args.token or os.environ.get("SIGNALBOX_AGENT_TOKEN")
    schedulers = tuple(address.strip() for address in args.schedulers.split(",") if address.strip())
    with _locked(args.state_dir):
        if args.simulate is not None:
            await _until_told(_fleet(args, schedulers, token).run())
        else:
            await _real(args, schedulers, token)


async def _real(args: argparse.Namespace, schedulers: tuple[str, ...], token: str | None) -> None:
    clock = LoopClock()
    gpus = open_gpus(args.gpus, args.node_id)
    holders = gpus.holders if args.reclaim_gpus and isinstance(gpus, NvmlGpus) else tuple
    runtime = ProcessRuntime(args.state_dir, clock, ProcessSettings(cgroup=args.cgroup), holders)
    transport, tails = GrpcTransport(token=token), HttpTails(runtime)
    world = World(
        transport=transport,
        runtime=runtime,
        journal=FileJournal(args.state_dir, lambda: os.urandom(8).hex()),
        clock=clock,
        gpus=WatchedGpus(gpus) if isinstance(gpus, NvmlGpus) else gpus,
        tails=tails,
        chance=random.random,
    )
    identity = Identity(
        node_id=NodeId(args.node_id),
        boot_id=boot_id(),
        incarnation=os.urandom(8).hex(),
        block=BlockId(args.block),
        rack=args.rack,
        address=args.address,
    )
    try:
        await _until_told(NodeAgent(identity, world, schedulers).run())
    finally:
        await tails.close()
        await transport.close()


def _fleet(args: argparse.Namespace, schedulers: tuple[str, ...], token: str | None) -> Fleet:
    kind, count, memory_gb = parse_declared(args.gpus) if args.gpus != "nvml" else ("h100", 8, 80)
    plan = FleetPlan(
        nodes=args.simulate,
        prefix=args.node_prefix,
        gpu_type=kind,
        gpus_per_node=count,
        gpu_memory_gb=memory_gb,
        nodes_per_block=args.nodes_per_block,
        scale=args.scale,
    )
    return Fleet(plan, args.state_dir, schedulers, token=token)


def parse_declared(said: str) -> tuple[str, int, int]:
    """(type, count, memory in GB) of `declared:TYPE:COUNT:MEMORY_GB`. Raises ValueError."""
    match said.split(":"):
        case ["declared", kind, count, memory_gb] if kind:
            return kind, int(count), int(memory_gb)
        case _:
            raise ValueError(f"not declared:TYPE:COUNT:MEMORY_GB: {said}")


def open_gpus(said: str, node: str) -> Gpus:
    """The GPUs that --gpus means."""
    if said == "nvml":
        return NvmlGpus.open()
    if said.startswith("declared:"):
        kind, count, memory_gb = parse_declared(said)
        return DeclaredGpus.counted(node, kind, count, memory_gb)
    return DeclaredGpus.read(Path(said))


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """Run it until it ends, or a signal ends it."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One agent per state directory. Raises SystemExit where another has it."""
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another agent uses {directory}") from None
        yield
    finally:
        os.close(fd)
