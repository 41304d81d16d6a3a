"""Problems: every error as RFC 9457 problem+json, under a stable type. Sentences are made here and nowhere below.

What is echoed of a client's input passes through `shown`: short, printable, and never what looks like a credential.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from api.credentials import looks_like_credential

MEDIA_TYPE = "application/problem+json"
_SHOWN_MAX = 80

TITLES: dict[str, tuple[int, str]] = {
    "malformed_json": (400, "The body is not a JSON object that can be read"),
    "bad_request": (400, "The request cannot be read"),
    "unauthenticated": (401, "A valid bearer token is needed"),
    "forbidden": (403, "This caller may not do this"),
    "not_found": (404, "There is no such thing"),
    "unknown_job": (404, "There is no such job"),
    "unknown_node": (404, "There is no such node"),
    "unknown_team": (404, "There is no such team"),
    "method_not_allowed": (405, "This method is not allowed here"),
    "not_acceptable": (406, "None of the media types asked for can be given"),
    "conflict": (409, "The request does not fit the present state"),
    "key_conflict": (409, "The idempotency key was used before with another request"),
    "log_not_there": (409, "There is no log of that rank"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body has to be application/json"),
    "invalid": (422, "Some fields are not valid"),
    "rejected": (422, "The job can never run here"),
    "refused": (422, "The command was refused"),
    "undecidable": (422, "The command could not be decided"),
    "too_many_requests": (429, "Too many requests"),
    "queue_full": (429, "The team has too many queued jobs"),
    "headers_too_large": (431, "The headers are too large"),
    "internal": (500, "An error on our side"),
    "unavailable": (503, "This cannot be answered now"),
    "outcome_unknown": (503, "It is not known whether the command was stored"),
    "not_yet": (504, "What was asked for is not there yet"),
}
"""Code -> status and title. The type is made of the code and never changes its meaning."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that broke a rule. `field` in the client's own notation; `value` may be shown to anyone."""

    field: str
    value: Any
    limit: str
    message: str


class Problem(Exception):
    """An answer that is an error. `more`: further members of the document."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        errors: Sequence[FieldError] = (),
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail or code)
        self.code = code
        self.status, self.title = TITLES[code]
        self.detail = detail or self.title
        self.errors = errors
        self.headers = headers or {}
        self.more = more


def type_of(code: str) -> str:
    """The stable type of a problem."""
    return "urn:signalbox:problem:" + code.replace("_", "-")


def document(problem: Problem) -> bytes:
    """The problem as JSON."""
    return orjson.dumps(
        {
            "type": type_of(problem.code),
            "title": problem.title,
            "status": problem.status,
            "detail": problem.detail,
            "code": problem.code,
            "errors": problem.errors,
            **problem.more,
        }
    )


def response(problem: Problem) -> Response:
    """The problem as an answer."""
    headers = {"cache-control": "no-store", **problem.headers}
    return Response(document(problem), problem.status, headers, MEDIA_TYPE)


def shown(value: Any) -> Any:
    """What may be echoed of a value: numbers, and short printable text that looks like no credential; else its kind."""
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else "(a very large number)"
    if isinstance(value, str):
        if looks_like_credential(value):
            return "(not shown)"
        printable = "".join(c if c.isprintable() else "?" for c in value[: _SHOWN_MAX + 1])
        return printable if len(value) <= _SHOWN_MAX else printable[:_SHOWN_MAX] + "..."
    if isinstance(value, list):
        return "(an array)"
    return "(an object)" if isinstance(value, dict) else "(not shown)"
