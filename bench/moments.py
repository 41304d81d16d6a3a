"""What somebody waits for, and is to be over in a moment: a task's start, everything on one machine, Postgres after a
stop, a statement over a whole cluster, a look at what a client sent. Each by itself, on real processes and a real
Postgres.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agent.clock import LoopClock
from agent.process_runtime import ProcessRuntime
from api.credentials import looks_like_credential
from bench.figure import Figure, Stopwatch, latency
from commands.policy import Policy
from events.ids import ClusterId, Epoch, JobId, LeaseId, NodeId, lease_id
from events.job import JobSubmitted, PriorityClass, QueueReason
from projections import queries
from projections.worker import opened
from scheduler.claims import PostgresClaims
from scheduler.control import STATEMENT_TIMEOUT_MS, PostgresLeadership, migrate
from scheduler.link import Phase
from signalboxd.embedded_postgres import EmbeddedPostgres
from tests.agent.builders import task
from tests.live.started import is_ready, up
from tests.projections.story import ADA, Story, job_spec, queued
from tests.servers.waiting import until

TIMES = 20
NODES = 3_000
QUEUED = 10_000
POOL = 20_000
EU = ClusterId("eu-1")


async def main() -> Iterable[Figure]:
    """All of them."""
    with tempfile.TemporaryDirectory(prefix="signalbox-bench-") as folder:
        home = Path(folder)
        server = EmbeddedPostgres(home / "postgres")
        try:
            server.start()
            return [
                latency("moments", "a task: order to end", _tasks(home / "agent"), target_ms=200),
                latency("moments", "Postgres again after a stop", _starts(server), target_ms=2_000),
                await _reconciled(server.dsn),
                await _ahead(server.dsn),
                *_looks(),
                *_ups(home / "up"),
            ]
        finally:
            server.stop()


def _tasks(state: Path) -> list[float]:
    runtime, took = ProcessRuntime(state, LoopClock()), []
    for number in range(TIMES):
        watch = Stopwatch()
        runtime.start(task("true", lease_id=lease_id(JobId("j_1"), 1, number)))
        until(lambda: any(seen.phase is Phase.ENDED for seen in runtime.poll()))
        took.append(watch.s)
    return took


def _starts(server: EmbeddedPostgres) -> list[float]:
    took = []
    for _ in range(5):
        server.stop()
        took.append(_timed(server.start))
    return took


async def _reconciled(dsn: str) -> Figure:
    """A new leader makes the claims of all GPUs what the log says: none of them was right."""
    await migrate(dsn)
    leadership, claims = PostgresLeadership(dsn, EU, "a"), PostgresClaims(dsn, EU, "a")
    tenure = await leadership.acquire("a", "a:1", Epoch(0))
    assert tenure is not None
    took = []
    for number in range(TIMES):
        wanted = [
            (NodeId(f"n{node}"), gpu, LeaseId(f"j_{number}.{node}.0")) for node in range(NODES) for gpu in range(8)
        ]
        watch = Stopwatch()
        assert await claims.reconcile(tenure, wanted) == len(wanted)
        took.append(watch.s)
    await claims.close()
    await leadership.close()
    limit_ms = STATEMENT_TIMEOUT_MS
    return latency("moments", f"{NODES * 8:,} claims made right", took, target_ms=limit_ms / 2, target_p99_ms=limit_ms)


async def _ahead(dsn: str) -> Figure:
    """The last job of a long queue learns its place."""
    story, classes = await Story(EU).begun(), list(PriorityClass)
    for first in range(0, QUEUED, 500):
        events: list[Any] = []
        for number in range(first, first + 500):
            spec = job_spec(priority_class=classes[number % len(classes)])
            events.append(JobSubmitted(job_id=JobId(f"j_{number}"), spec=spec, principal=ADA))
            events.append(queued(JobId(f"j_{number}"), 1, QueueReason.SUBMITTED))
        await story.commit(*events)
    async with opened(story.log, dsn) as projector:
        await projector.catch_up()
    db, took = await queries.pool(dsn), []
    for _ in range(TIMES):
        watch = Stopwatch()
        assert await queries.ahead_of(db, EU, f"j_{QUEUED - 1}") is not None
        took.append(watch.s)
    await db.close()
    return latency("moments", f"place in a queue of {QUEUED:,}", took, target_ms=50)


def _looks() -> Iterable[Figure]:
    """What a client sent is looked through by the api, and by each leader in turn."""
    texts = ["a:" * 500_000, "password" * 125_000, "-----BEGIN " * 90_909, " " * 1_000_000]
    took = [_timed(lambda text=text: looks_like_credential(text)) for text in texts]  # type: ignore[misc]
    yield latency("moments", "a megabyte searched for credentials", took, target_ms=1_000)
    pool = {"name": "a", "kind": "whole", "nodes": [f"n{number:05}" for number in range(POOL)]}
    took = [_timed(lambda: Policy.model_validate({"pools": [pool]})) for _ in range(TIMES)]
    yield latency("moments", f"a policy with a pool of {POOL:,} nodes read", took, target_ms=200)


def _ups(home: Path) -> Iterable[Figure]:
    """`signalboxd up`, until it is ready: with nothing there, and with what the first one left."""
    home.mkdir()
    for case, target_ms in (("up, ready the first time", 30_000), ("up, ready again", 10_000)):
        watch = Stopwatch()
        with up(home):
            until(lambda: is_ready(home), what="up is ready")
            took = watch.s
        yield latency("moments", case, [took], target_ms=target_ms)


def _timed(work: Callable[[], object]) -> float:
    watch = Stopwatch()
    work()
    return watch.s
