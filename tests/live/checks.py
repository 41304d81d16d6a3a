"""What has to be true of a stack at any time and at its end, read from the log, from Postgres and from the journals of
those who ran the tasks; never from what a scheduler says of itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from agent.simulated import overlaps
from events.envelope import Commit, Record
from events.gang import GangAllocated, LeaseReleased
from events.ids import NodeId, NodeIndex, lease_id
from events.log import EventLog, accepted
from events.node import NodeRegistered
from events.task import TaskEnd, TaskEnded
from projections.database import connect
from projections.digest import differing
from replay.verify import Report
from replay.verify.window import EVERYTHING
from signalboxd.site import Site
from signalboxd.verify import Target, verified
from signalboxd.wiring import open_logs
from tests.live.stack import Stack
from tests.live.waiting import until


@asynccontextmanager
async def event_log(site: Site) -> AsyncIterator[EventLog]:
    """The events log, open for reading."""
    log, _ = open_logs(site, "test")
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def records(site: Site) -> list[Record]:
    """Every record that readers accept."""
    async with event_log(site) as log:
        return [outcome.record() async for outcome in accepted(log)]


def commits(found: Iterable[Record]) -> Iterator[Commit]:
    """The commits among them."""
    return (record for record in found if isinstance(record, Commit))


def double_leases(found: Iterable[Record]) -> list[str]:
    """Every GPU that was in two live leases at once, by node, GPU and interval of the log (I-1, C-31)."""
    holder: dict[tuple[int, int], str] = {}
    held: dict[str, list[tuple[int, int]]] = {}
    faults: list[str] = []
    for commit in commits(found):
        for event in commit.events:
            if isinstance(event, GangAllocated):
                for rank, (node, mask) in enumerate(event.ranks):
                    lease = lease_id(event.job_id, event.attempt, rank)
                    held[lease] = [(node, gpu) for gpu in range(mask.bit_length()) if mask >> gpu & 1]
                    for place in held[lease]:
                        if place in holder:
                            faults.append(f"{place} at n {commit.n}: {lease}, while {holder[place]} holds it")
                        holder[place] = lease
            elif isinstance(event, TaskEnded | LeaseReleased):
                lease = lease_id(event.job_id, event.attempt, event.rank)
                for place in held.pop(lease, ()):
                    if holder.get(place) == lease:
                        del holder[place]
    return faults + [f"{place} is still held by {lease}" for place, lease in sorted(holder.items())]


def leases_of(found: Iterable[Record]) -> dict[str, NodeId]:
    """Every lease that was ever granted, with its node."""
    names: dict[NodeIndex, NodeId] = {}
    leases: dict[str, NodeId] = {}
    for commit in commits(found):
        for event in commit.events:
            if isinstance(event, NodeRegistered):
                names[event.node] = event.node_id
            elif isinstance(event, GangAllocated):
                for rank, (node, _) in enumerate(event.ranks):
                    leases[lease_id(event.job_id, event.attempt, rank)] = names[node]
    return leases


def ended_well(found: Iterable[Record]) -> set[str]:
    """Leases whose task exited with 0, by the log."""
    return {
        lease_id(event.job_id, event.attempt, event.rank)
        for commit in commits(found)
        for event in commit.events
        if isinstance(event, TaskEnded) and event.end is TaskEnd.EXITED and event.exit_code == 0
    }


def fleet_ledger(home: Path) -> list[dict[str, Any]]:
    """What the virtual machines of a fleet wrote: which lease ran when, on which GPU."""
    lines = (home / "fleet" / "ledger.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines]


def ledger_faults(home: Path, found: list[Record]) -> list[str]:
    """By the fleet's own journal: GPUs that ran two leases at once, leases that began twice or were never granted,
    and tasks that the log calls done and that did not run."""
    ledger = fleet_ledger(home)
    granted = leases_of(found)
    begun: dict[str, set[float]] = {}
    ended: set[str] = set()
    for line in ledger:
        if "task" in line:
            begun.setdefault(line["lease"], set()).add(line["task"]["begun_at"])
        elif line.get("end") == TaskEnd.EXITED:
            ended.add(line["lease"])
    faults = overlaps(ledger)
    faults += [f"{lease} began {len(times)} times" for lease, times in begun.items() if len(times) > 1]
    faults += [f"{lease} ran and was never granted" for lease in begun.keys() - granted.keys()]
    ours = {lease for lease in ended_well(found) if granted[lease].startswith("n-")}
    faults += [f"{lease} is done by the log, and did not run" for lease in ours - (begun.keys() & ended)]
    return faults


async def claims(site: Site) -> list[tuple[str, int, str]]:
    """The claims table: (node, GPU, lease)."""
    connection = await asyncpg.connect(site.postgres)
    try:
        rows = await connection.fetch("SELECT node_id, gpu_index, lease_id FROM control.claims ORDER BY 1, 2")
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


async def unclaimed(stack: Stack) -> None:
    """Wait until no GPU is claimed: the claim of a lease that has ended goes right after the record that says so."""

    async def there() -> bool:
        return await claims(stack.ground.site) == []

    await until(there, what="no GPU is claimed")


async def projected(stack: Stack) -> list[str]:
    """The tables that are not the fold of the log, once the projector has read to its present end (C-65)."""
    async with event_log(stack.ground.site) as log:
        end = await log.end()

        async def there() -> bool:
            row = await stack.row('SELECT "offset" FROM read.positions')
            return row is not None and row["offset"] >= end

        await until(there, what="the projector is at the end of the log")
        connection = await connect(stack.ground.site.postgres)
        try:
            return await differing(connection, log)
        finally:
            await connection.close()


async def verified_log(site: Site) -> Report:
    """What `signalboxd verify` says of the site's log, with the heads that Postgres knows."""
    return await verified(Target(site, Path("the stack")), EVERYTHING, recompute=True, tell=lambda read, total: None)


async def sound_at_rest(stack: Stack) -> list[Record]:
    """With no job left: no GPU was ever leased twice, none is claimed, the journals agree, fold = projection, and the
    log is whole: each of its decisions comes out again, byte for byte.

    Returns the log.
    """
    stack.check()
    await unclaimed(stack)
    found = await records(stack.ground.site)
    assert double_leases(found) == []
    assert ledger_faults(stack.ground.data, found) == []
    assert await projected(stack) == []
    report = await verified_log(stack.ground.site)
    assert (report.finding, report.differences, report.not_recomputable) == (None, [], [])
    assert report.recomputed == report.commits >= sum(1 for _ in commits(found))
    assert {noted.by for noted in report.noted} == {"the epoch row", "the projector"}
    return found
