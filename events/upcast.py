"""Old versions of events brought up to the newest, one step at a time (I-10). The log itself is never rewritten."""

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Step = Callable[[Body], tuple[str, int, Body]]

STEPS: dict[tuple[str, int], Step] = {}
"""(name, version) -> the next (name, version, body). Every superseded version has one, and a golden log."""


def upcast(name: str, version: int, body: Body) -> tuple[str, int, Body]:
    """The newest (name, version, body) of a stored event."""
    while (step := STEPS.get((name, version))) is not None:
        name, version, body = step(body)
    return name, version, body
