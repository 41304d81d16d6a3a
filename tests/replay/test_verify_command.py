"""`signalboxd verify`, as it is typed: exit codes, words and JSON."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from events.log import Raw
from events.log_file import export, record_line
from tests.replay.logs import memory_log, written


def typed(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "signalboxd", "verify", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole log, and one with a byte changed."""
    folder, log = tmp_path_factory.mktemp("logs"), written("quiet", 1)
    paths = {name: folder / f"{name}.log" for name in ("east", "west")}
    for name, path in paths.items():
        records = list(log.records)
        with path.open("wb") as file:
            asyncio.run(export(memory_log(records), file, [log.noted]))
        if name == "west":
            raw = records[40]
            changed = record_line(Raw(40, raw.replace(b'"at":1', b'"at":2', 1)))
            path.write_bytes(path.read_bytes().replace(record_line(Raw(40, raw)), changed))
    return paths


def test_a_whole_log_ends_with_0(files: dict[str, Path]) -> None:
    """And says what that rests on."""
    code, said, told = typed("--file", files["east"], "--strict")
    assert (code, told) == (0, "")
    assert said.startswith("sim: whole\n  chain: n 0 to ")
    assert " recomputed, 0 come out otherwise" in said
    assert "is the one that the epoch row knows" in said


def test_logs_side_by_side_end_with_the_worst(files: dict[str, Path]) -> None:
    """Each is reported, in the order in which they were named."""
    code, said, _ = typed("--json", "--file", files["west"], "--file", files["east"])
    bad, good = (orjson.loads(line) for line in said.splitlines())
    assert code == 1
    assert (bad["whole"], bad["finding"]["wrong"], bad["finding"]["offset"]) == (False, "changed", 40)
    assert (good["whole"], good["finding"], good["recomputed"]) == (True, None, good["commits"])


def test_a_window_and_the_chain_alone_recompute_less(files: dict[str, Path]) -> None:
    """What was left out is not said to have come out."""
    _, said, _ = typed("--json", "--file", files["east"], "--from", "n:20", "--to", "n:30")
    assert 9 <= orjson.loads(said)["recomputed"] <= 11
    _, said, _ = typed("--json", "--file", files["east"], "--chain-only")
    assert (orjson.loads(said)["recomputed"], orjson.loads(said)["whole"]) == (0, True)


@pytest.mark.parametrize("words", [["--from", "2099-01-01"], ["--from", "n:99999"], ["--to", "2001-01-01"]])
def test_a_window_without_commits_is_no_verdict(files: dict[str, Path], words: list[str]) -> None:
    """Nothing was recomputed, and nobody may take that for a log that came out."""
    code, _, told = typed("--file", files["east"], *words)
    assert code == 2
    assert "no commit lies in the window that was given: nothing was recomputed" in told


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ([], 2, "--site FILE or --file FILE: which log?"),
        (["--file", "there-is-none"], 2, "--file: there-is-none: there is no such file"),
        (["--file", "/"], 2, "--file: /: it is no file"),
        (["--file", "there-is-none", "--from", "tomorrow"], 2, "'tomorrow': wanted a day"),
        (["--file", "there-is-none", "--from", "n:9", "--to", "n:8"], 2, "ends (n 8) before it begins (n 9)"),
        (["--file", "there-is-none", "--jobs", "0"], 2, "--jobs: 0, at least 1"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], code: int, why: str) -> None:
    """In one line, with the field and the value."""
    ended, said, told = typed(*words)
    assert (ended, said) == (code, "")
    assert why in told
    assert len(told.splitlines()) == 1
