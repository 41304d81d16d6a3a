"""Rows and files that cannot be used: each lack has one reason, with the columns, and what stands there."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.traces.formats import FORMATS
from replay.traces.read import read_trace
from replay.traces.rows import EXAMPLES_MAX, BadTrace, Fault, Note, Spoilt, Trace, Why
from replay.traces.summary import NOTES, WORDS, reason
from tests.replay import made

COMMON = "j,t,u,{submit},{gpus},,,{ran},,,,,"


def spoilt(trace: Trace) -> tuple[Fault, Spoilt]:
    """The only reason of a trace of which one row is spoilt, and the row."""
    ((fault, count),) = trace.faults.counts.items()
    assert count == 1
    ((example,),) = trace.faults.examples.values()
    return fault, example


@pytest.mark.parametrize(
    ("line", "why", "columns", "value"),
    [
        ("j,t,u,5,1", Why.TORN, "", "5 cells, not 13"),
        (",t,u,5,1,,,60,,,,,", Why.EMPTY, "job_id", ""),
        (COMMON.format(submit="", gpus=1, ran=60), Why.EMPTY, "submit_s", ""),
        (COMMON.format(submit="noon", gpus=1, ran=60), Why.UNREADABLE, "submit_s", "noon"),
        (COMMON.format(submit="inf", gpus=1, ran=60), Why.UNREADABLE, "submit_s", "inf"),
        (COMMON.format(submit="-5", gpus=1, ran=60), Why.BACKWARDS, "submit_s", "-5"),
        (COMMON.format(submit=5, gpus="", ran=60), Why.EMPTY, "gpus", ""),
        (COMMON.format(submit=5, gpus=0, ran=60), Why.NO_GPUS, "gpus", "0"),
        (COMMON.format(submit=5, gpus=-2, ran=60), Why.NO_GPUS, "gpus", "-2"),
        (COMMON.format(submit=5, gpus=0.5, ran=60), Why.UNREADABLE, "gpus", "0.5"),
        (COMMON.format(submit=5, gpus="9" * 5000, ran=60), Why.UNREADABLE, "gpus", "9" * 80),
        (COMMON.format(submit=5, gpus=1, ran=""), Why.EMPTY, "duration_s", ""),
        (COMMON.format(submit=5, gpus=1, ran="-1"), Why.EMPTY, "duration_s", "-1"),
        ("j,t,u,5,1,two,,60,,,,,", Why.UNREADABLE, "nodes", "two"),
        ("j,t,u,5,1,,,60,,,soon,,", Why.UNREADABLE, "limit_s", "soon"),
    ],
)
def test_each_lack_of_a_row_has_its_reason(tmp_path: Path, line: str, why: Why, columns: str, value: str) -> None:
    """The good row is used; the other one is counted, and shown with its number and its value."""
    trace = made.common(tmp_path, "good,t,u,5,1,,,60,,,,,", line)
    assert [row.job_id for row in trace.rows] == ["good"]
    assert spoilt(trace) == (Fault(why, columns), Spoilt(2, value))


def test_an_id_that_occurs_twice(tmp_path: Path) -> None:
    """The first one is the job."""
    trace = made.common(tmp_path, "a,,,5,1,,,60,,,,,", "a,,,6,1,,,60,,,,,")
    assert spoilt(trace) == (Fault(Why.REPEATED, "job_id"), Spoilt(2, "a"))


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        ("", "2020-06-09 19:00:00", Why.NEVER_RAN),
        ("2020-06-09 18:00:00", "", Why.NOT_ENDED),
        ("2020-06-09 19:00:00", "2020-06-09 18:00:00", Why.BACKWARDS),
        ("yesterday", "2020-06-09 18:00:00", Why.UNREADABLE),
    ],
)
def test_each_lack_of_times(tmp_path: Path, start: str, end: str, why: Why) -> None:
    """A job without a start never ran, one without an end still does, and none ends before it starts."""
    header = made.HELIOS.splitlines()[0]
    line = f"1,u,vc,8,8,1,COMPLETED,2020-06-09 17:00:00,{start},{end},1,1"
    trace = made.read(tmp_path, f"{header}\n{line}\n")
    assert trace.rows == ()
    assert spoilt(trace)[0] == Fault(why, "start_time/end_time")


def philly(tmp_path: Path, *attempts: tuple[str | None, str | None]) -> Trace:
    """A job of Philly's with these attempts."""
    detail = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]
    parts = [{"start_time": start, "end_time": end, "detail": detail} for start, end in attempts]
    job = {"jobid": "a", "submitted_time": "2017-10-07 01:00:00", "attempts": parts}
    return made.read(tmp_path, json.dumps([job]), name="t.json")


def test_philly_jobs_without_attempts(tmp_path: Path) -> None:
    """It never ran."""
    assert spoilt(philly(tmp_path)) == (Fault(Why.NEVER_RAN, "attempts"), Spoilt(1, "no attempts"))


def test_philly_jobs_that_still_ran(tmp_path: Path) -> None:
    """The last attempt has no end."""
    trace = philly(tmp_path, ("2017-10-07 01:00:00", "2017-10-07 01:01:00"), ("2017-10-07 01:02:00", None))
    assert spoilt(trace)[0] == Fault(Why.NOT_ENDED, "attempts")


def test_philly_attempts_without_a_start(tmp_path: Path) -> None:
    """They are left out, which is noted; a job that has no other never ran."""
    trace = philly(tmp_path, (None, None), ("2017-10-07 01:00:00", "2017-10-07 01:01:00"))
    assert (trace.rows[0].duration_s, trace.notes) == (60, Counter({Note.ATTEMPTS_LEFT_OUT: 1}))
    assert spoilt(philly(tmp_path, (None, "2017-10-07 01:01:00")))[0] == Fault(Why.NEVER_RAN, "attempts")


def test_a_few_examples_are_kept(tmp_path: Path) -> None:
    """The first few rows of each reason; all are counted."""
    trace = made.common(tmp_path, *(f"j{number},,,5,0,,,60,,,,," for number in range(9)))
    (examples,) = trace.faults.examples.values()
    assert (trace.faults.total, trace.read) == (9, 9)
    assert [each.row for each in examples] == list(range(1, EXAMPLES_MAX + 1))


def test_each_reason_and_note_has_words() -> None:
    """All are told apart by people too."""
    assert {*WORDS} == {*Why}
    assert {*NOTES} == {*Note}
    assert len({reason(Fault(why, "x")) for why in Why}) == len(Why)


class TestFiles:
    """What is wrong with a whole file is said at once."""

    def test_no_format_that_is_known(self, tmp_path: Path) -> None:
        """The error shows how the file begins, and lists all formats."""
        with pytest.raises(BadTrace, match="begins with 'machine,gpu_type'") as bad:
            made.read(tmp_path, "machine,gpu_type\nm1,T4\n")
        assert all(f"{name} (" in str(bad.value) for name in FORMATS)

    def test_a_format_of_another_name(self, tmp_path: Path) -> None:
        """It lists all formats too."""
        with pytest.raises(BadTrace, match=r"format 'pbs' is not known. Formats: common \("):
            made.read(tmp_path, made.HELIOS, "pbs")

    @pytest.mark.parametrize(
        ("form", "lacking"),
        [
            ("common", "submit_s, gpus, duration_s"),
            ("acme", "type"),
            ("sacct", "JobID, Submit, AllocTRES|ReqTRES, Start, End, State"),
        ],
    )
    def test_columns_that_the_format_needs(self, tmp_path: Path, form: str, lacking: str) -> None:
        """Each column that is not there is named; where one of two would do, both."""
        with pytest.raises(BadTrace) as bad:
            made.read(tmp_path, made.HELIOS, form)
        assert str(bad.value).endswith(f"format {form} needs columns that are not there: {lacking}")

    def test_nothing_in_it(self, tmp_path: Path) -> None:
        """An empty file is of no format; a header alone is no trace."""
        with pytest.raises(BadTrace, match="begins with 'nothing'"):
            made.read(tmp_path, "\n\n")
        with pytest.raises(BadTrace, match="there is no row in it"):
            made.common(tmp_path)

    def test_no_such_file(self, tmp_path: Path) -> None:
        """As such."""
        with pytest.raises(BadTrace, match="there is no such file"):
            read_trace(tmp_path / "none.csv")

    def test_gzip_that_is_cut_off(self, tmp_path: Path) -> None:
        """Half of a file is not taken for the whole."""
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress("\n".join([made.HEADER, "a,,,5,1,,,60,,,,,"]).encode())[:-8])
        with pytest.raises(BadTrace, match="damaged or cut off"):
            read_trace(path)

    def test_no_text(self, tmp_path: Path) -> None:
        """Bytes that are no UTF-8."""
        path = tmp_path / "t.csv"
        path.write_bytes(b"job_id,gpus\xff\n")
        with pytest.raises(BadTrace, match="not a text in UTF-8"):
            read_trace(path)

    def test_json_that_is_not_phillys(self, tmp_path: Path) -> None:
        """The place is named."""
        with pytest.raises(BadTrace, match=r"0\.attempts"):
            made.read(tmp_path, '[{"jobid": "a", "attempts": 7}]')

    def test_pai_is_a_folder(self, tmp_path: Path) -> None:
        """A table alone will not do; in the folder both have to be, with their columns."""
        with pytest.raises(BadTrace, match="not a folder"):
            made.read(tmp_path, made.PAI_TASKS, "pai")
        with pytest.raises(BadTrace, match=r"pai_task_table.csv: there is no such file"):
            read_trace(tmp_path)
        (tmp_path / "pai_task_table.csv").write_text("a,b\n")
        with pytest.raises(BadTrace, match=r"pai_task_table.csv, line 1: 2 cells, not 10"):
            read_trace(tmp_path)


cell = st.sampled_from(["", "-1", "0", "1", "8", "0.5", "x", "nan", "2020-01-01", "1e9", '"', "9999999999999999"])
good = st.sampled_from(["0", "1", "8", "60"])
WIDTH = 13


def rows_of(width: int) -> st.SearchStrategy[list[list[str]]]:
    """Rows of that width, good ones and bad ones, and some of another."""
    whole = st.lists(good | cell, min_size=width, max_size=width) | st.lists(good, min_size=width, max_size=width)
    torn = st.lists(cell, min_size=1, max_size=width + 1)
    return st.lists(whole | torn, min_size=1, max_size=20)


@settings(deadline=None)
@given(rows=rows_of(WIDTH))
def test_no_row_vanishes(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    """Whatever stands in the cells: each line is a row that is used or a row that is counted."""
    folder = tmp_path_factory.mktemp("rows")
    path = folder / "t.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([made.HEADER.split(","), *rows])
    trace = read_trace(path, "common")
    assert trace.read == len(rows) == len(trace.rows) + trace.faults.total
    assert {row.row for row in trace.rows} | {each.row for all in trace.faults.examples.values() for each in all} <= {
        *range(1, len(rows) + 1)
    }
