"""The description of the API: what FastAPI finds, and the bodies and problems that it cannot see."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api import schemas
from api.problems import MEDIA_TYPE, TITLES, type_of

MODELS = (
    schemas.JobSubmission,
    schemas.JobChange,
    schemas.Extension,
    schemas.DrainIn,
    schemas.ReasonIn,
    schemas.QuotaIn,
    schemas.PolicyIn,
)
_ALWAYS = (400, 401, 403, 404, 405, 406, 422, 429, 431, 500, 503, 504)
_WRITES = (409, 413, 415)
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "errors"],
    "properties": {
        "type": {"type": "string", "description": "urn:signalbox:problem:<code>: stable"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": sorted(TITLES)},
        "errors": {"type": "array", "items": {"$ref": "#/components/schemas/FieldError"}},
    },
}
_FIELD_ERROR = {
    "type": "object",
    "required": ["field", "value", "limit", "message"],
    "properties": {
        "field": {"type": "string", "description": "as the client named it: topology.max_blocks, command[3]"},
        "value": {"description": "what was given, where it may be shown"},
        "limit": {"type": "string"},
        "message": {"type": "string"},
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; made once, and then kept by the app."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _add_schemas(document)
        for operations in document["paths"].values():
            for method, operation in operations.items():
                _add_problems(operation, _ALWAYS + (() if method == "get" else _WRITES))
        app.openapi_schema = document
    return app.openapi_schema


def query_names(app: FastAPI) -> dict[tuple[str, str], frozenset[str]]:
    """(method, path) -> the query parameters that it takes."""
    return {
        (method.upper(), path): frozenset(
            parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"
        )
        for path, operations in describe(app)["paths"].items()
        for method, operation in operations.items()
    }


def _add_schemas(document: dict[str, Any]) -> None:
    _, made = models_json_schema(
        [(model, "validation") for model in MODELS], ref_template="#/components/schemas/{model}"
    )
    known = document.setdefault("components", {}).setdefault("schemas", {})
    known.update(made.get("$defs", {}))
    known["Problem"], known["FieldError"] = _PROBLEM, _FIELD_ERROR
    for unused in ("HTTPValidationError", "ValidationError"):
        known.pop(unused, None)


def _add_problems(operation: dict[str, Any], statuses: tuple[int, ...]) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status in statuses:
        codes = [code for code, (of, _) in TITLES.items() if of == status]
        words = "; ".join(f"{TITLES[code][1]} (`{type_of(code)}`)" for code in codes)
        operation["responses"][str(status)] = {"description": words, "content": content}
