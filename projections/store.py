"""Rows of one cluster in memory, as the fold finds and changes them. No I/O.

Either all of them (`partial` False: a fold from the start) or a part, of which everything that the next records
touch was loaded before (the worker). A partial store that is asked for what was not loaded says so: it never takes
"not loaded" for "not there".
"""

from typing import Any, cast

from projections.rows import AttemptRow, JobRow, LeaseRow, R, Row

Key = tuple[Any, ...]
Want = tuple[type[Row], Key]

ENDED_STATES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "REJECTED", "TIMED_OUT"})


class Unprojectable(Exception):
    """An accepted event that this build cannot fold: the projection stops and alarms, it never skips."""


class Rows:
    """The store. Keys are primary keys without `cluster`."""

    def __init__(self, cluster: str, *, partial: bool = False) -> None:
        self.cluster = cluster
        self._partial = partial
        self._rows: dict[type[Row], dict[Key, Row | None]] = {}
        self._changed: dict[type[Row], dict[Key, Row]] = {}
        self._touched: set[Want] = set()
        self._whole: set[type[Row]] = set()

    def find(self, cls: type[R], *key: Any) -> R | None:
        """The row, to be read and not changed; None where there is none."""
        rows = self._rows.get(cls, {})
        if self._partial and cls not in self._whole:
            assert key in rows, f"{cls.TABLE} {key} was not loaded before the fold"
        return cast(R | None, rows.get(key))

    def change(self, cls: type[R], *key: Any) -> R:
        """The row, to be changed in place. Raises Unprojectable where there is none."""
        row = self.find(cls, *key)
        if row is None:
            raise Unprojectable(f"there is no row {key} in {cls.TABLE}")
        self._changed.setdefault(cls, {})[key] = row
        return row

    def add(self, row: Row) -> None:
        """A row that must be new. Raises Unprojectable where its key is taken."""
        if self.find(type(row), *key_of(row)) is not None:
            raise Unprojectable(f"there is a row {key_of(row)} in {row.TABLE} already")
        self.put(row)

    def put(self, row: Row) -> None:
        """A row in the place of whatever has its key."""
        cls, key = type(row), key_of(row)
        self._rows.setdefault(cls, {})[key] = row
        self._changed.setdefault(cls, {})[key] = row
        self._touched.add((cls, key))

    def rows_of(self, cls: type[R]) -> list[R]:
        """All rows of a table that are here, by key."""
        rows = self._rows.get(cls, {})
        return [cast(R, rows[key]) for key in sorted(rows) if rows[key] is not None]

    def take(self, cls: type[R]) -> list[R]:
        """All rows of a table that are here, by key; they are forgotten."""
        taken = self.rows_of(cls)
        self._rows.pop(cls, None)
        self._changed.pop(cls, None)
        return taken

    def changed(self) -> dict[type[Row], list[Row]]:
        """What was changed since the last `settle`, by table."""
        return {cls: list(rows.values()) for cls, rows in self._changed.items()}

    def missing(self, wants: set[Want]) -> list[Want]:
        """Those of `wants` that have to be loaded; all of them count as touched."""
        self._touched |= wants
        return [(cls, key) for cls, key in wants if key not in self._rows.get(cls, {}) and cls not in self._whole]

    def loaded(self, wants: list[Want], found: list[Row]) -> None:
        """What was found of `wants` in the tables; the others are not there."""
        for cls, key in wants:
            self._rows.setdefault(cls, {})[key] = None
        for row in found:
            self._rows.setdefault(type(row), {})[key_of(row)] = row

    def loaded_whole(self, cls: type[Row], found: list[Row]) -> None:
        """All rows of a table; they stay."""
        self.loaded([], found)
        self._whole.add(cls)

    def settle(self) -> None:
        """The changes are saved. A partial store forgets what is not likely to change again."""
        self._changed.clear()
        if self._partial:
            for cls, key in self._touched:
                rows = self._rows.get(cls, {})
                if cls not in self._whole and not _stays(rows.get(key)):
                    rows.pop(key, None)
        self._touched.clear()


def key_of(row: Row) -> Key:
    """The row's primary key, without cluster."""
    return tuple(getattr(row, column) for column in row.KEY)


def _stays(row: Row | None) -> bool:
    match row:
        case JobRow():
            return row.state not in ENDED_STATES
        case AttemptRow():
            return row.released_at is None
        case LeaseRow():
            return row.ended_at is None
        case _:
            return False
