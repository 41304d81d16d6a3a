"""Writes a report: `index.html`, `report.json`, a Parquet file for each kind of row. The only module here with I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from replay.outcome import Outcome
from replay.report.notes import Notes
from replay.report.page import page
from replay.report.record import as_json
from replay.report.study import Study, study
from replay.report.tables import labelled, tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """What was written. `parquet`: by kind of row."""

    html: Path
    json: Path
    parquet: dict[str, Path]


def write_report(outcomes: Sequence[Outcome], folder: Path, *, notes: Notes | None = None) -> Paths:
    """Write the report on the outcomes, the first next to each of the others, into `folder`, which is made where it is
    missing. The same bytes for the same outcomes and notes.

    Raises ValueError where no outcome is given, or the notes have policies and not one for each; OSError.
    """
    notes = notes or Notes()
    if notes.policies and len(notes.policies) != len(outcomes):
        raise ValueError(f"notes.policies: {len(notes.policies)} for {len(outcomes)} outcomes; one for each is needed")
    made = study(outcomes, notes.rates)
    folder.mkdir(parents=True, exist_ok=True)
    html, record = folder / "index.html", folder / "report.json"
    html.write_text(page(made, notes), encoding="utf-8")
    record.write_bytes(as_json(made, notes))
    return Paths(html=html, json=record, parquet=_write_parquet(made, folder))


def _write_parquet(made: Study, folder: Path) -> dict[str, Path]:
    paths = {}
    kinds = labelled([(one.label, tables(one.outcome, made.rates)) for one in made.portraits])
    for name, table in kinds.items():
        paths[name] = folder / f"{name}.parquet"
        pq.write_table(table, paths[name], compression="zstd")
    return paths
