"""Why a job waits, and why it failed: figures and sentences."""

from typing import Any

import pytest

from api.times import format_time
from api.waiting import Known, waiting_view
from commands.decide.attempts import Draft
from commands.decide.reports import report
from commands.evolve import begin, finish
from commands.reports import TaskEndedReport
from events.envelope import Input
from events.gang import GangAllocated
from events.ids import GpuMask, JobId, LeaseId, NodeId, NodeIndex, Principal
from events.job import JobElementMade
from events.node import NodeDrained, NodeLost, NodeSuspected
from events.task import TaskEnd
from projections.blockers import Room
from projections.queries import QuotaUse
from projections.rows import JobRow
from tests.api.site import Site
from tests.projections.story import Story

UNSET = QuotaUse("research", "h100", 800, 0, 0)


def room(free: tuple[int, ...], *, size: int = 4, per: int = 1, **out: Any) -> Room:
    """Nodes of `size` GPUs with so many free each."""
    counts = {"drained": 0, "silent": 0, "lost": 0, "unconfirmed": 0, "out_names": [], **out}
    whole, fit = sum(one == size for one in free), sum(one // per for one in free)
    return Room(size, len(free), size * len(free), sum(free), whole, max(free, default=0), fit, **counts)


async def reasons(known: Known, **spec: Any) -> list[dict[str, Any]]:
    """Of a job that waits, without its place in the queue."""
    story = await Story("eu-1").begun()
    job = await story.job("a", **spec)
    found: list[dict[str, Any]] = waiting_view(story.row(JobRow, job), known)["reasons"]
    return found


@pytest.mark.parametrize(
    ("spec", "rooms", "text"),
    [
        ((1, 2), [room((0,), per=2)], "needs 2 h100 GPUs on one node; 0 of 4 are free"),
        ((1, 2), [room((1, 1), per=2)], "needs 2 h100 GPUs on one node; 2 of 8 are free, at most 1 on one node"),
        ((3, 1), [room((1,))], "needs 3 h100 GPUs; 1 of 4 is free"),
        ((1, 1), [room((0,))], "needs 1 h100 GPU; 0 of 4 are free"),
        ((2, 4), [room((4, 3, 3), per=4)], "needs 2 whole nodes of 4 h100 GPUs; 1 of 3 is free"),
        ((1, 4), [room((3,), per=4)], "needs 1 whole node of 4 h100 GPUs; 0 of 1 are free"),
        ((1, 1), [], "needs 1 h100 GPU; no node with such GPUs is in service"),
        ((1, 8), [room((4,), per=8)], "needs 8 h100 GPUs; no node with such GPUs is in service"),
    ],
)
async def test_too_little_room_is_told_with_its_figures(spec: tuple[int, int], rooms: list[Room], text: str) -> None:
    """Whole nodes from a node's worth up; else GPUs, and the most on one node where a replica needs them together."""
    replicas, each = spec
    (told,) = await reasons(Known(quota=UNSET, rooms=rooms), replicas=replicas, gpus_per_replica=each)
    assert (told["code"], told["text"]) == ("capacity", text)
    assert told["gpus_free"] == sum(one.free for one in rooms if one.node_gpus >= each)


async def test_where_it_fits_nothing_keeps_it() -> None:
    """One size of node with room is enough."""
    assert await reasons(Known(quota=UNSET, rooms=[room((0,)), room((8,), size=8)]), gpus_per_replica=4) == []


async def test_a_backoff_that_is_over_is_no_reason() -> None:
    """The tables keep the time; the reason goes by the clock."""
    story = await Story("eu-1").begun()
    row = story.row(JobRow, await story.job("a"))
    row.not_before_at = 1_790_000_000_000
    (told,) = waiting_view(row, Known(now=1_789_999_999_999))["reasons"]
    assert (told["code"], told["until"]) == ("backoff", format_time(1_790_000_000_000))
    assert waiting_view(row, Known(now=1_790_000_000_000))["reasons"] == []


async def test_every_reason_is_told_at_once(api: Site) -> None:
    """Limit, capacity, nodes out of service and place: also in the job itself, with the place among all in
    queue_position."""
    first, second = (await api.submitted(replicas=4))["job_id"], (await api.submitted(replicas=2))["job_id"]
    ranks = tuple((NodeIndex(node), GpuMask(255)) for node in range(4))
    await api.leader.commit([GangAllocated(job_id=JobId(first), attempt=1, ranks=ranks, limit_at=None)])
    third = (await api.submitted(replicas=2))["job_id"]
    await api.leader.commit(
        [
            NodeDrained(node=NodeIndex(1), reason="xid"),
            NodeSuspected(node=NodeIndex(2), silent_s=9),
            NodeSuspected(node=NodeIndex(3), silent_s=9),
            NodeLost(node=NodeIndex(3), silent_s=90),
        ]
    )
    why = (await api.get(f"/v1/jobs/{third}/why?min_seq={api.leader.head.seq}")).json()
    told = {reason["code"]: reason for reason in why["reasons"]}
    assert list(told) == ["over_limit", "capacity", "out_of_service", "queued"]
    limit = told["over_limit"]
    assert (limit["asked"], limit["use"], limit["limit"]) == (16, 24, 32)
    assert limit["text"] == "asks for 16 h100 GPUs; team pretrain uses 24 of the 32 that it may use"
    capacity = told["capacity"]
    assert [capacity[name] for name in ("gpus_needed", "gpus_free", "whole_nodes_needed", "whole_nodes_free")] == [
        *(16, 0, 2, 0)
    ]
    out = told["out_of_service"]
    assert [out[name] for name in ("drained", "silent", "lost", "nodes")] == [1, 1, 1, ["n-1", "n-2", "n-3"]]
    assert out["text"] == ("3 nodes with h100 GPUs are out of service: 1 drained, 1 silent, 1 lost (n-1, n-2, n-3)")
    assert told["queued"] == {
        "code": "queued",
        "ahead": 1,
        "text": "1 job for h100 GPUs is ahead in the queue",
    }
    job = (await api.get(f"/v1/jobs/{third}")).json()
    assert (job["queue_position"], job["waiting"]["reasons"]) == (2, why["reasons"])
    assert (await api.get(f"/v1/jobs/{second}")).json()["waiting"]["ahead_of_type"] == 0


async def test_a_job_says_why_its_attempt_failed(api: Site) -> None:
    """The rank that failed, how, and the agent's sentence."""
    job_id = (await api.submitted())["job_id"]
    await api.leader.start(job_id)
    assert (await api.get(f"/v1/jobs/{job_id}")).json()["failure"] is None
    said = TaskEndedReport(
        number=2,
        lease_id=LeaseId(f"{job_id}.1.0"),
        end=TaskEnd.EXITED,
        exit_code=127,
        detail="nosuch: command not found",
    )
    leader = api.leader
    at = leader.head.at + 1
    begin(leader.state, leader.head.epoch, leader.head.n + 1, at)  # type: ignore[arg-type]
    draft = Draft(leader.state)
    node = leader.state.node_by_id(NodeId("n-0"))
    assert node is not None
    report(draft, node, said)
    made_by, events = Input(kind="tick", id="t"), tuple(draft.events)
    finish(leader.state, made_by, events)
    await leader._store(events, made_by, Principal("node:n-0"), at)  # type: ignore[arg-type]
    job = (await api.get(f"/v1/jobs/{job_id}?min_seq={leader.head.seq}")).json()
    failure = {"attempt": 1, "rank": 0, "end": "exited", "exit_code": 127, "detail": "nosuch: command not found"}
    assert (job["state"], job["failure"]) == ("FAILED", failure)


async def test_what_only_the_planner_knows_is_told(api: Site) -> None:
    """Nodes that are set apart, and a preset's order: no table has these."""
    first, second = (await api.submitted(replicas=4))["job_id"], (await api.submitted())["job_id"]
    ranks = tuple((NodeIndex(node), GpuMask(255)) for node in range(3))
    await api.leader.commit([GangAllocated(job_id=JobId(first), attempt=1, ranks=ranks, limit_at=None)])
    pool = {"name": "fast", "kind": "latency", "nodes": ["n-3"], "lend": False}
    answer = await api.request("PUT", "/v1/policy", who="root", json={"policy": {"pools": [pool]}, "reason": "x"})
    assert answer.status_code == 202, answer.text
    (told, place) = (await api.get(f"/v1/jobs/{second}/why?min_seq={answer.json()['seq']}")).json()["reasons"]
    assert (told["code"], told["nodes"], told["gpus_free"]) == ("set_apart", 1, 8)
    assert place["code"] == "queued"


async def test_an_array_at_its_throttle_has_no_place(api: Site) -> None:
    """Nowhere: neither in the job, nor in its why, nor in the queue."""
    array = JobId((await api.submitted(array="0-3%1", gpus_per_replica=1))["job_id"])
    element = JobId(f"{array}_0")
    ranks = ((NodeIndex(0), GpuMask(1)),)
    made = JobElementMade(job_id=element, array=array, index=0)
    await api.leader.commit([made, GangAllocated(job_id=element, attempt=1, ranks=ranks, limit_at=None)])
    newest = f"min_seq={api.leader.head.seq}"
    (told,) = (await api.get(f"/v1/jobs/{array}/why?{newest}")).json()["reasons"]
    assert told["text"] == "1 element is running, and no more than 1 may"
    (queued,) = (await api.get(f"/v1/queue?{newest}")).json()["queue"]
    for shown in (queued, (await api.get(f"/v1/jobs/{array}?{newest}")).json()):
        assert shown["queue_position"] is None
        assert [reason["code"] for reason in shown["waiting"]["reasons"]] == ["throttled"]
