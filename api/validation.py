"""Bodies into models: every fault as a FieldError, in the client's own notation, with the rule that it broke."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from api.problems import FieldError, Problem, shown
from api.schemas import FORMS

Model = TypeVar("Model", bound=BaseModel)
ERRORS_MAX = 50
_PRINTABLE_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,62}$")
_PRIVATE = ("env", "secrets")
"""Maps whose values are never echoed."""


def read_model(model: type[Model], body: dict[str, Any]) -> Model:
    """The body as a model. Raises Problem with all its faults."""
    made, errors = try_model(model, body)
    if made is None or errors:
        raise invalid(errors)
    return made


def try_model(model: type[Model], body: Any) -> tuple[Model | None, list[FieldError]]:
    """The body as a model, or its faults."""
    try:
        return model.model_validate(body), []
    except ValidationError as error:
        return None, [_suggested(model, detail) for detail in error.errors(include_url=False)]


def _suggested(model: type[BaseModel], detail: ErrorDetails) -> FieldError:
    """The fault; of a field that is not known, with the name of the one that it looks like."""
    fault = field_error(detail)
    if detail["type"] != "extra_forbidden" or not (near := _nearest(model, detail["loc"])):
        return fault
    return replace(fault, message=f"{fault.message}: did you mean {near}?")


def _nearest(model: type[BaseModel], loc: tuple[int | str, ...]) -> str | None:
    """The field, beside the one at `loc`, whose name begins alike or is spelt alike; None where none is."""
    at: type[BaseModel] | None = model
    for step in loc[:-1]:
        if at is not None and isinstance(step, str):
            at = _model_in(at.model_fields[step].annotation) if step in at.model_fields else None
    name = str(loc[-1])[:64].lower().replace("-", "_")
    if at is None or not name:
        return None
    begun = [field for field in at.model_fields if len(name) > 2 and (field.startswith(name) or name.startswith(field))]
    alike = get_close_matches(name, at.model_fields, n=1)
    return next(iter([*begun, *alike]), None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `X`, `X | None`, `list[X]` or an Annotated of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def invalid(errors: Sequence[FieldError]) -> Problem:
    """The problem for fields that are not valid; the first of them is told in the detail."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"{first.field or 'body'}: {first.message}{more}"
    return Problem("invalid", detail, errors=errors[:ERRORS_MAX])


def path(loc: Iterable[int | str]) -> str:
    """("topology", "max_blocks") -> topology.max_blocks; ("command", 3) -> command[3]. Odd names are not echoed."""
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step != "[key]":
            text += ("." if text else "") + field_name(step)
    return text


def field_name(name: str) -> str:
    """A client's name for a member, where it is fit to be shown."""
    known = _PRINTABLE_NAME.match(name) and shown(name) == name
    return name if known else "(a name that is not shown)"


def field_error(detail: ErrorDetails) -> FieldError:
    """One fault that pydantic found, in our words."""
    kind, context, loc = detail["type"], detail.get("ctx", {}), detail["loc"]
    limit, message = _rule(kind, context, detail["msg"])
    hidden = kind in ("missing", "extra_forbidden") or (len(loc) > 1 and loc[0] in _PRIVATE)
    return FieldError(path(loc), None if hidden else shown(detail["input"]), limit, message)


def _rule(kind: str, context: dict[str, Any], words: str) -> tuple[str, str]:
    """(limit, message) of a kind of fault."""
    match kind:
        case "missing":
            return "required", "is required"
        case "extra_forbidden":
            return "no unknown fields", "is not a field here"
        case "greater_than_equal" | "less_than_equal":
            bound = context.get("ge", context.get("le"))
            side = "at least" if "ge" in context else "at most"
            return f"{side} {bound}", f"has to be {side} {bound}"
        case "string_too_long" | "too_long":
            return f"at most {context['max_length']}", f"is too long: at most {context['max_length']}"
        case "string_too_short" | "too_short":
            return f"at least {context['min_length']}", f"is too short: at least {context['min_length']}"
        case "string_pattern_mismatch":
            form = FORMS.get(context["pattern"], str(context["pattern"]))
            return form, f"has to be {form}" if context["pattern"] in FORMS else f"does not match {form}"
        case "below":
            return f"at least {context['least']}", words
        case "enum" | "literal_error":
            return str(context["expected"]), "has to be one of " + str(context["expected"])
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return "an integer", "has to be an integer"
        case "bool_type" | "bool_parsing":
            return "true or false", "has to be true or false"
        case "string_type" | "string_unicode":
            return "a string", "has to be a string"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "an object", "has to be an object"
        case "list_type" | "tuple_type":
            return "an array", "has to be an array"
    return kind, words[:200]
