"""`logs` and `events`: what is read as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from signalbox.cli import output
from signalbox.cli.app import Json, app, client
from signalbox.cli.jobs import JobId
from signalbox.cli.timeline import told


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
    after: Annotated[int, typer.Option("--after", min=0, metavar="SEQ", help="Only events above this position.")] = 0,
    kind: Annotated[str | None, typer.Option("--type", help="Only this type: job.finished, or gang.* for all.")] = None,
    team: Annotated[str | None, typer.Option("--team", "-t")] = None,
    job: Annotated[str | None, typer.Option("--job")] = None,
    as_json: Json = False,
) -> None:
    """The event feed, a line per event: what happened, from any position on."""
    with client() as api:
        for event in api.events(after, kind, team, job, follow):
            if as_json:
                output.ndjson(event.raw)
                continue
            row = told(event.raw)
            at = f"{event.at:%Y-%m-%d %H:%M:%S}" if event.at else "-"
            output.line(f"{event.seq:>8}  {at}  {row['type']:<24}  {event.job or '-'}  {row['detail']}")
