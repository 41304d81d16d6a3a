"""docs/replay.md says what is so: its commands are run as they stand there, by a shell, in an empty folder."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from commands.policy import DEFAULT
from events.log import Raw
from events.log_file import export
from replay.contender import contender
from signalboxd.site import Site, write_site
from tests.contract.places import Opened, PostgresPlace
from tests.contract.records import CLUSTER
from tests.contract.test_verify import ours
from tests.replay.logs import chained_anew, memory_log, written

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "replay.md").read_text()
GENERATED, SITE, FILE = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


def shell(commands: str, folder: Path) -> str:
    """What they say, run in that folder of a machine whose home it is, as if it were a clone. Pages are not opened,
    but have to be there."""
    (folder / ".venv").symlink_to(Path(sys.prefix))
    shown = re.sub(r"xdg-open", "test -s", commands)
    done = subprocess.run(
        ["bash", "-euc", shown], cwd=folder, env={"HOME": str(folder)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_the_question_to_the_page(tmp_path: Path) -> None:
    """Three commands, from a clone alone; and it is with that day as the page says."""
    assert len(GENERATED.splitlines()) == 3
    said = shell(GENERATED, tmp_path)
    assert re.search(r"^ +four-hours +recorded$", said, re.MULTILINE)
    assert found(said, "Submitted") == (800, 800)
    words = r"from (\d+) min to (\d+).* (\d+) of the 800 jobs.* so (\d+)% .* not (\d+)%.* from (.*) h\s+to (\d+)\."
    told = re.search(words, TEXT, re.DOTALL)
    assert told is not None
    before, after, away, used, used_before, longest_before, longest = map(float, told.groups())
    assert [round(one / 60) for one in found(said, "Mean wait")] == [after, before]
    assert found(said, "Refused or rejected") == (away, 0)
    assert [round(one) for one in found(said, "Allocated while work came in")] == [used, used_before]
    assert [round(one / 3600, 1) for one in found(said, "Longest wait")] == [longest, longest_before]


def found(said: str, figure: str) -> tuple[float, float]:
    """Both policies' values of a figure that was printed."""
    line = re.search(rf"^{figure} .*?([\d,.]+) +([\d,.]+)$", said, re.MULTILINE)
    assert line is not None, figure
    return float(line[1].replace(",", "")), float(line[2].replace(",", ""))


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """The log of a cluster."""
    return chained_anew(written("quiet", 1).records, ours)


@pytest.mark.postgres
async def test_from_the_question_to_the_page_of_a_cluster(
    postgres_dsn: str, records: list[bytes], tmp_path: Path
) -> None:
    """Three commands, on the log that its site file names; and the same from a file."""
    place = PostgresPlace(postgres_dsn)
    opened = Opened(place)
    await opened.events()
    await place.restore([Raw(offset, raw) for offset, raw in enumerate(records)])
    home = tmp_path / ".local" / "state" / "signalbox"
    home.mkdir(parents=True)
    write_site(home / "site.toml", Site(cluster=CLUSTER, postgres=postgres_dsn))
    assert len(SITE.splitlines()) == 3
    said = await asyncio.to_thread(shell, SITE, tmp_path)
    await opened.close()
    told = re.search(r"(\d+) of (\d+) recorded starts come out", said)
    assert told is not None
    assert told[1] == told[2]
    assert int(told[2]) > 50


def test_from_a_file_with_three_policies(records: list[bytes], tmp_path: Path) -> None:
    """The second command, on a log that was exported."""
    with (tmp_path / "main.log").open("wb") as file:
        asyncio.run(export(memory_log(records, CLUSTER), file, []))
    said = shell(FILE.splitlines()[1], tmp_path)
    assert re.search(r"^ +easy +default +recorded$", said, re.MULTILINE)


def test_the_file_of_several_things_is_one(tmp_path: Path) -> None:
    """Each of its parts is taken."""
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "more.toml"
    path.write_text(text)
    made = contender(str(path), DEFAULT)
    assert (made.name, len(made.nodes or ()), len(made.quotas or ())) == ("more for vision", 96, 1)
    assert made.changes == tomllib.loads(text)["policy"]
    assert {quota.gpu_type for quota in made.quotas or ()} == {node.gpu_type for node in made.nodes or ()}


def test_the_notebooks_words_run(tmp_path: Path) -> None:
    """As they stand there."""
    (text,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
