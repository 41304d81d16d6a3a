"""Read a trace: find out its format, and make a row of each job. No row vanishes: what cannot be used is counted."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay.traces.columns import Format, RowParser, Spoiled
from replay.traces.formats import FORMATS
from replay.traces.records import PHILLY_HEADER, SHAPES, SWF_FIELDS, Source, cells_of, peek, reading
from replay.traces.rows import BadTrace, Ended, Fault, Faults, Note, Spoilt, Trace, TraceRow, Why

VALUE_CHARS_MAX = 80
"""Of a value at fault so much is kept, to be shown."""


def read_trace(path: Path | str, form: str | None = None) -> Trace:
    """The trace in a file (or, for PAI, a folder). `form`: the name of its format; None: found out from its header.

    Raises BadTrace where there is nothing that can be read, and where the format is not known or lacks columns.
    """
    path = Path(path)
    with reading(path):
        chosen = sniffed(path) if form is None else named(form)
        if chosen.shape == "pai" and not path.is_dir():
            raise BadTrace(f"{path}: not a folder. {chosen.name} is {chosen.title}")
        source = SHAPES[chosen.shape](path)
        if lacking := chosen.lacking(source.header):
            raise BadTrace(f"{path}: format {chosen.name} needs columns that are not there: {', '.join(lacking)}")
        return _Reading(chosen, path.name).read(source)


def named(form: str) -> Format:
    """The format of that name. Raises BadTrace, which lists all."""
    if form not in FORMATS:
        raise BadTrace(f"format {form!r} is not known. {listed()}")
    return FORMATS[form]


def listed() -> str:
    """All formats, for people."""
    return "Formats: " + "; ".join(f"{form.name} ({form.title})" for form in FORMATS.values())


def sniffed(path: Path) -> Format:
    """The format that the file's beginning shows: the one that reads the most of its columns."""
    if path.is_dir():
        return FORMATS["pai"]
    begin = peek(path)
    first = next((line.strip() for line in begin.splitlines() if line.strip()), "")
    shape, header = _shape_of(first)
    fitting = [form for form in FORMATS.values() if form.shape == shape and not form.lacking(header)]
    if not fitting:
        shown = first[:VALUE_CHARS_MAX] or "nothing"
        raise BadTrace(f"{path}: the header is of no format that is known; the file begins with {shown!r}. {listed()}")
    return max(fitting, key=lambda form: form.matched(header))


def _shape_of(first: str) -> tuple[str, tuple[str, ...]]:
    """The shape of a file that begins with such a line, and its header."""
    if first.startswith(("[", "{")):
        return "philly", PHILLY_HEADER
    if first.startswith(";") or (len(first.split()) == len(SWF_FIELDS) and "," not in first):
        return "swf", SWF_FIELDS
    shape, divider = ("bars", "|") if "|" in first else ("csv", ",")
    return shape, cells_of(first, divider)


class _Reading:
    """One pass over the records of a source."""

    def __init__(self, form: Format, name: str) -> None:
        self._form = form
        self._name = name
        self._ids: set[str] = set()
        self._faults = Faults()
        self._notes: Counter[Note] = Counter()
        self._read = 0

    def read(self, source: Source) -> Trace:
        """All rows. Raises BadTrace where there is none."""
        rows = [row for row in self._rows(source) if row is not None]
        if not self._read:
            raise BadTrace(f"{self._name}: there is no row in it")
        first_s = 0 if self._form.own_zero else min((row.submit_s for row in rows), default=0)
        zero_at_s = 0 if self._form.dated else source.zero_at_s
        return Trace(
            name=self._name,
            format=self._form.name,
            read=self._read,
            rows=tuple(sorted(self._known(rows, first_s), key=lambda row: row.submit_s)),
            faults=self._faults,
            notes=self._notes,
            first_at_s=None if zero_at_s is None else zero_at_s + first_s,
        )

    def _rows(self, source: Source) -> Iterator[TraceRow | None]:
        parser = RowParser(self._form, source.header)
        for number, record in enumerate(source.records, 1):
            self._read = number
            if len(record) != parser.width:
                self._spoilt(number, Fault(Why.TORN), f"{len(record)} cells, not {parser.width}")
                continue
            try:
                values = parser.parse(record)
            except Spoiled as spoiled:
                self._spoilt(number, Fault(spoiled.unfit.why, spoiled.columns), spoiled.unfit.value)
                continue
            yield self._row(number, values, parser.notes(record))

    def _row(self, number: int, values: dict[str, Any], notes: list[Note]) -> TraceRow | None:
        """The row, if its id is its own. Where the source has no ids its number is one."""
        job_id = values.setdefault("job_id", str(number))
        if job_id in self._ids:
            self._spoilt(number, Fault(Why.REPEATED, "job_id"), job_id)
            return None
        self._ids.add(job_id)
        self._notes.update(notes)
        return TraceRow(row=number, **values)

    def _known(self, rows: list[TraceRow], first_s: int) -> list[TraceRow]:
        """With times from the first submission, and without a state that is the same in all rows and says nothing."""
        sole = self._form.sole_state
        if sole is not None and rows and all(row.end_state is sole for row in rows):
            self._notes[Note.END_STATE_UNKNOWN] = len(rows)
            rows = [replace(row, end_state=Ended.UNKNOWN) for row in rows]
        return [replace(row, submit_s=row.submit_s - first_s) for row in rows] if first_s else rows

    def _spoilt(self, number: int, fault: Fault, value: str) -> None:
        self._faults.add(fault, Spoilt(number, value[:VALUE_CHARS_MAX]))
