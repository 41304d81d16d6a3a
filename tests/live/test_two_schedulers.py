"""Two schedulers at once: one leads, the other is ready, and one that was frozen comes back to nothing."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.envelope import Commit, Record, Term
from tests.live import kalos
from tests.live.checks import claims, leases_of, records, sound_at_rest
from tests.live.stack import Stack, stack
from tests.live.waiting import due, passed, until

OPTIONS = ("--nodes", "16", "--schedulers", "2", "--no-agent")
RATE_S = 0.05


@asynccontextmanager
async def under_load(run: Stack) -> AsyncIterator[list[str]]:
    """Twenty small jobs a second, each of half a second, until it is left; the ids of those that were taken."""
    ids: list[str] = []
    over = asyncio.Event()

    async def submit(number: int) -> None:
        spec = kalos.spec(f"load-{number}", 1 + number % 8, 0.5)
        ids.append((await asyncio.to_thread(run.client.submit, spec, f"load-{number}")).id)

    async def load() -> None:
        begun, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not over.is_set():
                group.create_task(submit(number))
                number += 1
                await due(begun + number * RATE_S)

    loading = asyncio.create_task(load())
    try:
        yield ids
    finally:
        over.set()
        await loading


async def standing_by(run: Stack, name: str) -> None:
    """Wait until that scheduler could lead."""
    child = run.children[name]

    async def ready() -> bool:
        return child.log.read_text().count('"standing by"') == child.starts

    await until(ready, what=f"{name} stands by")


def other(name: str) -> str:
    """The other one of two."""
    return "scheduler-1" if name == "scheduler-0" else "scheduler-0"


async def test_the_other_leads_after_a_kill(home: Path) -> None:
    """After kill -9 of the leader the standby leads, and what was submitted meanwhile is not lost. That it does within
    10 s (R-80) is shown in virtual time (tests/simulation), and measured by `./dev bench stack`."""
    async with stack(home, *OPTIONS) as run:
        for name in ("scheduler-0", "scheduler-1"):
            await standing_by(run, name)
        async with under_load(run) as ids:
            await passed(1.0)
            leader = await run.leader()
            run.send(leader, signal.SIGKILL)
            await run.hold(leader)  # or the killed one, started again, might be the first to take over
            await run.leader(other_than=leader)
            run.begin(leader)
        await all_done(run, ids)


@pytest.mark.parametrize(("log", "points"), [("postgres", 10), pytest.param("kafka", 5, marks=pytest.mark.kafka)])
@pytest.mark.timeout(900)
async def test_a_frozen_leader_comes_back_to_nothing(home: Path, log: str, points: int) -> None:
    """A leader that is stopped past its tenure at any point under load, then continued, ends by itself, and leaves no
    accepted record, no claim and no effect on any agent."""
    chance = random.Random(points)
    async with stack(home, *OPTIONS, kafka=log == "kafka") as run:
        async with under_load(run) as ids:
            leader = await run.leader()
            for _ in range(points):
                await standing_by(run, other(leader))
                await passed(chance.uniform(0.2, 1.0))
                leader = await _freeze(run, leader)
        assert sum(isinstance(record, Term) for record in await all_done(run, ids)) == points + 1


async def _freeze(run: Stack, leader: str) -> str:
    """Stop the leader, continue it when the other leads, and see it end; the new leader."""
    pid = run.send(leader, signal.SIGSTOP)
    successor = await run.leader(other_than=leader)
    terms = await _terms(run)
    run.send(leader, signal.SIGCONT)

    async def ended() -> bool:
        return run.pid(leader) != pid

    await until(ended, what=f"the deposed {leader} ends")
    claimed = {lease for _, _, lease in await claims(run.ground.site)}

    async def recorded() -> bool:
        return claimed <= leases_of(await records(run.ground.site)).keys()

    await until(recorded, what="the log knows each claim: a claim comes before its record")
    assert await _terms(run) == terms, "the deposed one began another term"
    return successor


async def _terms(run: Stack) -> list[int]:
    return [record.epoch for record in await records(run.ground.site) if isinstance(record, Term)]


async def all_done(run: Stack, ids: list[str]) -> list[Record]:
    """Every job that was submitted ended well, and all is sound; the log, in which each commit is of its term."""
    states = await kalos.all_ended(run)
    assert sorted(ids) == sorted(states)
    assert Counter(states.values()) == {"SUCCEEDED": len(ids)}
    found = await sound_at_rest(run)
    epoch = 0
    for record in found:
        if isinstance(record, Term):
            assert record.epoch > epoch
            epoch = record.epoch
        elif isinstance(record, Commit):
            assert record.epoch == epoch
    return found
