"""The page: one HTML file that needs no network. It lays out what study.py worked out, and works nothing out itself.

Everything that users chose (names of jobs, teams, policies) goes through the template's escaping, or, in the plots,
through JSON in an element that no browser runs; and the page's own policy lets it run its two scripts, known by their
digests, and fetch nothing at all.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from replay.report.grids import (
    MARKS,
    Cell,
    Grid,
    ends_grid,
    key_grid,
    longest_grid,
    loss_grid,
    mover_grids,
    share_grid,
    stranded_grid,
    team_loss_grid,
    use_grid,
    wait_grid,
)
from replay.report.headline import headline
from replay.report.losses import Rates
from replay.report.meanings import MEANINGS
from replay.report.notes import Notes, parameters
from replay.report.plots import plots
from replay.report.study import Pair, Study
from replay.report.waits import By
from replay.report.words import amount, change, duration, instant, plural, value

CARDS = (
    "wait_mean_s",
    "small_wait_p95_s",
    "gang_wait_mean_s",
    "wait_max_s",
    "utilisation_coming",
    "kept",
    "lost_dollars",
    "worst_team",
)
"""The key figures at the top of the page."""
TURNED_AWAY = "refused"
"""Before these where anybody was: the waits are those of the jobs that were let in."""
GIVES_WAY = "kept"
"""To it: the cost of lost work says nearly the same, and the figures stay two rows of four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """Another policy's figure below a card's own."""

    other: str
    change: str
    mark: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    label: str
    value: str
    lines: Sequence[CardLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverPart:
    """Who gains and loses next to one other policy."""

    other: str
    says: str
    gains: Grid
    losses: Grid


def page(study: Study, notes: Notes) -> str:
    """The whole file; the same text for the same study and notes."""
    drawn = plots(study)
    library, script = get_plotlyjs(), _asset("page.js")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(
        _asset("page.html")
    )
    return template.render(
        **_words(study, notes),
        **_tables(study, notes),
        plots={plot.name: plot for plot in drawn},
        plot_json=Markup(embedded_json({plot.name: plot.spec for plot in drawn})),
        # The scripts and the style sheet are ours; what stands between script tags is not text to be escaped.
        library=Markup(library),
        script=Markup(script),
        style=Markup(_asset("page.css")),
        script_hashes=Markup(" ".join(map(_digest, (library, script)))),
    )


def embedded_json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _words(study: Study, notes: Notes) -> dict[str, Any]:
    outcome = study.first.outcome
    against = ", ".join(pair.other.label for pair in study.pairs)
    return {
        "title": f"{study.first.label} compared with {against}" if against else study.first.label,
        "scenario": outcome.scenario,
        "scene": _scene(study),
        "headline": headline(study),
        "first": study.first.label,
        "cards": _cards(study),
        "rates": _rates(study.rates),
        "made": _made(study, notes),
        "exceptions": notes.exceptions,
        "meanings": MEANINGS,
        "movers": [_movers(pair) for pair in study.pairs],
    }


def _tables(study: Study, notes: Notes) -> dict[str, Any]:
    return {
        "key_grid": key_grid(study),
        "use_grid": use_grid(study),
        "size_grid": wait_grid(study, By.SIZE, "Waits by size of job, GPUs"),
        "class_grid": wait_grid(study, By.CLASS, "Waits by class"),
        "team_grid": wait_grid(study, By.TEAM, "Waits by team"),
        "longest_grids": [longest_grid(one) for one in study.portraits],
        "share_grid": share_grid(study),
        "loss_grid": loss_grid(study),
        "team_loss_grid": team_loss_grid(study),
        "stranded_grid": stranded_grid(study),
        "ends_grid": ends_grid(study),
        "unusable_grid": _unusable(notes.unusable),
        "parameter_grid": _parameters(study, notes),
    }


def _scene(study: Study) -> str:
    outcome = study.first.outcome
    span = duration((outcome.end_at - outcome.start_at) / 1000)
    begin = instant(outcome.start_at, outcome.start_at)
    calendar = "" if "after" in begin else f", from {begin} UTC"
    return (
        f"{outcome.scenario}: {plural(study.first.ends.submitted, 'job')} of "
        f"{plural(len({job.team for job in outcome.jobs}), 'team')} on {outcome.gpus:,} GPUs{calendar}, {span}"
    )


def _cards(study: Study) -> list[Card]:
    away: list[int] = []
    shown: list[int] = []
    for place, figure in enumerate(study.first.figures):
        values = [one.figures[place].value for one in study.portraits]
        if figure.name in CARDS and any(each is not None for each in values):
            shown.append(place)
        if figure.name == TURNED_AWAY and any(values):
            away.append(place)
    if away:
        shown = [place for place in shown if study.first.figures[place].name != GIVES_WAY]
    return [_card(study, place) for place in away + shown]


def _card(study: Study, place: int) -> Card:
    figure = study.first.figures[place]
    return Card(label=figure.label, value=value(figure), lines=[_card_line(pair, place) for pair in study.pairs])


def _card_line(pair: Pair, place: int) -> CardLine:
    one = pair.differences[place]
    return CardLine(
        other=f"{pair.other.label} {amount(one.other, one.figure.unit)}",
        change=change(one),
        mark=MARKS[one.verdict],
        kind=one.verdict.name.lower(),
    )


def _movers(pair: Pair) -> MoverPart:
    moves = pair.moves
    gains, losses = mover_grids(pair)
    text = (
        f"Of {moves.gained + moves.lost + moves.same:,} jobs, {moves.gained:,} ended earlier under {pair.first.label} "
        f"than under {pair.other.label}, by {duration(moves.gained_s)} in all, and {moves.lost:,} later, by "
        f"{duration(moves.lost_s)}; {moves.same:,} at the same time."
    )
    if moves.incomparable:
        text += f" {plural(moves.incomparable, 'job')} cannot be compared: refused, ended another way, or open."
    if moves.absent:
        text += f" {plural(moves.absent, 'job')} came in one of the two replays only."
    return MoverPart(other=pair.other.label, says=text, gains=gains, losses=losses)


def _made(study: Study, notes: Notes) -> list[tuple[str, str]]:
    rows = [("Policies", ", ".join(one.label for one in study.portraits))]
    rows += [("Scenario", study.first.outcome.scenario)]
    rows += [("Work from", notes.source)] if notes.source else []
    rows += [("Made by", notes.command)] if notes.command else []
    rows += [("Seed", str(notes.seed))] if notes.seed is not None else []
    rows += [
        (
            f"Decided under {one.label}",
            f"{plural(one.outcome.cycles, 'cycle')}, {plural(one.outcome.commits, 'commit')}, "
            f"{plural(one.outcome.events, 'event')}; {plural(len(one.outcome.stretches), 'attempt')} granted",
        )
        for one in study.portraits
    ]
    rows += [("Models that were on", "; ".join(notes.models) or "none: work takes as long wherever it runs")]
    rows += [("Rates", _rates(study.rates))]
    return [*rows, ("Rows left out", plural(sum(notes.unusable.values()), "row"))]


def _rates(rates: Rates) -> str:
    named = [f"${dollars:,.2f} for {gpu_type}" for gpu_type, dollars in sorted(rates.of_type.items())]
    other = f"${rates.other:,.2f} a GPU-hour"
    return f"{other}; {', '.join(named)}" if named else other


def _unusable(rows: Mapping[str, int]) -> Grid:
    cells = [[Cell(text=why), Cell(text=f"{count:,}")] for why, count in sorted(rows.items())]
    return Grid(caption="Rows of the source that were left out", head=["Reason", "rows"], rows=cells)


def _parameters(study: Study, notes: Notes) -> Grid:
    labels = [one.label for one in study.portraits][: len(notes.policies)]
    rows = [[Cell(text=name), *(Cell(text=text) for text in values)] for name, values in parameters(notes.policies)]
    return Grid(caption="Parameters that differ, or are not the default", head=["Parameter", *labels], rows=rows)


def _asset(name: str) -> str:
    return (files("replay.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """The script's source in the page's content policy."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
