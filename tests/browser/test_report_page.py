"""The page of a what-if report, as a browser shows it: drawn, complete, readable, and without a single request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from replay.report import write_report
from tests.replay.made_up import made_up_day
from tests.servers.waiting import WITHIN_S

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
PLOTS = ("hours", "allocation", "waits", "fairness", "lost", "stranded")


@dataclass
class Seen:
    """An open page, and what happened while it was opened and used."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two policies, with names that would take the page over if they could."""
    first, other = made_up_day(7, "reclaim"), made_up_day(7, "fifo")
    first = replace(
        first,
        policy_name=HOSTILE,
        team_samples=tuple(replace(row, team=_hostile(row.team)) for row in first.team_samples),
        jobs=tuple(replace(row, name=HOSTILE, team=_hostile(row.team)) for row in first.jobs),
    )
    return write_report([first, other], tmp_path_factory.mktemp("report")).html


def _hostile(team: Any) -> Any:
    return HOSTILE if team == "team-0" else team


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Callable[..., Seen]]:
    """Opens the report in a window of its own, and waits until its plots are drawn."""
    windows = []

    def open_report(**how: Any) -> Seen:
        windows.append(browser.new_context(offline=True, **how))
        windows[-1].set_default_timeout(WITHIN_S * 1000)
        seen = Seen(page=windows[-1].new_page(), address=report.as_uri())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("console", lambda said: seen.complaints.append(said.text) if said.type == "error" else None)
        seen.page.goto(seen.address)
        if how.get("java_script_enabled", True):
            seen.page.wait_for_selector("html[data-drawn]")
        return seen

    yield open_report
    for window in windows:
        window.close()


def test_the_page_draws_all_plots_and_asks_for_nothing(opened: Callable[..., Seen]) -> None:
    """Each plot has drawn lines, bars or cells; the only request is for the page; no script complains, and the page's
    own policy had nothing to forbid."""
    seen = opened()
    for name in PLOTS:
        assert seen.page.locator(f"#plot-{name} svg.main-svg").count() > 0
        assert seen.page.locator(f"#plot-{name} .trace, #plot-{name} .hm image").count() > 0, name
    assert seen.requests == [seen.address]
    assert seen.complaints == []


def test_hostile_names_are_shown_and_do_nothing(opened: Callable[..., Seen]) -> None:
    """The heading shows the name as it is; nothing of it became an element, in tables or in plots."""
    page = opened().page
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.locator("img, body script script").count() == 0
    assert "taken" not in page.title().replace(HOSTILE, "")
    assert "<img" in (page.locator("#plot-allocation .legend").text_content() or "")


def test_a_small_window_does_not_scroll_sideways(opened: Callable[..., Seen]) -> None:
    """On a telephone wide tables scroll by themselves, and the page does not."""
    page = opened(viewport={"width": 390, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_plots_follow_the_colours_of_the_page(opened: Callable[..., Seen]) -> None:
    """Dark when it is dark, also when that changes while it is open; black on paper."""
    page = opened(color_scheme="light").page
    ink = "getComputedStyle(document.querySelector('#plot-allocation .xtick text')).fill"
    assert page.evaluate(ink) == "rgb(27, 33, 41)"
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-drawn=dark]")
    assert page.evaluate(ink) == "rgb(230, 234, 239)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_selector("html[data-drawn=print]")
    assert page.evaluate(ink) == "rgb(17, 17, 17)"


def test_words_have_enough_contrast(opened: Callable[..., Seen]) -> None:
    """Text, soft text, better and worse are at least 4.5 : 1 on their ground, in light and dark (WCAG AA)."""
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme).page
        for words, ground in (
            ("ink", "paper"),
            ("soft", "paper"),
            ("soft", "card"),
            ("good", "good-back"),
            ("bad", "bad-back"),
        ):
            assert _contrast(_colour(page, words), _colour(page, ground)) >= 4.5, (scheme, words, ground)


def test_the_page_prints(opened: Callable[..., Seen]) -> None:
    """It becomes a PDF of several pages."""
    pdf = opened().page.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type/Page") > 3


def test_without_scripts_the_tables_are_there(opened: Callable[..., Seen]) -> None:
    """The page says that the plots need them, and has all tables."""
    page = opened(java_script_enabled=False).page
    assert "The plots need JavaScript" in page.locator("main").inner_text()
    assert page.locator("table.keys tbody tr").count() > 30


def _colour(page: Page, name: str) -> list[float]:
    text = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
    digits = text.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    return [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]


def _contrast(one: list[float], other: list[float]) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[float]) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
