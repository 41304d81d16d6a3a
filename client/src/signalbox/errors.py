"""What can go wrong between a caller and the scheduler, in the scheduler's own words (RFC 9457 problem+json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One field of a request that was refused: what it held, and the limit that it broke."""

    field: str
    message: str = ""
    value: Any = None
    limit: Any = None

    def __str__(self) -> str:
        told = (("value", self.value), ("limit", self.limit))
        figures = [f"{name}: {figure}" for name, figure in told if known(figure) and str(figure) not in self.message]
        tail = f" ({', '.join(figures)})" if figures else ""
        return f"{self.field}: {self.message}{tail}" if self.field else f"{self.message}{tail}"


def known(figure: Any) -> bool:
    """Whether a problem states this figure: an empty string is the API's way to say nothing; 0 is a figure."""
    return figure is not None and figure != ""


class SignalboxError(Exception):
    """A request that did not succeed. `type` is stable and may be compared; `title` and `detail` are for people.

    `status` is the HTTP status, 0 where no answer came. `errors` names the fields at fault.
    """

    def __init__(
        self,
        title: str,
        *,
        status: int = 0,
        type: str = "about:blank",
        detail: str = "",
        errors: tuple[FieldError, ...] = (),
    ) -> None:
        super().__init__(title)
        self.title = title
        self.status = status
        self.type = type
        self.detail = detail
        self.errors = errors

    def __str__(self) -> str:
        listed = any(self.detail.startswith(f"{error.field}: {error.message}") for error in self.errors)
        head = self.title if listed or self.detail in ("", self.title) else f"{self.title}: {self.detail}"
        return "\n".join([head, *(f"  {error}" for error in self.errors)])


class Refused(SignalboxError):
    """The API understood the request and refuses it (4xx); the same request again will not help."""


class ServerFault(SignalboxError):
    """The API failed (5xx, or an answer that makes no sense), and went on failing while it was tried again."""


class Unreachable(SignalboxError):
    """No answer came. A write may or may not have been taken: send it again under the same idempotency key."""


class NoProfile(SignalboxError):
    """Nothing says where the API is, or the profile cannot be read."""


def from_problem(status: int, body: Any, fallback: str) -> SignalboxError:
    """The exception for an error answer; `fallback` is the title where the body is no problem+json."""
    kind = Refused if 400 <= status < 500 else ServerFault
    if not isinstance(body, Mapping):
        return kind(fallback, status=status)
    listed = body.get("errors")
    return kind(
        str(body.get("title") or fallback),
        status=status,
        type=str(body.get("type") or "about:blank"),
        detail=str(body.get("detail") or ""),
        errors=tuple(_field(entry) for entry in listed if isinstance(entry, Mapping))
        if isinstance(listed, list)
        else (),
    )


def _field(entry: Mapping[str, Any]) -> FieldError:
    return FieldError(
        field=str(entry.get("field") or ""),
        message=str(entry.get("message") or ""),
        value=entry.get("value"),
        limit=entry.get("limit"),
    )
