"""Texts of people: which characters may be in them, and the faults of those that may not."""

import re
from collections.abc import Callable

from api.credentials import looks_like_credential
from api.problems import FieldError

_LINES = "\n\t"

Check = Callable[[str, str], FieldError | None]


def name_fault(field: str, text: str) -> FieldError | None:
    """Names and labels: printable characters only, so that two that look alike are alike, and no line is broken."""
    return _odd(field, text, "") or credential_fault(field, text)


def prose_fault(field: str, text: str) -> FieldError | None:
    """Arguments, values and reasons: the same, and line ends and tabs."""
    return _odd(field, text, _LINES) or credential_fault(field, text)


def credential_fault(field: str, text: str) -> FieldError | None:
    """A text that holds a credential would be public for ever: refused, and not echoed."""
    if not looks_like_credential(text):
        return None
    return FieldError(
        field, None, "no credentials", "looks like a credential: it would be public; name a reference in `secrets`"
    )


def form_fault(field: str, text: str, pattern: str) -> FieldError | None:
    """A member's name that has to match a pattern, and be no credential; it is not echoed."""
    if re.fullmatch(pattern, text):
        return credential_fault(field, text)
    return FieldError(field, None, pattern, f"has a name that does not match {pattern}")


def _odd(field: str, text: str, allowed: str) -> FieldError | None:
    if text.isprintable():
        return None
    for place, character in enumerate(text):
        if not character.isprintable() and character not in allowed:
            message = f"has the character U+{ord(character):04X} at place {place}, which may not be there"
            return FieldError(field, None, "printable characters", message)
    return None
