"""The tables of the page: rows of text, with a caption and a head. Values in, text out; the page escapes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from events.preemption import PreemptionRule
from replay.report.fairness import TeamShare
from replay.report.keys import Difference, Unit, Verdict
from replay.report.losses import HOUR_S
from replay.report.movers import Mover
from replay.report.reasons import sentence
from replay.report.spread import Spread
from replay.report.study import Pair, Portrait, Study, waits_by
from replay.report.waits import By, WaitRow
from replay.report.words import NONE, amount, change, dollars, duration, instant, number, percent, size_name, value

TEAM_ROWS_MAX = 60
"""Teams in a table of the page: those with the most jobs; the Parquet tables have all."""
MARKS = {
    Verdict.BETTER: "▲ better",
    Verdict.WORSE: "▼ worse",
    Verdict.SAME: "≈ same",
    Verdict.DIFFERENT: "differs",
    Verdict.UNKNOWN: "",
}


Line = tuple[str, Callable[[Portrait], str]]
"""A row of a table that has a column for each policy: its name, and what it says of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`kind`: a class of the style sheet; `mark`: a word beside the text, so that nothing is said by colour alone."""

    text: str
    kind: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """`head`: as many as each row has cells. `number_from`: columns from there on are aligned as numbers. `groups`:
    row -> a heading above it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    number_from: int = 1
    note: str = ""
    groups: dict[int, str] = field(default_factory=dict)


def key_grid(study: Study) -> Grid:
    """Every key figure of every policy, and what the first is next to each of the others."""
    head = ["Figure", study.first.label]
    for pair in study.pairs:
        head += [pair.other.label, "difference"]
    rows, groups, part = [], {}, ""
    for place, figure in enumerate(study.first.figures):
        if figure.part != part:
            part = groups[place] = str(figure.part)
        row = [Cell(text=figure.label), Cell(text=value(figure))]
        for pair in study.pairs:
            one = pair.differences[place]
            row += [Cell(text=amount(one.other, figure.unit)), verdict_cell(one)]
        rows.append(row)
    return Grid(caption="Key figures", head=head, rows=rows, groups=groups)


def verdict_cell(of: Difference) -> Cell:
    """The change, its direction in a word and a colour."""
    return Cell(text=change(of), kind=of.verdict.name.lower(), mark=MARKS[of.verdict])


def wait_grid(study: Study, by: By, caption: str) -> Grid:
    """Waits and slowdown of the jobs of each kind, policy by policy."""
    rows = [
        [
            Cell(text=size_name(kind) if by is By.SIZE else kind),
            Cell(text=one.label),
            *_wait_cells(found[kind]),
            *_next_to(study, place, (by, kind)),
        ]
        for kind in _kinds(study, by)
        for place, one in enumerate(study.portraits)
        if kind in (found := waits_by(one, by))
    ]
    head = [
        "",
        "Policy",
        "jobs",
        "mean",
        "p50",
        "p95",
        "p99",
        "longest",
        "mean slowdown",
        "p95 slowdown",
        "never started",
    ]
    if study.pairs:
        head += [f"mean wait, {study.first.label} next to it"]
    left = len({kind for one in study.portraits for kind in waits_by(one, by)}) - len(_kinds(study, by))
    note = f"{left:,} more teams with fewer jobs are in the Parquet tables." if left else ""
    return Grid(caption=caption, head=head, rows=rows, number_from=2, note=note)


def share_grid(study: Study) -> Grid:
    """Delivered against entitled, for each team."""
    rows = []
    teams = sorted({row.team: row for one in study.portraits for row in one.shares}.values(), key=_by_demand)
    for team in teams[:TEAM_ROWS_MAX]:
        for one in study.portraits:
            rows += [
                [
                    Cell(text=row.team),
                    Cell(text=one.label),
                    Cell(text=_hours(row.demand_gpu_s)),
                    Cell(text=_hours(row.entitled_gpu_s)),
                    Cell(text=_hours(row.delivered_gpu_s)),
                    Cell(text=percent(row.ratio)),
                    Cell(text=_hours(row.shortfall_gpu_s)),
                ]
                for row in one.shares
                if row.team == team.team
            ]
    head = ["Team", "Policy", "demand", "entitled", "delivered", "of entitled", "short at the time"]
    return Grid(caption="GPU-hours of each team", head=head, rows=rows, number_from=2)


def loss_grid(study: Study) -> Grid:
    """Preemptions and lost work, policy by policy."""
    labels = [one.label for one in study.portraits]
    lines: list[Line] = [
        ("Jobs stopped by reclaim", lambda one: f"{one.losses.by_rule[PreemptionRule.RECLAIM]:,}"),
        ("Jobs stopped by priority", lambda one: f"{one.losses.by_rule[PreemptionRule.PRIORITY]:,}"),
        ("Jobs that were preempted", lambda one: f"{one.losses.jobs_preempted:,}"),
        ("Most preemptions of one job", lambda one: f"{one.losses.preemptions_of_a_job_max:,}"),
        ("GPU-hours lost to preemption", lambda one: _hours(one.losses.preempted_gpu_s)),
        ("Cost of work lost to preemption", lambda one: dollars(one.losses.preempted_dollars)),
        ("GPU-hours lost to faults and failed starts", lambda one: _hours(one.losses.other_gpu_s)),
        ("Cost of work lost to faults and failed starts", lambda one: dollars(one.losses.other_dollars)),
    ]
    for place, reclaim in enumerate(study.first.reclaims):
        lines += _order_lines(place, reclaim.rule)
    rows = [[Cell(text=name), *(Cell(text=of(one)) for one in study.portraits)] for name, of in lines]
    return Grid(caption="Preemption and lost work", head=["", *labels], rows=rows)


def _order_lines(place: int, rule: PreemptionRule) -> list[Line]:
    """How the orders to make room by one rule went."""
    return [
        (f"Orders to make room ({rule})", lambda one: f"{one.reclaims[place].count:,}"),
        (f"Orders that led to no start ({rule})", lambda one: f"{one.reclaims[place].unmet:,}"),
        (f"Order to start, p50 / p95 / longest ({rule})", lambda one: _three(one.reclaims[place].seconds)),
    ]


def team_loss_grid(study: Study) -> Grid:
    """Whose jobs were stopped, and for whom."""
    rows = [
        [
            Cell(text=row.team),
            Cell(text=one.label),
            Cell(text=f"{row.suffered:,}"),
            Cell(text=_hours(row.lost_gpu_s)),
            Cell(text=f"{row.caused:,}"),
        ]
        for one in study.portraits
        for row in sorted(one.team_losses, key=lambda row: (-row.lost_gpu_s, row.team))[:TEAM_ROWS_MAX]
    ]
    head = ["Team", "Policy", "its jobs stopped", "GPU-hours it lost", "stopped for it"]
    return Grid(caption="Preemptions by team", head=head, rows=rows, number_from=2)


def stranded_grid(study: Study) -> Grid:
    """Fragmentation for each type and size."""
    keys = sorted({(row.gpu_type, row.size) for one in study.portraits for row in one.stranded})
    found = [{(row.gpu_type, row.size): row for row in one.stranded} for one in study.portraits]
    rows = [
        [
            Cell(text=key[0]),
            Cell(text=f"{key[1]:,}"),
            *(
                Cell(text=f"{number(of[key].stranded)} of {number(of[key].free)}" if key in of else NONE)
                for of in found
            ),
        ]
        for key in keys
    ]
    head = ["GPU type", "size of job", *(one.label for one in study.portraits)]
    return Grid(caption="GPUs stranded, of those free: means over time", head=head, rows=rows)


def use_grid(study: Study) -> Grid:
    """Allocation for each GPU type."""
    rows = [
        [
            Cell(text=gpu_type),
            Cell(text=one.label),
            Cell(text=_hours(use.healthy_gpu_s)),
            Cell(text=_hours(use.allocated_gpu_s)),
            Cell(text=percent(use.utilisation)),
            Cell(text=_hours(use.held_gpu_s)),
        ]
        for one in study.portraits
        for gpu_type, use in one.uses.items()
    ]
    head = ["GPU type", "Policy", "healthy GPU-hours", "allocated", "share", "idle for a coming start"]
    return Grid(caption="Use of each GPU type", head=head, rows=rows, number_from=2)


def longest_grid(one: Portrait) -> Grid:
    """The jobs that waited longest under one policy."""
    rows = [
        [
            Cell(text=job.job_id),
            Cell(text=job.name or NONE),
            Cell(text=job.team),
            Cell(text=str(job.priority_class)),
            Cell(text=f"{job.gpus:,}"),
            Cell(text=instant(job.submitted_at, one.outcome.start_at)),
            Cell(text=duration(job.waited_s)),
            Cell(text=str(job.state or ("not ended" if job.first_start_at is not None else "never started"))),
        ]
        for job in one.longest
    ]
    head = ["Job", "Name", "Team", "Class", "GPUs", "Submitted", "Waited", "End"]
    return Grid(caption=f"Longest waits under {one.label}", head=head, rows=rows, number_from=4)


def ends_grid(study: Study) -> Grid:
    """What became of the jobs: how many, by end and reason."""
    keys = sorted({key for one in study.portraits for key in one.ends.ended})
    refused = sorted({code for one in study.portraits for code in one.ends.refused})
    rows = [["Submitted", "", *(f"{one.ends.submitted:,}" for one in study.portraits)]]
    rows += [["Refused", code, *(f"{one.ends.refused.get(code, 0):,}" for one in study.portraits)] for code in refused]
    rows += [[*key, *(f"{one.ends.ended.get(key, 0):,}" for one in study.portraits)] for key in keys]
    rows.append(["Started, and not ended", "", *(f"{one.ends.running:,}" for one in study.portraits)])
    rows.append(["Never started", "", *(f"{one.ends.waiting:,}" for one in study.portraits)])
    cells = [[Cell(text=text) for text in row] for row in rows]
    head = ["End", "Reason", *(one.label for one in study.portraits)]
    return Grid(caption="What became of the jobs", head=head, rows=cells, number_from=2)


def mover_grids(pair: Pair) -> tuple[Grid, Grid]:
    """The jobs that gain, and that lose most under the first policy next to the other."""
    first, other = pair.first, pair.other
    gains = _mover_grid(pair, pair.moves.winners, worse=other, better=first)
    losses = _mover_grid(pair, pair.moves.losers, worse=first, better=other)
    return gains, losses


def _mover_grid(pair: Pair, movers: Sequence[Mover], *, worse: Portrait, better: Portrait) -> Grid:
    gains = better is pair.first
    rows = [
        [
            Cell(text=one.first.job_id, mark=one.first.name),
            Cell(text=one.first.team),
            Cell(text=f"{one.first.gpus:,} × {one.first.gpu_type}", mark=str(one.first.priority_class)),
            Cell(
                text=("at least " if one.at_least else "") + duration(one.seconds),
                kind="better" if gains else "worse",
                mark="earlier" if gains else "later",
            ),
            Cell(text=sentence(one.reason, worse.label, better.label), kind="why"),
        ]
        for one in movers
    ]
    verb = "gain" if gains else "lose"
    caption = f"The {len(rows)} jobs that {verb} most under {pair.first.label} next to {pair.other.label}"
    return Grid(caption=caption, head=["Job", "Team", "GPUs, class", "Ends", "Why"], rows=rows, number_from=9)


def _wait_cells(row: WaitRow) -> list[Cell]:
    waits = row.wait
    spans = [duration(one) for one in (waits.mean, waits.p50, waits.p95, waits.p99, waits.max)]
    slow = [amount(one, Unit.TIMES) for one in (row.slowdown.mean, row.slowdown.p95)]
    return [Cell(text=text) for text in (f"{row.jobs:,}", *spans, *slow, f"{row.unstarted:,}")]


def _next_to(study: Study, place: int, of: tuple[By, str]) -> list[Cell]:
    """How the first policy's mean wait compares with that of the policy at `place`; none where there is one policy."""
    if not study.pairs:
        return []
    found = [
        verdict_cell(one.difference)
        for one in (study.pairs[place - 1].details if place else ())
        if one.detail.key == (*of, "wait_mean_s")
    ]
    return found or [Cell(text="")]


def _kinds(study: Study, by: By) -> list[str]:
    """What the rows are about, in their own order; of teams those with the most jobs."""
    found = {row.value: row.jobs for one in study.portraits for row in one.waits if row.by is by}
    if by is not By.TEAM:
        return list(found)
    return sorted(found, key=lambda team: (-found[team], team))[:TEAM_ROWS_MAX]


def _by_demand(row: TeamShare) -> tuple[int, str]:
    return -row.demand_gpu_s, row.team


def _hours(gpu_s: int) -> str:
    return number(gpu_s / HOUR_S)


def _three(of: Spread) -> str:
    return " / ".join(duration(one) for one in (of.p50, of.p95, of.max))
