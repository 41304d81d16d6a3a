"""/v1/jobs: submit, look, change, stop."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from api.body import NO_BODY, documented, read_nothing, read_object
from api.problems import FieldError
from api.reply import found, reply
from api.schemas import JOB_ID_PATTERN, NAME_PATTERN, Extension, JobChange, JobSubmission
from api.services import Fresh, Key, Parts, Person, Services
from api.spec import read_change, read_submission
from api.submit import Outcome, rejection
from api.times import parse_duration
from api.validation import invalid, read_model
from commands.messages import (
    CancelJob,
    ChangeJob,
    Command,
    ExtendJob,
    HoldJob,
    ReleaseJob,
    RequeueJob,
)
from events.ids import JobId
from events.job import JobSpec, JobState
from projections.queries import JobFilter

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Id = Annotated[str, Path(pattern=JOB_ID_PATTERN)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_EXTENSION_MAX_S = 366 * 86400


@router.post("", status_code=202, openapi_extra=documented(JobSubmission))
async def submit(request: Request, parts: Parts, caller: Person, key: Key) -> Response:
    """Submit a job. The answer comes with its place in the queue; without a leader it says SUBMITTED, and is kept."""
    spec = read_submission(await read_object(request), parts.context.cluster)
    caller.require_team(spec.team)
    caller.require_class(spec.priority_class)
    job_id, outcome = await parts.commands.submit(caller, key, spec)
    parts.feed.remember(job_id, spec.team)
    return reply(await _submitted(parts, job_id, spec, outcome), 202)


async def _submitted(parts: Services, job_id: JobId, spec: JobSpec, outcome: Outcome) -> dict[str, Any]:
    """The answer to a submission: the first one again for a repeated key, with today's state and place."""
    answer = {"job_id": job_id, "state": JobState.SUBMITTED, "queue_position": None, "estimated_start": None}
    wait_s = parts.context.settings.position_wait_s
    if outcome.repeated is not None:
        first_id, seq = outcome.repeated
        job = await parts.reads.job_at(JobId(first_id), seq, parts.context.settings.answer_wait_s)
        if job is not None and job["rejection"] is not None:
            raise rejection({"job_id": first_id, **job["rejection"]})
        known = {"state": job["state"], "queue_position": job["queue_position"]} if job else {}
        return {**answer, "job_id": first_id, "seq": seq, **known}
    if outcome.answer is None:
        return {**answer, "seq": None, "command_id": outcome.command_id}
    position = await parts.reads.position_of_new(spec, outcome.answer.seq_of("job.submitted"), wait_s)
    return {**answer, "state": JobState.QUEUED, "queue_position": position, "seq": outcome.answer.seq}


@router.get("", dependencies=[Fresh])
async def jobs(
    parts: Parts,
    caller: Person,
    team: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    principal: Annotated[str | None, Query(pattern=r"^[!-~]{1,128}$")] = None,
    state: Annotated[list[JobState] | None, Query(max_length=11)] = None,
    label: Annotated[list[str] | None, Query(max_length=16, description="key=value")] = None,
    name: Annotated[str | None, Query(pattern=r"^[^\x00-\x1f]{1,128}$")] = None,
    held: bool | None = None,
    dependent: Annotated[bool | None, Query(description="waits for other jobs")] = None,
    array: Annotated[
        str | None, Query(pattern=JOB_ID_PATTERN, description="elements of this array that were granted")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Jobs, newest first."""
    wanted = JobFilter(
        team=team,
        principal=principal,
        states=tuple(str(each) for each in state or ()),
        labels=_labels(label or []),
        name=name,
        held=held,
        dependent=dependent,
        element_of=array,
    )
    return reply(await parts.reads.jobs(wanted, cursor, limit))


def _labels(texts: list[str]) -> dict[str, str]:
    """["run=a", "b:c"] -> {"run": "a", "b": "c"}. Raises Problem."""
    labels = {}
    for text in texts:
        key, sign, value = text.partition("=" if "=" in text else ":")
        if not sign or not key or "\x00" in text or len(text) > 400:
            raise invalid([FieldError("label", None, "key=value", "has to be key=value")])
        labels[key] = value
    return labels


@router.get("/{job_id}", dependencies=[Fresh])
async def job(parts: Parts, caller: Person, job_id: Id) -> Response:
    """One job. One whose command is not answered yet is SUBMITTED."""
    known = await parts.reads.job(JobId(job_id))
    if known is None and (team := parts.feed.team_of(job_id)) is not None:
        return reply({"job_id": job_id, "cluster": parts.context.cluster, "team": team, "state": JobState.SUBMITTED})
    return reply(found(known, "unknown_job", job_id))


@router.delete("/{job_id}", status_code=202, openapi_extra=NO_BODY)
async def cancel(request: Request, parts: Parts, caller: Person, key: Key, job_id: Id) -> Response:
    """Cancel a job: at once where it waits, else when its tasks are gone."""
    await read_nothing(request)
    return await _act(parts, caller, key, CancelJob(job_id=JobId(job_id)), JobState.CANCELLING)


@router.patch("/{job_id}", status_code=202, openapi_extra=documented(JobChange))
async def change(request: Request, parts: Parts, caller: Person, key: Key, job_id: Id) -> Response:
    """New class or labels for a job that waits."""
    wire = read_change(await read_object(request))
    if wire.priority_class is not None:
        caller.require_class(wire.priority_class)
    command = ChangeJob(job_id=JobId(job_id), priority_class=wire.priority_class, labels=wire.labels)
    return await _act(parts, caller, key, command, JobState.QUEUED)


@router.post("/{job_id}:hold", status_code=202, openapi_extra=NO_BODY)
async def hold(request: Request, parts: Parts, caller: Person, key: Key, job_id: Id) -> Response:
    """Keep a waiting job from starting."""
    await read_nothing(request)
    return await _act(parts, caller, key, HoldJob(job_id=JobId(job_id)), JobState.QUEUED)


@router.post("/{job_id}:release", status_code=202, openapi_extra=NO_BODY)
async def release(request: Request, parts: Parts, caller: Person, key: Key, job_id: Id) -> Response:
    """End a hold."""
    await read_nothing(request)
    return await _act(parts, caller, key, ReleaseJob(job_id=JobId(job_id)), JobState.QUEUED)


@router.post("/{job_id}:extend", status_code=202, openapi_extra=documented(Extension))
async def extend(request: Request, parts: Parts, caller: Person, key: Key, job_id: Id) -> Response:
    """More run time."""
    wire = read_model(Extension, await read_object(request))
    by_s = parse_duration(wire.by)
    if by_s > _EXTENSION_MAX_S:
        raise invalid([FieldError("by", wire.by, "at most 366d", "is longer than 366d")])
    return await _act(parts, caller, key, ExtendJob(job_id=JobId(job_id), by_s=by_s), JobState.RUNNING)


@router.post("/{job_id}:requeue", status_code=202, openapi_extra=NO_BODY)
async def requeue(request: Request, parts: Parts, caller: Person, key: Key, job_id: Id) -> Response:
    """Stop the attempt that runs, and queue the job again."""
    await read_nothing(request)
    return await _act(parts, caller, key, RequeueJob(job_id=JobId(job_id)), JobState.RUNNING)


async def _act(parts: Services, caller: Person, key: str, command: Command, likely: JobState) -> Response:
    """Have a job's own team, an operator or an admin change it. `likely`: its state where the tables are behind."""
    job_id: JobId = command.job_id  # type: ignore[union-attr]
    caller.require_team(await parts.team_of(job_id))
    outcome = await parts.commands.ask(caller, key, command)
    if outcome.answer is None:
        return reply(
            {"job_id": job_id, "state": JobState.SUBMITTED, "seq": None, "command_id": outcome.command_id}, 202
        )
    seq = outcome.answer.seq
    job = await parts.reads.job_at(job_id, seq, parts.context.settings.position_wait_s)
    finished = outcome.answer.first("job.finished")
    state = job["state"] if job else finished["state"] if finished else likely
    held = job["held"] if job else isinstance(command, HoldJob)
    return reply({"job_id": job_id, "state": state, "held": held, "seq": outcome.seq}, 202)


@router.get("/{job_id}/events", dependencies=[Fresh])
async def job_events(parts: Parts, caller: Person, job_id: Id, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """What happened to a job, from the start."""
    await parts.team_of(JobId(job_id))
    return reply(await parts.reads.job_events(JobId(job_id), cursor, limit))


@router.get("/{job_id}/attempts", dependencies=[Fresh])
async def job_attempts(parts: Parts, caller: Person, job_id: Id) -> Response:
    """The attempts of a job, and where each ran."""
    await parts.team_of(JobId(job_id))
    return reply({"attempts": await parts.reads.attempts(JobId(job_id))})


@router.get("/{job_id}/checkpoints", dependencies=[Fresh])
async def job_checkpoints(parts: Parts, caller: Person, job_id: Id) -> Response:
    """Accepted checkpoints, in the order of their acceptance."""
    await parts.team_of(JobId(job_id))
    return reply({"checkpoints": await parts.reads.checkpoints(JobId(job_id))})


@router.get("/{job_id}/why", dependencies=[Fresh])
async def why(parts: Parts, caller: Person, job_id: Id) -> Response:
    """What a job waits for."""
    return reply(found(await parts.reads.why(JobId(job_id)), "unknown_job", job_id))
