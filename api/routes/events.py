"""The event feed and the audit search."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api import metrics
from api.feed import FeedEvent, Filter, ndjson, server_sent
from api.problems import FieldError, Problem
from api.reply import reply
from api.routes.jobs import Cursor, Limit
from api.schemas import JOB_ID_PATTERN, NAME_PATTERN
from api.services import BIG, Auditor, Fresh, Parts, Person, Services
from api.times import TIME_PATTERN, parse_time
from api.validation import invalid
from projections.audit import AuditFilter

router = APIRouter(tags=["events"])

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
TYPE_PATTERN = r"^[a-z_]{1,40}\.([a-z_]{1,40}|\*)(,[a-z_]{1,40}\.([a-z_]{1,40}|\*)){0,39}$"
EXACT_PATTERN = r"^[a-z_]{1,40}\.[a-z_]{1,40}$"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@router.get(
    "/v1/events",
    responses={200: {"content": {NDJSON: {}, SSE: {}}, "description": "Events, one a line or one a message"}},
    response_class=StreamingResponse,
)
async def events(
    request: Request,
    parts: Parts,
    caller: Person,
    after: Annotated[int, Query(ge=0, le=BIG, description="The last seq that you have")] = 0,
    type: Annotated[str | None, Query(pattern=TYPE_PATTERN, description="job.queued,gang.*")] = None,
    team: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    job: Annotated[str | None, Query(pattern=JOB_ID_PATTERN)] = None,
    follow: Annotated[bool | None, Query(description="Default: true for an event stream, else false")] = None,
    last_event_id: Annotated[str | None, Header(description="Where an event stream goes on")] = None,
) -> Response:
    """Every accepted event with seq > `after`, in order, none twice. A blank line or comment is a sign of life."""
    media = _media(request.headers.get("accept", "*/*"))
    if last_event_id is not None:
        after = _last(last_event_id)
    if parts.follower.failed is not None or not parts.follower.begun.is_set():
        raise Problem("unavailable", "the events log cannot be read now", headers={"retry-after": "2"})
    wanted = Filter(types=frozenset(type.split(",") if type else ()), team=team, job_id=job)
    on = media == SSE if follow is None else follow
    pages = parts.feed.stream(after, wanted, follow=on, idle_s=parts.context.settings.feed_idle_s)
    sent = _sent(pages, server_sent if media == SSE else ndjson, b": open\n\n" if media == SSE else b"")
    return _FeedResponse(parts, caller.principal, sent, headers=_HEADERS, media_type=media)


class _FeedResponse(StreamingResponse):
    """A feed that is counted as its caller's for as long as it is open, and not a moment longer."""

    def __init__(self, parts: Services, principal: str, content: AsyncIterator[bytes], **more: Any) -> None:
        super().__init__(content, **more)
        self._parts, self._principal = parts, principal
        parts.open_feed(principal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._parts.close_feed(self._principal)


async def _sent(
    pages: AsyncIterator[Sequence[FeedEvent]], form: Callable[[Sequence[FeedEvent]], bytes], begin: bytes
) -> AsyncIterator[bytes]:
    metrics.FOLLOWERS.inc()
    try:
        if begin:
            yield begin
        async for page in pages:
            metrics.FEED_EVENTS.inc(len(page))
            yield form(page)
    finally:
        metrics.FOLLOWERS.dec()


def _media(accept: str) -> str:
    """The form that is asked for first among those that there are. Raises Problem (406)."""
    for part in accept.split(","):
        media = part.partition(";")[0].strip().lower()
        if media in (NDJSON, SSE):
            return media
        if media in ("*/*", "application/*", "application/json", "application/ndjson", "application/jsonl", ""):
            return NDJSON
        if media == "text/*":
            return SSE
    raise Problem("not_acceptable", f"{NDJSON} or {SSE}")


def _last(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > BIG:
        raise invalid([FieldError("Last-Event-ID", None, "a seq", "has to be the id of an event: its seq")])
    return int(text)


Moment = Annotated[str | None, Query(pattern=TIME_PATTERN)]


@router.get("/v1/audit", dependencies=[Fresh])
async def audit(
    parts: Parts,
    caller: Auditor,
    actor: Annotated[str | None, Query(pattern=r"^[!-~]{1,128}$")] = None,
    job: Annotated[str | None, Query(pattern=JOB_ID_PATTERN)] = None,
    node: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    gpu: Annotated[int | None, Query(ge=0, le=1023, description="A slot of `node`")] = None,
    team: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    type: Annotated[list[Annotated[str, Query(pattern=EXACT_PATTERN)]] | None, Query(max_length=40)] = None,
    since: Annotated[str | None, Query(alias="from", pattern=TIME_PATTERN)] = None,
    to: Moment = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Who did what to whom, newest first. `from` is inclusive, `to` is not."""
    if gpu is not None and node is None:
        raise invalid([FieldError("gpu", gpu, "with node", "is a slot of a node: name the node too")])
    wanted = AuditFilter(
        actor=actor,
        job_id=job,
        node_id=node,
        gpu=gpu,
        team=team,
        types=tuple(type or ()),
        from_at=_moment("from", since),
        to_at=_moment("to", to),
    )
    return reply(await parts.reads.audit(wanted, cursor, limit))


def _moment(field: str, text: str | None) -> int | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        raise invalid([FieldError(field, text, "RFC 3339 with a zone", "is not a time with a zone")]) from None
