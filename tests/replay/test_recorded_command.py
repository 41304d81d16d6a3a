"""`signalboxd replay` of recorded days, as it is typed: from an exported file, and from a real Postgres log."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from events.log import Raw
from events.log_file import export
from signalboxd.replay import sample_s_of
from signalboxd.site import Site, write_site
from tests.contract.places import Opened, PostgresPlace
from tests.contract.records import CLUSTER
from tests.contract.test_verify import ours
from tests.replay.fleets import comes, scenario
from tests.replay.logs import chained_anew, memory_log, written


def typed(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "signalboxd", "replay", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a day with dying leaders in it."""
    path, log = tmp_path_factory.mktemp("logs") / "west.log", written("storm", 1)
    with path.open("wb") as file:
        asyncio.run(export(memory_log(log.records), file, [log.noted]))
    return path


def all_come_out(said: str) -> int:
    """How many starts were recorded, where each of them comes out; a number of them, or it would be easy."""
    told = re.search(r"(\d+) of (\d+) recorded starts come out on the same GPUs at the same millisecond", said)
    assert told is not None, said
    assert told[1] == told[2]
    assert int(told[2]) > 50
    return int(told[2])


def test_a_file_is_replayed_and_says_how_true_that_is(exported: Path, tmp_path: Path) -> None:
    """Under the recorded policy every recorded start comes out; page, record and list of exceptions say so."""
    code, said, told = typed("--file", exported, "--policy", "fifo", "--out", tmp_path)
    assert code == 0, told
    starts = all_come_out(said)
    assert "recorded starts come within 2 s of their time under the recorded policy" in said
    assert orjson.loads((tmp_path / "again.json").read_bytes()) == {
        "recorded": starts,
        "same": starts,
        "near": 0,
        "others": [],
    }
    made = orjson.loads((tmp_path / "report.json").read_bytes())
    assert f"{starts} of {starts} recorded starts" in str(made)
    assert f"{starts} of {starts} recorded starts" in (tmp_path / "index.html").read_text()
    policies = pq.read_table(tmp_path / "jobs.parquet")["policy"].unique().to_pylist()
    assert policies == ["fifo", "recorded"]


@pytest.mark.parametrize(("last_s", "sample_s"), [(0, 1), (480, 10), (86_400, 900), (864_000, 900)])
def test_a_short_record_is_sampled_as_often_as_it_can_be_drawn(last_s: int, sample_s: int) -> None:
    """Each 900 s, and of minutes each few seconds: one sample is no plot."""
    assert sample_s_of(scenario(1, [comes(0, "a", 60), comes(last_s, "b", 60)])) == sample_s


def test_a_window_of_it_is_replayed(exported: Path, tmp_path: Path) -> None:
    """What ran and waited as it began is in it, and the page says what that means."""
    words = ("--file", exported, "--from", "n:300", "--to", "n:600", "--policy", "recorded", "--out", tmp_path)
    code, said, told = typed(*words)
    assert code == 0, told
    assert "The window begins in the midst of things" in said
    checked = orjson.loads((tmp_path / "again.json").read_bytes())
    assert checked["same"] == checked["recorded"] > 20
    (tmp_path / "again.json").unlink()
    assert typed(*words, "--no-again")[0] == 0
    assert not (tmp_path / "again.json").exists()


@pytest.fixture(scope="module")
def quiet() -> list[Raw]:
    """A run without faults, as a leader of the cluster of the places would have written it."""
    return [Raw(offset, raw) for offset, raw in enumerate(chained_anew(written("quiet", 1).records, ours))]


@pytest.mark.postgres
async def test_the_log_of_a_cluster_is_replayed(postgres_dsn: str, quiet: list[Raw], tmp_path: Path) -> None:
    """In Postgres, by its site file; the file of a policy says what differs."""
    place = PostgresPlace(postgres_dsn)
    opened = Opened(place)
    await opened.events()
    await place.restore(quiet)
    write_site(tmp_path / "site.toml", Site(cluster=CLUSTER, postgres=postgres_dsn))
    (tmp_path / "calm.toml").write_text("preemptions_max = 1\n")
    words = ("--site", tmp_path / "site.toml", "--policy", tmp_path / "calm.toml", "--out", tmp_path / "page")
    code, said, told = await asyncio.to_thread(typed, *words)
    await opened.close()
    assert code == 0, told
    all_come_out(said)
    assert (tmp_path / "page" / "index.html").exists()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--from", "tomorrow"], 2, "from: 'tomorrow': wanted a day (2026-07-01)"),
        (["--from", "2031-01-01"], 2, "from, to: '2031-01-01 to its end': no commit lies in the window"),
        (["--cluster", "west"], 2, "cluster: 'west': is one of a site"),
        (["--fleet", "4x8"], 2, "fleet: '4x8': recorded days have their own"),
        (["--against", "nothing"], 2, "nothing: No such file or directory; a policy is one of recorded, default"),
        (["--jobs", "0"], 2, "jobs: '0': has to be at least 1"),
    ],
)
def test_what_cannot_be_done_is_said(exported: Path, words: list[str], code: int, why: str) -> None:
    """In one line, with the field, the value and what it may be."""
    ended, said, told = typed("--file", exported, "--policy", "fifo", *words)
    assert (ended, said) == (code, "")
    assert why in told
    assert len(told.splitlines()) == 1


def test_what_is_no_log_is_refused(exported: Path, tmp_path: Path) -> None:
    """A file that is none, one that is not there, and one that was tampered with."""
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    code, _, told = typed("--file", other, "--policy", "fifo")
    assert (code, "first line is not that of an exported log" in told) == (2, True)
    code, _, told = typed("--file", tmp_path / "none", "--policy", "fifo")
    assert (code, "No such file" in told) == (2, True)
    lines = exported.read_bytes().splitlines(keepends=True)
    other.write_bytes(b"".join([*lines[:40], *lines[41:]]))
    code, _, told = typed("--file", other, "--policy", "fifo")
    assert (code, "see what `signalboxd verify` says of it" in told) == (2, True)
