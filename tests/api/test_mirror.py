"""The api's copy of the state: it says of every waiting job what the leader's own planner would say, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from api.mirror import Mirror
from commands import snapshot
from events.chain import Head
from events.codec import Unreadable
from events.gang import GangAllocated
from events.ids import ClusterId, GpuMask, Instant, JobId, NodeIndex, Principal, TeamId
from events.job import JobQueued, JobSubmitted, QueueReason
from events.log import LogUnavailable
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore, Topic
from events.quota import QuotaChanged
from scheduler.memory import MemoryControl, MemorySnapshots
from scheduler.planning.explain import Factor, explain
from scheduler.planning.plan import Planner
from tests.api.leader import AT, Leader
from tests.builders import H100, job_id, spec
from tests.properties.histories import History
from tests.scenario import fold_log
from tests.servers.waiting import WITHIN_S

CLUSTER = ClusterId("eu-1")
NOW = Instant(AT + 3_600_000)
A = JobId("j_a")


class Lead:
    """A leader over a log in memory, and mirrors of it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.snapshots = MemorySnapshots(MemoryControl(lambda: NOW), CLUSTER)
        self.log = MemoryEventLog(self.store, CLUSTER)
        self.leader = Leader(self.log, MemoryCommandLog(self.store, CLUSTER))

    async def begin(self) -> Mirror:
        """A small fleet, and job A that waits for a GPU of its team."""
        await self.log.open(create=True)
        await self.leader.lead()
        asked = spec(team=TeamId("pretrain"), gpus_per_replica=8)
        submitted = JobSubmitted(job_id=A, spec=asked, principal=Principal("user:ada"))
        await self.leader.commit([submitted, JobQueued(job_id=A, attempt=1, reason=QueueReason.SUBMITTED)])
        return await self.mirror()

    async def mirror(self) -> Mirror:
        log = MemoryEventLog(self.store, CLUSTER)
        await log.open()
        return Mirror(CLUSTER, log, self.snapshots)

    async def lowers(self, guaranteed: int) -> None:
        """The quota of A's team."""
        team = TeamId("pretrain")
        await self.leader.commit(
            [QuotaChanged(team=team, gpu_type=H100, guaranteed=guaranteed, borrow_limit=0, reason="")]
        )


async def factors(mirror: Mirror, job: JobId = A) -> list[Factor] | None:
    """What it says, given time."""
    found = await mirror.why(job, NOW, WITHIN_S)
    return None if found is None else [reason.factor for reason in found]


async def test_it_answers_as_the_log_has_it_now() -> None:
    """Each question sees what was committed before it."""
    lead = Lead()
    mirror = await lead.begin()
    assert await factors(mirror) == [Factor.NEXT]
    await lead.lowers(4)
    assert await factors(mirror) == [Factor.OVER_LIMIT]
    await lead.lowers(8)
    assert await factors(mirror) == [Factor.NEXT]
    ranks = ((NodeIndex(0), GpuMask(255)),)
    await lead.leader.commit([GangAllocated(job_id=A, attempt=1, ranks=ranks, limit_at=None)])
    assert await factors(mirror) is None
    assert await factors(mirror, JobId("j_nobody")) is None


async def test_it_begins_with_the_newest_snapshot() -> None:
    """A snapshot in which the job is held, though the log never said so, is taken at its word."""
    lead = Lead()
    await lead.begin()
    lead.leader.state.accept()
    state = snapshot.load(snapshot.dump(lead.leader.state))
    state.jobs.put(A, replace(state.jobs[A], held=True))
    state.accept()
    await lead.snapshots.save(lead.leader.head, snapshot.fingerprint(), snapshot.dump(state))
    await lead.lowers(4)
    assert await factors(await lead.mirror()) == [Factor.HELD, Factor.OVER_LIMIT]


async def test_a_log_that_was_cut_is_read_anew() -> None:
    """What it folded is not in the log any more: it says nothing, and then what the log says."""
    lead = Lead()
    mirror = await lead.begin()
    before = lead.leader.head
    await lead.lowers(4)
    assert await factors(mirror) == [Factor.OVER_LIMIT]
    lead.store.partition(Topic.EVENTS, CLUSTER).truncate(before.offset)
    lead.leader.head = before
    await lead.lowers(6)
    await lead.lowers(8)
    assert [await factors(mirror), await factors(mirror)] == [None, [Factor.NEXT]]


class Unreachable:
    """Snapshots that cannot be had for a while."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def save(self, head: Head, fingerprint: str, state: bytes) -> None:
        raise LogUnavailable("no database")

    async def newest(self, fingerprint: str) -> Sequence[tuple[Head, bytes]]:
        self.left -= 1
        if self.left >= 0:
            raise OSError("no database")
        return []


async def test_what_it_cannot_reach_costs_answers_only() -> None:
    """And not for ever."""
    lead = Lead()
    await lead.begin()
    log = MemoryEventLog(lead.store, CLUSTER)
    await log.open()
    mirror = Mirror(CLUSTER, log, Unreachable(2))
    assert [await factors(mirror) for _ in range(3)] == [None, None, [Factor.NEXT]]


class Slow(MemorySnapshots):
    """Snapshots that come when they are told to."""

    def __init__(self) -> None:
        super().__init__(MemoryControl(lambda: NOW), CLUSTER)
        self.come = asyncio.Event()

    async def newest(self, fingerprint: str) -> Sequence[tuple[Head, bytes]]:
        await self.come.wait()
        return await super().newest(fingerprint)


async def test_nobody_waits_longer_than_he_said() -> None:
    """The reading goes on, and the next question is answered."""
    lead = Lead()
    await lead.begin()
    lead.snapshots = slow = Slow()
    mirror = await lead.mirror()
    assert await mirror.why(A, NOW, 0.01) is None
    slow.come.set()
    assert await factors(mirror) == [Factor.NEXT]


class Counting(MemorySnapshots):
    """Snapshots that count how often they are asked for, and come when they are told to."""

    def __init__(self, failing: type[Exception] | None = None) -> None:
        super().__init__(MemoryControl(lambda: NOW), CLUSTER)
        self.asked = 0
        self.failing = failing
        self.come = asyncio.Event()

    async def newest(self, fingerprint: str) -> Sequence[tuple[Head, bytes]]:
        self.asked += 1
        await self.come.wait()
        if self.failing is not None:
            raise self.failing("not to be read")
        return await super().newest(fingerprint)


async def test_however_many_ask_it_reads_once_for_all() -> None:
    """While the first reading hangs the others wait for one more, and none is left behind by those who went away."""
    lead = Lead()
    await lead.begin()
    lead.snapshots = slow = Counting()
    mirror = await lead.mirror()
    before = len(asyncio.all_tasks())
    assert [await mirror.why(A, NOW, 0.001) for _ in range(20)] == [None] * 20
    assert len(asyncio.all_tasks()) - before <= 2
    slow.come.set()
    assert await factors(mirror) == [Factor.NEXT]
    assert slow.asked == 1


async def test_what_cannot_be_read_is_not_begun_anew_for_each_who_asks() -> None:
    """An event that this build does not know, say: to read the log from the start for each question would stop the
    api."""
    lead = Lead()
    await lead.begin()
    lead.snapshots = bad = Counting(Unreadable)
    bad.come.set()
    mirror = await lead.mirror()
    assert [await factors(mirror) for _ in range(20)] == [None] * 20
    assert bad.asked == 2


@pytest.mark.parametrize("seed", range(500, 504))
def test_the_leader_says_the_same(seed: int) -> None:
    """Whatever happened: of every waiting job the planner that decided, and one over a fold of the log, name the same
    factors with the same figures."""
    history, asked = History(seed), 0
    for _ in range(4):
        history.run(40)
        folded = type(history.state)(history.state.cluster)
        fold_log(history.scenario.log, folded)
        now, copy = Instant(history.scenario.at + 1000), Planner(folded)
        for name in history.names:
            told = explain(history.scenario.planner, job_id(name), now)
            assert told == explain(copy, job_id(name), now)
            asked += bool(told)
    assert asked > 5
