"""Submitting jobs, and acting on them: one key, one command, one answer."""

import re

import pytest

from tests.api.site import Site, new_key, patient, site
from tests.servers.waiting import until_async


async def test_a_submission_is_answered_with_its_place_in_the_queue(api: Site) -> None:
    """The position counts the jobs ahead, higher classes first, from one."""
    first = await api.submitted()
    second = await api.submitted()
    high = await api.submitted(priority_class="research")
    assert re.fullmatch(r"j_[0-9A-HJKMNP-TV-Z]{20}", first["job_id"])
    assert [answer["state"] for answer in (first, second, high)] == ["QUEUED"] * 3
    assert [answer["queue_position"] for answer in (first, second, high)] == [1, 2, 3]
    assert first["seq"] < second["seq"]


async def test_the_same_key_and_body_give_the_same_job_and_seq(api: Site) -> None:
    """A retry is no second job."""
    key = new_key()
    first, again = await api.submitted(key=key), await api.submitted(key=key)
    assert (again["job_id"], again["seq"], again["state"]) == (first["job_id"], first["seq"], "QUEUED")
    assert len((await api.get("/v1/jobs")).json()["jobs"]) == 1


async def test_the_same_key_with_another_body_is_a_conflict(api: Site) -> None:
    """Also across endpoints: a key stands for one request."""
    key = new_key()
    job = await api.submitted(key=key)
    other = await api.submit(key=key, replicas=2)
    assert (other.status_code, other.json()["code"]) == (409, "key_conflict")
    elsewhere = await api.request("DELETE", f"/v1/jobs/{job['job_id']}", key=key)
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "key_conflict")


async def test_a_key_belongs_to_its_caller(api: Site) -> None:
    """Two callers may use the same key."""
    mine = await api.submitted(key="same")
    theirs = await api.submitted(key="same", who="root")
    assert mine["job_id"] != theirs["job_id"]


async def test_without_a_leader_a_submission_is_kept_and_says_so(postgres_dsn: str) -> None:
    """202 SUBMITTED; a retry names the same job, before and after a leader answers; the job can be looked at."""
    settings = patient(answer_wait_s=0.1)
    async with site(postgres_dsn, settings, leading=False) as api:
        first = await api.submitted(key="k")
        assert (first["state"], first["seq"], first["queue_position"]) == ("SUBMITTED", None, None)
        assert (await api.submitted(key="k"))["job_id"] == first["job_id"]
        assert (await api.get(f"/v1/jobs/{first['job_id']}")).json()["state"] == "SUBMITTED"


async def test_what_a_dead_leader_left_is_answered_by_the_next(postgres_dsn: str) -> None:
    """The command is durable: a retry after a leader came gets the first answer."""
    async with site(postgres_dsn, patient(answer_wait_s=0.1), leading=False) as api:
        first = await api.submitted(key="k")
        assert first["state"] == "SUBMITTED"
        api.lead()

        async def answered() -> bool:
            again = await api.submitted(key="k")
            assert again["job_id"] == first["job_id"]
            return bool(again["state"] == "QUEUED")

        await until_async(answered, what="a retry is answered")


async def test_a_job_that_can_never_run_is_rejected_with_its_field_and_limit(api: Site) -> None:
    """422 with the job's id; the same again at a retry."""
    key = new_key()
    answer = await api.submit(key=key, replicas=500)
    document = answer.json()
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert (document["code"], document["state"], document["field"]) == ("rejected", "REJECTED", "replicas")
    assert document["limit"]
    assert document["errors"][0]["field"] == "replicas"
    again = (await api.submit(key=key, replicas=500)).json()
    assert (again["code"], again["job_id"]) == ("rejected", document["job_id"])


async def test_a_run_time_over_the_limit_is_told_in_days(api: Site) -> None:
    """As people write it, in the problem and at a later look at the job."""
    answer = await api.submit(max_runtime="90d")
    document = answer.json()
    assert (document["value"], document["limit"]) == ("90d", "30d")
    assert document["detail"] == "max_runtime: max_runtime is longer than allowed (limit 30d)"
    rejected = (await api.get(f"/v1/jobs/{document['job_id']}?min_seq={api.leader.head.seq}")).json()["rejection"]
    assert (rejected["value"], rejected["limit"]) == ("90d", "30d")


async def test_a_quota_of_unknown_gpus_names_those_that_there_are(api: Site) -> None:
    """Nobody has to guess that an inventory of nothing means a type that is not spelt so."""
    lines = {"h10": {"guaranteed": 8, "borrow_limit": 0}}
    answer = await api.request("PUT", "/v1/teams/vision/quota", who="root", json=lines)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "h10: no registered node has GPUs of this type (registered: h100)"
    assert answer.json()["errors"][0]["limit"] == "h100"


async def test_a_policy_with_a_huge_number_is_not_valid(api: Site) -> None:
    """An integer beyond 64 bits is a fault of the body, never ours."""
    for policy in ({"queued_jobs_max": 10**24}, {"nonsense": [10**24]}):
        answer = await api.request("PUT", "/v1/policy", who="root", json={"policy": policy})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_every_write_needs_a_key(api: Site) -> None:
    """The problem names the header, and nothing is written."""
    for path in ("/v1/jobs", "/v1/jobs/j_A:hold"):
        headers = {"authorization": "Bearer token-of-ada"}
        answer = await api.client.post(path, headers=headers, json={})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "Idempotency-Key"


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 129, "é"])
async def test_a_key_is_printable_ascii_of_bounded_length(api: Site, key: str) -> None:
    """Anything else is refused."""
    headers = {b"authorization": b"Bearer token-of-ada", b"idempotency-key": key.encode()}
    answer = await api.client.post("/v1/jobs", headers=headers, json={})
    assert answer.status_code == 422


async def test_a_waiting_job_is_held_released_changed_and_cancelled(api: Site) -> None:
    """Each answer shows the job's state after it; the read of min_seq shows it too."""
    path = "/v1/jobs/" + (await api.submitted())["job_id"]
    held = (await api.request("POST", path + ":hold")).json()
    assert (held["state"], held["held"]) == ("QUEUED", True)
    assert (await api.get(path)).json()["waiting"]["reasons"] == [{"code": "held", "text": "held until it is released"}]
    released = (await api.request("POST", path + ":release", json={})).json()
    assert (released["state"], released["held"]) == ("QUEUED", False)
    changed = await api.request("PATCH", path, json={"labels": {"run": "b"}, "priority_class": "preemptible"})
    job = (await api.get(f"{path}?min_seq={changed.json()['seq']}")).json()
    assert (job["labels"], job["priority_class"]) == ({"run": "b"}, "preemptible")
    cancelled = await api.request("DELETE", path)
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "CANCELLED")
    again = await api.request("DELETE", path)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert again.json()["detail"] == "it has ended: CANCELLED"


async def test_a_running_job_is_extended_and_requeued(api: Site) -> None:
    """States follow the core's."""
    job_id = (await api.submitted())["job_id"]
    await api.leader.start(job_id)
    path = f"/v1/jobs/{job_id}"
    extended = (await api.request("POST", path + ":extend", json={"by": "4h"})).json()
    job = (await api.get(f"{path}?min_seq={extended['seq']}")).json()
    assert (job["state"], job["max_runtime"], job["allocation"]["nodes"]) == ("RUNNING", "5h", ["n-0"])
    assert (await api.request("POST", path + ":hold")).status_code == 409
    requeued = await api.request("POST", path + ":requeue")
    assert requeued.status_code == 202
    assert requeued.json()["state"] == (await api.get(path)).json()["state"]
    events = (await api.get(f"{path}/events")).json()["events"]
    assert events[-1]["type"] == "gang.ending"


@pytest.mark.parametrize("verb", ["hold", "release", "requeue"])
async def test_acting_on_an_unknown_job_is_a_404(api: Site, verb: str) -> None:
    """Nothing is appended for it."""
    before = await api.leader._commands.end()
    answer = await api.request("POST", f"/v1/jobs/j_NONE:{verb}")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")
    assert await api.leader._commands.end() == before


async def test_a_full_queue_refuses_with_429(api: Site) -> None:
    """The team's cap is the policy's; the key is free for a later try."""
    policy = {"queued_jobs_max": 1}
    assert (await api.request("PUT", "/v1/policy", who="root", json={"policy": policy})).status_code == 202
    await api.submitted()
    full = await api.submit()
    assert (full.status_code, full.json()["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) > 0


async def test_nodes_quota_and_policy_are_changed_by_commands(api: Site) -> None:
    """And show up in the reads of their seq."""
    drained = await api.request("POST", "/v1/nodes/n-1:drain", who="olga", json={"reason": "xid 79"})
    node = (await api.get(f"/v1/nodes/n-1?min_seq={drained.json()['seq']}")).json()
    assert (node["drained"], node["drain_reason"], len(node["gpus"])) == (True, "xid 79", 8)
    assert (await api.request("POST", "/v1/nodes/n-1:undrain", who="olga")).json()["state"] == "DONE"
    assert (await api.request("POST", "/v1/nodes/n-9:undrain", who="olga")).json()["code"] == "unknown_node"
    wiped = await api.request("POST", "/v1/nodes/n-1:wiped", who="olga", json={"reason": "reinstalled"})
    assert (wiped.status_code, wiped.json()["reason"]) == (409, "node_not_lost")
    quota = {"h100": {"guaranteed": 16, "borrow_limit": 0}, "reason": "more"}
    changed = await api.request("PUT", "/v1/teams/vision/quota", who="root", json=quota)
    read = (await api.get(f"/v1/teams/vision/quota?min_seq={changed.json()['seq']}")).json()
    assert read == {"h100": {"guaranteed": 16, "borrow_limit": 0, "in_use": 0, "borrowed": 0}}
    over = await api.request(
        "PUT", "/v1/teams/vision/quota", who="root", json={"h100": {"guaranteed": 900, "borrow_limit": 0}}
    )
    assert (over.status_code, over.json()["errors"][0]["field"]) == (422, "h100.guaranteed")
    assert (await api.get("/v1/policy")).json()["version"] == 0
