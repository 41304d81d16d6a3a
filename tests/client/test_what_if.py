"""What-if replays from a notebook: the same rows as the report's, as DataFrames."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest
import signalbox
from signalbox.whatif import KINDS

SMALL = {"fleet": "8x8", "submissions": 60}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> signalbox.WhatIf:
    """A small day under a policy that is given as parameters."""
    folder = tmp_path_factory.mktemp("found")
    return signalbox.what_if({"preset": "fifo"}, against=["default"], generated=7, options=SMALL, folder=folder)


def test_each_kind_of_row_is_a_dataframe(found: signalbox.WhatIf) -> None:
    """With the name of the policy first; every job of the day is there under each."""
    for kind in KINDS:
        frame = getattr(found, kind)
        assert isinstance(frame, pandas.DataFrame)
        assert frame.columns[0] == "policy"
    assert found.jobs.groupby("policy").job_id.nunique().to_dict() == {"tried": 60, "default": 60}
    assert set(found.figures.policy) == {"tried", "default"}


def test_another_kind_of_row_is_none(found: signalbox.WhatIf) -> None:
    """It is named, with those that there are."""
    with pytest.raises(ValueError, match="kind: 'job': has to be one of jobs, stretches"):
        found.frame("job")


def test_the_page_and_the_record_are_there(found: signalbox.WhatIf) -> None:
    """The report of `signalboxd replay`; of a generated day nothing was recorded that it could depart from."""
    assert found.page.read_text().startswith("<!DOCTYPE html>")
    assert [one["policy"] for one in found.record["policies"]] == ["tried", "default"]
    assert found.exceptions == ()


def test_what_is_wrong_is_said_as_it_was_there(tmp_path: Path) -> None:
    """The field, the value and what it may be."""
    with pytest.raises(signalbox.ReplayFailed, match="ended with 2") as failed:
        signalbox.what_if({"preset": "best"}, generated=7, options=SMALL, folder=tmp_path)
    assert "policy.preset: best: Input should be 'default', 'fifo', 'skip' or 'easy'" in failed.value.detail
    lines: list[str] = []
    with pytest.raises(signalbox.ReplayFailed):
        signalbox.what_if("fifo", file=tmp_path / "none", folder=tmp_path, told=lines.append)
    assert "No such file" in lines[-1]
