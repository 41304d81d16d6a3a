"""docs/policy.md says what the policy does: its examples are run, and its table of parameters is the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands.policy import DEFAULT, Policy
from tests.examples import Example, Row, decided, examples

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
TEXT = PAGE.read_text()


@pytest.mark.parametrize("example", examples(TEXT), ids=lambda example: example.title)
def test_each_example_comes_out_as_it_says(example: Example) -> None:
    """The decisions are those of the table; where a cycle came last, five more change nothing."""
    found = decided(example)
    assert found == example.table, "the page should say:\n" + "\n".join(map(_line, found))


def test_every_parameter_is_on_the_page() -> None:
    """Name, default, bounds and meaning of each, in the order of the model."""
    table = parameters()
    assert table in TEXT, "the page should say:\n" + table


def parameters() -> str:
    """The parameters as a table."""
    lines = ["| parameter | default | bounds | |", "| --- | --- | --- | --- |"]
    defaults = DEFAULT.model_dump(mode="json")
    for name, schema in Policy.model_json_schema()["properties"].items():
        default = defaults[name]
        shown = (", ".join(default) or "none") if isinstance(default, list) else str(default)
        lines.append(f"| `{name}` | {shown} | {_bounds(schema)} | {schema['description'].replace(chr(10), ' ')} |")
    return "\n".join(lines)


def _bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{low:,} to {high:,}" if low is not None and high is not None else ""


def _line(row: Row) -> str:
    return "| " + " | ".join(row) + " |"
