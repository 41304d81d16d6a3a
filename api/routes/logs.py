"""The logs of tasks: read from the node where they are, through this api and never through the leader."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from api.auth import bearer
from api.problems import Problem
from api.reply import reply
from api.schemas import JOB_ID_PATTERN
from api.services import Fresh, Parts, Person
from events.ids import JobId

router = APIRouter(tags=["logs"])
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@router.get(
    "/v1/jobs/{job_id}/logs",
    dependencies=[Fresh],
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The log's bytes"}},
    response_class=StreamingResponse,
)
async def logs(
    parts: Parts,
    caller: Person,
    job_id: Annotated[str, Path(pattern=JOB_ID_PATTERN)],
    rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000, description="Default: the newest that ran")] = None,
    follow: bool = False,
    from_byte: Annotated[int, Query(ge=0, le=2**62)] = 0,
) -> Response:
    """The captured output of one rank; with `follow` as it grows, until the task ends."""
    await parts.team_of(JobId(job_id))
    logged = await parts.reads.logged_lease(JobId(job_id), rank, attempt)
    if logged is None:
        raise Problem("log_not_there", "that rank has not started in that attempt, or there is none")
    tail, first = await parts.tails.ask(*logged, follow=follow, from_byte=from_byte)
    return StreamingResponse(parts.tails.read(tail, first), headers=_HEADERS, media_type="text/plain; charset=utf-8")


@router.post("/internal/tails/{tail_id}", include_in_schema=False)
async def upload(request: Request, parts: Parts, tail_id: str) -> Response:
    """Where an agent streams a log that somebody waits for; the bearer token is good once."""
    tail = parts.tails.accept(tail_id, bearer(request.headers.get("authorization")))
    return reply({"bytes": await parts.tails.relay(tail, request.stream())})
