"""The event feed: nothing missed, nothing twice, from any seq on, whatever serves it."""

import asyncio
from typing import Any

import orjson
import pytest

from api.feed import Feed, FeedEvent, Filter
from events.ids import ClusterId
from events.memory import MemoryEventLog
from projections.database import connect, recreate
from tests.api.site import Site, patient, site


async def _lines(api: Site, path: str, **more: Any) -> list[dict[str, Any]]:
    answer = await api.get(path, **more)
    assert answer.status_code == 200, answer.text
    return [orjson.loads(line) for line in answer.text.splitlines() if line]


async def _collect(feed: Feed, after: int, until: int, wanted: Filter | None = None) -> list[FeedEvent]:
    """What a follower of the feed gets until it has seen `until`."""
    got: list[FeedEvent] = []
    async for page in feed.stream(after, wanted or Filter(), follow=True, idle_s=5.0):
        got.extend(page)
        if got and got[-1].seq >= until:
            break
    return got


async def test_the_feed_holds_every_event_once_in_order(api: Site) -> None:
    """From the first event on, with the team of each job's events."""
    job = await api.submitted()
    events = await _lines(api, "/v1/events")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    mine = await _lines(api, f"/v1/events?job={job['job_id']}")
    assert [event["type"] for event in mine] == ["job.submitted", "job.queued"]
    assert {event["team"] for event in mine} == {"pretrain"}
    assert mine[0]["seq"] == job["seq"]


async def test_the_feed_goes_on_after_any_seq(api: Site) -> None:
    """A follower that stops and resumes misses nothing and sees nothing twice (C-64)."""
    for _ in range(5):
        await api.submitted()
    whole = await _lines(api, "/v1/events")
    for cut in range(len(whole) + 1):
        head, tail = whole[:cut], await _lines(api, f"/v1/events?after={cut}")
        assert head + tail == whole


async def test_filters_are_the_same_for_the_past_and_the_present(postgres_dsn: str) -> None:
    """What the read models, the log and the memory serve is the same, filtered or not."""
    filters = ["", "&type=job.*", "&type=job.queued,quota.changed", "&team=vision", "&team=pretrain&type=job.submitted"]
    answers: list[list[Any]] = []
    for settings in (patient(), patient(feed_ring_events=2)):
        async with site(postgres_dsn, settings) as api:
            for number in range(20):
                await api.submitted(who="root", key=f"k{number}", team=("pretrain", "vision")[number % 2])
            services = api.app.state.services
            await api.level()
            live = [await _lines(api, f"/v1/events?after=0{extra}") for extra in filters]
            past = Feed(MemoryEventLog(api.store, ClusterId("eu-1")), services.reads, 10, 0.0)
            past.begin(services.follower.head)
            for extra, lines in zip(filters, live, strict=True):
                wanted = services_filter(extra)
                history = [page async for page in past.stream(0, wanted, follow=False, idle_s=1.0)]
                told = [orjson.loads(event.line) for page in history for event in page]
                assert told == lines, extra
            answers.append([[event["type"] for event in lines] for lines in live])
            assert [event["seq"] for event in live[0]] == list(range(1, services.feed.end + 1))
        await _forget(postgres_dsn)
    assert answers[0] == answers[1]
    assert all(answers[0])


def services_filter(extra: str) -> Filter:
    """The filter that a query string asks for."""
    given = dict(part.split("=") for part in extra.split("&") if part)
    types = frozenset(given["type"].split(",")) if "type" in given else frozenset[str]()
    return Filter(types=types, team=given.get("team"), job_id=None)


async def _forget(dsn: str) -> None:
    connection = await connect(dsn)
    try:
        await recreate(connection)
        await connection.execute("TRUNCATE control.bindings")
    finally:
        await connection.close()


async def test_a_follower_gets_what_comes_while_it_follows(api: Site) -> None:
    """Many followers, each cut off and resumed at other places, all see one gapless sequence."""
    feed: Feed = api.app.state.services.feed
    until = feed.end + 50
    followers = [asyncio.create_task(_resumed(feed, every, until)) for every in (1, 2, 3, 7, 1000)]
    await asyncio.gather(*(api.submitted() for _ in range(25)))
    for got in await asyncio.gather(*followers):
        assert got == list(range(1, until + 1))


async def _resumed(feed: Feed, every: int, until: int) -> list[int]:
    """The seqs that a follower sees which hangs up after every `every` pages and goes on where it was."""
    seen: list[int] = []
    while len(seen) < until:
        pages = 0
        async for page in feed.stream(seen[-1] if seen else 0, Filter(), follow=True, idle_s=0.05):
            seen.extend(event.seq for event in page)
            pages += 1
            if pages >= every or len(seen) >= until:
                break
    return seen


async def test_a_stream_of_events_resumes_at_its_last_id(api: Site) -> None:
    """Server-sent events carry the seq as id; Last-Event-ID wins over `after`."""
    await api.submitted()
    headers = {"accept": "text/event-stream", "last-event-id": "3"}
    answer = await api.get("/v1/events?follow=false&after=1", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    messages = [message for message in answer.text.split("\n\n") if message.startswith("id:")]
    end = api.app.state.services.feed.end
    assert [message.splitlines()[0] for message in messages] == [f"id: {seq}" for seq in range(4, end + 1)]
    assert all(message.splitlines()[1].startswith("event: ") for message in messages)


async def test_an_idle_follower_gets_signs_of_life(api: Site) -> None:
    """Also one whose filter lets nothing through while events pass."""
    feed: Feed = api.app.state.services.feed
    stream = feed.stream(0, Filter(types=frozenset({"node.lost"})), follow=True, idle_s=0.05)
    assert [await anext(stream), await anext(stream)] == [[], []]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_follower_of_a_stopped_feed_is_let_go(api: Site) -> None:
    """So that a client goes elsewhere instead of waiting for ever."""
    feed: Feed = api.app.state.services.feed
    following = asyncio.create_task(_collect(feed, feed.end, feed.end + 1))
    await asyncio.sleep(0)
    feed.stop()
    assert await following == []


@pytest.mark.parametrize("query", ["after=-1", "after=x", "type=Job", "type=a.b,", "job=x", "team=a%00", "follow=7"])
async def test_a_bad_question_to_the_feed_is_refused(api: Site, query: str) -> None:
    """422 naming the parameter."""
    answer = await api.get(f"/v1/events?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == query.partition("=")[0]


async def test_the_feed_has_two_forms(api: Site) -> None:
    """Anything else is not acceptable, and a bad Last-Event-ID is refused."""
    answer = await api.get("/v1/events", headers={"accept": "image/png"})
    assert answer.status_code == 406
    answer = await api.get("/v1/events", headers={"last-event-id": "x"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Last-Event-ID")


async def test_while_the_read_models_are_rebuilt_a_follower_waits(postgres_dsn: str) -> None:
    """It neither skips what is not there yet, nor ends."""
    async with site(postgres_dsn, projecting=True) as api:
        await api.submitted()
        services = api.app.state.services
        await api.level()
        end = services.feed.end
        past = Feed(MemoryEventLog(api.store, ClusterId("eu-1")), services.reads, 10, 0.0)
        past.begin(services.follower.head)
        for task in api.tasks[:1]:
            task.cancel()
        connection = await connect(api.dsn)
        try:
            await recreate(connection)
            waiting = past.stream(0, Filter(), follow=True, idle_s=0.05)
            assert [await anext(waiting), await anext(waiting)] == [[], []]
        finally:
            await connection.close()
        await waiting.aclose()  # type: ignore[attr-defined]
        assert end > 0


async def test_following_over_http_streams(api: Site) -> None:
    """Events reach a client that follows, without the answer's end."""
    received: asyncio.Queue[bytes] = asyncio.Queue()
    request = asyncio.create_task(_stream(api, received))
    before = api.app.state.services.feed.end
    job = await api.submitted()
    while True:
        seqs = [orjson.loads(line)["seq"] for line in (await received.get()).splitlines() if line]
        if job["seq"] in seqs:
            break
    assert job["seq"] == before + 1
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_a_caller_has_so_many_feeds_and_no_more(postgres_dsn: str) -> None:
    """One that was closed is free again; those that ended count no more."""
    async with site(postgres_dsn, patient(feeds_per_principal_max=1)) as api:
        assert [(await api.get("/v1/events")).status_code for _ in range(3)] == [200, 200, 200]
        received: asyncio.Queue[bytes] = asyncio.Queue()
        open_feed = asyncio.create_task(_stream(api, received))
        await received.get()
        assert (await api.get("/v1/events")).status_code == 429
        assert (await api.get("/v1/events", who="bob")).status_code == 200
        open_feed.cancel()
        await asyncio.gather(open_feed, return_exceptions=True)
        assert (await api.get("/v1/events")).status_code == 200


async def _stream(api: Site, received: "asyncio.Queue[bytes]") -> None:
    """A follower at the level of ASGI, since httpx gathers an answer whole in tests."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/v1/events",
        "raw_path": b"/v1/events",
        "query_string": b"follow=true",
        "headers": [(b"authorization", b"Bearer token-of-ada")],
        "client": ("127.0.0.1", 1),
        "server": ("api", 80),
        "scheme": "http",
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            received.put_nowait(message["body"])

    await api.app(scope, receive, send)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/events?type=job.queed", "there is no event type job.queed: did you mean job.queued?"),
        ("/v1/events?type=job.queued,zzz.*", "there is no event type zzz.*"),
        ("/v1/audit?type=job.ended_", "there is no event type job.ended_"),
    ],
)
async def test_an_unknown_event_type_is_named(api: Site, path: str, message: str) -> None:
    """Nobody follows for ever what never comes."""
    answer = await api.get(path, who="aud")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "type")
    assert answer.json()["errors"][0]["message"].startswith(message)
    assert (await api.get("/v1/events?type=job.queued,gang.*")).status_code == 200
