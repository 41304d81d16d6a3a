"""Ninety days of a cluster for language models, up to 1,024 GPUs a job, through the live stack at compressed time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from events.envelope import Record, Term
from events.gang import GangAllocated
from events.task import TaskEnd, TaskEnded
from tests.live import kalos, real_task
from tests.live.checks import commits, sound_at_rest
from tests.live.real_task import RealTask
from tests.live.stack import Stack, stack
from tests.live.waiting import passed, until

pytestmark = pytest.mark.timeout(600)
OPTIONS = ("--nodes", str(kalos.NODES))


async def test_kalos(home: Path) -> None:
    """Every job of the trace ends SUCCEEDED; no GPU is ever in two live leases, by the log and by the fleet's own
    journal; no claim is left; the tables are the fold of the log."""
    async with stack(home, *OPTIONS) as run:
        jobs = kalos.arrivals(span_s=20.0)
        ids = await kalos.submit_all(run, jobs)
        states = await kalos.all_ended(run)
        assert sorted(ids.values()) == sorted(states)
        assert Counter(states.values()) == {"SUCCEEDED": len(jobs)}
        assert_run_once(await sound_at_rest(run), jobs=len(jobs), terms=1)


@pytest.mark.parametrize("log", ["postgres", pytest.param("kafka", marks=pytest.mark.kafka)])
async def test_kalos_with_kills(home: Path, log: str) -> None:
    """The same, while scheduler, api, projector, fleet, agent, Postgres and Kafka are killed one after another:
    nothing is lost, nothing runs twice, and no task notices the death of a scheduler or an agent."""
    async with stack(home, *OPTIONS, kafka=log == "kafka") as run:
        task = await real_task.begin(run, home / "real")
        jobs, over = kalos.arrivals(span_s=40.0), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            submitting = group.create_task(kalos.submit_all(run, jobs))
            going_on = group.create_task(_go_on(run, over))
            killing = group.create_task(_kill_all(run, task, over))
        ids, deaths = {**submitting.result(), **going_on.result(), "real": task.job}, killing.result()
        states = await kalos.all_ended(run)
        assert sorted(ids.values()) == sorted(states)
        assert Counter(states.values()) == {"SUCCEEDED": len(ids)}
        assert len(task.pids()) == 1
        found = await sound_at_rest(run)
        assert_run_once(found, jobs=len(ids))
        named = ["scheduler-0", "api", "projector", "fleet", "agent", "postgres"]
        assert deaths == (named if log == "postgres" else [*named, "kafka"])


async def _go_on(run: Stack, over: asyncio.Event) -> dict[str, str]:
    """A small job after the other, so that there is work to go on with however long the kills take; key -> job id."""
    ids: dict[str, str] = {}
    while not over.is_set():
        key = f"small-{len(ids)}"
        ids[key] = (await asyncio.to_thread(run.client.submit, kalos.spec(key, 1, 0.5), key)).id
        await passed(0.25)
    return ids


async def _kill_all(run: Stack, task: RealTask, over: asyncio.Event) -> list[str]:
    """kill -9 of each, the next when the stack has gone on after the last; then the real task may end."""
    await passed(2.0)
    deaths: list[str] = []
    kills: dict[str, Callable[[], Awaitable[None]]] = {
        name: lambda name=name: run.kill(name)  # type: ignore[misc]
        for name in ("scheduler-0", "api", "projector", "fleet", "agent")
    }
    kills["postgres"] = run.kill_postgres
    if run.broker is not None:
        kills["kafka"] = run.kill_kafka
    for name, kill in kills.items():
        before = await _seq(run)
        await kill()
        deaths.append(name)
        await until(lambda: _beyond(run, before), every_s=0.3, what=f"work goes on after {name}")  # noqa: B023
        assert task.alive(), f"the task noticed the death of {name}"
    task.end()
    over.set()
    return deaths


async def _seq(run: Stack) -> int:
    row = await until(lambda: run.row("SELECT seq FROM read.positions"), what="a position")
    assert row is not None
    return int(row["seq"])


async def _beyond(run: Stack, seq: int) -> bool:
    """Events were decided and projected since, and the api answers."""
    row = await run.row("SELECT seq FROM read.positions")
    return row is not None and row["seq"] > seq + 20 and await run.get("/readyz") is not None


def told_of(found: list[Record], job: str) -> list[str]:
    """All that the log says of a job, to see why it was granted again."""
    events = [(commit.n, event) for commit in commits(found) for event in commit.events]
    return [f"{n}: {event}" for n, event in events if getattr(event, "job_id", None) == job]


def assert_run_once(found: list[Record], *, jobs: int, terms: int | None = None) -> None:
    """Each job was granted once, whoever led. With agents killed (`terms` is None) it may be granted again where a rank
    of it was certainly never started: its agent had it on disk and was killed before the task began."""
    events = [event for commit in commits(found) for event in commit.events]
    granted = Counter(event.job_id for event in events if isinstance(event, GangAllocated))
    assert len(granted) == jobs
    unbegun = {
        (event.job_id, event.attempt)
        for event in events
        if isinstance(event, TaskEnded) and event.end is TaskEnd.NEVER_STARTED and terms is None
    }
    again = [job for job, times in granted.items() if any((job, attempt) not in unbegun for attempt in range(1, times))]
    assert again == [], "\n".join(line for job in again for line in told_of(found, job))
    if terms is not None:
        assert sum(isinstance(record, Term) for record in found) == terms
