"""A request's body as an object, and how it is documented."""

from typing import Any

from fastapi import Request
from pydantic import BaseModel

from api.problems import Problem
from api.strict_json import parse_object


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body. Raises Problem (400, 413, 415)."""
    given = request.headers.get("content-type", "")
    media, _, parameters = given.partition(";")
    if media.strip().lower() != "application/json" or not _utf8(parameters):
        raise Problem("unsupported_media_type", "the body has to be application/json in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("unsupported_media_type", "the body may not be compressed")
    return parse_object(await request.body())


async def read_nothing(request: Request) -> None:
    """The body of a request that says all in its path: absent, or an empty object. Raises Problem (400, 415)."""
    if await request.body() and await read_object(request):
        raise Problem("bad_request", "this takes no body, or an empty object")


def _utf8(parameters: str) -> bool:
    wanted = parameters.strip().lower().replace('"', "").replace(" ", "")
    return wanted in ("", "charset=utf-8", "charset=utf8")


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of an endpoint that takes this body; api.openapi adds the schema."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


NO_BODY: dict[str, Any] = {
    "requestBody": {
        "required": False,
        "content": {"application/json": {"schema": {"type": "object", "additionalProperties": False}}},
    }
}
