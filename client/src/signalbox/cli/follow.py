"""`logs` and `events`: what is read as it comes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Annotated

import typer

from signalbox.cli import output
from signalbox.cli.app import Json, app, client, stated
from signalbox.cli.jobs import JobId, Team
from signalbox.cli.timeline import told
from signalbox.client import Client
from signalbox.shapes import Event

TAIL = 10
"""Events that `events --follow` shows of what was before."""


@app.command()
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the attempt has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Which rank; default 0.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Which attempt; default: the newest.")] = None,
    as_json: Json = False,
) -> None:
    """A rank's output. With --json a line of JSON for each line of it."""
    with client() as api:
        chunks = api.logs(job, rank, follow, attempt)
        if as_json:
            for text in lines(chunks):
                output.ndjson({"job_id": job, "rank": rank or 0, "line": text})
            return
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """The lines in a stream of bytes; what is no UTF-8 is replaced."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


@app.command()
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on for ever.")] = False,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="SEQ|start", help="From this event on; default without --follow: start."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Only the last so many; default with --follow: 10.")
    ] = None,
    after: Annotated[int | None, typer.Option("--after", min=0, metavar="SEQ", help="As --from, without SEQ.")] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", callback=stated, help="Only this type: job.finished, or gang.* for all."),
    ] = None,
    team: Team = None,
    job: Annotated[str | None, typer.Option("--job")] = None,
    as_json: Json = False,
) -> None:
    """The event feed, a line per event: what happened (in UTC), from any position on."""
    position = beginning(begin, after)
    if position is not None and tail is not None:
        raise typer.BadParameter("--tail counts from the end: give no --from or --after with it")
    if position is None and follow and tail is None:
        tail = TAIL
    with client() as api:
        if tail is not None:
            position, found = last(api, tail, kind, team, job)
            for event in found:
                tell(event, as_json)
            if not follow:
                return
        for event in api.events(position or 0, kind, team, job, follow):
            tell(event, as_json)


def beginning(begin: str | None, after: int | None) -> int | None:
    """The position above which to read; None where nothing was said of it."""
    if begin is None:
        return after
    if after is not None:
        raise typer.BadParameter("--from and --after say the same thing: give one")
    if begin != "start" and not begin.isdecimal():
        raise typer.BadParameter(f"--from {begin!r}: it is an event's number, or start")
    return 0 if begin == "start" else max(0, int(begin) - 1)


def last(api: Client, count: int, kind: str | None, team: str | None, job: str | None) -> tuple[int, list[Event]]:
    """The last `count` events that are asked for, and the position above which the feed goes on after them.

    Looks back over ever more of the feed, since nobody knows how far back `count` that match reach.
    """
    head = int(api.cluster().get("seq") or 0)
    reach = max(count, 1)
    while True:
        after = max(0, head - reach)
        seen: deque[Event] = deque(maxlen=count)
        position = after
        for event in api.events(after, kind, team, job, follow=False):
            seen.append(event)
            position = event.seq
        if len(seen) == count or after == 0:
            return position, list(seen)
        reach *= 10


def tell(event: Event, as_json: bool) -> None:
    """An event as a line."""
    if as_json:
        output.ndjson(event.raw)
        return
    row = told(event.raw)
    at = f"{event.at:%Y-%m-%d %H:%M:%S}" if event.at else "-"
    output.line(f"{event.seq:>8}  {at}  {row['type']:<24}  {event.job or '-'}  {row['detail']}")
