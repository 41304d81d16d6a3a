"""The plots of the page, as specifications for plotly.js. Pure: values in, plain dicts out; the page draws them.

Names that users chose are escaped, since plotly reads a little HTML in its labels; they stand on number axes, so that
two long names which are cut alike stay two rows. Colours of policies go with a dash pattern, never alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from events.ids import Instant
from replay.report.losses import HOUR_S
from replay.report.study import Portrait, Study
from replay.report.waits import BAND_NAMES
from replay.report.words import CALENDAR_FROM, duration, percent, size_name

Spec = dict[str, Any]

COLOURS = ("#2f7ed8", "#e0861a", "#2a9d6f", "#c2528b", "#7d6bd0", "#8a8f98")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TEAMS_MAX = 20
"""Teams in a plot: those with the greatest demand; the tables have all."""
NAME_MAX = 28
SHARE_TICKS = (0, 50, 100, 150, 200)
SHORTFALL_SCALE = [[0, "#a63c14"], [0.3, "#e39a55"], [0.5, "#e4e8ec"], [0.75, "#86b5de"], [1, "#2166ac"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """`name`: of its element. `says`: what there is to see, in words and figures; `note`: how to read it."""

    name: str
    title: str
    says: str
    note: str
    height: int
    spec: Spec


def label(name: str) -> str:
    """A user's name as plotly shall show it."""
    return escape(name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…")


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def allocation(study: Study) -> Plot:
    """Allocated share of healthy GPUs above, waiting GPUs below, over time."""
    data = []
    for place, one in enumerate(study.portraits):
        at = [_axis_time(moment.at, one) for moment in one.moments]
        used = [moment.allocated / moment.healthy * 100 if moment.healthy else None for moment in one.moments]
        waiting = [moment.waiting_gpus for moment in one.moments]
        data.append(_line(place, one.label, at, _rounded(used, 2)))
        data.append(_line(place, one.label, at, _rounded(waiting, 1)) | {"yaxis": "y2", "showlegend": False})
    layout = {
        "xaxis": {"anchor": "y2", "title": {"text": _time_title(study.first)}},
        "yaxis": {"domain": [0.46, 1], "rangemode": "tozero", "ticksuffix": "%", "title": {"text": "allocated"}},
        "yaxis2": {"domain": [0, 0.38], "rangemode": "tozero", "title": {"text": "GPUs waited for"}},
        "hovermode": "x unified",
    }
    means = "; ".join(f"{percent(one.use.utilisation)} under {one.label}" for one in study.portraits)
    return Plot(
        name="allocation",
        title="Allocation over time",
        says=f"Allocated of healthy GPUs over the whole replay: {means}.",
        note="Above: allocated of healthy GPUs. Below: GPUs that queued jobs asked for. Means over equal stretches of "
        f"time, {max((len(one.moments) for one in study.portraits), default=0)} points at most.",
        height=460,
        spec={"data": data, "layout": layout},
    )


def hours(study: Study) -> Plot:
    """Where the GPU-hours went: a bar for each policy."""
    parts: list[tuple[str, str, str, Callable[[Portrait], float]]] = [
        ("kept work", "#2a9d6f", "", lambda one: one.losses.kept_gpu_s),
        ("lost work", "#c0392b", "x", lambda one: one.losses.lost_gpu_s),
        ("starting, saving, stopping", "#e0b23a", "/", _overhead),
        ("idle for a coming start", "#7d6bd0", ".", lambda one: one.use.held_gpu_s),
        ("free", "#b9c0c8", "", lambda one: one.use.healthy_gpu_s - one.use.allocated_gpu_s - one.use.held_gpu_s),
    ]
    rows = list(range(len(study.portraits)))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": rows,
            "x": _rounded([max(0.0, of(one)) / (one.use.healthy_gpu_s or 1) * 100 for one in study.portraits], 3),
            "marker": {"color": fill, "pattern": {"shape": pattern, "size": 5, "solidity": 0.25}},
            "hovertemplate": name + ": %{x:.1f}%<extra></extra>",
        }
        for name, fill, pattern, of in parts
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"ticksuffix": "%", "range": [0, 100.4], "dtick": 20, "title": {"text": "of healthy GPU-hours"}},
        "yaxis": _named_axis([one.label for one in study.portraits]),
        "legend": {"traceorder": "normal"},
    }
    told = "; ".join(
        f"{percent(one.losses.kept_gpu_s / (one.use.healthy_gpu_s or 1))} to kept work and "
        f"{percent(one.losses.lost_gpu_s / (one.use.healthy_gpu_s or 1))} to lost work under {one.label}"
        for one in study.portraits
    )
    return Plot(
        name="hours",
        title="Where the GPU-hours went",
        says=f"Of all healthy GPU-hours: {told}.",
        note="The whole replay, its drain at the end included.",
        height=150 + 46 * len(rows),
        spec={"data": data, "layout": layout},
    )


def wait_curves(study: Study) -> Plot:
    """For each size band, the share of jobs that waited at most so long."""
    bands = [name for name in BAND_NAMES if any(name in one.wait_curves for one in study.portraits)]
    data: list[Spec] = []
    layout: Spec = {"annotations": [], "hovermode": "closest"}
    gap = 0.03
    width = (1 - gap * (len(bands) - 1)) / max(1, len(bands))
    for column, name in enumerate(bands):
        axis = "" if column == 0 else str(column + 1)
        left = column * (width + gap)
        for place, one in enumerate(study.portraits):
            points = one.wait_curves.get(name, [])
            line = _line(place, one.label, [max(1.0, wait) for wait, _ in points], [y * 100 for _, y in points])
            data.append(line | {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": column == 0})
            data[-1]["text"] = [duration(wait) for wait, _ in points]
            data[-1]["hovertemplate"] = "%{y:.1f}% waited at most %{text}<extra>" + label(one.label) + "</extra>"
        layout[f"xaxis{axis}"] = _wait_axis() | {"domain": [left, left + width], "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = {"range": [0, 101], "anchor": f"x{axis}"}
        layout[f"yaxis{axis}"] |= {"ticksuffix": "%"} if column == 0 else {"showticklabels": False, "matches": "y"}
        layout["annotations"].append(_over_panel(left + width / 2, f"{escape(size_name(name))} GPUs"))
    slow = "; ".join(f"half of all within {duration(_median(one))} under {one.label}" for one in study.portraits)
    return Plot(
        name="waits",
        title="Waits by size of job",
        says=f"Jobs that had waited at most so long: {slow}.",
        note="Each curve: the share of jobs (upright) whose wait was at most so long (across, by powers of ten; waits "
        "under 1 s at 1 s). Further to the upper left is better.",
        height=340,
        spec={"data": data, "layout": layout},
    )


def fairness_course(study: Study) -> Plot:
    """Delivered of entitled, by team and time: one map for each policy."""
    teams = _greatest(study)
    portraits = study.portraits
    data: list[Spec] = []
    layout: Spec = {"annotations": []}
    gap = 0.04
    width = (1 - gap * (len(portraits) - 1)) / len(portraits)
    for column, one in enumerate(portraits):
        axis = "" if column == 0 else str(column + 1)
        found = {course.team: course.ratios for course in one.courses}
        none = (None,) * len(one.course_ends)
        cells = [_rounded([_in_percent(cell) for cell in found.get(team, none)], 1) for team in teams]
        data.append(
            _map(cells, [_axis_time(at, one) for at in one.course_ends], axis, last=column + 1 == len(portraits))
        )
        left = column * (width + gap)
        layout[f"xaxis{axis}"] = {
            "domain": [left, left + width],
            "anchor": f"y{axis}",
            "nticks": 3,
            "tickangle": 0,
            "showgrid": False,
        }
        layout[f"xaxis{axis}"] |= {"matches": "x"} if column else {}
        layout[f"xaxis{axis}"] |= {} if _relative(one) else {"tickformat": "%H:%M\n%d %b"}
        layout[f"yaxis{axis}"] = _named_axis(teams) | {"anchor": f"x{axis}", "showgrid": False}
        if column:
            layout[f"yaxis{axis}"] |= {"showticklabels": False}
        layout["annotations"].append(_over_panel(left + width / 2, label(one.label)))
    return Plot(
        name="fairness",
        title="Fairness over time",
        says=_told_worst(study),
        note="Each cell: GPU-hours delivered to a team of what it was entitled to, min(demand, guarantee). Brown: less "
        "than that; pale: just that; blue: more, by borrowing; empty: it was entitled to nothing. "
        f"The {len(teams)} teams with the greatest demand.",
        height=130 + 22 * len(teams),
        spec={"data": data, "layout": layout},
    )


def lost_over_time(study: Study) -> Plot:
    """Lost GPU-hours, added up over time."""
    data = []
    for place, one in enumerate(study.portraits):
        total, sums = 0.0, []
        for _, _, gpu_s in one.lost:
            total += gpu_s / HOUR_S
            sums.append(total)
        at = [_axis_time(min(end, one.outcome.end_at), one) for end, _, _ in one.lost]
        data.append(_line(place, one.label, at, _rounded(sums, 2)) | {"fill": "tozeroy", "opacity": 0.9})
    counts = "; ".join(f"{one.losses.preemptions:,} under {one.label}" for one in study.portraits)
    return Plot(
        name="lost",
        title="Work lost to preemption",
        says=f"Preemptions: {counts}.",
        note="GPU-hours of work that had to be done again after a preemption, added up from the start, by when the "
        "victim was told to stop.",
        height=320,
        spec={
            "data": data,
            "layout": {
                "xaxis": {"title": {"text": _time_title(study.first)}},
                "yaxis": {"rangemode": "tozero", "title": {"text": "GPU-hours lost so far"}},
                "hovermode": "x unified",
            },
        },
    )


def stranded(study: Study) -> Plot:
    """Free GPUs that no job of a size could use, for each type and size."""
    keys = sorted({(row.gpu_type, row.size) for one in study.portraits for row in one.stranded})
    types = {gpu_type for gpu_type, _ in keys}
    data = []
    for place, one in enumerate(study.portraits):
        found = {(row.gpu_type, row.size): row.stranded for row in one.stranded}
        data.append(
            {
                "type": "bar",
                "name": label(one.label),
                "x": list(range(len(keys))),
                "y": _rounded([found.get(key) for key in keys], 2),
                "marker": {"color": colour(place), "pattern": {"shape": ("", "/", ".", "x")[place % 4]}},
            }
        )
    ticks = [f"{size}" if len(types) == 1 else f"{label(gpu_type)} {size}" for gpu_type, size in keys]
    layout = {
        "barmode": "group",
        "xaxis": {"tickvals": list(range(len(keys))), "ticktext": ticks, "title": {"text": "size of job, GPUs"}},
        "yaxis": {"rangemode": "tozero", "title": {"text": "GPUs stranded, mean"}},
    }
    return Plot(
        name="stranded",
        title="Fragmentation",
        says="Free GPUs that no job of a size could use, on average over time.",
        note="For each size as many jobs as fit are laid on what is free; what is left over is stranded.",
        height=320,
        spec={"data": data, "layout": layout},
    )


def plots(study: Study) -> list[Plot]:
    """Those that have something to show, in the order of the page."""
    portraits = study.portraits
    found = [hours(study), allocation(study)] if any(one.moments for one in portraits) else []
    found += [wait_curves(study)] if any(one.wait_curves for one in portraits) else []
    found += [fairness_course(study)] if any(one.courses for one in portraits) else []
    found += [lost_over_time(study)] if any(one.losses.preemptions for one in portraits) else []
    return found + ([stranded(study)] if any(one.stranded for one in portraits) else [])


def _line(place: int, name: str, x: Sequence[Any], y: Sequence[Any]) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(name),
        "x": list(x),
        "y": list(y),
        "line": {"color": colour(place), "dash": DASHES[place % len(DASHES)], "width": 2},
    }


def _map(cells: list[list[float | None]], x: Sequence[Any], axis: str, *, last: bool) -> Spec:
    return {
        "type": "heatmap",
        "x": list(x),
        "y": list(range(len(cells))),
        "z": cells,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "zmin": 0,
        "zmax": 200,
        "colorscale": SHORTFALL_SCALE,
        "showscale": last,
        "colorbar": {
            "thickness": 12,
            "outlinewidth": 0,
            "tickvals": SHARE_TICKS,
            "ticktext": [f"{tick}%" for tick in SHARE_TICKS],
        },
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": "%{z:.0f}% of what it was entitled to<extra></extra>",
    }


def _overhead(one: Portrait) -> float:
    return one.use.allocated_gpu_s - one.losses.kept_gpu_s - one.losses.lost_gpu_s


def _in_percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def _rounded(values: Sequence[float | None], digits: int) -> list[float | None]:
    """Enough digits for the eye, so that the page stays small."""
    return [None if value is None else round(value, digits) for value in values]


def _axis_time(at: Instant | int, one: Portrait) -> str | float:
    """A date where the trace has a calendar, else days since the start."""
    if _relative(one):
        return round((at - one.outcome.start_at) / 86_400_000, 5)
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _time_title(one: Portrait) -> str:
    return "days since the start" if _relative(one) else "UTC"


def _relative(one: Portrait) -> bool:
    """It counts time from its own start."""
    return one.outcome.start_at < CALENDAR_FROM


def _named_axis(names: Sequence[str]) -> Spec:
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [label(name) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
    }


def _wait_axis() -> Spec:
    marks = {1: "1 s", 60: "1 min", 3600: "1 h", 86_400: "1 d", 864_000: "10 d"}
    return {"type": "log", "tickvals": list(marks), "ticktext": list(marks.values()), "tickangle": 0}


def _over_panel(x: float, text: str) -> Spec:
    return {"text": text, "x": x, "y": 1.01, "xref": "paper", "yref": "paper", "showarrow": False, "yanchor": "bottom"}


def _median(one: Portrait) -> float | None:
    return next((row.wait.p50 for row in one.waits if row.by == "all"), None)


def _greatest(study: Study) -> list[str]:
    """The teams with the greatest demand under the first policy, greatest first."""
    rows = sorted(study.first.shares, key=lambda row: (-row.demand_gpu_s, row.team))
    return [row.team for row in rows[:TEAMS_MAX]]


def _told_worst(study: Study) -> str:
    told = []
    for one in study.portraits:
        figure = next(figure for figure in one.figures if figure.name == "worst_team")
        told.append(f"{percent(figure.value)} under {one.label}")
    return f"The team that got least of what it was entitled to, over the whole replay, got {'; '.join(told)}."
