"""The read queries, on tables made from a log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from events.gang import GangEnding, GangReleased, GangRunning
from events.ids import GpuMask, GpuType, JobId, NodeIndex
from events.job import (
    EndReason,
    JobFinished,
    JobHeld,
    JobQueued,
    JobState,
    JobSubmitted,
    PriorityClass,
    QueueReason,
)
from events.leadership import CommandRefused
from events.node import GpuFaulted, NodeDrained, NodeLost, NodeRemoved, NodeReturned
from events.quota import QuotaChanged
from events.task import TaskEnd, TaskEnded, TaskStarted
from projections import audit, queries
from projections.audit import AuditFilter
from projections.queries import Ahead, JobFilter, QuotaUse
from projections.where import LIMIT_MAX, BadCursor
from projections.worker import opened
from tests.projections.story import ADA, H100, RESEARCH, T0, Story, job_spec, queued

EU = "eu-1"


@pytest.fixture
async def db(postgres_dsn: str) -> AsyncIterator[Any]:
    made = await queries.pool(postgres_dsn)
    yield made
    await made.close()


@pytest.fixture
async def story() -> Story:
    return await Story(EU).begun()


async def project(story: Story, dsn: str) -> None:
    async with opened(story.log, dsn) as projector:
        await projector.catch_up()


async def test_the_queue_goes_by_class_then_front_then_submission(db: Any, story: Story, postgres_dsn: str) -> None:
    """Held jobs keep their place and stand in nobody's way; count and listing agree."""
    await story.node(0)
    for name, kind in [
        ("late", "preemptible"),
        ("a", "research"),
        ("b", "research"),
        ("c", "research"),
        ("p", "prod-batch"),
    ]:
        await story.job(name, priority_class=PriorityClass(kind))
    await story.job("run")
    await story.grant(JobId("j_run"), 1, (0, 1))
    await story.commit(queued(JobId("j_c"), 2, QueueReason.FAULT, front=True), JobHeld(job_id=JobId("j_a")))
    await project(story, postgres_dsn)
    listed = await queries.queue(db, EU)
    assert [(one.position, one.job.job_id) for one in listed] == [(1, "j_p"), (2, "j_c"), (3, "j_b"), (4, "j_late")]
    for one in listed:
        assert await queries.ahead_of(db, EU, one.job.job_id) == Ahead(one.position - 1, one.ahead_of_type)
    assert await queries.ahead_of(db, EU, "j_a") == Ahead(2, 2)
    assert await queries.ahead_of(db, EU, "j_run") is None
    assert await queries.ahead_of(db, "us-1", "j_b") is None
    assert await queries.ahead(db, EU, 2, story.head.seq + 1) == 3
    assert await queries.ahead(db, EU, 2, 0, front=True) == 1
    assert await queries.queue_length(db, EU) == 4
    assert [one.job.job_id for one in await queries.queue(db, EU, offset=2, limit=1)] == ["j_b"]


async def test_those_ahead_for_the_same_gpu_type_are_counted_apart(db: Any, story: Story, postgres_dsn: str) -> None:
    """Jobs for other GPUs are ahead in the queue, and in nobody's way; a later page goes on counting."""
    for name, gpu_type in [("a", "h100"), ("b", "a100"), ("c", "h100"), ("d", "a100")]:
        await story.job(name, gpu_type=GpuType(gpu_type))
    await project(story, postgres_dsn)
    assert [one.ahead_of_type for one in await queries.queue(db, EU)] == [0, 0, 1, 1]
    assert [(one.position, one.ahead_of_type) for one in await queries.queue(db, EU, offset=2)] == [(3, 1), (4, 1)]
    assert await queries.ahead_of(db, EU, "j_d") == Ahead(3, 1)


class Explained:
    """Stands where the database is asked: it carries a query out, and keeps how."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.plan: dict[str, Any] = {}

    async def fetchrow(self, query: str, *args: Any) -> None:
        told = await self._db.fetchval(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query}", *args)
        self.plan = orjson.loads(told)[0]["Plan"]

    def rows(self) -> int:
        """Rows that all its steps gave or threw away."""
        steps, looked_at = [self.plan], 0
        while steps:
            step = steps.pop()
            steps += step.get("Plans", ())
            thrown = step.get("Rows Removed by Filter", 0) + step.get("Rows Removed by Join Filter", 0)
            looked_at += round((step["Actual Rows"] + thrown) * step["Actual Loops"])
        return looked_at


async def test_who_is_ahead_is_counted_in_one_pass(db: Any, story: Story, postgres_dsn: str) -> None:
    """The last of a queue of 10,000: each of the others is looked at once."""
    classes = list(PriorityClass)
    for start in range(0, 10_000, 500):
        events: list[JobSubmitted | JobQueued] = []
        for number in range(start, start + 500):
            job_id, spec = JobId(f"j_{number}"), job_spec(priority_class=classes[number % 4])
            events.append(JobSubmitted(job_id=job_id, spec=spec, principal=ADA))
            events.append(queued(job_id, 1, QueueReason.SUBMITTED))
        await story.commit(*events)
    await project(story, postgres_dsn)
    assert await queries.ahead(db, EU, 3, 2**62) == 10_000
    assert await queries.ahead_of(db, EU, "j_9999") == Ahead(9_999, 9_999)
    explained = Explained(db)
    assert await queries.ahead_of(explained, EU, "j_9999") is None
    assert 9_999 <= explained.rows() < 50_000


async def test_jobs_are_listed_newest_first_page_by_page(db: Any, story: Story, postgres_dsn: str) -> None:
    """Each job comes once, whatever is submitted or ends between two pages."""
    for number in range(5):
        await story.job(f"{number}")
    await project(story, postgres_dsn)
    first = await queries.jobs(db, EU, JobFilter(), limit=2)
    await story.job("new")
    await story.commit(JobFinished(job_id=JobId("j_2"), state=JobState.CANCELLED, reason=EndReason.CANCELLED))
    await project(story, postgres_dsn)
    second = await queries.jobs(db, EU, JobFilter(), cursor=first.cursor, limit=2)
    third = await queries.jobs(db, EU, JobFilter(), cursor=second.cursor, limit=2)
    pages = [[job.job_id for job in page.items] for page in (first, second, third)]
    assert pages == [["j_4", "j_3"], ["j_2", "j_1"], ["j_0"]]
    assert third.cursor is None
    for bad in ("", "x", "cz", "c-1=", "czk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"):
        with pytest.raises(BadCursor):
            await queries.jobs(db, EU, JobFilter(), cursor=bad)


async def test_jobs_are_found_by_team_state_label_name_and_hold(db: Any, story: Story, postgres_dsn: str) -> None:
    """All conditions together; another cluster has none of them."""
    await story.job("a", labels={"run": "1", "kind": "x"}, name="llm")
    await story.job("b", labels={"run": "2"}, team="prod")
    await story.commit(JobHeld(job_id=JobId("j_b")))
    await story.commit(JobFinished(job_id=JobId("j_a"), state=JobState.CANCELLED, reason=EndReason.CANCELLED))
    await project(story, postgres_dsn)

    async def found(cluster: str = EU, **wanted: Any) -> list[str]:
        return [job.job_id for job in (await queries.jobs(db, cluster, JobFilter(**wanted))).items]

    assert await found() == ["j_b", "j_a"]
    assert await found(cluster="us-1") == []
    assert await found(team="prod") == await found(states=("QUEUED", "RUNNING")) == await found(held=True) == ["j_b"]
    assert await found(labels={"run": "1"}) == await found(name="llm") == await found(states=("CANCELLED",)) == ["j_a"]
    assert await found(labels={"run": "1", "kind": "y"}) == await found(team="prod", name="llm") == []
    assert await found(principal="user:ada") == ["j_b", "j_a"]


async def test_a_job_shows_its_attempts_ranks_and_timeline(db: Any, story: Story, postgres_dsn: str) -> None:
    """Placement of each attempt, and all that happened to the job, in order and by pages."""
    await story.node(0)
    job = await story.job("a", replicas=2)
    await story.grant(job, 1, (0, 0b1), (0, 0b10))
    await story.commit(GangRunning(job_id=job, attempt=1))
    await story.job("other")
    await project(story, postgres_dsn)
    shown = await queries.job(db, EU, job)
    assert shown is not None
    assert shown == story.row(type(shown), job)
    assert await queries.job(db, EU, "j_none") is None
    assert [(a.attempt, a.nodes, a.blocks) for a in await queries.attempts(db, EU, job)] == [(1, ["n-0"], ["b0"])]
    assert [(lease.rank, lease.gpus) for lease in await queries.leases(db, EU, job, 1)] == [(0, [0]), (1, [1])]
    assert await queries.attempt(db, EU, job, 2) is None
    first = await audit.job_timeline(db, EU, job, limit=3)
    rest = await audit.job_timeline(db, EU, job, cursor=first.cursor, limit=3)
    types = [row.type for row in [*first.items, *rest.items]]
    assert types == ["job.submitted", "job.queued", "gang.allocated", "gang.running"]
    assert rest.cursor is None


async def test_use_is_what_live_leases_hold_but_none_on_lost_nodes(db: Any, story: Story, postgres_dsn: str) -> None:
    """Charged from the grant to the confirmed end, also while stopping; not on a lost node, until it returns."""
    await story.node(0)
    await story.node(1)
    await story.commit(QuotaChanged(team=RESEARCH, gpu_type=H100, guaranteed=3, borrow_limit=8))
    job = await story.job("a", replicas=2, gpus_per_replica=4)
    names: dict[str, Any] = {"job_id": job, "attempt": 1}

    async def use() -> list[QuotaUse]:
        await project(story, postgres_dsn)
        return await queries.quotas(db, EU, team=RESEARCH)

    assert await use() == [QuotaUse(RESEARCH, "h100", 3, 8, 0)]
    await story.grant(job, 1, (0, 15), (1, 15))
    (line,) = await use()
    assert (line.in_use, line.borrowed) == (8, 5)
    await story.commit(GangEnding(**names, reason=EndReason.CANCELLED, grace_s=1))
    assert (await use())[0].in_use == 8
    await story.commit(NodeLost(node=NodeIndex(1), silent_s=90))
    assert (await use())[0].in_use == 4
    await story.commit(NodeReturned(node=NodeIndex(1)))
    assert (await use())[0].in_use == 8
    gone = TaskEnded(**names, rank=1, node=NodeIndex(1), report=1, end=TaskEnd.STOPPED, exit_code=None)
    await story.commit(gone)
    assert (await use())[0].in_use == 4
    await story.commit(NodeLost(node=NodeIndex(0), silent_s=90))
    assert (await use())[0].borrowed == 0


async def test_use_without_a_quota_shows_too(db: Any, story: Story, postgres_dsn: str) -> None:
    """With a guarantee of 0: what is held is never hidden."""
    await story.node(0)
    await story.grant(await story.job("a", team="guests"), 1, (0, 3))
    await project(story, postgres_dsn)
    assert await queries.quotas(db, EU) == [QuotaUse("guests", "h100", 0, 0, 2)]
    assert await queries.quotas(db, EU, team="research") == []


async def test_nodes_show_who_holds_their_gpus(db: Any, story: Story, postgres_dsn: str) -> None:
    """Slot by slot; filters by block and state; removed nodes only when asked for."""
    for index in range(4):
        await story.node(index, gpus=4)
    job = await story.job("a")
    await story.grant(job, 1, (0, 0b101))
    await story.commit(
        NodeRemoved(node=NodeIndex(3), reason="scrap"),
        NodeDrained(node=NodeIndex(1), reason="ecc"),
        GpuFaulted(node=NodeIndex(2), mask=GpuMask(0b11), code="xid"),
    )
    await project(story, postgres_dsn)
    assert [use.node.node_id for use in await queries.nodes(db, EU)] == ["n-0", "n-1", "n-2"]
    assert [use.node.node_id for use in await queries.nodes(db, EU, block="b1")] == ["n-2"]
    assert [use.node.node_id for use in await queries.nodes(db, EU, states=("removed",))] == ["n-3"]
    use = await queries.node(db, EU, "n-0")
    assert use is not None
    assert use.held == {0: (job, 1, 0), 2: (job, 1, 0)}
    assert (await queries.node(db, EU, "n-3")) is not None
    assert await queries.node(db, EU, "n-9") is None
    assert [lease.job_id for lease in await queries.leases_on(db, EU, "n-0")] == [job]
    assert await queries.capacity(db, EU) == [queries.Capacity("h100", nodes=3, total=12, usable=6, held=2)]
    held = await db.fetch("SELECT node_id, gpu, ended_at FROM read.allocations ORDER BY gpu")
    assert [tuple(record) for record in held] == [("n-0", 0, None), ("n-0", 2, None)]


async def test_audit_finds_events_by_what_they_are_about(db: Any, story: Story, postgres_dsn: str) -> None:
    """By actor, job, node, GPU, team, type and time; grants are found by each of their nodes and GPUs."""
    for index in range(2):
        await story.node(index)
    job = await story.job("a", replicas=2)
    await story.grant(job, 1, (0, 0b10), (1, 0b100))
    granted_at = story.at
    await story.commit(TaskStarted(job_id=job, attempt=1, rank=1, node=NodeIndex(1), report=1), actor="node:n-1")
    await story.commit(GangReleased(job_id=job, attempt=1))
    await story.commit(NodeDrained(node=NodeIndex(1), reason="ecc"))
    await project(story, postgres_dsn)

    async def types(**wanted: Any) -> list[str]:
        return [row.type for row in (await audit.audit(db, EU, AuditFilter(**wanted))).items]

    everything = await types()
    assert len(everything) == story.head.seq
    assert await types(actor="node:n-1") == ["task.started"]
    assert await types(node_id="n-1") == ["node.drained", "task.started", "gang.allocated", "node.registered"]
    assert await types(node_id="n-1", gpu=2) == ["node.drained", "task.started", "gang.allocated", "node.registered"]
    assert await types(node_id="n-1", gpu=1) == ["node.drained", "node.registered"]
    assert await types(job_id=job, types=("gang.released", "job.queued")) == ["gang.released", "job.queued"]
    assert await types(team="research", from_at=granted_at, to_at=granted_at + 1) == ["gang.allocated"]
    assert await types(to_at=T0) == []


async def test_the_feed_gives_as_much_as_is_asked_for(db: Any, story: Story, postgres_dsn: str) -> None:
    """More than a page holds, too: fewer events than asked for mean that there are no more."""
    for number in range(LIMIT_MAX // 2 + 1):
        await story.job(f"n{number}")
    await project(story, postgres_dsn)
    asked = LIMIT_MAX + 2
    assert [row.seq for row in await audit.events_after(db, EU, 0, limit=asked)] == list(range(1, asked + 1))


async def test_the_feed_resumes_anywhere_and_misses_nothing(db: Any, story: Story, postgres_dsn: str) -> None:
    """After any seq come exactly the later ones, in order, also under a filter."""
    for name in "abc":
        await story.job(name)
    await project(story, postgres_dsn)
    seen: list[int] = []
    while batch := await audit.events_after(db, EU, seen[-1] if seen else 0, limit=2):
        seen += [row.seq for row in batch]
    assert seen == [1, 2, 3, 4, 5, 6]
    later = await audit.events_after(db, EU, 3, AuditFilter(types=("job.queued",)))
    assert [row.seq for row in later] == [4, 6]
    assert later[0].body == {
        "job_id": "j_b",
        "attempt": 1,
        "reason": "submitted",
        "front": False,
        "not_before_at": None,
        "waits_on": [],
    }


async def test_a_command_is_answered_by_its_events(db: Any, story: Story, postgres_dsn: str) -> None:
    """All of them and no others; none while it was not taken."""
    await story.job("a")
    await story.command(CommandRefused(code="wrong_state"), type="release_job", job_id="j_a")
    await project(story, postgres_dsn)
    assert [row.type for row in await audit.answer(db, EU, "c1")] == ["job.submitted", "job.queued"]
    assert [row.body["code"] for row in await audit.answer(db, EU, "c2")] == ["wrong_state"]
    assert await audit.answer(db, EU, "c3") == []


async def test_the_cluster_says_who_leads_and_how_far_the_tables_are(db: Any, story: Story, postgres_dsn: str) -> None:
    """Leader, position and histories; nothing of a cluster that was never projected."""
    await story.term()
    await project(story, postgres_dsn)
    now, at = await queries.cluster_now(db, EU), await queries.position(db, EU)
    assert now is not None
    assert at is not None
    assert (now.epoch, now.holder, at.n, at.seq) == (2, "scheduler-2", story.head.n, 0)
    assert [leader.epoch for leader in await queries.leaders(db, EU)] == [2, 1]
    assert await queries.policies(db, EU) == []
    assert await queries.team(db, EU, "research") is None
    assert await queries.cluster_now(db, "us-1") is None
    assert await queries.position(db, "us-1") is None
