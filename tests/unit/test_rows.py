"""Rows are made and changed quickly, and are what their classes would have made."""

from __future__ import annotations

import dataclasses
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any

import pytest

from commands import entities
from commands.entities import FairUse, Usage
from commands.rows import maker, replace, replacer
from events.gang import GangAllocated
from events.ids import GpuMask, GpuType, JobId, NodeIndex, TeamId

ROWS = [cls for cls in vars(entities).values() if dataclasses.is_dataclass(cls) and cls.__module__ == entities.__name__]
USAGE = Usage(team=TeamId("red"), gpu_type=GpuType("h100"), charged=3)


@pytest.mark.parametrize("cls", ROWS, ids=lambda cls: cls.__name__)
def test_every_field_of_every_row_is_copied(cls: type) -> None:
    """A row that is changed in nothing is its equal, of its own class."""
    row: Any = object.__new__(cls)
    for number, each in enumerate(fields(cls)):
        object.__setattr__(row, each.name, f"value {number}")
    copy = replace(row)
    assert copy is not row
    assert type(copy) is cls
    assert all(getattr(copy, each.name) == f"value {number}" for number, each in enumerate(fields(cls)))


def test_a_changed_row_differs_in_what_was_changed() -> None:
    """Both ways give what dataclasses.replace gives, and leave the row as it was."""
    charged = replacer(Usage, "charged")
    assert replace(USAGE, charged=5) == charged(USAGE, charged=5) == dataclasses.replace(USAGE, charged=5)
    assert USAGE.charged == 3


def test_a_changed_row_is_frozen() -> None:
    """Nobody may change it in place; it is hashed and compared as any other of its class."""
    row = replacer(Usage, "charged")(USAGE, charged=5)
    with pytest.raises(FrozenInstanceError):
        row.charged = 6  # type: ignore[misc]
    assert hash(row) == hash(Usage(team=TeamId("red"), gpu_type=GpuType("h100"), charged=5))
    assert repr(row) == repr(dataclasses.replace(USAGE, charged=5))


def test_a_field_that_is_not_there_is_not_changed() -> None:
    """A wrong name is found when it is used, or when the way to change it is written."""
    with pytest.raises(KeyError):
        replace(USAGE, used=1)
    with pytest.raises(AssertionError, match="Usage has no"):
        replacer(Usage, "used")


def test_a_value_is_made_as_its_class_makes_it() -> None:
    """With defaults for what is left out, and an error for what may not be."""
    made = maker(GangAllocated)
    ranks = ((NodeIndex(1), GpuMask(3)),)
    given = {"job_id": JobId("j_a"), "attempt": 1, "ranks": ranks, "limit_at": None}
    assert made(**given) == GangAllocated(**given)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        made(job_id=JobId("j_a"), attempt=1, ranks=ranks)  # type: ignore[call-arg]
    assert maker(FairUse)(team=TeamId("red"), gpu_type=GpuType("h100")).settled == 0


def test_a_class_that_computes_a_field_is_refused() -> None:
    """Its values would lack what it computes."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Computed:
        names: list[str] = field(default_factory=list)

    with pytest.raises(AssertionError, match="Computed computes a field"):
        maker(Computed)
