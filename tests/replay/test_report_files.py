"""What a report writes: a page that stands alone and says what was given; JSON and Parquet that can be read back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow.parquet as pq
import pytest

from commands.policy import DEFAULT, Policy, Preset
from events.ids import Instant
from replay.outcome import Outcome
from replay.report import Notes, Rates, study, tables, write_report
from replay.report.keys import key_figures
from replay.report.notes import parameters
from replay.report.page import embedded_json, page
from replay.report.plots import TEAMS_MAX, plots
from replay.report.tables import ROWS
from tests.replay.made_up import made_up_day
from tests.replay.markup import Markup
from tests.replay.outcomes import H100, NOON, job, outcome, sample, team_sample

HOSTILE = """<script>alert('x')</script><img src=x onerror=alert(1)> "&amp;' </table> {{ 7 * 7 }} $\\u202e"""
PAGE_BYTES_MAX = 8_000_000
FETCHING = {"src", "srcset", "href", "action", "formaction", "data", "poster", "background", "xlink:href"}


@pytest.fixture(scope="module")
def three() -> list[Outcome]:
    """One day under three policies."""
    return [made_up_day(7, name) for name in ("reclaim", "skip", "fifo")]


@pytest.fixture(scope="module")
def text(three: list[Outcome]) -> str:
    """The page on them."""
    notes = Notes(source="a test", seed=7, unusable={"no run time": 3}, exceptions=("Nothing starts at once.",))
    return page(study(three, Rates()), notes)


def test_every_row_comes_back_from_parquet(three: list[Outcome], tmp_path: Path) -> None:
    """Each kind of row of each outcome, field by field, under its policy's name."""
    paths = write_report(three, tmp_path).parquet
    for kind, (_, rows) in ROWS.items():
        table = pq.read_table(paths[kind])
        wanted = [{"policy": one.policy_name} | _plain(row) for one in three for row in rows(one)]
        assert wanted != []
        assert [_back(row) for row in table.to_pylist()] == wanted


def test_the_tables_of_a_notebook_have_the_columns_of_the_rows() -> None:
    """Also where there is no row; instants are moments in UTC."""
    made = tables(outcome("empty", []))
    for kind, (row, _) in ROWS.items():
        assert made[kind].column_names == [field.name for field in fields(row)]
        assert made[kind].num_rows == 0
    assert str(made["jobs"].schema.field("submitted_at").type) == "timestamp[ms, tz=UTC]"
    assert made["figures"].num_rows == len(key_figures(outcome("empty", []), Rates()))


def test_the_json_has_every_figure(three: list[Outcome], tmp_path: Path) -> None:
    """Key figures, differences and sentences are those of the study."""
    paths = write_report(three, tmp_path, notes=Notes(seed=7, rates=Rates(of_type={H100: 3.0})))
    found = json.loads(paths.json.read_bytes())
    made = study(three, Rates(of_type={H100: 3.0}))
    for one, said in zip(made.portraits, found["policies"], strict=True):
        assert said["policy"] == one.label
        assert said["figures"] == {figure.name: figure.value for figure in one.figures}
        assert len(said["waits"]) == len(one.waits)
    for pair, said in zip(made.pairs, found["comparisons"], strict=True):
        assert {name: row["change"] for name, row in said["differences"].items()} == {
            one.figure.name: one.change for one in pair.differences
        }
        assert [one["job_id"] for one in said["losers"]] == [one.first.job_id for one in pair.moves.losers]
        assert all(one["sentence"].endswith(".") for one in said["winners"] + said["losers"])
    assert found["made"]["dollars_per_gpu_hour"] == {"other": 2.0, "h100": 3.0}


def test_a_report_is_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    """Under two hash seeds, every file."""
    script = (
        "import sys; from pathlib import Path; from replay.report import write_report;"
        "from tests.replay.made_up import made_up_day;"
        "write_report([made_up_day(3, n, jobs=80) for n in ('reclaim', 'fifo')], Path(sys.argv[1]))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script, str(tmp_path / seed)]
        subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert {"index.html", "report.json", "jobs.parquet"} <= set(names)
    assert [(tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes() for name in names] == [
        True
    ] * len(names)


def test_the_page_is_well_formed_and_fetches_nothing(text: str) -> None:
    """Every element is closed; no attribute or style names anything outside the page, and its own policy forbids it."""
    markup = Markup(text)
    for element in markup.elements:
        for name in FETCHING & element.attributes.keys():
            assert str(element.attributes[name]).startswith(("#", "data:,")), element
        assert not any(name.startswith("on") for name in element.attributes), element
    (style,) = markup.all("style")
    assert not re.search(r"@import|url\(|https?:", style.text)
    policy = _policy(markup)
    assert policy["default-src"] == ["'none'"]
    assert "connect-src" not in policy


def test_only_the_pages_own_scripts_may_run(text: str) -> None:
    """The policy names two digests: those of the two scripts; what else looks like a script is not one."""
    markup = Markup(text)
    scripts = markup.all("script")
    running = [one for one in scripts if one.attributes.get("type") != "application/json"]
    digests = [f"'sha256-{b64encode(sha256(one.text.encode()).digest()).decode()}'" for one in running]
    assert len(running) == 2
    assert _policy(markup)["script-src"] == digests


def test_the_page_can_be_read_without_eyes(text: str) -> None:
    """One first heading and no level left out; every table has a caption and headed columns; every plot says what is to
    be seen; nothing is said by colour alone."""
    markup = Markup(text)
    levels = [int(one.tag[1]) for one in markup.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for table in markup.all("table"):
        assert next(one.text for one in table.inside if one.tag == "caption").strip()
        assert all(one.attributes.get("scope") for one in table.inside if one.tag == "th")
    drawn = [one for one in markup.all("div") if one.attributes.get("class") == "plot"]
    assert len(drawn) == 6
    assert all(one.attributes["role"] == "img" and len(str(one.attributes["aria-label"])) > 40 for one in drawn)
    for cell in markup.all("td", "p"):
        words = set(str(cell.attributes.get("class", "")).split())
        for verdict, sign in (("better", "▲ better"), ("worse", "▼ worse")):
            if verdict in words:
                assert sign in cell.text or "earlier" in cell.text or "later" in cell.text


def test_hostile_names_are_text() -> None:
    """A name of a job, team, policy, scenario, note or code that is markup is shown as it is, wherever it is shown."""
    jobs = [job("x", name=HOSTILE, team=HOSTILE), job("y", refused=HOSTILE)]
    first = outcome(HOSTILE, jobs, scenario=HOSTILE, team_samples=(team_sample(100, HOSTILE, 1, 1),))  # type: ignore[arg-type]
    other = replace(first, policy_name="old", jobs=tuple(replace(one, ended_at=Instant(NOON + 1)) for one in jobs))
    notes = Notes(source=HOSTILE, command=HOSTILE, unusable={HOSTILE: 1}, exceptions=(HOSTILE,), models=(HOSTILE,))
    text = page(study([first, other], Rates()), notes)
    markup = Markup(text)
    assert len(markup.all("script")) == 3
    assert markup.all("img") == []
    (heading,) = markup.all("h1")
    assert heading.text == f"{HOSTILE} compared with old"
    assert sum(HOSTILE in one.text for one in markup.all("td", "th", "dd", "li", "small")) > 8
    (specs,) = (one for one in markup.all("script") if one.attributes.get("id") == "plots")
    assert "<script" not in json.dumps(json.loads(specs.text), ensure_ascii=False)


def test_the_page_shows_first_whom_a_policy_turns_away() -> None:
    """Where anybody was refused that figure stands before the waits; where nobody was it takes no room."""
    away = job("y", refused="limit_exceeded", first_start_at=None)
    used = (sample(900, allocated=1),)
    strict, lax = (outcome(name, [job("x"), y], samples=used) for name, y in (("strict", away), ("lax", job("y"))))
    shown = [one.text for one in Markup(page(study([strict, lax], Rates()), Notes())).all("article")]
    assert re.match(r"\s*Refused or rejected\s+1\s+lax 0\s", shown[0])
    unshown = [one.text for one in Markup(page(study([lax, lax], Rates()), Notes())).all("article")]
    assert not any("Refused" in text for text in unshown)
    assert len(unshown) == len(shown) > 0
    assert any("kept work" in text for text in unshown)
    assert not any("kept work" in text for text in shown)


def test_json_in_the_page_cannot_end_its_element() -> None:
    """It comes back as it was, and has no angle bracket."""
    text = embedded_json({"a": "</script><!--<script>&"})
    assert json.loads(text) == {"a": "</script><!--<script>&"}
    assert not set("<>&") & set(text)


def test_every_plot_is_one_that_plotly_knows(three: list[Outcome]) -> None:
    """Each trace and each field of a layout is checked by the library's own schema."""
    for plot in plots(study(three, Rates())):
        figure = go.Figure(plot.spec)
        assert len(figure.data) == len(plot.spec["data"]) > 0


def test_a_plot_of_teams_is_cut_to_the_greatest() -> None:
    """Of sixty teams those that ask for most; two names that are cut alike stay two rows."""
    teams = [team_sample(100, f"{'x' * 40}{number:02}", number, number + 1) for number in range(60)]  # type: ignore[arg-type]
    (plot,) = (
        one for one in plots(study([outcome("a", [], team_samples=tuple(teams))], Rates())) if one.name == "fairness"
    )
    assert len(plot.spec["data"][0]["z"]) == len(plot.spec["layout"]["yaxis"]["ticktext"]) == TEAMS_MAX


def test_seventy_thousand_jobs_make_a_page_that_can_be_sent() -> None:
    """Below 8 MB for two policies, since what is drawn is thinned."""
    days = [made_up_day(1, name, jobs=70_000, gpus=200_000, teams=50) for name in ("skip", "reclaim")]
    assert len(page(study(days, Rates()), Notes()).encode()) < PAGE_BYTES_MAX


def test_a_replay_of_nothing_can_be_reported() -> None:
    """No job, no sample: a page that says so, and no figure that is made up."""
    markup = Markup(page(study([outcome("a", []), outcome("b", [])], Rates()), Notes()))
    assert "Under a, 0 jobs on 8 GPUs" in markup.all("main")[0].text
    assert [one for one in markup.all("div") if one.attributes.get("class") == "plot"] == []


def test_the_page_says_how_it_was_made(text: str) -> None:
    """Source, seed, rows left out and exceptions."""
    told = Markup(text).all("main")[0].text
    assert all(one in told for one in ("a test", "no run time", "Nothing starts at once.", "$2.00 a GPU-hour"))


def test_policies_are_told_where_they_differ() -> None:
    """Only parameters that differ, or are not the default; each with its value in each policy."""
    other = Policy(preset=Preset.EASY, image_registries=("a/", "b/"))
    assert parameters([DEFAULT, other]) == [("preset", ["default", "easy"]), ("image_registries", ["(none)", "a/, b/"])]
    assert parameters([DEFAULT, DEFAULT]) == []


def test_notes_have_a_policy_for_each_outcome(tmp_path: Path) -> None:
    """Or none; anything else is refused, and nothing is written."""
    with pytest.raises(ValueError, match=r"notes\.policies: 1 for 2 outcomes"):
        write_report([outcome("a", []), outcome("b", [])], tmp_path / "out", notes=Notes(policies=(DEFAULT,)))
    assert not (tmp_path / "out").exists()


def _policy(markup: Markup) -> dict[str, list[str]]:
    (meta,) = (one for one in markup.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy")
    rules = (rule.split() for rule in str(meta.attributes["content"]).split(";"))
    return {name: values for name, *values in rules}


def _plain(row: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(row).items()}


def _back(row: dict[str, Any]) -> dict[str, Any]:
    """A row as Parquet gives it, with instants and maps as ours."""
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return round((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    return dict(value) if isinstance(value, list) else value
