"""What changed, in plain words: the paragraphs at the top of the page. Every figure in them is one of the study's.

Nothing is praised: a sentence says what the figures are, which of the two is the better, and what got worse.
"""

from replay.report.keys import Difference, Figure, Verdict
from replay.report.movers import Moves
from replay.report.study import Pair, Portrait, Study
from replay.report.words import dollars, duration, number, percent, plural, value


def headline(study: Study) -> list[str]:
    """A paragraph about the first policy, then one for each that it is compared with. Plain text."""
    return [_alone(study.first), *(_against(pair) for pair in study.pairs)]


def verdicts(pair: Pair) -> tuple[int, int, int]:
    """Key figures that are better, worse, and about the same under the first."""
    found = [one.verdict for one in pair.differences]
    return found.count(Verdict.BETTER), found.count(Verdict.WORSE), found.count(Verdict.SAME)


def _alone(one: Portrait) -> str:
    figures = {figure.name: figure for figure in one.figures}
    return " ".join(
        [
            _waits(one, figures),
            _use(figures),
            _stops(one, figures),
            _fair(figures),
            _open(one),
        ]
    ).strip()


def _waits(one: Portrait, figures: dict[str, Figure]) -> str:
    """Of how many jobs first: the waits are of the jobs that were let in, and praise who turns the others away."""
    submitted, away = one.ends.submitted, int(figures["refused"].value or 0)
    jobs = plural(submitted, "job")
    if away:
        were = "was" if away == 1 else "were"
        jobs = f"{away:,} of {jobs} {were} refused or rejected; the other {submitted - away:,}"
    return (
        f"Under {one.label}, {jobs} on {one.outcome.gpus:,} GPUs waited {value(figures['wait_mean_s'])} on average, "
        f"19 of 20 at most {value(figures['wait_p95_s'])}, and none longer than {value(figures['wait_max_s'])}."
    )


def _use(figures: dict[str, Figure]) -> str:
    coming = figures["utilisation_coming"]
    if coming.value is None:
        return ""
    kept = figures["kept"].value
    went = "" if kept is None else f", and {percent(kept)} of the GPU-hours went to work that was kept"
    return f"While work came in, {percent(coming.value)} of the healthy GPUs were allocated{went}."


def _stops(one: Portrait, figures: dict[str, Figure]) -> str:
    if not one.losses.preemptions:
        return "Nothing was preempted."
    lost = one.losses.preempted_gpu_s / 3600
    text = (
        f"{plural(one.losses.preemptions, 'preemption')} lost {number(lost)} GPU-hours of work "
        f"({dollars(one.losses.preempted_dollars)})"
    )
    reclaim = figures["reclaim_p95_s"].value
    return f"{text}." if reclaim is None else f"{text}; 19 of 20 reclaims started within {duration(reclaim)}."


def _fair(figures: dict[str, Figure]) -> str:
    worst = figures["worst_team"].value
    return "" if worst is None else f"The worst-served team got {percent(worst)} of what it was entitled to."


def _open(one: Portrait) -> str:
    left = one.ends.waiting
    return f"{plural(left, 'job')} had not started when the replay ended." if left else ""


def _against(pair: Pair) -> str:
    by_name = {one.figure.name: one for one in pair.differences}
    better, worse, same = verdicts(pair)
    parts = [
        _refusals(by_name["refused"]),
        _compared("the mean wait was", by_name["wait_mean_s"]),
        _compared("the longest wait", by_name["wait_max_s"]),
        _compared("gangs over 64 GPUs waited on average", by_name["gang_wait_mean_s"]),
        _compared("the share allocated while work came in was", by_name["utilisation_coming"]),
        _compared("lost work cost", by_name["lost_dollars"]),
    ]
    told = "; ".join(part for part in parts if part)
    return (
        f"Next to {pair.other.label}: {told}. {_moved(pair.moves)} Of the key figures {better} are better, {worse} "
        f"worse and {same} about the same."
    )


def _refusals(of: Difference) -> str:
    """Only where there are more or fewer of them: then the waits are not those of the same jobs."""
    return _compared("refused or rejected jobs were", of) if of.change else ""


def _compared(what: str, of: Difference) -> str:
    """`the mean wait was 2.1 h, not 6.3 h (better)`."""
    if of.change is None:
        return ""
    mine, theirs = value(of.figure), value(_as_other(of))
    if of.change == 0:
        return f"{what} the same, {mine}"
    return f"{what} {mine} instead of {theirs} ({of.verdict})"


def _as_other(of: Difference) -> Figure:
    figure = of.figure
    return Figure(
        name=figure.name,
        label=figure.label,
        part=figure.part,
        unit=figure.unit,
        better=figure.better,
        value=of.other,
    )


def _moved(moves: Moves) -> str:
    text = f"{plural(moves.gained, 'job')} ended earlier"
    if moves.gained:
        text += f" (by {duration(moves.gained_s / moves.gained)} on average)"
    text += f", {moves.lost:,} later"
    if moves.lost:
        text += f" (by {duration(moves.lost_s / moves.lost)})"
    return f"{text}, {moves.same:,} at the same time."
