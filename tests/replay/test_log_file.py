"""An exported log: what was read from a log is read from its file, and a file that was tampered with shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from events.log import LogUnusable, Raw
from events.log_file import LogFile, export
from replay.verify import Report, Request, Wrong, verify
from tests.replay.logs import memory_log, written


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A whole log, in a file."""
    path = tmp_path / "west.log"
    log = written("storm", 3)
    with path.open("wb") as file:
        assert asyncio.run(export(memory_log(log.records), file, [log.noted])) == len(log.records)
    return path


def of_file(path: Path) -> Report:
    """What verify says of a file."""

    async def read() -> Report:
        log = LogFile(path)
        report = await verify(log, Request(noted=log.noted, cut=log.cut))
        await log.close()
        return report

    return asyncio.run(read())


async def test_every_record_is_read_again(exported: Path) -> None:
    """Byte for byte, from anywhere on, by the port that a live log has."""
    records, log = written("storm", 3).records, LogFile(exported)
    assert [raw.value for raw in await log.read(-1, 10_000)] == list(records)
    assert await log.read(500, 3) == [Raw(place, records[place]) for place in (501, 502, 503)]
    assert [raw.offset async for batch in log.follow(900) for raw in batch] == list(range(901, len(records)))
    assert (await log.end(), log.cluster) == (len(records) - 1, "sim")
    await log.close()


async def test_bytes_of_any_kind_come_through(tmp_path: Path) -> None:
    """Records that are no text, and such with a line's end in them."""
    records = [b'{"kind":"genesis"}', b"a\nb", b"\xff\x00\t=", b""]
    path = tmp_path / "odd.log"
    with path.open("wb") as file:
        assert await export(memory_log(records), file, []) == 4
    log = LogFile(path)
    assert [raw.value for raw in await log.read(-1, 10)] == records
    await log.close()


def test_an_exported_log_is_verified_as_the_log_is(exported: Path) -> None:
    """With the head that was known when it was exported."""
    report = of_file(exported)
    assert report.whole
    assert len(report.noted) == 1


@pytest.mark.parametrize("line", [1, 2, 300, -3])
def test_a_line_taken_out_is_named(exported: Path, line: int) -> None:
    """The offsets show where it was."""
    lines = exported.read_bytes().splitlines(keepends=True)
    offset = int(lines.pop(line).split(b"\t")[0])
    exported.write_bytes(b"".join(lines))
    report = of_file(exported)
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.MISSING, offset)


@pytest.mark.parametrize("keep_last_line", [True, False])
def test_a_file_that_was_cut_shows_it(exported: Path, keep_last_line: bool) -> None:
    """With its last line or without it."""
    lines = exported.read_bytes().splitlines(keepends=True)
    kept = [*lines[:-6], lines[-1]] if keep_last_line else lines[:-6]
    exported.write_bytes(b"".join(kept))
    report = of_file(exported)
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.CUT, len(lines) - 7)


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (lambda lines: [*lines[:-6], lines[-1]], "tells of [0-9]+ records, and there are [0-9]+"),
        (lambda lines: [*lines, lines[-2]], "something follows"),
        (lambda lines: [*lines, b"\n"], "something follows"),
        (lambda lines: lines[:-1], "no last line"),
    ],
    ids=["cut before its last line", "a record more", "an empty line", "without its last line"],
)
def test_the_end_of_a_file_shows_it_alone(
    exported: Path, tamper: Callable[[list[bytes]], list[bytes]], why: str
) -> None:
    """Also where no head was known when it was exported, as of a log whose Postgres was gone."""
    *records, last = exported.read_bytes().splitlines(keepends=True)
    lines = [*records, orjson.dumps({**orjson.loads(last), "noted": []}) + b"\n"]
    exported.write_bytes(b"".join(lines))
    assert of_file(exported).whole
    exported.write_bytes(b"".join(tamper(lines)))
    report = of_file(exported)
    assert report.finding is not None
    assert report.finding.wrong is Wrong.CUT
    assert re.search(why, report.finding.why)


def test_what_is_no_exported_log_is_refused(tmp_path: Path) -> None:
    """With the file's name and what is wrong."""
    path = tmp_path / "notes.txt"
    for content, why in [
        (b"hello\n", "first line is not that of an exported log"),
        (b'{"signalbox_log":9,"cluster":"c"}\n', "format 9, this build reads 1"),
        (b'{"signalbox_log":1,"cluster":"c"}\nhello\n', "a line is no record"),
    ]:
        path.write_bytes(content)
        with pytest.raises(LogUnusable, match=f"notes.txt: .*{why}|notes.txt: {why}"):
            LogFile(path)
