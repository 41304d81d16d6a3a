"""Old versions of events brought up to the newest, one step at a time (I-10). The log itself is never rewritten."""

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Step = Callable[[Body], tuple[str, int, Body]]


def _allocated_without_promise(body: Body) -> tuple[str, int, Body]:
    """Before version 2 nobody wrote down which commit had pledged the GPUs."""
    return "gang.allocated", 2, {**body, "promised_n": None}


STEPS: dict[tuple[str, int], Step] = {
    ("gang.allocated", 1): _allocated_without_promise,
}
"""(name, version) -> the next (name, version, body). Every superseded version has one, and a golden log."""


def upcast(name: str, version: int, body: Body) -> tuple[str, int, Body]:
    """The newest (name, version, body) of a stored event."""
    while (step := STEPS.get((name, version))) is not None:
        name, version, body = step(body)
    return name, version, body
