"""`signalboxd up`: the whole of Signalbox on one machine.

Postgres from its wheel (or one that is given), the log in it (or in Kafka), scheduler, projector, api, a simulated
fleet and one real agent that runs processes; each a process of its own. A first run makes tokens, a team with
quotas and a client profile, so that `signalbox run` needs no flags.
"""

import argparse
import asyncio
import fcntl
import hashlib
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from signalbox.profile import Profile, default_path

from agent.main import parse_declared
from signalboxd import child
from signalboxd.embedded_postgres import EmbeddedPostgres
from signalboxd.site import KafkaLogSite, PostgresLogSite, Site, write_site
from signalboxd.supervisor import Child, ChildFailed
from signalboxd.wiring import migrate

READY_S = 80.0
REAL_GPUS = "declared:local:4:16"
TEAM = "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    parser.add_argument("--data", type=Path, default=Path(state) / "signalbox", help="everything is kept here")
    parser.add_argument("--port", type=int, default=8080, help="of the api (default: 8080; 0: any free one)")
    parser.add_argument("--nodes", type=int, default=16, help="simulated nodes (default: 16; 0: none)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on durations of simulated tasks")
    parser.add_argument("--gpus", default=REAL_GPUS, help=f"of the real agent (default: {REAL_GPUS})")
    parser.add_argument("--schedulers", type=int, default=1, help="scheduler processes: one leads (default: 1)")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="keep the log in this Kafka instead of Postgres")
    parser.add_argument("--kafka-prefix", default="signalbox")
    parser.add_argument("--no-agent", action="store_true", help="no real agent")
    parser.add_argument("--profile", type=Path, help="where the client profile goes (default: as `signalbox` reads it)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the processes stand on: files and addresses."""

    data: Path
    site: Site
    site_file: Path
    admin_token: str
    api_port: int
    scheduler_ports: tuple[int, ...]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"


async def run(args: argparse.Namespace) -> None:
    """Until SIGINT or SIGTERM, or a failure that cannot be mended by starting something again."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        stack.enter_context(alone(args.data))
        check_words(args)
        postgres = EmbeddedPostgres(args.data / "postgres")
        say("starting Postgres")
        await asyncio.to_thread(postgres.start)
        stack.push_async_callback(asyncio.to_thread, postgres.stop)
        ground = lay_ground(args, postgres.dsn)
        await migrate(ground.site)
        children = processes(args, ground)
        for each in children:
            each.begin()
            stack.push_async_callback(each.stop)
        await _ready(args, ground, children, stop)
        write_state(ground, children, postgres)
        if not stop.is_set():
            say(f"ready: {ground.address}")
            say(f"profile written to {args.profile or default_path()}; try: signalbox run --gpus 2 -- python train.py")
            await _until(stop, children, postgres)
        say("stopping; tasks that run go on, and are found again by the next start")


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """The data folder is ours. Raises ChildFailed where another `up` has it, saying which."""
    data.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ChildFailed(f"already running on {data}{_where(data / 'up.json')}") from None
    finally:
        os.close(descriptor)


def _where(state: Path) -> str:
    try:
        return f": {json.loads(state.read_text())['address']}"
    except (OSError, ValueError, KeyError):
        return ""


def check_words(args: argparse.Namespace) -> None:
    """What was asked for can be had. Raises ChildFailed, naming the word."""
    if not 0 <= args.nodes <= 10_000:
        raise ChildFailed(f"--nodes {args.nodes}: has to be 0 to 10000")
    if not 1 <= args.schedulers <= 9:
        raise ChildFailed(f"--schedulers {args.schedulers}: has to be 1 to 9")
    if args.gpus != "nvml" and not Path(args.gpus).is_file():
        try:
            parse_declared(args.gpus)
        except ValueError as error:
            raise ChildFailed(f"--gpus: {error}") from None
    if args.port and not _is_free(args.port):
        raise ChildFailed(f"port {args.port} is in use: stop what uses it, or take another with --port (0: any)")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def say(text: str) -> None:
    """A line for the person who started it."""
    print(f"signalbox: {text}", flush=True)


def lay_ground(args: argparse.Namespace, dsn: str) -> Ground:
    """Tokens, ports and the site file; those of an earlier run are kept."""
    data: Path = args.data
    admin = _token(data / "admin-token")
    _token(data / "agent-token")
    roles = ["admin", "operator", "submitter", "auditor"]
    entries = [{"name": "admin", "sha256": _hash(admin), "roles": roles, "teams": "*"}]
    (data / "tokens.json").write_text(json.dumps(entries))
    ports = tuple(child.free_port() for _ in range(args.schedulers))
    log = PostgresLogSite() if args.kafka is None else _kafka(args)
    site = Site(
        cluster="main",
        postgres=dsn,
        tokens=data / "tokens.json",
        agent_token_file=data / "agent-token",
        schedulers=tuple(f"127.0.0.1:{port}" for port in ports),
        log=log,
    )
    write_site(data / "site.toml", site)
    return Ground(
        data=data,
        site=site,
        site_file=data / "site.toml",
        admin_token=admin,
        api_port=args.port or child.free_port(),
        scheduler_ports=ports,
    )


def _kafka(args: argparse.Namespace) -> KafkaLogSite:
    return KafkaLogSite(
        kind="kafka",
        bootstrap=args.kafka,
        prefix=args.kafka_prefix,
        replication=1,
        development=True,
        partitions={"main": 0},
    )


def _token(path: Path) -> str:
    """The token in a file, made with it where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def processes(args: argparse.Namespace, ground: Ground) -> list[Child]:
    """Every process of the installation but Postgres, in the order in which they start."""
    service = [sys.executable, "-m", "signalboxd"]
    site = ["--site", str(ground.site_file)]
    logs = ground.data / "logs"
    logs.mkdir(exist_ok=True)

    def made(name: str, *argv: str, fatal: frozenset[int] = frozenset({74, 75})) -> Child:
        return Child(name=name, argv=[*service, *argv], log=logs / f"{name}.log", fatal=fatal)

    children = [
        made(f"scheduler-{number}", "scheduler", *site, "--listen", f"127.0.0.1:{port}")
        for number, port in enumerate(ground.scheduler_ports)
    ]
    children.append(made("projector", "projector", *site))
    children.append(made("api", "api", *site, "--port", str(ground.api_port), "--metrics-open"))
    schedulers = ["--schedulers", ",".join(ground.site.schedulers), "--token-file", str(ground.data / "agent-token")]
    if args.nodes:
        state = ["--state-dir", str(ground.data / "fleet"), "--gpus", "declared:h100:8:80"]
        simulate = ["--simulate", str(args.nodes), "--scale", str(args.scale)]
        children.append(made("fleet", "agent", *schedulers, *state, *simulate))
    if not args.no_agent:
        where = ["--node-id", "local-0", "--block", "local", "--rack", "local", "--address", "127.0.0.1"]
        state = ["--state-dir", str(ground.data / "agent"), "--gpus", args.gpus]
        children.append(made("agent", "agent", *schedulers, *state, *where))
    return children


async def _ready(args: argparse.Namespace, ground: Ground, children: list[Child], stop: asyncio.Event) -> None:
    """Until the api answers, a leader leads and the nodes are registered; then quotas and profile."""
    say("starting scheduler, projector, api and agents")
    wanted = args.nodes + (not args.no_agent)
    headers = {"authorization": f"Bearer {ground.admin_token}"}
    async with httpx.AsyncClient(base_url=ground.address, headers=headers, timeout=10) as client:
        deadline = asyncio.get_running_loop().time() + READY_S
        begun = datetime.now(UTC) - timedelta(seconds=1)
        known: dict[str, int] = {}
        while not stop.is_set():
            _check(children)
            known = await _registered(client)
            if sum(known.values()) >= wanted and known and await _led_since(client, begun):
                break
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailed(f"not ready after {READY_S:.0f} s: {sum(known.values())} of {wanted} nodes")
            await asyncio.sleep(0.2)
        if stop.is_set():
            return
        await _give_quota(client)
    profile = Profile(
        address=ground.address,
        token=ground.admin_token,
        team=TEAM,
        gpu_type=args.gpus.split(":")[1] if args.gpus.startswith("declared:") else None,
        max_runtime="1h",
    )
    profile.save(args.profile or default_path())


async def _registered(client: httpx.AsyncClient) -> dict[str, int]:
    """Nodes in service by type; empty while the api is not there."""
    try:
        answer = await client.get("/v1/nodes", params={"limit": 1000})
    except httpx.HTTPError:
        return {}
    if answer.status_code != 200:
        return {}
    kinds: dict[str, int] = {}
    for node in answer.json()["nodes"]:
        kinds[node["gpu_type"]] = kinds.get(node["gpu_type"], 0) + 1
    return kinds


async def _led_since(client: httpx.AsyncClient, begun: datetime) -> bool:
    """Does one of our schedulers lead? The read models may still show the leader of an earlier run."""
    try:
        leader = (await client.get("/v1/cluster")).json().get("leader") or {}
    except httpx.HTTPError:
        return False
    elected = leader.get("elected_at")
    return elected is not None and datetime.fromisoformat(elected.replace("Z", "+00:00")) >= begun


async def _give_quota(client: httpx.AsyncClient) -> None:
    """The team of the first run may use everything. A quota that a person set is left alone."""
    now = await client.get(f"/v1/teams/{TEAM}/quota")
    if now.status_code == 200 and now.json():
        return
    nodes = (await client.get("/v1/nodes", params={"limit": 1000})).json()["nodes"]
    gpus: dict[str, int] = {}
    for node in nodes:
        gpus[node["gpu_type"]] = gpus.get(node["gpu_type"], 0) + node["gpu_count"]
    quota = {kind: {"guaranteed": count, "borrow_limit": 0} for kind, count in sorted(gpus.items())}
    answer = await client.put(f"/v1/teams/{TEAM}/quota", json=quota, headers={"idempotency-key": secrets.token_hex(16)})
    answer.raise_for_status()


def _check(children: list[Child]) -> None:
    for each in children:
        task = each.task
        if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
            raise error


async def _until(stop: asyncio.Event, children: list[Child], postgres: EmbeddedPostgres) -> None:
    while not stop.is_set():
        _check(children)
        if not postgres.running:
            say("Postgres has ended; starting it again")
            await asyncio.to_thread(postgres.start)
        try:
            await asyncio.wait_for(stop.wait(), 1.0)
        except TimeoutError:
            pass


def write_state(ground: Ground, children: list[Child], postgres: EmbeddedPostgres) -> None:
    """Pids and addresses, for people and tools who want to look."""
    state = {
        "address": ground.address,
        "postgres": postgres.dsn,
        "pids": {each.name: each.pid for each in children} | {"postgres": postgres.pid},
    }
    (ground.data / "up.json").write_text(json.dumps(state, indent=2))
