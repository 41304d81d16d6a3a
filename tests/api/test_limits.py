"""Limits, and that every error is a problem document."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from api.problems import TITLES
from api.rate import Rates
from events.memory import Topic
from tests.api.site import CLUSTER, JOB, Site, patient, site
from tests.servers.waiting import until_async


def _is_problem(answer: Any, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["type"] == "urn:signalbox:problem:" + code.replace("_", "-")
    assert document["title"] == TITLES[code][1]
    assert document["detail"]


async def test_every_error_is_a_problem(api: Site) -> None:
    """Also those of the framework."""
    _is_problem(await api.get("/nothing"), 404, "not_found")
    _is_problem(await api.get("/v1/jobs/"), 404, "not_found")
    _is_problem(await api.get("/v1/jobs/j_NONE"), 404, "unknown_job")
    _is_problem(await api.get("/v1/jobs/%00"), 404, "not_found")
    _is_problem(await api.get("/v1/nodes/n-99"), 404, "unknown_node")
    put = await api.request("PUT", "/v1/jobs")
    _is_problem(put, 405, "method_not_allowed")
    assert put.headers["allow"]
    _is_problem(await api.get("/v1/jobs?limit=0"), 422, "invalid")
    _is_problem(await api.get("/v1/jobs?limit=1001"), 422, "invalid")
    _is_problem(await api.get("/v1/jobs?cursor=zzz"), 422, "invalid")
    _is_problem(await api.get("/v1/jobs?state=ASLEEP"), 422, "invalid")
    _is_problem(await api.get("/v1/jobs?label=x"), 422, "invalid")


async def test_an_unknown_query_parameter_is_refused(api: Site) -> None:
    """A filter with a slip in its name must not be a filter that lets all pass; nor one that is given twice."""
    answer = await api.get("/v1/jobs?taem=x")
    _is_problem(answer, 422, "invalid")
    assert answer.json()["errors"][0]["field"] == "taem"
    _is_problem(await api.get("/v1/jobs?limit=1&limit=2"), 422, "invalid")
    _is_problem(await api.get("/v1/cluster?x"), 422, "invalid")
    assert (await api.get("/v1/jobs?state=QUEUED&state=RUNNING")).status_code == 200


async def test_bodies_are_bounded_json(api: Site) -> None:
    """By their declared length, and by what really comes."""
    big = b'{"team": "' + b"x" * 1024 * 1024 + b'"}'
    json = {"content-type": "application/json"}
    _is_problem(await api.request("POST", "/v1/jobs", content=big, headers=json), 413, "body_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    _is_problem(await api.request("POST", "/v1/jobs", content=chunks(), headers=json), 413, "body_too_large")
    text = {"content-type": "text/plain"}
    _is_problem(await api.request("POST", "/v1/jobs", content=b"{}", headers=text), 415, "unsupported_media_type")
    latin = {"content-type": "application/json; charset=latin-1"}
    _is_problem(await api.request("POST", "/v1/jobs", content=b"{}", headers=latin), 415, "unsupported_media_type")
    _is_problem(await api.request("POST", "/v1/jobs", content=b"{", headers=json), 400, "malformed_json")
    _is_problem(await api.request("POST", "/v1/jobs/j_A:hold", json={"x": 1}), 400, "bad_request")
    spec = {**JOB, "env": {f"A{number}": "x" * 30_000 for number in range(6)}}
    _is_problem(await api.request("POST", "/v1/jobs", json=spec), 413, "body_too_large")


async def test_headers_are_bounded(api: Site) -> None:
    """In bytes and in number."""
    _is_problem(await api.get("/v1/jobs", headers={"x": "y" * 40_000}), 431, "headers_too_large")
    _is_problem(await api.get("/v1/jobs", headers={f"x{n}": "y" for n in range(200)}), 431, "headers_too_large")


async def test_a_caller_over_its_rate_is_told_when_to_come_again(postgres_dsn: str) -> None:
    """Others are not held up by it."""
    async with site(postgres_dsn, patient(rate_per_s=0.001, rate_burst=3)) as api:
        answers = [await api.get("/v1/cluster") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert int(answers[3].headers["retry-after"]) >= 1
        assert (await api.get("/v1/cluster", who="bob")).status_code == 200


def test_a_bucket_fills_again_with_time() -> None:
    """Up to its burst and no further."""
    now = [0.0]
    rates = Rates(1.0, 2.0, lambda: now[0])
    for seconds, allowed in ((0.0, 2), (1.0, 1), (100.0, 2)):
        now[0] += seconds
        for _ in range(allowed):
            rates.take("a")
        with pytest.raises(Exception, match="try again"):
            rates.take("a")


async def test_a_read_waits_for_its_min_seq_and_then_gives_up(postgres_dsn: str) -> None:
    """504 naming it, where the read models do not get there in time."""
    async with site(postgres_dsn, patient(min_seq_wait_s=2.0)) as api:
        seq = (await api.submitted())["seq"]
        await api.level()
        assert (await api.get(f"/v1/queue?min_seq={seq}")).json()["length"] == 1
        late = await api.get("/v1/queue?min_seq=100000")
        _is_problem(late, 504, "not_yet")
        assert late.json()["min_seq"] == 100_000
        _is_problem(await api.get("/v1/queue?min_seq=99999999999999999999"), 422, "invalid")


async def test_without_projection_the_position_is_unknown_and_the_job_is_known(postgres_dsn: str) -> None:
    """No figure rather than a wrong one; and the job may be cancelled by its team already."""
    async with site(postgres_dsn, patient(position_wait_s=0.05), projecting=False) as api:
        job = await api.submitted()
        assert (job["state"], job["queue_position"]) == ("QUEUED", None)
        cancelled = await api.request("DELETE", f"/v1/jobs/{job['job_id']}")
        assert cancelled.json()["state"] == "CANCELLED"


async def test_readiness_tells_what_is_missing(postgres_dsn: str) -> None:
    """Ready with logs and read models; not when the log is not the one that it was."""
    async with site(postgres_dsn) as api:
        ready = await api.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        api.app.state.services.follower.failed = "record 7 is missing"
        _is_problem(await api.client.get("/readyz"), 503, "unavailable")
        _is_problem(await api.submit(), 503, "unavailable")
        _is_problem(await api.get("/v1/events"), 503, "unavailable")


async def test_a_log_that_breaks_off_stops_writes_and_is_told(api: Site) -> None:
    """A record of the present term that does not follow: nothing is guessed, and nothing more is written (P-3)."""
    job = await api.submitted()
    store = api.store.partition(Topic.EVENTS, CLUSTER)
    torn = orjson.loads(store.records[-1]) | {"n": 10_000}
    store.land(orjson.dumps(torn))
    follower = api.app.state.services.follower
    await until_async(lambda: _true(follower.failed is not None))
    assert "n is 10000" in follower.failed
    _is_problem(await api.submit(), 503, "unavailable")
    _is_problem(await api.client.get("/readyz"), 503, "unavailable")
    assert (await api.get(f"/v1/jobs/{job['job_id']}")).status_code == 200


async def _true(answer: bool) -> bool:
    return answer


async def test_metrics_count_requests_by_route(api: Site) -> None:
    """Templates, not paths."""
    await api.get("/v1/jobs/j_SOMETHING")
    text = (await api.get("/metrics")).text
    assert 'route="/v1/jobs/{job_id}"' in text
    assert "j_SOMETHING" not in text


async def test_lists_are_paged_without_gap_or_overlap(api: Site) -> None:
    """Jobs newest first, the queue in its order."""
    ids = [job["job_id"] for job in await asyncio.gather(*(api.submitted() for _ in range(7)))]
    for path, name in (("/v1/jobs", "jobs"), ("/v1/queue", "queue")):
        found: list[str] = []
        cursor = ""
        while True:
            page = (await api.get(f"{path}?limit=3{cursor}")).json()
            found += [job["job_id"] for job in page[name]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert sorted(found) == sorted(ids)
        assert len(found) == 7
