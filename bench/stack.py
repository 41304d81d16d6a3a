"""The whole stack on this machine: 3,000 agents in one process, submissions over REST, Postgres log, fsync on.

The client that submits, the fleet and every server share the cores, so that all figures are upper bounds of what each
would take alone. Latencies to StartTask end when the agent has the order in its journal.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench.figure import Figure, latency
from events.gang import GangRunning
from events.ids import parse_lease_id
from events.leadership import LeaderElected
from events.node import NodesConfirmed, NodeSuspected
from tests.live import kalos
from tests.live.checks import commits, fleet_ledger, records
from tests.live.load import Submitted, submit_steadily
from tests.live.stack import Stack, stack
from tests.live.waiting import passed, until

NODES = 3000
RATE = 50
STEADY_S = 60.0
BURST = 5000
BURST_LANES = 64
SUBMITTERS = 16
"""Principals of the burst: one alone may not send so much at once (R-111)."""
WATCHED_S = 40.0
"""After the storm: an agent whose stream is lost is suspect within 30 s."""


def main() -> Iterator[Figure]:
    """A day's burst, for a minute; then what happens at once."""
    yield from asyncio.run(_with_stack(steady))
    yield from asyncio.run(_with_stack(burst))
    yield from asyncio.run(_with_stack(storm, "--schedulers", "2"))


async def _with_stack(case: Callable[[Stack], Awaitable[list[Figure]]], *options: str) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="signalbox-bench-") as home:
        async with stack(Path(home), "--nodes", str(NODES), "--no-agent", *options, submitters=SUBMITTERS) as run:
            return await case(run)


async def steady(run: Stack) -> list[Figure]:
    """Fifty small jobs a second for a minute, where there is capacity."""
    cpu, beats, begun = run.cpu_s(), await _beats(run), time.monotonic()
    made = await submit_steadily(run, lambda number: _small(number, 20.0), rate=RATE, seconds=STEADY_S)
    wall_s = time.monotonic() - begun
    shares = {name: (used - cpu[name]) / wall_s for name, used in run.cpu_s().items()}
    beats_a_s = (await _beats(run) - beats) / wall_s
    await kalos.all_ended(run)
    starts = _starts(run, made)
    case = f"{RATE} submissions a second, {NODES} agents"
    return [
        _count(f"{case}: submissions that failed", len(made.faults), len(made.latencies_s), target=0),
        _count(f"{case}: submissions answered before they were decided", made.late, len(made.latencies_s)),
        latency("stack", f"{case}: submit", made.latencies_s, target_p99_ms=250),
        latency("stack", f"{case}: submit to StartTask", starts),
        _one(f"{case}: submit to StartTask, p95", "ms", _percentile(starts, 95) * 1e3, len(starts), target=1000),
        _one(f"{case}: heartbeats", "1/s", beats_a_s, round(beats_a_s * wall_s), target=NODES / 5 * 0.98, more=True),
        *(_one(f"{case}: CPU of {name}", "cores", share, 1) for name, share in shares.items()),
    ]


async def burst(run: Stack) -> list[Figure]:
    """Thousands of small jobs at once on an empty fleet: until all run."""
    made = await submit_steadily(
        run, lambda number: _small(number, 300.0), rate=1e6, seconds=BURST / 1e6, lanes=BURST_LANES
    )
    jobs = made.sent_at.keys()

    async def all_run() -> bool:
        return sum(state == "RUNNING" for state in (await run.states()).values()) >= len(jobs)

    await until(all_run, within_s=180, every_s=1.0, what="all run")
    running = [
        commit.at
        for commit in commits(await records(run.ground.site))
        if any(isinstance(event, GangRunning) for event in commit.events)
    ]
    case = f"burst of {BURST} jobs"
    return [
        _count(f"{case}: submissions that failed", len(made.faults), BURST, target=0),
        _count(f"{case}: submissions answered before they were decided", made.late, BURST),
        _one(f"{case}: last submit to all RUNNING", "s", (max(running) - made.answered_at_ms) / 1e3, 1, target=30),
        _one(
            f"{case}: started a second, submissions included",
            "jobs/s",
            len(jobs) / _span_s(run, made),
            len(jobs),
            more=True,
        ),
        latency("stack", f"{case}: submit to StartTask", _starts(run, made)),
    ]


async def storm(run: Stack) -> list[Figure]:
    """The leader is killed, and every agent dials the standby at once."""
    leader = await run.leader()
    run.send(leader, signal.SIGKILL)
    killed_ms = time.time() * 1000
    await run.leader(other_than=leader)

    async def confirmed() -> tuple[float, float] | None:
        elected_ms, nodes = 0.0, set[int]()
        for commit in commits(await records(run.ground.site)):
            for event in commit.events:
                if isinstance(event, LeaderElected):
                    elected_ms, nodes = commit.at, set()
                elif isinstance(event, NodesConfirmed):
                    nodes.update(event.nodes)
                    if len(nodes) == NODES and elected_ms > killed_ms - 1000:
                        return elected_ms, commit.at
        return None

    elected_ms, back_ms = await until(confirmed, within_s=120, every_s=1.0, what="every agent is back") or (0, 0)
    await passed(WATCHED_S)
    suspects = {
        event.node
        for commit in commits(await records(run.ground.site))
        for event in commit.events
        if isinstance(event, NodeSuspected) and commit.at > elected_ms
    }
    case = f"reconnect storm of {NODES} agents"
    return [
        _one(f"{case}: kill -9 to the next leader", "s", (elected_ms - killed_ms) / 1e3, 1, target=10),
        _one(f"{case}: next leader to the last stream back", "s", (back_ms - elected_ms) / 1e3, 1),
        _count(f"{case}: streams lost", len(suspects), NODES, target=0),
    ]


def _small(number: int, duration_s: float) -> dict[str, Any]:
    return kalos.spec(f"small-{number}", 1 + number % 4, duration_s)


def _span_s(run: Stack, made: Submitted) -> float:
    """From the first submission sent to the last task begun."""
    begun = [sent + took for sent, took in zip(made.sent_at.values(), _starts(run, made), strict=True)]
    return max(begun) - min(made.sent_at.values())


def _starts(run: Stack, made: Submitted) -> list[float]:
    """Seconds from sending to the order in the agent's journal, for each job."""
    begun = {
        parse_lease_id(line["lease"])[0]: line["task"]["begun_at"]
        for line in fleet_ledger(run.ground.data)
        if "task" in line
    }
    return [begun[job] - sent for job, sent in made.sent_at.items()]  # type: ignore[index]


async def _beats(run: Stack) -> float:
    return await run.metric("scheduler-0", "signalbox_heartbeats_total")


def _percentile(samples: list[float], percent: int) -> float:
    return sorted(samples)[len(samples) * percent // 100]


def _count(case: str, count: int, of: int, *, target: float | None = None) -> Figure:
    return Figure(bench="stack", case=case, unit="count", median=count, p99=count, n=of, target=target)


def _one(case: str, unit: str, value: float, n: int, *, target: float | None = None, more: bool = False) -> Figure:
    """A figure that is measured once."""
    said = round(value, 3)
    return Figure(bench="stack", case=case, unit=unit, median=said, p99=said, n=n, target=target, higher_is_better=more)
