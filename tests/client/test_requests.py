"""Requests: sent again under the same key, and refused in the API's own words."""

from __future__ import annotations

import socket

import pytest
from signalbox import Client, Profile, Refused, ServerFault, Unreachable

from tests.client.scripted import Answer, ScriptedApi, problem

SPEC = {"team": "research", "command": ["true"], "gpu_type": "h100", "max_runtime": "1h"}
TAKEN = Answer(status=202, json={"job_id": "j_1", "state": "QUEUED", "queue_position": 3, "seq": 7})


def test_a_submission_keeps_its_key_over_faults(api: ScriptedApi, client: Client) -> None:
    """A broken connection, a 503 and a 429 are tried again with the first try's key and body, until it is taken."""
    api.on("POST", "/v1/jobs", Answer(drop=True), problem(503, "unavailable", "No"), problem(429, "x", "Slow"), TAKEN)
    made = client.submit(SPEC)
    sent = api.requests("POST", "/v1/jobs")
    assert (made.id, made.queue_position, len(sent)) == ("j_1", 3, 4)
    assert {asked.headers["idempotency-key"] for asked in sent} == {made.key}
    assert all(asked.body == SPEC and asked.headers["authorization"] == "Bearer t-1" for asked in sent)


def test_two_submissions_have_two_keys(api: ScriptedApi, client: Client) -> None:
    """Submitting the same spec twice makes two jobs: a key is made per call, unless one is given."""
    api.on("POST", "/v1/jobs", TAKEN)
    assert client.submit(SPEC).key != client.submit(SPEC).key
    assert client.submit(SPEC, "mine").key == "mine"
    assert api.requests("POST", "/v1/jobs")[-1].headers["idempotency-key"] == "mine"


def test_a_refusal_is_final_and_names_field_and_limit(api: ScriptedApi, client: Client) -> None:
    """A 4xx is raised at once, with title, type and each field's value, limit and message."""
    fault = {"field": "max_runtime", "value": "400d", "limit": "at most 366d", "message": "is too long"}
    api.on("POST", "/v1/jobs", problem(422, "invalid", "Some fields are not valid", fault))
    with pytest.raises(Refused) as caught:
        client.submit(SPEC)
    error = caught.value
    assert (error.status, error.type, error.title) == (
        422,
        "urn:signalbox:problem:invalid",
        "Some fields are not valid",
    )
    assert [(e.field, e.value, e.limit) for e in error.errors] == [("max_runtime", "400d", "at most 366d")]
    assert str(error) == "Some fields are not valid\n  max_runtime: is too long (value: 400d, limit: at most 366d)"
    assert len(api.requests("POST", "/v1/jobs")) == 1


def test_a_full_queue_is_not_tried_again(api: ScriptedApi, client: Client) -> None:
    """queue-full is a 429 that lasts: it is told at once, not after the client's patience."""
    api.on("POST", "/v1/jobs", problem(429, "queue-full", "The team has too many queued jobs", Retry_After="60"))
    with pytest.raises(Refused, match="too many queued"):
        client.submit(SPEC)
    assert len(api.requests("POST", "/v1/jobs")) == 1


def test_patience_ends_with_the_last_error(api: ScriptedApi) -> None:
    """A server that goes on failing is reported as such; one that asks for a longer wait than is left, at once."""
    api.on("GET", "/v1/policy", problem(503, "unavailable", "Cannot be answered now", Retry_After="3600"))
    with Client(Profile(address=api.address), patience_s=5) as client, pytest.raises(ServerFault, match="Cannot be"):
        client.policy()
    assert len(api.requests("GET", "/v1/policy")) == 1


def test_nobody_there_is_unreachable() -> None:
    """A refused connection is Unreachable, and names the address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with Client(Profile(address=address), patience_s=0.3) as client, pytest.raises(Unreachable, match=address):
            client.policy()


def test_an_answer_that_is_no_problem_document_is_told_by_status(api: ScriptedApi, client: Client) -> None:
    """A proxy's error page does not hide what happened."""
    api.on("GET", "/v1/policy", Answer(status=403, chunks=[b"<html>"]))
    with pytest.raises(Refused, match="HTTP 403"):
        client.policy()


def test_a_job_is_read_behind_its_own_write(api: ScriptedApi, client: Client) -> None:
    """What was written through a client is asked for with min_seq, so that a read never comes before it."""
    api.on("POST", "/v1/jobs", TAKEN)
    api.on("DELETE", "/v1/jobs/j_1", Answer(status=202, json={"state": "CANCELLED", "seq": 9}))
    api.on("GET", "/v1/jobs/j_1", Answer(json={"job_id": "j_1", "state": "CANCELLED"}))
    client.submit(SPEC)
    client.job("j_1")
    assert client.cancel("j_1")["state"] == "CANCELLED"
    assert client.job("j_1").ended
    assert [asked.query for asked in api.requests("GET", "/v1/jobs/j_1")] == [{"min_seq": "7"}, {"min_seq": "9"}]


def test_pages_are_taken_as_they_are_used(api: ScriptedApi, client: Client) -> None:
    """A listing goes through all cursors, and asks for no page that nobody reads."""
    api.on(
        "GET",
        "/v1/jobs",
        Answer(json={"jobs": [{"job_id": "j_1", "state": "RUNNING"}], "cursor": "c1"}),
        Answer(json={"jobs": [{"job_id": "j_2", "state": "QUEUED"}], "cursor": None}),
    )
    listed = client.jobs(state=["RUNNING", "QUEUED"])
    assert next(listed).id == "j_1"
    assert len(api.asked) == 1
    assert [job.id for job in listed] == ["j_2"]
    assert [asked.query.get("cursor") for asked in api.asked] == [None, "c1"]
    assert api.asked[0].query["state"] == "RUNNING,QUEUED"


def test_wait_tells_every_change_and_outlasts_an_api_that_is_away(api: ScriptedApi) -> None:
    """on_change sees each state once, in order; a failing API in between does not end the wait."""
    states = [("QUEUED", 2), ("QUEUED", 2), ("QUEUED", 1), ("RUNNING", None), ("SUCCEEDED", None)]
    answers = [Answer(json={"job_id": "j_1", "state": s, "queue_position": p, "attempt": 1}) for s, p in states]
    api.on("GET", "/v1/jobs/j_1", *answers[:3], problem(503, "unavailable", "No"), *answers[3:])
    seen: list[tuple[str, int | None]] = []
    with Client(Profile(address=api.address), patience_s=0) as client:
        job = client.wait("j_1", lambda job: seen.append((job.state, job.queue_position)))
    assert job.state == "SUCCEEDED"
    assert seen == [("QUEUED", 2), ("QUEUED", 1), ("RUNNING", None), ("SUCCEEDED", None)]
