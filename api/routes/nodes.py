"""/v1/nodes: the fleet, and an operator's words about it."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from api.body import NO_BODY, documented, read_nothing, read_object
from api.reply import found, reply
from api.routes.jobs import Cursor, Limit
from api.schemas import NAME_PATTERN, DrainIn, ReasonIn
from api.services import Fresh, Key, Operator, Parts, Person, Services
from api.texts import prose_fault
from api.validation import invalid, read_model
from commands.messages import DrainNode, EaseSilence, NodeCommand, RemoveNode, UndrainNode, WipeNode
from events.ids import NodeId

router = APIRouter(tags=["nodes"])

Id = Annotated[str, Path(pattern=NAME_PATTERN)]


class NodeState(StrEnum):
    """As the read models have it."""

    UP = "up"
    SUSPECT = "suspect"
    LOST = "lost"
    REMOVED = "removed"


@router.get("/v1/nodes", dependencies=[Fresh])
async def nodes(
    parts: Parts,
    caller: Person,
    block: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    state: Annotated[list[NodeState] | None, Query(max_length=4)] = None,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> Response:
    """Nodes by id; removed ones only where `state` asks for them."""
    return reply(await parts.reads.nodes(block, tuple(str(each) for each in state or ()), cursor, limit))


@router.get("/v1/nodes/{node_id}", dependencies=[Fresh])
async def node(parts: Parts, caller: Person, node_id: Id) -> Response:
    """One node, GPU by GPU."""
    return reply(found(await parts.reads.node(NodeId(node_id)), "unknown_node", node_id))


@router.post("/v1/nodes/{node_id}:drain", status_code=202, openapi_extra=documented(DrainIn))
async def drain(request: Request, parts: Parts, caller: Operator, key: Key, node_id: Id) -> Response:
    """No new work; with `now` what runs there is stopped with grace, and queued again."""
    wire = read_model(DrainIn, await read_object(request))
    _check_reason(wire.reason)
    return await _act(parts, caller, key, DrainNode(node_id=NodeId(node_id), reason=wire.reason, now=wire.now))


@router.post("/v1/nodes/{node_id}:undrain", status_code=202, openapi_extra=NO_BODY)
async def undrain(request: Request, parts: Parts, caller: Operator, key: Key, node_id: Id) -> Response:
    """Back in service."""
    await read_nothing(request)
    return await _act(parts, caller, key, UndrainNode(node_id=NodeId(node_id)))


@router.post("/v1/nodes/{node_id}:wiped", status_code=202, openapi_extra=documented(ReasonIn))
async def wiped(request: Request, parts: Parts, caller: Operator, key: Key, node_id: Id) -> Response:
    """Your word that nothing of ours runs on a lost node any more: what was quarantined there is free."""
    reason = await _reason(request)
    return await _act(parts, caller, key, WipeNode(node_id=NodeId(node_id), reason=reason))


@router.post("/v1/nodes/{node_id}:remove", status_code=202, openapi_extra=documented(ReasonIn))
async def remove(request: Request, parts: Parts, caller: Operator, key: Key, node_id: Id) -> Response:
    """Out of the inventory."""
    reason = await _reason(request)
    return await _act(parts, caller, key, RemoveNode(node_id=NodeId(node_id), reason=reason))


@router.post("/v1/cluster:ease-silence", status_code=202, openapi_extra=documented(ReasonIn))
async def ease_silence(request: Request, parts: Parts, caller: Operator, key: Key) -> Response:
    """Your word that nodes which are silent together are really down."""
    outcome = await parts.commands.ask(caller, key, EaseSilence(reason=await _reason(request)))
    return reply(outcome.told(), 202)


async def _reason(request: Request) -> str:
    wire = read_model(ReasonIn, await read_object(request))
    _check_reason(wire.reason)
    return wire.reason


def _check_reason(text: str) -> None:
    if fault := prose_fault("reason", text):
        raise invalid([fault])


async def _act(parts: Services, caller: Operator, key: str, command: NodeCommand) -> Response:
    outcome = await parts.commands.ask(caller, key, command)
    return reply({"node_id": command.node_id, **outcome.told()}, 202)
