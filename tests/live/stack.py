"""A whole control plane of real processes, of which a test knows every pid: kill, stop, continue, restart each.

Processes are what `signalboxd up` makes, kept by its own supervisor, on loopback and in a temporary directory. In place
of `up` itself the test starts Postgres and Kafka, and starts them again when it has killed them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
from signalbox import Client
from signalbox.profile import Profile

from agent.processes import marked
from signalboxd import up
from signalboxd.child import free_port
from signalboxd.embedded_postgres import EmbeddedPostgres
from signalboxd.supervisor import Child, last_lines
from signalboxd.wiring import migrate
from tests.live.waiting import WITHIN_S, until
from tests.servers.kafka import KafkaBroker

TEAM = up.TEAM
LEADS = """
SELECT l.address FROM control.leadership l JOIN read.leaders r ON r.cluster = l.cluster AND r.epoch = l.epoch
WHERE l.expires_at > clock_timestamp() AND r.elected_at IS NOT NULL
"""


@dataclass(slots=True, kw_only=True)
class Stack:
    """What runs, by name: scheduler-0, projector, api, fleet, agent; and Postgres and Kafka beside them."""

    ground: up.Ground
    postgres: EmbeddedPostgres
    broker: KafkaBroker | None
    children: dict[str, Child]
    http: httpx.AsyncClient
    client: Client
    metrics: dict[str, int]
    """Port of the metrics of each scheduler."""
    submitters: tuple[str, ...]
    """Tokens of further principals, each with a rate of requests of its own."""

    # Processes

    def pid(self, name: str) -> int:
        """Of the process that bears the name now."""
        pid = self.children[name].pid
        assert pid is not None, f"{name} was not started"
        return pid

    def send(self, name: str, number: signal.Signals) -> int:
        """Send a signal; the pid that got it. After SIGSTOP the process is seen to stand still."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    async def kill(self, name: str) -> None:
        """kill -9; returns when its supervisor has started another."""
        pid = self.send(name, signal.SIGKILL)
        await until(lambda: _so(self.pid(name) != pid), what=f"{name} is started again")

    async def hold(self, name: str) -> None:
        """End it, and keep it down until `begin`."""
        await self.children[name].stop()

    def begin(self, name: str) -> None:
        """Start what was held."""
        self.children[name].begin()

    async def kill_postgres(self) -> None:
        """kill -9 of the postmaster, and start it again, as a service manager would."""
        await asyncio.to_thread(self.postgres.kill)
        await asyncio.to_thread(self.postgres.start)

    async def kill_kafka(self) -> None:
        """kill -9 of the broker, and start it again."""
        assert self.broker is not None
        await asyncio.to_thread(self.broker.restart)

    async def leader(self, *, other_than: str | None = None) -> str:
        """The name of the scheduler that leads, once one of that name does."""
        names = dict(zip(self.ground.site.schedulers, (n for n in self.children if n.startswith("sched")), strict=True))

        async def leads() -> str | None:
            row = await self.row(LEADS)
            name = names.get(row["address"]) if row is not None else None
            return name if name != other_than else None

        return str(await until(leads, what=f"a leader other than {other_than}"))

    async def row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """One row out of Postgres; None where there is none, or no Postgres."""
        try:
            connection = await asyncpg.connect(self.ground.site.postgres, timeout=30)
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return None
        try:
            return await connection.fetchrow(query, *arguments)
        except asyncpg.UndefinedTableError:
            return None
        finally:
            await connection.close()

    def check(self) -> None:
        """Nothing has ended in a way from which its supervisor does not bring it back."""
        for name, each in self.children.items():
            task = each.task
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
                raise AssertionError(f"{name} is down: {error}")

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU that each has used so far, what it has started included."""
        pids = {name: self.pid(name) for name in self.children} | {"postgres": self.postgres.pid}
        pids |= {"kafka": self.broker.pid} if self.broker is not None else {}
        return {name: _cpu_s(pid) for name, pid in pids.items()}

    async def metric(self, scheduler: str, name: str) -> float:
        """One figure of a scheduler."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.metrics[scheduler]}/metrics")).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    async def command(self, *words: str) -> str:
        """What a `signalbox` command says; it has to succeed."""
        ran = await asyncio.to_thread(
            subprocess.run,
            entry(*words),
            env=self.command_env(),
            text=True,
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    # Questions over REST

    async def get(self, path: str, **params: Any) -> Any:
        """The answer to a read; None while there is none."""
        try:
            answer = await self.http.get(path, params=params)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    async def ready(self, nodes: int) -> None:
        """Wait until so many nodes may be granted on; give the team a quota over all of them."""

        async def registered() -> list[Any] | None:
            self.check()
            answer = await self.get("/v1/nodes", limit=1000)
            found = answer["nodes"] if answer else []
            while answer and answer.get("cursor"):
                answer = await self.get("/v1/nodes", limit=1000, cursor=answer["cursor"])
                found += answer["nodes"] if answer else []
            return found if len(found) >= nodes else None

        found = await until(registered, what=f"{nodes} nodes are registered")
        assert found is not None
        gpus: dict[str, int] = {}
        for node in found:
            gpus[node["gpu_type"]] = gpus.get(node["gpu_type"], 0) + node["gpu_count"]
        lines = {kind: {"guaranteed": count, "borrow_limit": 0} for kind, count in sorted(gpus.items())}
        await asyncio.to_thread(self.client.set_quota, TEAM, lines)

    async def states(self) -> dict[str, str]:
        """Every job's state; what was read where the api went away meanwhile is thrown away."""
        jobs = await asyncio.to_thread(lambda: list(self.client.jobs()))
        return {job.id: job.state for job in jobs}

    def logs(self) -> str:
        """The end of everybody's log, for a message."""
        return "".join(f"\n--- {name}\n{last_lines(child.log)}" for name, child in self.children.items())

    def command_env(self) -> dict[str, str]:
        """What makes the `signalbox` command talk to this stack."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        home = {"HOME": str(self.ground.data), "SIGNALBOX_PROFILE": str(self.ground.data / "profile.toml")}
        return kept | home | {"NO_PROXY": "*", "COLUMNS": "100", "SIGNALBOX_PATIENCE": str(WITHIN_S)}


@asynccontextmanager
async def stack(home: Path, *options: str, kafka: bool = False, submitters: int = 0) -> AsyncIterator[Stack]:
    """A stack in `home`, started and ready, with the options of `signalboxd up`; all of it is gone afterwards."""
    async with AsyncExitStack() as undo:
        broker = await _broker(undo) if kafka else None
        args = _arguments(home, options, broker)
        postgres = EmbeddedPostgres(home / "postgres")
        undo.push_async_callback(asyncio.to_thread, postgres.stop)
        await asyncio.to_thread(postgres.start)
        ground = up.lay_ground(args, postgres.dsn)
        await migrate(ground.site)
        tokens = _further_submitters(ground, submitters)
        children = {child.name: child for child in up.processes(args, ground)}
        metrics = _serve_metrics(children)
        profile = _profile(args, ground)
        client = undo.enter_context(Client(profile, patience_s=WITHIN_S))
        headers = {"authorization": f"Bearer {ground.admin_token}"}
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
        http = await undo.enter_async_context(
            httpx.AsyncClient(base_url=ground.address, headers=headers, timeout=WITHIN_S, limits=limits)
        )
        for child in children.values():
            undo.push_async_callback(_put_down, child)
        undo.push_async_callback(_end_tasks, home / "agent")
        for child in children.values():
            child.begin()
        made = Stack(
            ground=ground,
            postgres=postgres,
            broker=broker,
            children=children,
            http=http,
            client=client,
            metrics=metrics,
            submitters=tokens,
        )
        try:
            await made.ready(args.nodes + (not args.no_agent))
            yield made
        except BaseException as error:
            error.add_note(made.logs())
            raise


def _arguments(home: Path, options: tuple[str, ...], broker: KafkaBroker | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    fixed = ["--data", str(home), "--port", "0", "--profile", str(home / "profile.toml")]
    return parser.parse_args([*fixed, *options, *(["--kafka", broker.bootstrap] if broker is not None else [])])


def _further_submitters(ground: up.Ground, count: int) -> tuple[str, ...]:
    path = ground.data / "tokens.json"
    tokens = tuple(secrets.token_urlsafe(16) for _ in range(count))
    entries = json.loads(path.read_text())
    for number, token in enumerate(tokens):
        digest = hashlib.sha256(token.encode()).hexdigest()
        entries.append({"name": f"user-{number}", "sha256": digest, "roles": ["submitter"], "teams": "*"})
    path.write_text(json.dumps(entries))
    return tokens


def _serve_metrics(children: dict[str, Child]) -> dict[str, int]:
    ports = {name: free_port() for name in children if name.startswith("scheduler")}
    for name, port in ports.items():
        children[name].argv = [*children[name].argv, "--metrics-port", str(port)]
    return ports


def _profile(args: argparse.Namespace, ground: up.Ground) -> Profile:
    profile = Profile(
        address=ground.address,
        token=ground.admin_token,
        team=TEAM,
        gpu_type=args.gpus.split(":")[1],
        max_runtime="1h",
    )
    profile.save(ground.data / "profile.toml")
    return profile


async def _broker(undo: AsyncExitStack) -> KafkaBroker:
    broker = KafkaBroker()
    undo.push_async_callback(asyncio.to_thread, broker.close)
    await asyncio.to_thread(broker.start)
    return broker


async def _put_down(child: Child) -> None:
    """End it also where a test has left it stopped."""
    if child.process is not None and child.process.poll() is None:
        child.process.send_signal(signal.SIGCONT)
    await child.stop()


async def _end_tasks(agent_home: Path) -> None:
    """Tasks outlive their agent on purpose: those that a test leaves behind are ended by their pids."""
    for pid in marked(str(agent_home.resolve())):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _cpu_s(pid: int) -> float:
    try:
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    except psutil.Error:
        return 0.0
    return sum(each.user + each.system for each in times)


async def _so(truth: bool) -> bool:
    return truth


def entry(*words: str) -> list[str]:
    """The argument list of the `signalbox` command."""
    return [sys.executable, "-c", "from signalbox.cli import main; main()", *words]
