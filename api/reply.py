"""Answers as JSON bytes."""

from typing import Any

import orjson
from starlette.responses import Response

from api.problems import Problem


def reply(document: Any, status: int = 200) -> Response:
    """A JSON answer that no cache keeps."""
    return Response(orjson.dumps(document), status, {"cache-control": "no-store"}, "application/json")


def found(document: dict[str, Any] | None, code: str, name: str) -> dict[str, Any]:
    """The document. Raises Problem (404) where there is none."""
    if document is None:
        raise Problem(code, f"there is no {code.removeprefix('unknown_')} {name}")
    return document
