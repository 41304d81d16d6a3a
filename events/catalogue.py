"""The catalogue: every event type under a stable name and version, apart from where its class lives.

A name and its version are stored in the log for ever (I-10); a class may move or be renamed freely.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EventType:
    """One entry: `name` is subject.past_tense, `version` counts the changes of its fields."""

    name: str
    version: int
    cls: type


_by_class: dict[type, EventType] = {}
_by_name: dict[tuple[str, int], EventType] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(name: str, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Register a class as the event `name` at `version`, and make it a frozen, slotted, keyword-only dataclass."""

    def register(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
        entry = EventType(name, version, made)
        assert (name, version) not in _by_name, f"event {name} v{version} is registered twice"
        _by_class[made] = _by_name[name, version] = entry
        return made

    return register


def entry_of(cls: type) -> EventType:
    """The catalogue's entry of an event class. KeyError where it is not an event."""
    return _by_class[cls]


def find(name: str, version: int) -> EventType | None:
    """The entry under a stored name and version, or None where this build does not know it."""
    return _by_name.get((name, version))


def entries() -> list[EventType]:
    """All entries, by name and version."""
    return [_by_name[key] for key in sorted(_by_name)]
