"""Quotas, queue, cluster and policy."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from api.body import documented, read_object
from api.problems import FieldError, Problem
from api.reply import reply
from api.routes.jobs import Cursor, Limit
from api.schemas import NAME_PATTERN, PolicyIn, QuotaIn, QuotaLineIn
from api.services import BIG, Admin, Fresh, Key, Parts, Person, Services
from api.texts import form_fault, prose_fault
from api.validation import field_error, field_name, invalid, read_model
from commands.messages import QuotaLine, SetPolicy, SetQuota
from commands.policy import Policy
from commands.refusal import RefusalCode
from events.ids import GpuType, TeamId

router = APIRouter(tags=["cluster"])

Team = Annotated[str, Path(pattern=NAME_PATTERN)]


@router.get("/v1/teams/{team}/quota", dependencies=[Fresh])
async def quota(parts: Parts, caller: Person, team: Team) -> Response:
    """Guarantee, borrow limit and use by GPU type; empty for a team that has neither quota nor use."""
    return reply(await parts.reads.quota(TeamId(team)))


@router.put("/v1/teams/{team}/quota", status_code=202, openapi_extra=documented(QuotaIn))
async def set_quota(request: Request, parts: Parts, caller: Admin, key: Key, team: Team) -> Response:
    """Set the quota of the named GPU types; the others stay as they are."""
    wire = read_model(QuotaIn, await read_object(request))
    lines = wire.__pydantic_extra__
    faults = [fault for name in lines if (fault := form_fault(field_name(name), name, NAME_PATTERN))]
    faults += [fault for name, line in sorted(lines.items()) for fault in _quota_faults(name, line)]
    faults += [fault] if (fault := prose_fault("reason", wire.reason)) else []
    if not lines and wire.classes is None:
        faults.append(FieldError("", None, "at least one GPU type", "names no GPU type and no classes"))
    if len(lines) > 100:
        faults.append(FieldError("", len(lines), "at most 100 GPU types", "names too many GPU types"))
    if faults:
        raise invalid(faults)
    command = SetQuota(
        team=TeamId(team),
        lines=tuple(_quota_line(name, line) for name, line in sorted(lines.items())),
        classes=tuple(wire.classes) if wire.classes is not None else None,
        reason=wire.reason,
    )
    try:
        outcome = await parts.commands.ask(caller, key, command)
    except Problem as problem:
        raise await _over_nothing(parts, problem) from None
    return reply({"team": team, **outcome.told()}, 202)


async def _over_nothing(parts: Services, problem: Problem) -> Problem:
    """A guarantee over the inventory, where there is none at all: the type is unknown, or not there yet."""
    fault = next(iter(problem.errors), None)
    if fault is None or problem.more.get("reason") != RefusalCode.OVER_INVENTORY:
        return problem
    name, types = fault.field.removesuffix(".guaranteed"), await parts.reads.gpu_types()
    if name in types:
        return problem
    words, limit = "no registered node has GPUs of this type", ", ".join(types) or "no node is registered"
    told = f"{name}: {words} (registered: {limit})"
    return Problem(problem.code, told, errors=[replace(fault, message=words, limit=limit)], **problem.more)


def _quota_faults(name: str, line: QuotaLineIn) -> Iterator[FieldError]:
    """Each figure has to be given once: as a number of GPUs, or in percent."""
    for figure in ("guaranteed", "borrow_limit"):
        given = [getattr(line, figure), getattr(line, f"{figure}_percent")]
        if given.count(None) != 1:
            message = "is required, in GPUs or in percent" if given.count(None) else "is given twice"
            yield FieldError(f"{field_name(name)}.{figure}", None, "GPUs or percent", message)


def _quota_line(name: str, line: QuotaLineIn) -> QuotaLine:
    return QuotaLine(
        gpu_type=GpuType(name),
        guaranteed=line.guaranteed or 0,
        borrow_limit=line.borrow_limit or 0,
        guaranteed_percent=line.guaranteed_percent,
        borrow_limit_percent=line.borrow_limit_percent,
    )


@router.get("/v1/shares", dependencies=[Fresh])
async def shares(
    parts: Parts, caller: Person, team: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None
) -> Response:
    """How the teams stand on each GPU type: what each has, what it is entitled to, and what it used of late."""
    found = await parts.reads.shares(None if team is None else TeamId(team))
    if found is None:
        detail = "the state of the cluster is not known yet"
        raise Problem("unavailable", detail, headers={"retry-after": "1"})
    return reply(found)


@router.get("/v1/queue", dependencies=[Fresh])
async def queue(parts: Parts, caller: Person, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """The jobs that wait, in the queue's order; held ones are not in it."""
    return reply(await parts.reads.queue(cursor, limit))


@router.get("/v1/cluster", dependencies=[Fresh])
async def cluster(parts: Parts, caller: Person) -> Response:
    """Who leads, what there is, and what is used."""
    return reply(await parts.reads.cluster())


@router.get("/v1/policy", dependencies=[Fresh])
async def policy(parts: Parts, caller: Person, version: Annotated[int | None, Query(ge=0, le=BIG)] = None) -> Response:
    """The policy in force, or a version of it; who put it in force, when and why; and what each version changed.
    Version 0 is the built-in default."""
    found = await parts.reads.policy(version)
    if found is None:
        raise Problem("not_found", f"there is no version {version} of the policy")
    return reply(found)


@router.put("/v1/policy", status_code=202, openapi_extra=documented(PolicyIn))
async def set_policy(request: Request, parts: Parts, caller: Admin, key: Key) -> Response:
    """Put a new policy in force, as {"policy": {...}, "reason": "..."} or as the bare policy."""
    body = await read_object(request)
    wire = read_model(PolicyIn, body if "policy" in body else {"policy": body})
    if fault := prose_fault("reason", wire.reason):
        raise invalid([fault])
    outcome = await parts.commands.ask(caller, key, SetPolicy(policy=_checked(wire.policy), reason=wire.reason))
    return reply(outcome.told(), 202)


def _checked(policy: dict[str, Any]) -> dict[str, Any]:
    """The whole policy, defaults filled in. Raises Problem."""
    try:
        made = Policy.model_validate_json(json.dumps(policy), strict=True)  # orjson knows no integer beyond 64 bits
    except ValidationError as error:
        raise invalid([field_error(detail) for detail in error.errors(include_url=False)]) from None
    return made.model_dump(mode="json")
