"""`signalboxd replay`: schedule recorded, public or generated work again, under other policies, and write the page.

Exit codes: 0 done; 2 usage, or input that cannot be used; 75 a log cannot be read now.
"""

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from replay.contender import RECORDED, WORDS, BadContender, Contender, contender, under
from replay.engine.models import Models
from replay.engine.run import Progress
from replay.outcome import Outcome
from replay.recorded import Again, again, words
from replay.report.notes import Notes
from replay.report.study import study
from replay.report.text import lines
from replay.report.write import write_report
from replay.scenario import Scenario
from replay.traces.rows import BadOption, BadTrace
from replay.whatif import Told, compare
from signalboxd.replay_source import TELL_S, Source, source
from signalboxd.replay_source import add_arguments as add_source

EXIT_USAGE = 2
SAMPLE_S_MAX = 900
SAMPLES_MIN = 48
AGAIN = "again.json"
"""In the folder of the report: every recorded start that came out otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--policy", help=f"what to try: {', '.join(WORDS)}, or a file of JSON or TOML", required=True)
    parser.add_argument("--against", action="append", default=[], help=f"what to compare it with (default: {RECORDED})")
    parser.add_argument("--out", type=Path, default=Path("replay-report"), help="folder of the report")
    parser.add_argument("--jobs", type=int, default=1, help="policies that are replayed at once, by processes")
    parser.add_argument(
        "--sample", type=int, metavar="S", help="seconds between samples (default: 900; of hours, less)"
    )
    parser.add_argument("--parallel-percent", type=int, help="model: part of an elastic job's work that is parallel")
    parser.add_argument("--spread-percent", type=int, default=0, help="model: cost of each block more than needed")
    parser.add_argument("--fleet", help="nodes, as 128x8 (docs/traces.md); a generated day has 3000x8")


async def run(args: argparse.Namespace) -> None:
    """Replay, write the report, and tell the main figures."""
    try:
        _check(args)
        found = await source(args)
        contenders = _contenders(args, found.scenario)
        checked = _again(found)
        outcomes = _replayed(found.scenario, contenders, args)
        notes = Notes(
            source=found.about,
            command=shlex.join(["signalboxd", *sys.argv[1:]]),
            seed=found.seed,
            policies=tuple(under(found.scenario, each).policy for each in contenders),
            unusable=found.unusable,
            exceptions=tuple(_exceptions(found, checked, outcomes)),
            models=tuple(_models_said(args)),
        )
        paths = write_report(outcomes, args.out, notes=notes)
        if checked is not None:
            (args.out / AGAIN).write_bytes(words.as_json(checked))
    except (BadTrace, BadOption, BadContender, ValueError, OSError) as error:
        sys.stderr.write(f"signalboxd replay: {error}\n")
        raise SystemExit(EXIT_USAGE) from None
    said = [*lines(study(outcomes, notes.rates)), "", *notes.exceptions]
    sys.stdout.write("\n".join(said).rstrip() + f"\n\n{paths.html}\n")


def _check(args: argparse.Namespace) -> None:
    if args.jobs < 1:
        raise BadOption("jobs", args.jobs, "has to be at least 1")
    if args.sample is not None and args.sample < 1:
        raise BadOption("sample", args.sample, "has to be at least 1 second")


def _contenders(args: argparse.Namespace, scenario: Scenario) -> list[Contender]:
    """The one in question, and what it is compared with."""
    against = args.against or ([] if args.policy == RECORDED else [RECORDED])
    return [*_distinct([contender(text, scenario.policy) for text in (args.policy, *against)])]


def _again(found: Source) -> Again | None:
    """Do the recorded decisions come out of the recorded day? From the start of the log on: what a window begins with
    came out of what was before it."""
    day = found.check
    if day is None:
        return None
    with _telling(["as recorded"]) as told:
        return again(day, lambda how_far: told("as recorded", how_far), since=found.scenario.start_at)


def _replayed(scenario: Scenario, contenders: Sequence[Contender], args: argparse.Namespace) -> list[Outcome]:
    models = Models(parallel_percent=args.parallel_percent, spread_percent=args.spread_percent)
    sample_s = args.sample or sample_s_of(scenario)
    with _telling([each.name for each in contenders]) as told:
        return compare(scenario, contenders, models=models, sample_s=sample_s, jobs=args.jobs, told=told)


def sample_s_of(scenario: Scenario) -> int:
    """Seconds between samples where nobody says: so many fit into the time in which work came in, or into what was
    recorded, that it can be drawn."""
    last_at = max((each.at for each in scenario.arrivals), default=scenario.start_at)
    span_s = ((scenario.end_at or last_at) - scenario.start_at) // 1000
    return max(1, min(SAMPLE_S_MAX, span_s // SAMPLES_MIN))


def _exceptions(found: Source, checked: Again | None, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How true the replay of a recorded day is."""
    if found.recorded is None:
        return
    if checked is not None:
        yield from words.of_again(checked, AGAIN)
    for outcome in outcomes:
        if outcome.policy_name == RECORDED:
            yield words.of_baseline(found.recorded, outcome)
    yield from words.of_day(found.recorded)


def _distinct(contenders: Sequence[Contender]) -> Iterator[Contender]:
    """No two may have one name: nobody could tell them apart on the page."""
    seen: set[str] = set()
    for each in contenders:
        if each.name in seen:
            raise BadOption("against", each.name, "is there twice: give each file a name of its own")
        seen.add(each.name)
        yield each


def _models_said(args: argparse.Namespace) -> Iterator[str]:
    if args.parallel_percent is not None:
        yield f"{args.parallel_percent}% of an elastic job's work is parallel"
    if args.spread_percent:
        yield f"each block more than a gang needs makes it take {args.spread_percent}% longer"


# How far it is


@contextlib.contextmanager
def _telling(names: Sequence[str]) -> Iterator[Told]:
    """Bars on a terminal; else a line now and then. On standard error."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _plain()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}"), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {name: bars.add_task(name, total=1000, jobs="") for name in names}

        def told(name: str, how_far: Progress) -> None:
            jobs = f"{how_far.ended} jobs ended, {how_far.waiting} wait"
            bars.update(tasks[name], completed=how_far.part, jobs=jobs)

        yield told


def _plain() -> Told:
    last: dict[str, float] = {}

    def told(name: str, how_far: Progress) -> None:
        if time.monotonic() - last.get(name, 0.0) >= TELL_S:
            last[name] = time.monotonic()
            said = f"{name}: {how_far.part / 10:.0f}%, {how_far.ended} jobs ended, {how_far.waiting} wait"
            sys.stderr.write(f"{said}\n")

    return told
