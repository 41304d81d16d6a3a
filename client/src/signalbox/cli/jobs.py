"""Commands about jobs that exist: look at them, and steer them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from signalbox.cli import ending, output
from signalbox.cli.app import Json, app, client, complain, duration, stated
from signalbox.cli.output import Column
from signalbox.cli.timeline import clock, moment, told
from signalbox.client import Client
from signalbox.errors import SignalboxError
from signalbox.shapes import ENDS, Job, failure, reasons, rejected
from signalbox.times import ago, humane, instant

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, j_...")]
JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs.")]
Team = Annotated[str | None, typer.Option("--team", "-t", callback=stated, help="Only this team's.")]


def shape(row: Mapping[str, Any]) -> str:
    """128x8 h100: replicas, GPUs of each, type."""
    job = Job.from_wire(row)
    return f"{job.replicas}x{job.gpus_per_replica} {job.gpu_type}".rstrip()


def _id(row: Mapping[str, Any]) -> object:
    return row.get("job_id")


def _state(row: Mapping[str, Any]) -> str:
    return f"{row.get('state') or 'QUEUED'}{' (held)' if row.get('held') else ''}"


def _place(row: Mapping[str, Any]) -> object:
    if row.get("held"):
        return "held"
    job = Job.from_wire(row)
    if job.follows:
        return "after"
    return "throttled" if job.throttled else row.get("queue_position")


def _start(row: Mapping[str, Any]) -> str:
    return ago(instant(row.get("estimated_start")))


QUEUE = (
    Column(title="POS", read=_place, right=True),
    Column(title="JOB", read=_id),
    Column(title="TEAM", read=lambda row: row.get("team"), drop=2),
    Column(title="NAME", read=lambda row: row.get("name"), drop=5),
    Column(title="CLASS", read=lambda row: row.get("priority_class"), drop=6),
    Column(title="GPUS", read=shape, drop=1),
    Column(title="WAITING", read=lambda row: ago(instant(row.get("submitted_at"))).removesuffix(" ago"), drop=4),
    Column(title="START", read=_start, drop=3),
    Column(title="REASON", read=lambda row: "; ".join(reasons(row.get("waiting"))), cut=True),
)
HISTORY = (
    Column(title="JOB", read=_id),
    Column(title="TEAM", read=lambda row: row.get("team"), drop=2),
    Column(title="NAME", read=lambda row: row.get("name"), drop=5, cut=True),
    Column(title="GPUS", read=shape, drop=3),
    Column(title="STATE", read=_state, state=True),
    Column(title="EXIT", read=lambda row: row.get("exit_code"), right=True),
    Column(title="RAN", read=lambda row: ran(Job.from_wire(row)), right=True, drop=4),
    Column(title="ENDED", read=lambda row: ago(Job.from_wire(row).ended_at), drop=1),
)


def ran(job: Job) -> str:
    """How long the last attempt ran."""
    if job.started_at is None or job.ended_at is None:
        return "-"
    return humane((job.ended_at - job.started_at).total_seconds())


@app.command()
def queue(team: Team = None, as_json: Json = False) -> None:
    """The jobs that wait, in their order, with the reason and the reserved start; below them those that are held, and
    those that wait for other jobs."""
    with client() as api:
        rows = api.queue(team=team) + api.held(team=team) + api.dependent(team=team)
    output.show(rows, as_json, lambda: output.table(rows, QUEUE, "Nothing waits."))


@app.command()
def history(
    team: Team = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only these states; default: every end.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE")] = None,
    array: Annotated[
        str | None, typer.Option("--array", metavar="JOB", help="The elements of this array, in any state.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 30,
    as_json: Json = False,
) -> None:
    """Jobs that have ended, newest first; with --state, jobs of any state; with --array, an array's elements."""
    ends = None if array else sorted(ENDS)
    wanted = [name.upper() for name in state] if state else ends
    with client() as api:
        found = api.jobs(team=team, state=wanted, label=label, array=array, limit=limit)
        rows = [dict(job.raw) for job in islice(found, limit)]
    output.show(rows, as_json, lambda: output.table(rows, HISTORY, "No such jobs."))


@app.command()
def show(job: JobId, as_json: Json = False) -> None:
    """A job as it stands, and its timeline."""
    with client() as api:
        found = api.job(job)
        events = api.job_events(job)
    output.show({**found.raw, "events": events}, as_json, lambda: _show(found, events))


def _show(job: Job, events: Sequence[Mapping[str, Any]]) -> None:
    raw = job.raw
    limit = instant(raw.get("limit_at"))
    spec = raw.get("spec") or {}
    blocks = ", ".join(str(block) for block in (raw.get("allocation") or {}).get("blocks") or ())
    waiting = "" if job.ended or job.state == "RUNNING" else job.waiting
    output.pairs(
        [
            ("job", job.id),
            ("name", job.name),
            ("state", _state(raw)),
            ("exit code", job.exit_code),
            ("reason", job.reason),
            ("failure", "" if job.state == "SUCCEEDED" else rejected(job) or failure(events)),
            ("command", shlex.join(map(str, spec.get("command") or ()))),
            ("workdir", spec.get("workdir")),
            ("team", job.team),
            ("class", job.priority_class),
            ("gpus", f"{job.gpus} ({shape(raw)})"),
            ("elastic", _range(spec.get("elastic"), raw.get("allocation"))),
            ("array", _elements(raw.get("array"))),
            ("element of", raw.get("element_of")),
            ("attempt", job.attempt or ""),
            ("preemptions", job.preemptions or ""),
            ("preempted for", _by_rule(raw.get("preempted_by"))),
            ("max runtime", raw.get("max_runtime")),
            ("submitted", ago(job.submitted_at) if job.submitted_at else ""),
            ("started", ago(job.started_at) if job.started_at else ""),
            ("limit", f"{clock(limit)} UTC ({ago(limit)})" if limit and not job.ended else ""),
            ("ended", ago(job.ended_at) if job.ended_at else ""),
            ("nodes", _names(job.nodes)),
            ("blocks", blocks),
            ("last checkpoint", job.last_checkpoint),
            ("queue position", job.queue_position),
            ("estimated start", ago(job.estimated_start) if job.estimated_start else ""),
            ("reserved", _names((raw.get("reservation") or {}).get("nodes"))),
            ("waits for", waiting),
        ]
    )
    if listed := [event for event in events if event.get("type") != "command.done"]:
        output.line()
        first = instant(listed[0].get("at"))
        output.table([{**told(event), **moment(event, first)} for event in listed], TIMELINE, "")


def _names(listed: Sequence[str] | None) -> str:
    """The first few of them."""
    told = list(listed or ())
    return ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")


def _elements(array: Mapping[str, Any] | None) -> str:
    """Which elements an array has, and how far they are."""
    if not array:
        return ""
    counts = [f"{array[name]} {name}" for name in ("waiting", "running", "succeeded", "failed") if array.get(name)]
    return f"{array.get('elements')} ({', '.join(counts)})"


def _range(elastic: Mapping[str, Any] | None, allocation: Mapping[str, Any] | None) -> str:
    """Between which sizes it may run, and with how many replicas it does."""
    if not elastic:
        return ""
    now = f", {allocation['replicas']} now" if allocation and "replicas" in allocation else ""
    return f"{elastic.get('min_replicas')} to {elastic.get('max_replicas')} replicas{now}"


def _by_rule(cause: Mapping[str, Any] | None) -> str:
    """The job for which it was last stopped, and the rule."""
    return f"{cause.get('job_id')} ({cause.get('rule')})" if cause else ""


TIMELINE = (
    Column(title="TIME (UTC)", read=lambda row: row["clock"]),
    Column(title="AFTER", read=lambda row: row["offset"], right=True),
    Column(title="EVENT", read=lambda row: row["type"]),
    Column(title="", read=lambda row: row["detail"], cut=True),
)


@app.command()
def why(job: JobId, as_json: Json = False) -> None:
    """All that keeps a job from starting, and when it is expected to."""
    with client() as api:
        answer = api.why(job)
    output.show(answer, as_json, lambda: _why(answer))


def _why(answer: Mapping[str, Any]) -> None:
    for sentence in reasons(answer) or (_unasked(str(answer.get("state") or "-")),):
        output.line(sentence)
    if start := instant(answer.get("estimated_start")):
        output.line(f"Estimated start: {ago(start)} ({start:%Y-%m-%d %H:%M} UTC)")


def _unasked(state: str) -> str:
    """Of a job without a reason: one that runs or has ended waits for nothing, of others that is not known."""
    if state == "RUNNING" or state in ENDS:
        return f"It is {state}, and waits for nothing."
    return f"It is {state}; nothing is known that it waits for."


def each(jobs: Sequence[str], ask: Callable[[Client, str], Mapping[str, Any]], as_json: bool) -> None:
    """Ask for one job after the other; a refusal of one does not spare the others, and decides the exit code."""
    worst = ending.OK
    with client() as api:
        for job in jobs:
            try:
                answer = ask(api, job)
            except SignalboxError as error:
                complain(f"{job}: {error}" if len(jobs) > 1 else str(error))
                worst = max(worst, ending.of_error(error))
                continue
            if as_json:
                output.ndjson({"job_id": job, **answer})
            else:
                output.line(f"{job} {_state(answer) if answer.get('state') else 'done'}")
    if worst:
        raise typer.Exit(worst)


@app.command()
def cancel(jobs: JobIds, as_json: Json = False) -> None:
    """Cancel jobs, waiting or running."""
    each(jobs, Client.cancel, as_json)


@app.command()
def hold(jobs: JobIds, as_json: Json = False) -> None:
    """Keep waiting jobs from starting."""
    each(jobs, Client.hold, as_json)


@app.command()
def release(jobs: JobIds, as_json: Json = False) -> None:
    """End the hold of jobs."""
    each(jobs, Client.release, as_json)


@app.command()
def requeue(jobs: JobIds, as_json: Json = False) -> None:
    """Stop what runs of these jobs, and queue them again."""
    each(jobs, Client.requeue, as_json)


@app.command()
def extend(
    job: JobId,
    by: Annotated[str, typer.Argument(metavar="DURATION", help="How much longer: 30m, 4h, 1d.")],
    as_json: Json = False,
) -> None:
    """Give a job more run time."""
    asked = duration(by)
    each([job], lambda api, id: api.extend(id, asked), as_json)


@app.command()
def change(
    job: JobId,
    priority_class: Annotated[str | None, typer.Option("--class", help="The new priority class.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="Replaces the labels; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give a waiting job another class, or other labels."""
    if priority_class is None and label is None:
        raise typer.BadParameter("nothing to change: give --class or --label")
    labels = dict(split_pair(pair, "--label") for pair in label) if label is not None else None
    each([job], lambda api, id: api.change(id, priority_class=priority_class, labels=labels), as_json)


def split_pair(pair: str, option: str) -> tuple[str, str]:
    """("A", "b") of "A=b"."""
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{option} {pair!r}: write NAME=VALUE")
    return name, value
