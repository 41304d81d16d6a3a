"""Tables that fit, times as people say them, and shapes of gangs."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from signalbox.cli.jobs import QUEUE
from signalbox.cli.output import Column, built, plain
from signalbox.cli.shape import gang
from signalbox.times import ago, seconds

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ROW: dict[str, Any] = {
    "job_id": "j_01KDQ0V7ZK8M3N5P7R9T",
    "queue_position": 12,
    "team": "pretrain",
    "name": "a name",
    "priority_class": "research",
    "gpu_type": "h100",
    "spec": {"replicas": 128, "gpus_per_replica": 8},
    "waiting": {"reasons": [{"code": "shape", "text": "needs 16 whole h100 nodes in at most 4 blocks; best today 12"}]},
}


def printed(width: int, columns: tuple[Column, ...] = QUEUE) -> list[str]:
    """The table as it looks on a terminal of that width."""
    out = Console(file=io.StringIO(), width=width, highlight=False)
    out.print(built([ROW], columns, width))
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
def test_a_table_fits_the_terminal(width: int) -> None:
    """A row is one line at every width; the id, by which all else is found, is never cut."""
    head, row = printed(width)
    assert max(len(head), len(row)) <= width
    assert ROW["job_id"] in row
    assert row.index(ROW["job_id"]) == head.index("JOB")


def test_what_matters_most_goes_last() -> None:
    """Wide: every column and the whole reason. Narrow: the columns marked first are gone, and the reason is cut."""
    assert printed(200)[1].endswith("best today 12")
    assert "CLASS" in printed(200)[0]
    narrow = printed(60)
    assert "CLASS" not in narrow[0]
    assert "GPUS" in narrow[0]
    assert narrow[1].endswith("\u2026")


def test_control_characters_are_not_shown() -> None:
    """A name cannot colour or move the terminal."""
    assert plain("a\x1b[31m\r\nb\u202e") == "a [31m  b "
    assert (plain(None), plain(""), plain(0)) == ("-", "-", "0")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (timedelta(seconds=42), "42s ago"),
        (timedelta(minutes=3, seconds=5), "3m ago"),
        (timedelta(hours=2, minutes=5), "2h 5m ago"),
        (timedelta(days=3, hours=4), "3d 4h ago"),
        (timedelta(minutes=-14), "in 14m"),
        (timedelta(0), "now"),
    ],
)
def test_times_are_told_as_people_say_them(before: timedelta, said: str) -> None:
    """The largest unit or two, backwards and forwards."""
    assert ago(NOW - before, NOW) == said
    assert ago(None) == "-"


def test_durations_are_those_of_the_api() -> None:
    """A number and a unit; nothing else is guessed at."""
    assert [seconds(text) for text in ("90s", "30m", "72h", "3d")] == [90, 1800, 259_200, 259_200]
    for text in ("4", "1h30m", "-1h", "", "h"):
        with pytest.raises(ValueError, match="no duration"):
            seconds(text)


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ((None, None, None), (1, 1)),
        ((8, None, None), (1, 8)),
        ((16, None, None), (2, 8)),
        ((8, 4, None), (4, 2)),
        ((None, 128, 8), (128, 8)),
        ((12, None, 4), (3, 4)),
        ((16, None, 16), (1, 16)),
    ],
)
def test_gpus_become_a_gang(asked: tuple[int | None, int | None, int | None], made: tuple[int, int]) -> None:
    """Up to 8 GPUs on one node unless replicas say otherwise; --gpus are those of the whole job."""
    assert gang(*asked) == made


@pytest.mark.parametrize("asked", [(12, None, None), (8, 3, None), (8, 2, 8), (8, None, 3)])
def test_figures_that_contradict_are_refused(asked: tuple[int, int | None, int | None]) -> None:
    """Nothing is rounded: what does not multiply is told."""
    with pytest.raises(ValueError, match="--gpus"):
        gang(*asked)
