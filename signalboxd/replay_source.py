"""Where the work of a replay comes from: a trace, a generated day, or the log of a cluster or in a file."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from events.chain import ChainBroken
from events.codec import Unreadable
from events.ids import ClusterId
from events.log import LogUnavailable, LogUnusable, RecordLog
from events.log_file import LogFile
from replay import generated
from replay.recorded import NothingRecorded, Recorded, read_day
from replay.scenario import Scenario
from replay.traces.fleet import NODES_MAX
from replay.traces.options import AT_ONCE, Running, parse_options
from replay.traces.read import listed, read_trace
from replay.traces.rows import BadOption
from replay.traces.scenario import scenario as imported
from replay.traces.summary import ImportReport, reason, summary
from replay.verify import BadBound, Bound, Window, read_bound
from signalboxd.site import SiteError
from signalboxd.verify import target_of
from signalboxd.wiring import open_logs

TELL_S = 5.0
"""So often is told how far it is, where there is no terminal to draw on."""
_SIZE = re.compile(r"([1-9][0-9]{0,4})x(1|2|4|8|16)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is replayed, and what has to be said of where it came from. `recorded`: the day that a log told; `check`:
    the same from the start of the log on, with which it is shown that the recorded decisions come out; None: not asked
    for."""

    scenario: Scenario
    about: str
    seed: int | None = None
    unusable: Mapping[str, int] = field(default_factory=dict)
    recorded: Recorded | None = None
    check: Recorded | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that say where it comes from."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--site", type=Path, help="recorded days: the log of a cluster, by a site file")
    source.add_argument("--file", type=Path, help="recorded days: an exported log (`signalboxd log export`)")
    source.add_argument("--trace", type=Path, help=f"a trace: {listed()}")
    source.add_argument("--generated", type=int, metavar="SEED", help="a generated day, the same for the same seed")
    _recorded_arguments(parser.add_argument_group("recorded days (docs/replay.md)"))
    _trace_arguments(parser.add_argument_group("a trace (docs/traces.md)"))
    day = parser.add_argument_group("a generated day")
    day.add_argument("--submissions", type=int, default=40_000, help="default: 40000")
    day.add_argument("--load", type=float, default=0.95, help="GPU-hours asked for, of those there are (default: 0.95)")


def _recorded_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--cluster", help="of the site (default: the site's own)")
    group.add_argument("--from", dest="first", help="from here: 2026-07-01, 2026-07-01T12:00, n:N or seq:N")
    group.add_argument("--to", dest="last", help="to here; a day is the whole of it")
    group.add_argument(
        "--again",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check first that under the recorded policy the recorded decisions come out (default: yes)",
    )


def _trace_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--format", help="its format, where its header does not tell")
    group.add_argument("--window", default="..", help="FROM..TO in seconds from the first submission")
    group.add_argument("--scale", default="1", help="times of submission times this, as 0.25")
    group.add_argument("--quotas", default="use", help="use, equal, one, or a file")
    group.add_argument("--borrow-percent", type=int, default=100, help="borrow limit, of the fleet (default: 100)")
    group.add_argument("--classes", default="research", help="one class, or COLUMN:VALUE=CLASS,...")
    group.add_argument("--estimate", default="duration", help="run-time limits: duration, limit, or factor:N")
    group.add_argument("--at-once", action="store_true", help="starts take no time, limits are the estimates")


OF_SOURCE = {
    "recorded days": ("cluster", "from", "to", "again"),
    "a trace": ("format", "window", "scale", "quotas", "borrow_percent", "classes", "estimate", "at_once"),
    "a generated day": ("submissions", "load"),
}
"""Options that say something of one source only."""
_STORED = {"from": "first", "to": "last"}


async def source(args: argparse.Namespace) -> Source:
    """The one that is asked for. Raises BadTrace, BadOption, OSError; SiteError: it cannot be read now."""
    _check(args)
    if args.trace is not None:
        return _of_trace(args)
    if args.generated is not None:
        return _of_generated(args)
    return await _of_log(args)


def _check(args: argparse.Namespace) -> None:
    """An option that says something of another source was meant, and would be of no effect."""
    asked = "a trace" if args.trace is not None else "recorded days" if args.generated is None else "a generated day"
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for of, options in OF_SOURCE.items():
        for option in options if of != asked else ():
            stored = _STORED.get(option, option)
            if getattr(args, stored) != parser.get_default(stored):
                raise BadOption(option.replace("_", "-"), getattr(args, stored), f"is for {of}, and this is {asked}")


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
    if found is None or int(found[1]) > NODES_MAX:
        raise BadOption("fleet", args.fleet, f"a generated day's is as 3000x8, of at most {NODES_MAX} nodes")
    if not 1 <= args.submissions <= 1_000_000:
        raise BadOption("submissions", args.submissions, "has to be from 1 to 1000000")
    if not 0 < args.load <= 10:
        raise BadOption("load", args.load, "has to be above 0, and at most 10")
    fleet = generated.Fleet(nodes=int(found[1]), node_gpus=int(found[2]))
    scenario = generated.day(args.generated, fleet, jobs=args.submissions, load=args.load)
    about = f"a generated day of {args.submissions} submissions on {found[0]}, {args.load:g} of its GPU-hours"
    return Source(scenario=scenario, about=about, seed=args.generated)


# A log


async def _of_log(args: argparse.Namespace) -> Source:
    if args.fleet:
        raise BadOption("fleet", args.fleet, "recorded days have their own; another one goes into the file of a policy")
    window = Window(_bound("from", args.first), _bound("to", args.last, last=True))
    log, name = _open(args)
    try:
        await log.open()
        recorded = await read_day(log, window, name=f"{name}, {_span(args)}", progress=_telling(name))
        check = recorded if args.again else None
        if args.again and not recorded.whole:
            check = await read_day(log, Window(last=window.last), progress=_telling(name))
    except ChainBroken as broken:
        raise BadOption("log", name, f"{broken}: see what `signalboxd verify` says of it") from None
    except NothingRecorded as none:
        raise BadOption("from, to", _span(args), str(none)) from None
    except (LogUnavailable, LogUnusable, Unreadable) as lost:
        raise SiteError(f"{name}: {lost}") from None
    finally:
        await log.close()
    about = f"the log of {name}, {_span(args)}: {len(recorded.scenario.arrivals)} jobs, {len(recorded.granted)} starts"
    return Source(scenario=recorded.scenario, about=about, recorded=recorded, check=check)


def _bound(field: str, text: str | None, *, last: bool = False) -> Bound | None:
    try:
        return read_bound(text, last=last) if text else None
    except BadBound as error:
        raise BadOption(field, text or "", str(error).partition(": ")[2]) from None


def _open(args: argparse.Namespace) -> tuple[RecordLog, str]:
    """The log, and its name for people."""
    if args.file is not None:
        if args.cluster:
            raise BadOption("cluster", args.cluster, "is one of a site: a file holds the log of one cluster")
        try:
            return LogFile(args.file), args.file.name
        except LogUnusable as no_log:
            raise BadOption("file", args.file, str(no_log)) from None
    target = target_of(args.site, args.cluster)
    assert target.site is not None
    log, _ = open_logs(target.site, "replay")
    return log, f"cluster {ClusterId(target.site.cluster)}"


def _span(args: argparse.Namespace) -> str:
    if args.first and args.first == args.last:
        return str(args.first)
    return f"{args.first or 'its start'} to {args.last or 'its end'}"


def _telling(name: str) -> Callable[[int, int], None]:
    last = [time.monotonic()]

    def told(read: int, total: int) -> None:
        if time.monotonic() - last[0] >= TELL_S:
            last[0] = time.monotonic()
            sys.stderr.write(f"{name}: {read} of {total} records read\n")

    return told
