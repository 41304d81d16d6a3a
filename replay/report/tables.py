"""The rows of an outcome as Arrow tables: for Parquet, and for notebooks (`table.to_pandas()`).

One table for each kind of row, with the names of the fields as columns. Instants are timestamps in UTC, states and
classes their names, `stranded` a map.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import pyarrow as pa

from events.ids import Instant
from replay.outcome import Displacement, JobOutcome, Outcome, Sample, Stretch, TeamSample
from replay.report.keys import key_figures
from replay.report.losses import Rates

ROWS: dict[str, tuple[type, Callable[[Outcome], Sequence[Any]]]] = {
    "jobs": (JobOutcome, lambda outcome: outcome.jobs),
    "stretches": (Stretch, lambda outcome: outcome.stretches),
    "displacements": (Displacement, lambda outcome: outcome.displacements),
    "samples": (Sample, lambda outcome: outcome.samples),
    "team_samples": (TeamSample, lambda outcome: outcome.team_samples),
}
INSTANT = pa.timestamp("ms", tz="UTC")
FIGURES = pa.schema(
    [("name", pa.string()), ("label", pa.string()), ("unit", pa.string()), ("better", pa.string()), ("value", "f8")]
)


def tables(outcome: Outcome, rates: Rates | None = None) -> dict[str, pa.Table]:
    """Each kind of row by its name, and `figures`: the key figures."""
    made = {name: _table(row, of(outcome)) for name, (row, of) in ROWS.items()}
    made["figures"] = pa.Table.from_pylist(
        [
            {
                "name": figure.name,
                "label": figure.label,
                "unit": str(figure.unit),
                "better": str(figure.better),
                "value": figure.value,
            }
            for figure in key_figures(outcome, rates or Rates())
        ],
        schema=FIGURES,
    )
    return made


def labelled(made: Sequence[tuple[str, dict[str, pa.Table]]]) -> dict[str, pa.Table]:
    """The tables of several outcomes in one of each kind, with the name of the policy as first column."""
    names = made[0][1].keys()
    return {
        name: pa.concat_tables(
            of[name].add_column(0, "policy", pa.array([label] * of[name].num_rows, pa.string())) for label, of in made
        )
        for name in names
    }


def _table(row: type, rows: Sequence[Any]) -> pa.Table:
    hints = get_type_hints(row)
    columns = {
        field.name: pa.array([_plain(getattr(one, field.name)) for one in rows], _arrow_type(hints[field.name]))
        for field in fields(row)
    }
    return pa.table(columns)


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    return list(value.items()) if isinstance(value, dict) else value


def _arrow_type(hint: Any) -> pa.DataType:
    """The column of a field's type; `X | None` as X, since every column may hold nulls."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    if getattr(hint, "__origin__", None) is dict:
        return pa.map_(pa.int64(), pa.int64())
    if kinds:
        return _arrow_type(kinds[0])
    if hint is Instant:
        return INSTANT
    plain = getattr(hint, "__supertype__", hint)
    if plain is bool:
        return pa.bool_()
    return pa.int64() if issubclass(plain, int) else pa.string()
