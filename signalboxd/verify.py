"""`signalboxd verify`: is the log whole, and does this build decide the same from it again? (R-82, R-90)

Exit codes: 0 whole; 1 tampered with, or decided otherwise; 2 usage; 3 with --strict: whole, and some of it not
recomputable by this build; 75 the log cannot be read now. Several logs are verified side by side, each by a process.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from commands import snapshot
from events.ids import ClusterId
from events.log import LogUnavailable, LogUnusable, Noted, RecordLog, verify_position
from events.log_file import LogFile
from replay.verify import BadBound, Finding, Report, Request, Start, Window, Wrong, read_bound, text, verify
from scheduler.claims import PostgresSnapshots
from scheduler.control import PostgresLeadership
from scheduler.ports import UnknownOutcome
from signalboxd.site import KafkaLogSite, Site, SiteError, read_site
from signalboxd.wiring import open_logs

EXIT_NOT_WHOLE = 1
EXIT_USAGE = 2
EXIT_NOT_ALL = 3
TELL_S = 5.0
POSITION = "SELECT log_id, accepted, n, hash FROM read.positions WHERE cluster = $1 AND accepted >= 0"

Tell = Callable[[int, int], None]
"""(records read, records in all)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", type=Path, action="append", default=[], help="a site file; may be given again")
    parser.add_argument("--cluster", action="append", default=[], help="clusters of the site (default: the site's own)")
    parser.add_argument("--file", type=Path, action="append", default=[], help="an exported log; may be given again")
    parser.add_argument("--from", dest="first", help="recompute from here: 2026-07-01, 2026-07-01T12:00, n:N or seq:N")
    parser.add_argument("--to", dest="last", help="and to here; a day is the whole of it")
    parser.add_argument("--chain-only", action="store_true", help="chain and fold; no decision is recomputed")
    parser.add_argument("--strict", action="store_true", help="exit 3 where some of it is not recomputable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: the CPUs)")
    parser.add_argument("--json", action="store_true", help="one line of JSON a log, on standard output")
    parser.add_argument("--progress-json", action="store_true", help=argparse.SUPPRESS)


@dataclass(frozen=True, slots=True)
class Target:
    """One log: of a cluster of a site, or in a file."""

    site: Site | None
    source: Path

    @property
    def name(self) -> str:
        """For people."""
        return self.site.cluster if self.site is not None else self.source.name

    def arguments(self) -> list[str]:
        """Those that name it alone."""
        if self.site is None:
            return ["--file", str(self.source)]
        return ["--site", str(self.source), "--cluster", self.site.cluster]


async def run(args: argparse.Namespace) -> None:
    """Verify each log; ends the process with its exit code."""
    targets = _targets(args)
    window = _window(args)
    if not targets:
        raise _usage("--site FILE or --file FILE: which log?")
    if args.jobs < 1:
        raise _usage(f"--jobs: {args.jobs}, at least 1")
    for path in args.file:
        if not path.is_file():
            raise _usage(f"--file: {path}: {'it is no file' if path.exists() else 'there is no such file'}")
    if len(targets) == 1:
        code = await _one(targets[0], window, args)
    else:
        code = await _side_by_side(targets, args)
    if code:
        raise SystemExit(code)


def _targets(args: argparse.Namespace) -> list[Target]:
    found: list[Target] = []
    for path in args.site:
        found += [target_of(path, cluster) for cluster in args.cluster or [None]]
    return found + [Target(None, path) for path in args.file]


def target_of(path: Path, cluster: str | None) -> Target:
    """The log of a cluster of the site in that file (None: the site's own). Raises SiteError."""
    site = read_site(path)
    cluster = cluster or site.cluster
    if isinstance(site.log, KafkaLogSite) and cluster not in site.log.partitions:
        raise SiteError(f"{path}: log.partitions: cluster {cluster} has no partition (P-2)")
    return Target(site.model_copy(update={"cluster": cluster}), path)


def _window(args: argparse.Namespace) -> Window:
    try:
        first = read_bound(args.first) if args.first is not None else None
        last = read_bound(args.last, last=True) if args.last is not None else None
        return Window(first, last)
    except BadBound as error:
        raise _usage(str(error)) from None


def _usage(why: str) -> SystemExit:
    sys.stderr.write(f"signalboxd verify: {why}\n")
    return SystemExit(EXIT_USAGE)


# One log


async def _one(target: Target, window: Window, args: argparse.Namespace) -> int:
    with _telling([target.name], plain=args.progress_json) as tell:
        report = await verified(target, window, recompute=not args.chain_only, tell=tell[target.name])
    _show(report, as_json=args.json)
    if _judged_nothing(report, window, args):
        raise _usage(f"{target.name}: no commit lies in the window that was given: nothing was recomputed")
    return _code(report, strict=args.strict)


def _judged_nothing(report: Report, window: Window, args: argparse.Namespace) -> bool:
    """A window beside the log is a slip of the pen; that it holds nothing wrong must not pass for a verdict."""
    given = window.first is not None or window.last is not None
    none = not report.recomputed and not report.not_recomputable
    return given and none and report.whole and not args.chain_only


def _show(report: Report, *, as_json: bool) -> None:
    said = text.to_json(report).decode() if as_json else "\n".join(text.lines(report))
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()


def _code(report: Report, *, strict: bool) -> int:
    if not report.whole:
        return EXIT_NOT_WHOLE
    return EXIT_NOT_ALL if strict and report.not_recomputable else 0


async def verified(target: Target, window: Window, *, recompute: bool, tell: Tell) -> Report:
    """What verify says of one log. Raises SiteError where it cannot be read now."""
    try:
        if target.site is None:
            return await _of_file(target.source, Request(window=window, recompute=recompute, progress=tell))
        return await _of_site(target.site, window, recompute, tell)
    except (OSError, LogUnavailable, UnknownOutcome, asyncpg.PostgresError) as error:
        raise SiteError(f"{target.source}: {error}") from None


async def _of_file(path: Path, request: Request) -> Report:
    try:
        log = LogFile(path)
    except LogUnusable as error:
        raise SiteError(str(error)) from None
    try:
        return await verify(
            log,
            Request(
                window=request.window,
                noted=log.noted,
                cut=log.cut,
                recompute=request.recompute,
                progress=request.progress,
            ),
        )
    finally:
        await log.close()


async def _of_site(site: Site, window: Window, recompute: bool, tell: Tell) -> Report:
    noted = await noted_heads(site)  # before the log's end is asked for: what they know is then in it
    log, _ = open_logs(site, "verify")
    try:
        await log.open()
        start = await _start(site, log, window)
        return await verify(log, Request(window=window, noted=noted, start=start, recompute=recompute, progress=tell))
    except LogUnusable as lost:
        finding = Finding(wrong=Wrong.CUT, offset=await log.end() + 1, n=None, why=str(lost))
        return Report(cluster=ClusterId(site.cluster), finding=finding)
    finally:
        await log.close()


async def _start(site: Site, log: RecordLog, window: Window) -> Start | None:
    """The newest snapshot before the window, where the log still has the record that it is of (P-10)."""
    if window.first is None:
        return None
    snapshots = PostgresSnapshots(site.postgres, ClusterId(site.cluster), "verify")
    try:
        for head, raw in await snapshots.newest(snapshot.fingerprint()):
            if window.first.place(head) < window.first.value:
                with contextlib.suppress(LogUnusable, ValueError):
                    await verify_position(log, head)
                    return Start(head, snapshot.load(raw))
        return None
    finally:
        await snapshots.close()


async def noted_heads(site: Site) -> tuple[Noted, ...]:
    """What the epoch row and the projector know as accepted (P-5)."""
    leadership = PostgresLeadership(site.postgres, ClusterId(site.cluster), "verify")
    try:
        row = await leadership.noted_head()
    finally:
        await leadership.close()
    found = [] if row is None else [Noted(by="the epoch row", log_id=row[0], offset=row[1], n=row[2], hash=row[3])]
    connection = await asyncpg.connect(site.postgres)
    try:
        with contextlib.suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            place = await connection.fetchrow(POSITION, site.cluster)
            if place is not None:
                log_id, offset, n, known = place
                found.append(Noted(by="the projector", log_id=log_id, offset=offset, n=n, hash=known))
    finally:
        await connection.close()
    return tuple(found)


# Several, each in a process of its own


async def _side_by_side(targets: list[Target], args: argparse.Namespace) -> int:
    room = asyncio.Semaphore(args.jobs)
    with _telling([target.name for target in targets], plain=False) as tell:

        async def one(target: Target) -> tuple[int, bytes]:
            async with room:
                return await _child(target, args, tell[target.name])

        ended = await asyncio.gather(*map(one, targets))
    for _, said in ended:
        sys.stdout.buffer.write(said)
    sys.stdout.flush()
    return max((code for code, _ in ended), key=lambda code: (code == EXIT_NOT_WHOLE, code))


async def _child(target: Target, args: argparse.Namespace, tell: Tell) -> tuple[int, bytes]:
    """The exit code of one, and what it said."""
    command = [sys.executable, "-m", "signalboxd", "verify", "--progress-json", *target.arguments()]
    command += [f"--{name}" for name in ("json", "strict") if getattr(args, name)]
    command += ["--chain-only"] if args.chain_only else []
    command += ["--from", args.first] if args.first else []
    command += ["--to", args.last] if args.last else []
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, limit=1 << 20)
    assert child.stdout is not None
    assert child.stderr is not None
    saying = asyncio.create_task(child.stdout.read())
    async for line in child.stderr:
        if line.startswith(b"{"):
            tell(*orjson.loads(line)["read"])
        else:
            sys.stderr.buffer.write(line)
    return await child.wait(), await saying


# How far it is


@contextlib.contextmanager
def _telling(names: Iterable[str], *, plain: bool) -> Any:
    """For each name how to tell how far it is: a bar on a terminal, else a line now and then."""
    names = list(names)
    console = Console(stderr=True)
    if plain or not console.is_terminal:
        yield {name: _in_lines(name, plain) for name in names}
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} of {task.total:,}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        yield {name: _in_bar(bars, bars.add_task(name, total=1)) for name in names}


def _in_bar(bars: Progress, task: TaskID) -> Tell:
    return lambda read, total: bars.update(task, completed=read, total=total)


def _in_lines(name: str, as_json: bool) -> Tell:
    last = [time.monotonic()]

    def tell(read: int, total: int) -> None:
        if as_json:
            sys.stderr.write(orjson.dumps({"read": (read, total)}).decode() + "\n")
        elif time.monotonic() - last[0] >= TELL_S:
            last[0] = time.monotonic()
            sys.stderr.write(f"{name}: {read} of {total} records\n")

    return tell
