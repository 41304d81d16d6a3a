"""What goes to the terminal: aligned tables that fit, or JSON and nothing else.

Text from the API is shown without its control characters: a job's name cannot move the cursor. Colour only on a
terminal, and not with NO_COLOR (rich sees to both).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STATE_COLOURS = {
    "RUNNING": "green",
    "SUCCEEDED": "green",
    "STARTING": "cyan",
    "QUEUED": "yellow",
    "SUBMITTED": "yellow",
    "PREEMPTING": "magenta",
    "CANCELLING": "magenta",
    "CANCELLED": "bright_black",
    "FAILED": "red",
    "REJECTED": "red",
    "TIMED_OUT": "red",
    "READY": "green",
    "UP": "green",
    "SUSPECT": "yellow",
    "DRAINED": "yellow",
    "DRAINING": "yellow",
    "DOWN": "red",
    "LOST": "red",
}
PIPE_WIDTH = 10_000
"""Nothing is cut where no terminal looks on."""
GAP = 2
SHRUNK_MIN = 12
"""The one column that may be cut keeps so many characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: `read` gives a row's text. Of columns that do not fit, the highest `drop` goes first; 0 never goes.

    `cut`: shortened with an ellipsis before any column goes.
    """

    title: str
    read: Callable[[Mapping[str, Any]], object]
    right: bool = False
    drop: int = 0
    cut: bool = False
    state: bool = False


def console() -> Console:
    """Stdout as it is now (tests and pipes change it)."""
    made = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def plain(value: object) -> str:
    """One line without control characters; "-" for nothing."""
    if value is None or value == "":
        return "-"
    return "".join(c if c.isprintable() else " " for c in str(value))


def line(text: str = "") -> None:
    """A line of text on stdout."""
    console().print(Text("".join(c if c.isprintable() else " " for c in text)))


def document(body: Any) -> None:
    """One JSON document, indented for eyes and on one line for pipes."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(body, ensure_ascii=False, indent=indent, default=str))


def ndjson(body: Any) -> None:
    """One line of many, out at once."""
    print(json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str), flush=True)


def show(body: Any, as_json: bool, human: Callable[[], None]) -> None:
    """The body as JSON, or whatever `human` prints."""
    if as_json:
        document(body)
    else:
        human()


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], empty: str) -> None:
    """A table on stdout, or the sentence `empty`."""
    listed = list(rows)
    if not listed:
        line(empty)
        return
    out = console()
    out.print(built(listed, columns, out.width), crop=False, no_wrap=True)


def built(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], width: int) -> Table:
    """The table that fits `width` cells."""
    cells = [[plain(column.read(row)) for column in columns] for row in rows]
    kept, cut_to = fitted(columns, cells, width)
    made = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for place in kept:
        column = columns[place]
        made.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for texts in cells:
        made.add_row(*(_cell(columns[place], texts[place], cut_to) for place in kept))
    return made


def fitted(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """(the columns that stay, how long the one that may be cut can be)."""
    natural = [
        max(len(column.title), *(Text(texts[place]).cell_len for texts in cells))
        for place, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while True:
        fixed = sum(natural[place] for place in kept if not columns[place].cut) + GAP * len(kept)
        cuttable = [place for place in kept if columns[place].cut]
        need = sum(min(natural[place], max(SHRUNK_MIN, len(columns[place].title))) for place in cuttable)
        going = [place for place in kept if columns[place].drop]
        if fixed + need <= width or not going:
            return kept, max(SHRUNK_MIN, (width - fixed) // max(1, len(cuttable)))
        kept.remove(max(going, key=lambda place: columns[place].drop))


def _cell(column: Column, text: str, cut_to: int) -> Text:
    cell = Text(text, style=STATE_COLOURS.get(text.split(" ")[0], "") if column.state else "")
    if column.cut:
        cell.truncate(cut_to, overflow="ellipsis")
    return cell


def pairs(listed: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line, without those that say nothing."""
    said = [(name, plain(value)) for name, value in listed if value not in (None, "", (), [], {})]
    wide = max((len(name) for name, _ in said), default=0)
    for name, value in said:
        line(f"{name:<{wide}}  {value}")
