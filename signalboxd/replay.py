"""`signalboxd replay`: schedule recorded, public or generated work again, under other policies, and write the page.

Exit codes: 0 done; 2 usage, or input that cannot be used; 75 a log cannot be read now.
"""

import argparse
import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from commands.policy import Policy
from replay import generated
from replay.contender import RECORDED, WORDS, BadContender, Contender, contender, under
from replay.engine.models import Models
from replay.engine.run import Progress
from replay.outcome import Outcome
from replay.report.notes import Notes
from replay.report.study import study
from replay.report.text import lines
from replay.report.write import write_report
from replay.scenario import Scenario
from replay.traces.options import AT_ONCE, Running, parse_options
from replay.traces.read import listed, read_trace
from replay.traces.rows import BadOption, BadTrace
from replay.traces.scenario import scenario as imported
from replay.traces.summary import ImportReport, reason, summary
from replay.whatif import Told, compare

EXIT_USAGE = 2
TELL_S = 5.0
_SIZE = re.compile(r"([1-9][0-9]{0,4})x(1|2|4|8|16)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is replayed, and what has to be said of where it came from."""

    scenario: Scenario
    about: str
    seed: int | None = None
    unusable: Mapping[str, int] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help=f"a trace: {listed()}")
    source.add_argument("--generated", type=int, metavar="SEED", help="a generated day, the same for the same seed")
    words = ", ".join(WORDS)
    parser.add_argument("--policy", help=f"what to try: {words}, or a file of JSON or TOML", required=True)
    parser.add_argument("--against", action="append", default=[], help=f"what to compare it with (default: {RECORDED})")
    parser.add_argument("--out", type=Path, default=Path("replay-report"), help="folder of the report")
    parser.add_argument("--jobs", type=int, default=1, help="policies that are replayed at once, by processes")
    parser.add_argument("--sample", type=int, default=900, metavar="S", help="seconds between samples (default: 900)")
    parser.add_argument("--parallel-percent", type=int, help="model: part of an elastic job's work that is parallel")
    parser.add_argument("--spread-percent", type=int, default=0, help="model: cost of each block more than needed")
    parser.add_argument("--fleet", help="nodes, as 128x8 (docs/traces.md); a generated day has 3000x8")
    _trace_arguments(parser.add_argument_group("a trace (docs/traces.md)"))
    day = parser.add_argument_group("a generated day")
    day.add_argument("--submissions", type=int, default=40_000, help="default: 40000")
    day.add_argument("--load", type=float, default=0.95, help="GPU-hours asked for, of those there are (default: 0.95)")


def _trace_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--format", help="its format, where its header does not tell")
    group.add_argument("--window", default="..", help="FROM..TO in seconds from the first submission")
    group.add_argument("--scale", default="1", help="times of submission times this, as 0.25")
    group.add_argument("--quotas", default="use", help="use, equal, one, or a file")
    group.add_argument("--borrow-percent", type=int, default=100, help="borrow limit, of the fleet (default: 100)")
    group.add_argument("--classes", default="research", help="one class, or COLUMN:VALUE=CLASS,...")
    group.add_argument("--estimate", default="duration", help="run-time limits: duration, limit, or factor:N")
    group.add_argument("--at-once", action="store_true", help="starts take no time, limits are the estimates")


async def run(args: argparse.Namespace) -> None:
    """Replay, write the report, and tell the main figures."""
    try:
        source, outcomes, policies = _replayed(args)
        notes = Notes(
            source=source.about,
            command=shlex.join(["signalboxd", *sys.argv[1:]]),
            seed=source.seed,
            policies=policies,
            unusable=source.unusable,
            models=tuple(_models_said(args)),
        )
        paths = write_report(outcomes, args.out, notes=notes)
    except (BadTrace, BadOption, BadContender, ValueError, OSError) as error:
        sys.stderr.write(f"signalboxd replay: {error}\n")
        raise SystemExit(EXIT_USAGE) from None
    sys.stdout.write("\n".join(lines(study(outcomes, notes.rates))) + f"\n\n{paths.html}\n")


def _replayed(args: argparse.Namespace) -> tuple[Source, list[Outcome], tuple[Policy, ...]]:
    if args.jobs < 1:
        raise BadOption("jobs", args.jobs, "has to be at least 1")
    if args.sample < 1:
        raise BadOption("sample", args.sample, "has to be at least 1 second")
    models = Models(parallel_percent=args.parallel_percent, spread_percent=args.spread_percent)
    source = _source(args)
    scenario = source.scenario
    tried = [contender(text, scenario.policy) for text in (args.policy, *(args.against or [RECORDED]))]
    contenders = [*_distinct(tried)]
    with _telling(contenders) as told:
        outcomes = compare(scenario, contenders, models=models, sample_s=args.sample, jobs=args.jobs, told=told)
    return source, outcomes, tuple(under(scenario, each).policy for each in contenders)


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


# Where the work comes from


def _source(args: argparse.Namespace) -> Source:
    if args.trace is not None:
        return _of_trace(args)
    return _of_generated(args)


def _of_trace(args: argparse.Namespace) -> Source:
    if not args.fleet:
        raise BadOption("fleet", "", "a trace needs one to be replayed on, as 128x8")
    options = parse_options(
        fleet=args.fleet,
        window=args.window,
        scale=args.scale,
        quotas=args.quotas,
        borrow_percent=args.borrow_percent,
        classes=args.classes,
        estimate=args.estimate,
        running=AT_ONCE if args.at_once else Running(),
    )
    scenario, report = imported(read_trace(args.trace, args.format), options)
    sys.stderr.write(f"{summary(report)}\n")
    return Source(scenario=scenario, about=f"trace {args.trace.name}", unusable=_unusable(report))


def _unusable(report: ImportReport) -> dict[str, int]:
    return {reason(fault): count for fault, count in report.faults.counts.items()}


def _of_generated(args: argparse.Namespace) -> Source:
    found = _SIZE.fullmatch(args.fleet or "3000x8")
    if found is None:
        raise BadOption("fleet", args.fleet, "a generated day's is NODESxGPUS, as 3000x8")
    if not 1 <= args.submissions <= 1_000_000:
        raise BadOption("submissions", args.submissions, "has to be from 1 to 1000000")
    if not 0 < args.load <= 10:
        raise BadOption("load", args.load, "has to be above 0, and at most 10")
    fleet = generated.Fleet(nodes=int(found[1]), node_gpus=int(found[2]))
    scenario = generated.day(args.generated, fleet, jobs=args.submissions, load=args.load)
    about = f"a generated day of {args.submissions} submissions on {found[0]}, {args.load:g} of its GPU-hours"
    return Source(scenario=scenario, about=about, seed=args.generated)


# How far it is


@contextlib.contextmanager
def _telling(contenders: Sequence[Contender]) -> Iterator[Told]:
    """Bars on a terminal; else a line now and then. On standard error."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _plain()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}"), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {each.name: bars.add_task(each.name, total=1000, jobs="") for each in contenders}

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
