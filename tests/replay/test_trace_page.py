"""docs/traces.md says what the tables of formats say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replay.traces.formats import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
ROWS = {found[1]: found[0] for found in re.finditer(r"^\| `([a-z-]+)` \|.*$", PAGE, re.MULTILINE)}


def test_each_format_has_its_line_and_its_claim() -> None:
    """All formats, and no others, in the order of the code; and for each what it was tried on."""
    assert [*ROWS] == [*FORMATS]
    assert [name for name in FORMATS if f"\n- **{name}**: " not in PAGE] == []


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].shape in ("csv", "bars", "philly")])
def test_each_column_is_named(name: str) -> None:
    """Columns that a format needs stand before those that it reads where they are there."""
    _, _, _, needs, reads, _ = re.split(r"(?<!\\)\|", ROWS[name])
    sources = {
        needed: {
            source for column in FORMATS[name].columns if (column.needed > 0) is needed for source in column.sources
        }
        for needed in (True, False)
    }
    assert set(re.findall(r"`(\w+)`", needs)) == sources[True]
    remarked = {source for remark in FORMATS[name].remarks for source in remark.sources}
    assert set(re.findall(r"`(\w+)`", reads)) == (sources[False] | remarked) - sources[True]
