"""Policy, quotas in percent, arrays and dependencies over the api."""

from __future__ import annotations

from events.gang import GangAllocated
from events.ids import GpuMask, JobId, NodeIndex
from tests.api.site import Site


async def test_the_policy_has_a_history(api: Site) -> None:
    """GET says what holds, who put it in force, when and why; and of each version what it changed."""
    first = await api.get("/v1/policy")
    assert (first.json()["version"], first.json()["history"]) == (0, [])
    assert first.json()["policy"]["queued_jobs_max"] == 5000
    for body in ({"queued_jobs_max": 7}, {"queued_jobs_max": 7, "retry_backoff_s": 60}):
        made = await api.request("PUT", "/v1/policy", who="root", json={"policy": body, "reason": "a trial"})
        assert made.status_code == 202
    shown = (await api.get(f"/v1/policy?min_seq={made.json()['seq']}")).json()
    assert (shown["version"], shown["actor"], shown["reason"]) == (2, "user:root", "a trial")
    assert shown["policy"]["retry_backoff_s"] == 60
    assert [(each["version"], each["changed"]) for each in shown["history"]] == [
        (2, {"retry_backoff_s": {"from": 30, "to": 60}}),
        (1, {"queued_jobs_max": {"from": 5000, "to": 7}}),
    ]
    old = (await api.get("/v1/policy?version=1")).json()
    assert (old["version"], old["policy"]["retry_backoff_s"]) == (1, 30)
    assert (await api.get("/v1/policy?version=9")).status_code == 404


BAD: tuple[tuple[dict[str, object], str], ...] = (
    ({"queued_jobs_max": 0}, "queued_jobs_max"),
    ({"queued_jobs_max": "5"}, "queued_jobs_max"),
    ({"no_such": 1}, "no_such"),
    ({"preset": "lifo"}, "preset"),
    ({"default_classes": ["vip"]}, "default_classes[0]"),
    ({"node_suspect_s": 100}, "node_lost_s"),
    ({"node_suspect_s": 50, "node_lost_s": 40}, "node_lost_s"),
    ({"pools": [{"name": "a", "kind": "latency", "nodes": []}]}, "pools"),
    ({"pools": [{"name": "a", "kind": "whole", "nodes": ["n"], "gpus_min": 10**30}]}, "pools[0].gpus_min"),
    ({"queued_jobs_max": 2**63}, "queued_jobs_max"),
)


async def test_a_bad_policy_is_refused_with_the_field(api: Site) -> None:
    """Nothing of it is put in force."""
    for policy, field in BAD:
        refused = await api.request("PUT", "/v1/policy", who="root", json={"policy": policy})
        assert refused.status_code == 422, policy
        assert [error["field"] for error in refused.json()["errors"]] == [field], policy
    assert (await api.get("/v1/policy")).json()["version"] == 0


async def test_a_policy_is_bounded_as_every_command_is(api: Site) -> None:
    """What is too large for the log is refused before it is there."""
    pool = {"name": "a", "kind": "whole", "nodes": [f"node-{number:09}" for number in range(10_000)]}
    refused = await api.request("PUT", "/v1/policy", who="root", json={"policy": {"pools": [pool]}})
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
    assert (await api.get("/v1/policy")).json()["version"] == 0


async def test_a_quota_in_percent(api: Site) -> None:
    """Each figure is given once, in GPUs or in percent; the answer to GET is in GPUs."""
    line = {"guaranteed_percent": 50, "borrow_limit": 3}
    made = await api.request("PUT", "/v1/teams/vision/quota", who="root", json={"h100": line})
    assert made.status_code == 202
    fleet = (await api.get(f"/v1/cluster?min_seq={made.json()['seq']}")).json()["gpu_types"]["h100"]["total"]
    read = (await api.get("/v1/teams/vision/quota")).json()["h100"]
    assert (read["guaranteed"], read["borrow_limit"]) == (fleet // 2, 3)
    assert (read["guaranteed_percent"], "borrow_limit_percent" in read) == (50, False)
    for bad in ({"guaranteed": 1}, {**line, "guaranteed": 1}):
        refused = await api.request("PUT", "/v1/teams/vision/quota", who="root", json={"h100": bad})
        assert refused.status_code == 422


async def test_an_array_and_a_job_that_waits_for_it(api: Site) -> None:
    """An array is one job that shows its elements; a job that depends on it waits outside the queue."""
    array = await api.submitted(array="0-9%2")
    shown = (await api.get(f"/v1/jobs/{array['job_id']}?min_seq={array['seq']}")).json()
    assert shown["array"] == {"elements": "0-9%2", "waiting": 10, "running": 0, "succeeded": 0, "failed": 0}
    after = await api.submitted(depends_on=[{"job": array["job_id"], "when": "after_any"}])
    assert after["queue_position"] is None
    why = (await api.get(f"/v1/jobs/{after['job_id']}/why?min_seq={after['seq']}")).json()
    (reason,) = why["reasons"]
    assert (reason["code"], reason["jobs"]) == ("dependencies", [array["job_id"]])
    queued = (await api.get("/v1/queue")).json()
    assert [job["job_id"] for job in queued["queue"]] == [array["job_id"]]


async def test_a_job_that_is_not_known_cannot_be_waited_for(api: Site) -> None:
    """The job is rejected, and the answer names the dependency."""
    refused = await api.submit(depends_on=[{"job": "j_0nobody"}])
    assert (refused.status_code, refused.json()["code"]) == (422, "rejected")
    assert refused.json()["errors"][0]["field"] == "depends_on[0].job"


async def test_how_the_teams_stand(api: Site) -> None:
    """Of all teams, or of one; as of the log, so that nothing has to be waited for."""
    job = JobId((await api.submitted(replicas=2))["job_id"])
    await api.submitted(gpus_per_replica=3)
    ranks = ((NodeIndex(0), GpuMask(255)), (NodeIndex(1), GpuMask(255)))
    await api.leader.commit([GangAllocated(job_id=job, attempt=1, ranks=ranks, limit_at=None)])
    told = (await api.get("/v1/shares")).json()
    assert told["seq"] == api.leader.head.seq
    assert [(each["team"], each["gpu_type"]) for each in told["shares"]] == [("pretrain", "h100"), ("vision", "h100")]
    mine = told["shares"][0]
    assert (mine["guaranteed"], mine["borrow_limit"], mine["in_use"], mine["pledged"]) == (8, 24, 16, 0)
    assert (mine["covered"], mine["borrowed"], mine["waiting"], mine["entitled"]) == (0, 16, 3, 8)
    assert mine["used_gpu_hours"] >= 16
    assert mine["share"] > 0
    assert (await api.get("/v1/shares?team=vision")).json()["shares"] == told["shares"][1:]
    assert (await api.get("/v1/shares?team=nobody")).json()["shares"] == []
    assert (await api.get("/v1/shares?team=no%20body")).status_code == 422
