"""Reservations, pledges and preemptions over REST: what is held for whom, and who was stopped for whom (C-60, C-62)."""

from __future__ import annotations

from typing import Any

import pytest

from api.times import format_time
from api.waiting import Known, is_in_queue, waiting_view
from events.gang import GangAllocated, GangEnding, GangResized, ResizeReason
from events.ids import GpuMask, GpuType, Instant, JobId, NodeIndex
from events.job import EndReason, JobQueued, PriorityClass, QueueReason
from events.preemption import PledgeEnd, PreemptionEnded, PreemptionOrdered, PreemptionRule
from events.reservation import BlocksFreed, BlocksReserved, FreedBecause
from events.task import TaskEnd, TaskEnded
from projections.blockers import Held
from projections.queries import QuotaUse
from projections.rows import JobRow
from tests.api.site import Site
from tests.api.test_why import room
from tests.projections.story import Story

H100 = GpuType("h100")
WHOLE = GpuMask(255)
START_AT = Instant(1_790_000_600_000)


async def read(api: Site, path: str) -> dict[str, Any]:
    """As soon as the tables are where the leader is."""
    found: dict[str, Any] = (await api.get(f"{path}?min_seq={api.leader.head.seq}")).json()
    return found


async def waiting(api: Site, **spec: Any) -> JobId:
    return JobId((await api.submitted(**spec))["job_id"])


async def reserve(api: Site, job: JobId, *nodes: int) -> None:
    held = tuple(NodeIndex(node) for node in nodes)
    await api.leader.commit([BlocksReserved(job_id=job, gpu_type=H100, pool="", nodes=held, start_at=START_AT)])


async def test_a_reserved_start_is_told_wherever_a_job_waits(api: Site) -> None:
    """In the job, its why and the queue: which nodes, and when; and it is gone with the reservation."""
    job = await waiting(api, replicas=3)
    assert (await read(api, f"/v1/jobs/{job}"))["estimated_start"] is None
    await reserve(api, job, 0, 2, 3)
    start = format_time(START_AT)
    shown = await read(api, f"/v1/jobs/{job}")
    assert (shown["estimated_start"], shown["reservation"]["start_at"]) == (start, start)
    assert shown["reservation"]["nodes"] == ["n-0", "n-2", "n-3"]
    assert (await read(api, f"/v1/jobs/{job}/why"))["estimated_start"] == start
    (queued,) = (await read(api, "/v1/queue"))["queue"]
    assert queued["estimated_start"] == start
    await api.leader.commit([BlocksFreed(job_id=job, because=FreedBecause.OVERTAKEN)])
    shown = await read(api, f"/v1/jobs/{job}")
    assert (shown["estimated_start"], shown["reservation"]) == (None, None)


async def test_a_job_that_fits_on_held_nodes_is_told_whose_they_are(api: Site) -> None:
    """The holder, how many nodes, and when it is to start; to the holder itself nothing is held."""
    big, small = await waiting(api, replicas=4), await waiting(api, replicas=2)
    await reserve(api, big, 0, 1, 2, 3)
    told = (await read(api, f"/v1/jobs/{small}/why"))["reasons"]
    held = next(reason for reason in told if reason["code"] == "reserved")
    assert (held["job"], held["nodes"], held["start_at"]) == (big, 4, format_time(START_AT))
    text = (
        f"4 nodes with h100 GPUs are held for {big}, which is to start at {format_time(START_AT)}; this job might run"
    )
    assert held["text"].startswith(text)
    assert "reserved" not in [reason["code"] for reason in (await read(api, f"/v1/jobs/{big}/why"))["reasons"]]


async def test_who_overtakes_a_reservation_is_not_held_back_by_it(api: Site) -> None:
    """A job of a higher class takes the nodes that are held for another: its way is free, and so it is told."""
    big = await waiting(api, replicas=4, priority_class=PriorityClass.PREEMPTIBLE)
    small = await waiting(api, gpus_per_replica=1)
    await reserve(api, big, 0, 1, 2, 3)
    told = (await read(api, f"/v1/jobs/{small}/why"))["reasons"]
    assert [reason["code"] for reason in told] == ["queued", "next"]


async def preempted(api: Site) -> tuple[JobId, JobId]:
    """(victim, preemptor): the victim has node 0, and is being stopped."""
    victim, preemptor = await waiting(api), await waiting(api)
    ranks = ((NodeIndex(0), WHOLE),)
    await api.leader.commit([GangAllocated(job_id=victim, attempt=1, ranks=ranks, limit_at=None)])
    order = PreemptionOrdered(job_id=preemptor, rule=PreemptionRule.RECLAIM, ranks=ranks, victims=((victim, 1),))
    await api.leader.commit([order, GangEnding(job_id=victim, attempt=1, reason=EndReason.PREEMPTED, grace_s=60)])
    return victim, preemptor


async def test_room_that_is_made_is_told_with_whom_it_costs(api: Site) -> None:
    """Rule, GPUs, nodes and victims, in the job and as a reason; until the pledge ends."""
    victim, preemptor = await preempted(api)
    pledge = (await read(api, f"/v1/jobs/{preemptor}"))["pledge"]
    assert (pledge["rule"], pledge["gpus"], pledge["nodes"]) == ("reclaim", 8, ["n-0"])
    assert (pledge["victims"], pledge["awaited"]) == ([{"job_id": victim, "attempt": 1}], [])
    told = (await read(api, f"/v1/jobs/{preemptor}/why"))["reasons"][0]
    assert (told["code"], told["victims"]) == ("pledged", [victim])
    assert told["text"] == f"room is being made (reclaim): {victim} is being stopped for it"
    await api.leader.commit([PreemptionEnded(job_id=preemptor, because=PledgeEnd.BROKEN)])
    assert (await read(api, f"/v1/jobs/{preemptor}"))["pledge"] is None


async def test_a_victim_says_for_whom_it_was_stopped(api: Site) -> None:
    """While it is stopped, when it waits again, and with its attempt for ever."""
    victim, preemptor = await preempted(api)
    shown = await read(api, f"/v1/jobs/{victim}")
    assert shown["state"] == "PREEMPTING"
    cause = {name: shown["preempted_by"][name] for name in ("job_id", "rule", "attempt")}
    assert cause == {"job_id": preemptor, "rule": "reclaim", "attempt": 1}
    again = JobQueued(job_id=victim, attempt=2, reason=QueueReason.PREEMPTED)
    await api.leader.commit([again])
    assert (await read(api, f"/v1/jobs/{victim}"))["preempted_by"]["job_id"] == preemptor
    (attempt,) = (await read(api, f"/v1/jobs/{victim}/attempts"))["attempts"]
    assert (attempt["preempted_by"], attempt["preempted_rule"]) == (preemptor, "reclaim")
    assert (await read(api, f"/v1/jobs/{preemptor}"))["preempted_by"] is None


async def test_the_allocation_is_what_is_held_now(api: Site) -> None:
    """An elastic job grows and gives back; a rank that has ended holds nothing any more."""
    job = await waiting(api, gpus_per_replica=4, elastic={"min_replicas": 1, "max_replicas": 4})
    four, names = GpuMask(0b1111), dict[str, Any](job_id=job, attempt=1)
    await api.leader.commit([GangAllocated(**names, ranks=((NodeIndex(0), four),), limit_at=None)])

    async def held() -> tuple[list[str], int, int]:
        allocation = (await read(api, f"/v1/jobs/{job}"))["allocation"]
        return allocation["nodes"], allocation["replicas"], allocation["gpus"]

    assert await held() == (["n-0"], 1, 4)
    grown = ((NodeIndex(1), four), (NodeIndex(2), four))
    await api.leader.commit([GangResized(**names, because=ResizeReason.GREW, grown=grown)])
    assert await held() == (["n-0", "n-1", "n-2"], 3, 12)
    gone = TaskEnded(**names, rank=2, node=NodeIndex(2), report=1, end=TaskEnd.STOPPED, exit_code=143)
    await api.leader.commit([GangResized(**names, because=ResizeReason.GAVE_BACK, stopped=(2,)), gone])
    assert await held() == (["n-0", "n-1"], 2, 8)


# Sentences, of what was looked up


async def row(**spec: Any) -> JobRow:
    story = await Story("eu-1").begun()
    return story.row(JobRow, await story.job("a", **spec))


@pytest.mark.parametrize(
    ("victims", "awaited", "text"),
    [
        (["j_x"], [], "j_x is being stopped for it"),
        (["j_x", "j_y"], ["j_z"], "j_x, j_y are being stopped for it; the end of j_z is awaited"),
        (list("abcde"), [], "a, b, c and 2 more are being stopped for it"),
        ([], [], "elastic jobs give GPUs back"),
    ],
)
async def test_whom_room_costs_in_a_sentence(victims: list[str], awaited: list[str], text: str) -> None:
    """The first few by name; the figures have all."""
    job = await row()
    keys = {"victims": [[name, 1] for name in victims], "awaited": [[name, 1] for name in awaited]}
    job.pledge = {"rule": "priority", "gpus": 8, "nodes": ["n-0"], "since": 1, **keys}
    told = waiting_view(job, Known(rooms=[room((0,))]))["reasons"]
    assert [(each["code"], each["text"]) for each in told] == [("pledged", f"room is being made (priority): {text}")]
    assert told[0]["victims"] == victims


async def test_a_throttled_array_says_how_many_run() -> None:
    """At the throttle, and not below it."""
    job = await row()
    job.spec = {**job.spec, "array": {"first": 0, "last": 9, "throttle": 2}}
    job.elements_made = job.elements_open = 2
    (told,) = waiting_view(job, Known())["reasons"]
    assert (told["code"], told["running"], told["throttle"]) == ("throttled", 2, 2)
    assert told["text"] == "2 elements are running, and no more than 2 may"
    assert is_in_queue(job) is False
    assert [each["code"] for each in waiting_view(job, Known(ahead_of_type=0))["reasons"]] == ["throttled"]
    job.elements_open = 1
    assert waiting_view(job, Known())["reasons"] == []
    (place,) = waiting_view(job, Known(ahead_of_type=0))["reasons"]
    assert (is_in_queue(job), place["code"]) == (True, "queued")


@pytest.mark.parametrize(("in_use", "told"), [(0, []), (4, []), (5, ["not_covered"]), (8, ["not_covered"])])
async def test_what_may_not_be_preempted_waits_for_the_guarantee(in_use: int, told: list[str]) -> None:
    """It starts only inside that, however much may be borrowed (R-40); others may borrow."""
    quota = QuotaUse("research", "h100", 8, 100, in_use)
    known = Known(quota=quota, rooms=[room((8, 8), size=8, per=4)])
    protected = await row(gpus_per_replica=4)
    protected.spec = {**protected.spec, "checkpoint": {**protected.spec["checkpoint"], "preemptible": False}}
    assert [reason["code"] for reason in waiting_view(protected, known)["reasons"]] == told
    assert waiting_view(await row(gpus_per_replica=4), known)["reasons"] == []


async def test_pledged_nodes_have_no_start_of_their_own() -> None:
    """What room is made for starts as soon as that is free."""
    known = Known(rooms=[room((8,), size=8)], others=[Held("j_b", 1, None), Held("j_c", 2, START_AT)])
    told = waiting_view(await row(), known)["reasons"]
    assert [(each["job"], each["nodes"], each["start_at"]) for each in told] == [
        ("j_b", 1, None),
        ("j_c", 2, format_time(START_AT)),
    ]
    assert told[0]["text"] == "1 node with h100 GPUs is held for j_b, for which room is made"
