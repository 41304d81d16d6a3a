"""Why a job ended later under one policy than under another: what the rows show, first as figures, then as a sentence.

Pure. A reason says only what was counted: which part of the delay was the first wait, waits between attempts and work
done again, and what stood in its way meanwhile. It does not guess what the planner meant; `signalbox why` knows that
for recorded days.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from replay.report.evidence import Evidence, Stop
from replay.report.words import duration, number, percent, plural, times

NAMED_MAX = 3
"""Preemptors and teams that a sentence names."""


class Cause(StrEnum):
    """The largest part of the delay."""

    FIRST_WAIT = "first_wait"
    """It waited longer for its first start."""
    STOPPED = "stopped"
    """It was preempted or hit by a fault: work done again, and time until it was granted again."""
    ELSEWHERE = "elsewhere"
    """Neither: starting, saving, holds, backoff, or the end of a dependency."""


class Fact(StrEnum):
    """What stood in the way of its first start, or out of it under the other policy."""

    MADE_ROOM = "made_room"
    """Under the better policy it preempted others for it."""
    BORROWER = "borrower"
    """Its team was above its guarantee, and covered jobs of other teams passed it."""
    PASSED_BY = "passed_by"
    """More jobs that came later were granted before it."""
    PASSED = "passed"
    """Under the better policy it was granted before jobs that came before it."""
    BEHIND = "behind"
    """The queue before it, of jobs that came earlier and were granted earlier, was longer."""
    HELD = "held"
    """As many GPUs as it asked for were idle for coming starts."""
    STRANDED = "stranded"
    """As many were free, and most of them stranded for its size."""
    BUSY = "busy"
    """How full the fleet was: where nothing else is to be said."""


FACTS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """`first_s`, `stopped_s`: by how much longer it waited for its first start, and was kept by stops, under the worse
    policy; negative where it was shorter."""

    cause: Cause
    facts: tuple[Fact, ...]
    first_s: float
    stopped_s: float
    worse: Evidence
    better: Evidence


def reason(worse: Evidence, better: Evidence) -> Reason:
    """Why the job ended later where `worse` is from."""
    first = float(worse.first_wait_s - better.first_wait_s)
    stopped = worse.again_s + worse.redone_s - better.again_s - better.redone_s
    if max(first, stopped) <= 0:
        cause = Cause.ELSEWHERE
    else:
        cause = Cause.FIRST_WAIT if first >= stopped else Cause.STOPPED
    facts = tuple(_facts(worse, better))[:FACTS_MAX] if cause is Cause.FIRST_WAIT else ()
    return Reason(cause=cause, facts=facts, first_s=first, stopped_s=stopped, worse=worse, better=better)


def sentence(of: Reason, worse_name: str, better_name: str) -> str:
    """The reason in one sentence, with the names of the two policies. Plain text."""
    match of.cause:
        case Cause.FIRST_WAIT:
            return _first_wait(of, worse_name, better_name)
        case Cause.STOPPED:
            return _stopped(of.worse, of.better, worse_name=worse_name, better_name=better_name)
        case Cause.ELSEWHERE:
            return (
                f"Its waits and the work it did again were not longer under {worse_name}: the time went elsewhere "
                "(starting, saving, holds, backoff or a dependency)."
            )


def _facts(worse: Evidence, better: Evidence) -> Iterator[Fact]:
    """What applies, the most telling first."""
    here, there, around = worse.passing, better.passing, worse.surroundings
    if better.made_room and not worse.made_room:
        yield Fact.MADE_ROOM
    if (around.team_use or 0) > 1 and here.by_covered > there.by_covered:
        yield Fact.BORROWER
    elif here.by > there.by:
        yield Fact.PASSED_BY
    queue = [(here.behind - there.behind, Fact.BEHIND), (there.over - here.over, Fact.PASSED)]
    yield from (fact for jobs, fact in sorted(queue, reverse=True) if jobs > 0)
    asked = max(1, worse.gpus)
    if around.held >= asked:
        yield Fact.HELD
    elif around.free >= asked and around.stranded is not None and around.stranded > around.free / 2:
        yield Fact.STRANDED
    if around.allocated is not None:
        yield Fact.BUSY


def _first_wait(of: Reason, worse_name: str, better_name: str) -> str:
    worse, better = of.worse, of.better
    waited = f"waited {duration(worse.first_wait_s)} for its first start under {worse_name}"
    if not worse.started:
        waited = f"never started under {worse_name}, where it waited {duration(worse.first_wait_s)}"
    head = f"It {waited}, {duration(better.first_wait_s)} under {better_name}"
    told = [_told(fact, worse, better, better_name) for fact in of.facts]
    return f"{head}: {'; '.join(told)}." if told else f"{head}."


def _told(fact: Fact, worse: Evidence, better: Evidence, better_name: str) -> str:
    here, there, around = worse.passing, better.passing, worse.surroundings
    match fact:
        case Fact.MADE_ROOM:
            stops = better.made_room
            gpus = plural(sum(stop.gpus for stop in stops), "GPU")
            return (
                f"under {better_name} room was made by preempting {plural(len(stops), 'job')} ({gpus}){_teams(stops)}"
            )
        case Fact.BORROWER:
            return (
                f"its team held {percent(around.team_use)} of its guarantee meanwhile, and "
                f"{plural(here.by_covered, 'covered job')} of other teams that came later started first "
                f"({there.by_covered:,} under {better_name})"
            )
        case Fact.PASSED_BY:
            return (
                f"{plural(here.by, 'job')} that came later started first{_sort(worse)} "
                f"({there.by:,} under {better_name})"
            )
        case Fact.PASSED:
            return f"under {better_name} it passed {plural(there.over, 'job')} that came before it"
        case Fact.BEHIND:
            return (
                f"it stood there behind {plural(here.behind, 'job')} that came before it, the largest of "
                f"{plural(here.behind_gpus_max, 'GPU')} ({there.behind:,} under {better_name})"
            )
        case Fact.HELD:
            return f"on average {number(around.held)} GPUs were held idle for coming starts meanwhile"
        case Fact.STRANDED:
            return (
                f"on average {number(around.free)} GPUs were free, {number(around.stranded)} of them stranded for jobs "
                f"of {around.stranded_size}"
            )
        case Fact.BUSY:
            return (
                f"{percent(around.allocated)} of the GPUs of its type were allocated meanwhile, and jobs for "
                f"{number(around.waiting_gpus)} GPUs waited"
            )


def _sort(worse: Evidence) -> str:
    """Which sort the jobs that passed it were of, where most were of one."""
    passing = worse.passing
    if passing.by_higher * 2 > passing.by:
        return f", {passing.by_higher:,} of them of a higher class"
    return f", {passing.by_smaller:,} of them smaller" if passing.by_smaller * 2 > passing.by else ""


def _stopped(worse: Evidence, better: Evidence, *, worse_name: str, better_name: str) -> str:
    stops = []
    if worse.stopped_by:
        stops.append(f"preempted {times(len(worse.stopped_by))} (for {_named(worse.stopped_by)})")
    if worse.faults:
        stops.append(f"hit by {plural(worse.faults, 'fault')}")
    what = " and ".join(stops) or "set back"
    lost = f"{number(worse.lost_gpu_s / 3600)} GPU-h of work lost"
    cost = f"{lost} and {duration(worse.again_s)} without GPUs between its attempts"
    other = f"{number(better.lost_gpu_s / 3600)} GPU-h and {duration(better.again_s)}"
    return f"Under {worse_name} it was {what}: {cost}, against {other} under {better_name}."


def _named(stops: tuple[Stop, ...]) -> str:
    named = "; ".join(f"{stop.job_id} of team {stop.team}, {stop.rule}" for stop in stops[:NAMED_MAX])
    more = len(stops) - NAMED_MAX
    return f"{named}; {more:,} more" if more > 0 else named


def _teams(stops: tuple[Stop, ...]) -> str:
    teams = sorted({stop.team for stop in stops})
    return f" of team{'s' if len(teams) > 1 else ''} {', '.join(teams)}" if len(teams) <= NAMED_MAX else ""
