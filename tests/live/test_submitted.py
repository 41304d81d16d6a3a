"""Submitting while nobody leads: taken, kept, answered later, and never twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.live import kalos
from tests.live.checks import sound_at_rest
from tests.live.stack import Stack, stack
from tests.live.waiting import until

KEY = {"idempotency-key": "one-and-the-same"}
BODY = kalos.spec("once", 8, 0.5)


async def test_a_submission_outlives_scheduler_and_api(home: Path) -> None:
    """Without a leader the answer is 202 SUBMITTED; the job is decided when one leads. The same key names the same job
    all the while, over kills of the api and the scheduler, and another body under it is refused."""
    async with stack(home, "--nodes", "2", "--no-agent") as run:
        await run.hold("scheduler-0")
        first = await _post(run, BODY)
        assert (first.status_code, first.json()["state"], first.json()["seq"]) == (202, "SUBMITTED", None)
        job = first.json()["job_id"]
        assert (await run.get(f"/v1/jobs/{job}"))["state"] == "SUBMITTED"
        await run.kill("api")
        assert (await _post(run, BODY)).json()["job_id"] == job
        run.begin("scheduler-0")
        ended = await asyncio.to_thread(run.client.wait, job)
        assert ended.state == "SUCCEEDED"
        await _same_job(run, job)
        await run.kill("scheduler-0")
        await run.kill("api")
        await _same_job(run, job)
        other = await _post(run, {**BODY, "name": "another"})
        assert other.status_code == 409, other.text
        assert list((await kalos.all_ended(run)).items()) == [(job, "SUCCEEDED")]
        await sound_at_rest(run)


async def _same_job(run: Stack, job: str) -> None:
    """Under the same key, once somebody leads."""

    async def answered() -> dict[str, Any] | None:
        answer = await _post(run, BODY)
        assert answer.status_code == 202, answer.text
        assert answer.json()["job_id"] == job
        return answer.json() if answer.json()["seq"] is not None else None

    answer = await until(answered, what="the repeated submission is answered")
    assert answer is not None
    assert answer["state"] == "SUCCEEDED"


async def _post(run: Stack, body: dict[str, Any]) -> httpx.Response:
    """Sent once an api is there."""

    async def posted() -> httpx.Response | None:
        try:
            answer = await run.http.post("/v1/jobs", json=body, headers=KEY)
        except httpx.HTTPError:
            return None
        return answer if answer.status_code != 503 else None

    answer = await until(posted, what="an api answers")
    assert answer is not None
    return answer
