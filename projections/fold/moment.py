"""Where in the log an event stands, as every rule of the fold gets it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from events.envelope import Commit
from projections.store import Rows


@dataclass(frozen=True, slots=True)
class Moment:
    """The event with number `seq`, in `commit`."""

    commit: Commit
    seq: int

    @property
    def at(self) -> int:
        """When, in ms."""
        return self.commit.at


Rule = Callable[[Rows, Moment, Any], None]


def slots_of(mask: int) -> list[int]:
    """The GPU slots of a mask, ascending."""
    return [slot for slot in range(mask.bit_length()) if mask >> slot & 1]
