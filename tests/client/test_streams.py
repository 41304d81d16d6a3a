"""The feed and the logs: read on where a connection broke, nothing twice, nothing missed (C-64)."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from signalbox import Client, Refused, ServerFault
from signalbox import frame as frames
from signalbox.shapes import Event

from tests.client.scripted import Answer, Asked, ScriptedApi, problem


def line(seq: int, **body: Any) -> bytes:
    """An event as the feed writes it."""
    event = {"seq": seq, "at": "2026-11-30T12:00:00.000Z", "type": "job.held", "job_id": "j_1", "team": "a"}
    return json.dumps({**event, "actor": "user:ada", "body": {"job_id": "j_1", **body}}).encode() + b"\n"


def test_a_follower_goes_on_where_its_connection_broke(api: ScriptedApi, client: Client) -> None:
    """Breaks in mid-event, doubled events, signs of life and a failing API: each event comes out once, in order."""
    api.on(
        "GET",
        "/v1/events",
        Answer(chunks=[line(1), b"\n", line(2)[:20]], cut=True),
        problem(503, "unavailable", "No"),
        Answer(drop=True),
        Answer(chunks=[line(1), line(2) + line(4)]),
        Answer(chunks=[line(4), line(5)], cut=True),
    )
    assert [event.seq for event in islice(client.events(after=0), 4)] == [1, 2, 4, 5]
    asked = api.requests("GET", "/v1/events")
    assert [request.query["after"] for request in asked] == ["0", "1", "1", "1", "4"]
    assert all(request.query["follow"] == "true" for request in asked)
    assert all(request.headers["accept"] == "application/x-ndjson" for request in asked)


def test_without_follow_it_ends_at_the_end(api: ScriptedApi, client: Client) -> None:
    """All there is, over a break, and then the end; filters go along each time."""

    def stored(asked: Asked) -> Answer:
        after = int(asked.query["after"])
        rest = [line(seq) for seq in range(after + 1, 6)]
        return Answer(chunks=rest[:2], cut=after == 2) if rest else Answer(chunks=[b"\n"])

    api.on("GET", "/v1/events", stored)
    assert [event.seq for event in client.events(type="job.*", job="j_1", follow=False)] == [1, 2, 3, 4, 5]
    assert {(asked.query["type"], asked.query["job"]) for asked in api.asked} == {("job.*", "j_1")}


def test_a_refused_feed_is_told(api: ScriptedApi, client: Client) -> None:
    """No reconnecting against a refusal."""
    api.on("GET", "/v1/events", problem(403, "forbidden", "This caller may not do this"))
    with pytest.raises(Refused, match="may not"):
        next(client.events())


def test_a_line_that_is_no_event_stops_the_follower(api: ScriptedApi, client: Client) -> None:
    """What cannot be read is an error, never skipped: it may have been an event."""
    api.on("GET", "/v1/events", Answer(chunks=[line(1), b"{nonsense}\n", line(3)]))
    feed = client.events()
    assert next(feed).seq == 1
    with pytest.raises(ServerFault, match="no event"):
        next(feed)


def test_an_event_is_a_flat_row() -> None:
    """A DataFrame has the envelope's columns and the event's own fields beside them."""
    event = Event.from_wire(json.loads(line(3, exit_code=7)))
    assert event is not None
    row = frames.row(event)
    assert (row["seq"], row["type"], row["job"], row["exit_code"]) == (3, "job.held", "j_1", 7)
    assert row["at"] == event.at


def test_logs_go_on_at_the_byte_where_they_broke(api: ScriptedApi, client: Client) -> None:
    """A followed log that breaks, or ends while the attempt runs on, is opened again behind what was read."""
    whole = b"step 1\nstep 2\n\xff\x00step 3\n"
    cuts = iter([(5, True), (12, False), (99, False)])

    def relay(asked: Asked) -> Answer:
        end, cut = next(cuts)
        return Answer(chunks=[whole[int(asked.query.get("from_byte", 0)) : end]], cut=cut)

    api.on("GET", "/v1/jobs/j_1/logs", relay)
    running = Answer(json={"job_id": "j_1", "state": "RUNNING", "attempt": 1})
    api.on("GET", "/v1/jobs/j_1", running, running, Answer(json={"job_id": "j_1", "state": "FAILED", "attempt": 1}))
    assert b"".join(client.logs("j_1", rank=2, follow=True)) == whole
    assert {asked.query["rank"] for asked in api.requests("GET", "/v1/jobs/j_1/logs")} == {"2"}


def test_a_log_that_is_not_there_is_refused(api: ScriptedApi, client: Client) -> None:
    """The API's word for it reaches the caller."""
    api.on("GET", "/v1/jobs/j_1/logs", problem(409, "log-not-there", "There is no log of that rank"))
    with pytest.raises(Refused, match="no log"):
        list(client.logs("j_1"))
