"""The policy through the live stack, a short case of each of its scenarios: tests/days has them over hours and days."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from events.envelope import Commit, Record
from events.gang import GangAllocated, LeaseReleased
from events.reservation import BlocksFreed, BlocksMoved, BlocksReserved
from events.task import TaskEnded
from tests.live.borrower import GRACE_S, Borrower, borrower
from tests.live.checks import commits, projected, records, unclaimed
from tests.live.load import never_empty
from tests.live.stack import TEAM, Stack, stack
from tests.live.waiting import until

pytestmark = pytest.mark.timeout(600)
OWNER = "owner"
LATE_S = 20.0
"""A start may come so much after its estimate: the ends of others are reported, and a cycle planned, in between. In a
flood that nobody held back it would not come at all."""


async def set_quota(run: Stack, team: str, gpu_type: str, guaranteed: int, borrow_limit: int) -> None:
    line = {"guaranteed": guaranteed, "borrow_limit": borrow_limit}
    await asyncio.to_thread(run.client.set_quota, team, {gpu_type: line})


async def nothing_is_awaited(run: Stack) -> None:
    """Every end is near in a test, and would be waited for with its GPUs pledged; over hours that is the exception."""
    await asyncio.to_thread(run.client.set_policy, {"await_ends_s": 0})


# An owner returns


async def test_an_owner_has_its_gpus_back_and_the_borrowers_go_on(home: Path) -> None:
    """On a node full of borrowers an owner starts within the grace: as few as needed get SIGTERM, save, wait with
    their first time of submission, and resume from what they saved; and it can be read who was stopped for whom."""
    async with stack(home / "data", "--nodes", "0", "--gpus", "declared:local:8:80") as run:
        await set_quota(run, TEAM, "local", 0, 8)
        await set_quota(run, OWNER, "local", 4, 0)
        borrowers = [await borrower(run, home / f"job-{number}", team=TEAM, gpus=2) for number in range(4)]
        before = {each.job: await each.becomes("RUNNING") for each in borrowers}
        for each in borrowers:
            await each.saved(1)
        owner = await borrower(run, home / "owner", team=OWNER, gpus=4)
        started = await owner.becomes("RUNNING")
        assert _seconds(started["submitted_at"], started["granted_at"]) <= GRACE_S
        victims = [each for each in borrowers if (await each.shown())["attempt"] == 2]
        assert len(victims) == 2
        for victim in victims:
            await _was_stopped_for(owner, victim, before[victim.job])
        await _orders_can_be_read(run, owner, victims)
        owner.end()
        await owner.becomes("SUCCEEDED")
        for victim in victims:
            await _goes_on(victim, before[victim.job])
        for each in borrowers:
            assert (await each.shown())["attempt"] == (2 if each in victims else 1)
            each.end()
            await each.becomes("SUCCEEDED", attempt=2 if each in victims else 1)
        await unclaimed(run)
        assert await projected(run) == []


async def _was_stopped_for(owner: Borrower, victim: Borrower, before: dict[str, Any]) -> None:
    shown = await victim.becomes("QUEUED", attempt=2)
    assert (shown["preempted_by"]["job_id"], shown["preempted_by"]["rule"]) == (owner.job, "reclaim")
    assert (shown["submitted_at"], shown["preemptions"]) == (before["submitted_at"], 1)
    assert shown["last_checkpoint"] == (await victim.saved(2))[-1]["uri"]
    told = await asyncio.to_thread(victim.run.client.job_events, victim.job)
    kinds = [event["type"] for event in told]
    ending = kinds.index("gang.ending")
    assert told[ending]["body"]["reason"] == "preempted"
    wanted = ["checkpoint.recorded", "task.ended", "job.queued"]
    assert [kind for kind in kinds[ending:] if kind in wanted] == wanted
    ended = told[kinds.index("task.ended")]["body"]
    assert (ended["end"], ended["exit_code"]) == ("stopped", 143)


async def _orders_can_be_read(run: Stack, owner: Borrower, victims: list[Borrower]) -> None:
    """In the feed, in the attempts, and with the command."""
    names = sorted(victim.job for victim in victims)
    events = await asyncio.to_thread(lambda: list(run.client.events(type="preemption.ordered", follow=False)))
    (order,) = [event.raw["body"] for event in events if event.job == owner.job]
    assert (sorted(job for job, _ in order["victims"]), order["rule"]) == (names, "reclaim")
    for victim in victims:
        answer = await run.get(f"/v1/jobs/{victim.job}/attempts")
        assert [each["preempted_by"] for each in answer["attempts"]] == [owner.job]
        shown = json.loads(await run.command("show", victim.job, "--json"))
        assert shown["preempted_by"]["job_id"] == owner.job
        assert f"{owner.job} (reclaim)" in await run.command("show", victim.job)


async def _goes_on(victim: Borrower, before: dict[str, Any]) -> None:
    shown = await victim.becomes("RUNNING", attempt=2)
    assert shown["submitted_at"] == before["submitted_at"]
    checkpoints = await victim.saved(2)
    assert [each["attempt"] for each in checkpoints[:2]] == [1, 1]
    newest = checkpoints[1]
    assert newest["step"] > checkpoints[0]["step"] == 3
    assert await victim.says(2, "begins at") == f"begins at {newest['step']} from {newest['uri']}"


# A giant among small jobs


async def test_a_giant_starts_by_its_first_estimate_among_a_flood_of_small_jobs(home: Path) -> None:
    """A gang of three quarters of the fleet has nodes reserved though small jobs never cease to wait; on those nodes
    start only jobs that are over by then; and it starts no later than was first said."""
    async with stack(home, "--nodes", "8", "--no-agent") as run:
        await set_quota(run, TEAM, "h100", 0, 64)
        await set_quota(run, "giants", "h100", 0, 64)
        await nothing_is_awaited(run)
        async with never_empty(run, _small, waiting=8):
            await until(lambda: _held(run, 60), what="the fleet is full")
            giant = await asyncio.to_thread(run.client.submit, _giant())
            shown = await until(lambda: _estimated(run, giant.id), what="the gang has an estimate")
            assert shown is not None
            assert len(shown["reservation"]["nodes"]) == 6
            listed = json.loads(await run.command("queue", "--json"))
            assert [row["reservation"] is not None for row in listed if row["job_id"] == giant.id] == [True]
            await until(lambda: _granted(run, giant.id), what="the gang starts")
        found = await records(run.ground.site)
        first, granted = first_estimate(found, giant.id)
        assert granted - first <= LATE_S * 1000
        inside, late = backfilled(found, giant.id)
        assert late == []
        assert inside
        assert await projected(run) == []


def _small(number: int) -> dict[str, Any]:
    """Of two to four GPUs, for two to twelve seconds; most of them use nearly all of what they asked for."""
    limit_s = (3, 6, 12)[number % 3]
    return {
        "team": TEAM,
        "gpu_type": "h100",
        "gpus_per_replica": (2, 4, 4)[number // 3 % 3],
        "command": ["train"],
        "max_runtime": f"{limit_s}s",
        "env": {"SIGNALBOX_SIM_DURATION_S": f"{limit_s * 0.75:.2f}"},
        "checkpoint": {"grace_seconds": 0},
    }


def _giant() -> dict[str, Any]:
    return {
        "team": "giants",
        "gpu_type": "h100",
        "replicas": 6,
        "gpus_per_replica": 8,
        "command": ["train"],
        "max_runtime": "10s",
        "env": {"SIGNALBOX_SIM_DURATION_S": "1"},
    }


async def _held(run: Stack, gpus: int) -> bool:
    """So many GPUs are held by leases."""
    run.check()
    seen = await run.get("/v1/cluster")
    return seen is not None and seen["gpu_types"]["h100"]["held"] >= gpus


async def _estimated(run: Stack, job: str) -> dict[str, Any] | None:
    shown: dict[str, Any] | None = await run.get(f"/v1/jobs/{job}")
    return shown if shown and shown["estimated_start"] else None


async def _granted(run: Stack, job: str) -> bool:
    run.check()
    shown = await run.get(f"/v1/jobs/{job}")
    return shown is not None and shown["granted_at"] is not None


def first_estimate(found: list[Record], job: str) -> tuple[int, int]:
    """(the start that was first reserved, the grant), both ms."""
    reserved = [event.start_at for _, event in _events(found) if _is_of(event, BlocksReserved, job)]
    granted = [commit.at for commit, event in _events(found) if _is_of(event, GangAllocated, job)]
    return reserved[0], granted[0]


def backfilled(found: list[Record], job: str) -> tuple[list[str], list[str]]:
    """Jobs that started on the nodes that were held for `job`: all, and those that might have outstayed its start."""
    held: BlocksReserved | BlocksMoved | None = None
    inside: list[str] = []
    late: list[str] = []
    for _, event in _events(found):
        if isinstance(event, BlocksReserved | BlocksMoved) and event.job_id == job:
            held = event
        elif _is_of(event, BlocksFreed, job):
            held = None
        elif isinstance(event, GangAllocated) and held and {node for node, _ in event.ranks} & set(held.nodes):
            inside.append(event.job_id)
            late += [event.job_id] if event.limit_at is None or event.limit_at > held.start_at else []
    return inside, late


def _is_of(event: Any, kind: type, job: str) -> bool:
    return isinstance(event, kind) and event.job_id == job  # type: ignore[attr-defined]


def _events(found: list[Record]) -> Iterator[tuple[Commit, Any]]:
    for commit in commits(found):
        for event in commit.events:
            yield commit, event


# A saturating load


async def test_a_saturating_load_keeps_nine_of_ten_gpus_allocated(home: Path) -> None:
    """Over a minute in which something always waits, jobs of one GPU and gangs of four nodes among it."""
    async with stack(home, "--nodes", "16", "--no-agent") as run:
        await nothing_is_awaited(run)
        async with never_empty(run, _mixed, waiting=20):
            await until(lambda: _held(run, 115), what="the fleet is full")
            begun = await _log_time(run)
            await until(lambda: _later(run, begun + 60_000), every_s=1, what="a minute is over")
        found = await records(run.ground.site)
        share = allocated_share(found, 128, begun, begun + 60_000)
        assert share > 0.90
        assert await projected(run) == []


def _mixed(number: int) -> dict[str, Any]:
    giant = (4, 8) if number % 16 == 6 else (2, 8)
    replicas, each = ((1, 1), (1, 8), (1, 2), (2, 8), (1, 4), (1, 4), giant, (1, 2))[number % 8]
    run_s = 8 + number * 7 % 13
    return {
        "team": TEAM,
        "gpu_type": "h100",
        "replicas": replicas,
        "gpus_per_replica": each,
        "command": ["train"],
        "max_runtime": f"{run_s + 4}s",
        "env": {"SIGNALBOX_SIM_DURATION_S": str(run_s)},
        "checkpoint": {"grace_seconds": 1},
    }


def allocated_share(found: list[Record], gpus: int, begin: int, end: int) -> float:
    """Of the GPU time between two times (ms), how much was in leases."""
    live: dict[tuple[str, int, int], int] = {}
    held = area = 0
    last = begin
    for commit, event in _events(found):
        now = min(max(commit.at, begin), end)
        area, last = area + held * (now - last), now
        if isinstance(event, GangAllocated):
            for rank, (_, mask) in enumerate(event.ranks):
                live[event.job_id, event.attempt, rank] = mask.bit_count()
                held += mask.bit_count()
        elif isinstance(event, TaskEnded | LeaseReleased):
            held -= live.pop((event.job_id, event.attempt, event.rank), 0)
    return (area + held * (end - last)) / (gpus * (end - begin))


async def _log_time(run: Stack) -> int:
    row = await until(lambda: run.row("SELECT at FROM read.positions"), what="a position")
    assert row is not None
    return int(row["at"])


async def _later(run: Stack, at: int) -> bool:
    run.check()
    row = await run.row("SELECT at FROM read.positions")
    return row is not None and row["at"] >= at


def _seconds(first: str, then: str) -> float:
    return (datetime.fromisoformat(then) - datetime.fromisoformat(first)).total_seconds()
