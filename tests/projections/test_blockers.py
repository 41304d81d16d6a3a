"""What keeps a job from starting, and what made it fail, on tables made from a log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from events.gang import GangEnding
from events.ids import GpuMask, NodeIndex
from events.job import EndReason
from events.node import GpuFaulted, NodeDrained, NodeLost, NodesConfirmed, NodeSuspected
from events.task import TaskEnd, TaskEnded
from projections import blockers, queries
from projections.blockers import Failure, Room
from projections.worker import opened
from tests.projections.story import Story, queued

EU = "eu-1"


@pytest.fixture
async def db(postgres_dsn: str) -> AsyncIterator[Any]:
    made = await queries.pool(postgres_dsn)
    yield made
    await made.close()


async def project(story: Story, dsn: str) -> None:
    async with opened(story.log, dsn) as projector:
        await projector.catch_up()


async def test_room_is_counted_on_nodes_in_service_only(db: Any, postgres_dsn: str) -> None:
    """By size of node, without broken GPUs, once for one that is broken and held; nodes out of service by why."""
    story = await Story(EU).begun()
    for index in range(7):
        await story.node(index, gpus=4)
    await story.node(7, gpus=8)
    await story.node(8, gpus=4)
    await story.commit(NodesConfirmed(nodes=tuple(NodeIndex(index) for index in range(8))))
    await story.grant(await story.job("a", replicas=2), 1, (1, 0b1), (2, 0b11))
    await story.commit(
        GpuFaulted(node=NodeIndex(2), mask=GpuMask(0b110), code="xid"),
        NodeDrained(node=NodeIndex(3), reason="ecc"),
        NodeDrained(node=NodeIndex(4), reason="ecc"),
        NodeLost(node=NodeIndex(4), silent_s=90),
        NodeSuspected(node=NodeIndex(5), silent_s=10),
    )
    await project(story, postgres_dsn)
    names = ["n-3", "n-4", "n-5"]
    small = Room(4, 4, 16, 12, 2, 4, 5, drained=1, silent=1, lost=1, unconfirmed=1, out_names=names)
    large = Room(8, 1, 8, 8, 1, 8, 4, drained=0, silent=0, lost=0, unconfirmed=0, out_names=[])
    assert await blockers.room(db, EU, "h100", per_replica=2) == [small, large]
    assert await blockers.room(db, EU, "h100", memory_gb_min=81) == []
    assert await blockers.room(db, EU, "a100") == []


async def test_the_rank_that_failed_first_is_to_blame(db: Any, postgres_dsn: str) -> None:
    """Not those that were stopped because of it; of the newest attempt that failed; none for one that was stopped."""
    story = await Story(EU).begun()
    await story.node(0)
    job = await story.job("a", replicas=3)

    async def end(attempt: int, rank: int, how: TaskEnd, code: int | None, detail: str = "") -> None:
        names: dict[str, Any] = {"job_id": job, "attempt": attempt, "rank": rank, "node": NodeIndex(0)}
        await story.commit(TaskEnded(**names, report=1, end=how, exit_code=code, detail=detail))

    async def ending(attempt: int, reason: EndReason) -> None:
        await story.commit(GangEnding(job_id=job, attempt=attempt, reason=reason, grace_s=1))

    for attempt in (1, 2, 3):
        await story.grant(job, attempt, (0, 0b1), (0, 0b10), (0, 0b100))
        await story.commit(queued(job, attempt + 1))
    await project(story, postgres_dsn)
    assert await blockers.failure(db, EU, job) is None
    await end(1, 2, TaskEnd.START_FAILED, None, "no such GPU")
    await ending(1, EndReason.START_FAILED)
    await end(2, 0, TaskEnd.EXITED, 0)
    await end(2, 1, TaskEnd.EXITED, 127, "nosuch: command not found")
    await ending(2, EndReason.NONZERO_EXIT)
    await end(2, 2, TaskEnd.STOPPED, 143)
    await end(3, 0, TaskEnd.EXITED, 1)
    await ending(3, EndReason.PREEMPTED)
    await project(story, postgres_dsn)
    assert await blockers.failure(db, EU, job) == Failure(2, 1, "exited", 127, "nosuch: command not found")
