"""A format as a table: which columns of the source make each of our fields, and what is to be said about its rows.

A Column takes cells and gives one value. What a format cannot say in such a table (several files, or JSON) its reader
flattens to rows first (replay.traces.records).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replay.traces import cells
from replay.traces.cells import Unfit
from replay.traces.rows import Ended, Note

Parse = Callable[..., Any]
Cells = Sequence[Any]
"""One row of a source, cell by cell."""

Records = Iterator[Cells]


@dataclass(frozen=True, slots=True)
class Column:
    """Our `field` out of the source's columns `sources`, by `parse`. `least`: how many of these the header must have
    (None: all); those that are not there are given as ""."""

    field: str
    sources: tuple[str, ...]
    parse: Parse
    least: int | None = None

    @property
    def needed(self) -> int:
        return len(self.sources) if self.least is None else self.least

    def lacking(self, header: Sequence[str]) -> tuple[str, ...]:
        """Sources that it needs, and that the header has not; with `least` 1 all of them, any of which would do."""
        missing = tuple(source for source in self.sources if source not in header)
        return missing if len(self.sources) - len(missing) < self.needed else ()


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be counted about a row that is used: `note`, where `holds` is true of these cells."""

    note: Note
    sources: tuple[str, ...]
    holds: Callable[..., bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format. `title`: for people. `shape`: which reader makes records of it. `dated`: times of submission are
    seconds since 1970. `own_zero`: they are kept as they are; else they are counted from the first one. `sole_state`:
    where all rows end so, the source has not filled that column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    remarks: tuple[Remark, ...] = ()
    shape: str = "csv"
    dated: bool = False
    own_zero: bool = False
    sole_state: Ended | None = None

    def lacking(self, header: Sequence[str]) -> tuple[str, ...]:
        """What the header would need more: columns, or several divided by `|` of which one would do."""
        found = [(column, column.lacking(header)) for column in self.columns]
        return tuple(
            part
            for column, missing in found
            for part in (missing if column.needed > 1 or len(missing) == 1 else ("|".join(missing),))
            if part
        )

    def matched(self, header: Sequence[str]) -> int:
        """How many of the header's columns it reads."""
        sources = {source for column in self.columns for source in column.sources}
        return len(sources & set(header))


def need(field: str, *sources: str, by: Parse = cells.name) -> Column:
    """A field without which a row cannot be used: its format has all of these columns."""
    return Column(field, sources, by)


def any_of(field: str, *sources: str, by: Parse) -> Column:
    """The same, of which one column is enough."""
    return Column(field, sources, by, least=1)


def may(field: str, *sources: str, by: Parse = cells.text) -> Column:
    """A field that is filled where the header has its columns."""
    return Column(field, sources, by, least=0)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A column, and where its cells are in a row of this file."""

    field: str
    parse: Parse
    places: tuple[int, ...]
    columns: str


class RowParser:
    """The columns of a format, bound to the header of one file."""

    def __init__(self, form: Format, header: Sequence[str]) -> None:
        self.width = len(header)
        self._places = {source: place for place, source in enumerate(header)}
        there = [column for column in form.columns if any(source in self._places for source in column.sources)]
        self._bound = [self._bind(column) for column in there]
        self._remarks = [(remark.note, remark.holds, self._at(remark.sources)) for remark in form.remarks]

    def _bind(self, column: Column) -> _Bound:
        named = "/".join(source for source in column.sources if source in self._places)
        return _Bound(column.field, column.parse, self._at(column.sources), named)

    def _at(self, sources: tuple[str, ...]) -> tuple[int, ...]:
        """Where they stand; one that is not there is read from a cell past the end, which is empty."""
        return tuple(self._places.get(source, self.width) for source in sources)

    def parse(self, record: Cells) -> dict[str, Any]:
        """Our fields of one row. Raises Spoiled, which names the columns."""
        given = [*record, ""]
        values: dict[str, Any] = {}
        for bound in self._bound:
            try:
                values[bound.field] = bound.parse(*[given[place] for place in bound.places])
            except Unfit as unfit:
                raise Spoiled(unfit, bound.columns) from None
        return values

    def notes(self, record: Cells) -> list[Note]:
        """Remarks that hold for the row."""
        given = [*record, ""]
        return [note for note, holds, places in self._remarks if holds(*[given[place] for place in places])]


class Spoiled(Exception):
    """A row that is unfit, with the columns that are at fault."""

    def __init__(self, unfit: Unfit, columns: str) -> None:
        super().__init__(columns)
        self.unfit = unfit
        self.columns = columns
