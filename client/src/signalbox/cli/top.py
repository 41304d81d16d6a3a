"""`top`: the cluster, who runs and who waits, as it changes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from signalbox.cli import output
from signalbox.cli.app import Json, app, client
from signalbox.cli.jobs import QUEUE, shape
from signalbox.cli.output import Column
from signalbox.client import ACTIVE, Client
from signalbox.errors import SignalboxError
from signalbox.shapes import Job
from signalbox.times import ago, instant
from signalbox.transport import transient

ROWS_MAX = 200
FURNITURE = 8
"""Lines of the screen that are no rows: figures, titles, gaps."""

TYPES = (
    Column(title="TYPE", read=lambda row: row.get("gpu_type")),
    Column(title="NODES", read=lambda row: row.get("nodes"), right=True),
    Column(title="GPUS", read=lambda row: row.get("total"), right=True),
    Column(title="USABLE", read=lambda row: row.get("usable"), right=True),
    Column(title="HELD", read=lambda row: row.get("held"), right=True),
)
RUNNING = (
    Column(title="JOB", read=lambda row: row.get("job_id")),
    Column(title="TEAM", read=lambda row: row.get("team"), drop=2),
    Column(title="NAME", read=lambda row: row.get("name"), drop=4, cut=True),
    Column(title="CLASS", read=lambda row: row.get("priority_class"), drop=5),
    Column(title="GPUS", read=shape, drop=1),
    Column(title="STATE", read=lambda row: row.get("state"), state=True),
    Column(title="STARTED", read=lambda row: ago(Job.from_wire(row).started_at), drop=3),
    Column(title="LIMIT", read=lambda row: ago(instant(row.get("limit_at"))), drop=6),
)


@app.command()
def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.2, help="Seconds between looks.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once; so it is without a terminal, and with --json.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The cluster as it changes: GPUs, running jobs, the queue. Ctrl-C ends it."""
    out = output.console()
    with client() as api:
        seen = look(api)
        if as_json:
            output.document(seen)
            return
        if once or not out.is_terminal:
            out.print(screen(seen, out.width, None), crop=False)
            return
        try:
            with Live(screen(seen, out.width, out.height), console=out, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    seen = _look_again(api, seen)
                    live.update(screen(seen, out.width, out.height), refresh=True)
        except KeyboardInterrupt:
            return


def look(api: Client) -> dict[str, Any]:
    """What there is to see: `cluster`, `running`, `queue`, `held` and `dependent`."""
    running = (dict(job.raw) for job in islice(api.jobs(state=sorted(ACTIVE)), ROWS_MAX))
    return {
        "cluster": api.cluster(),
        "running": list(running),
        "queue": api.queue()[:ROWS_MAX],
        "held": api.held()[:ROWS_MAX],
        "dependent": api.dependent()[:ROWS_MAX],
    }


def _look_again(api: Client, before: dict[str, Any]) -> dict[str, Any]:
    try:
        return look(api)
    except SignalboxError as error:
        if not transient(error):
            raise
        return {**before, "away": error.title}


def screen(seen: Mapping[str, Any], width: int, height: int | None) -> RenderableType:
    """All of it, as many rows as the height has room for."""
    running, queued = seen["running"], [*seen["queue"], *seen["held"], *seen["dependent"]]
    types = list((seen["cluster"].get("gpu_types") or {}).values())
    room = max(4, height - FURNITURE - len(types)) if height else ROWS_MAX
    half = max(2, room - min(len(queued), room // 2))
    parts: list[RenderableType] = [Text(headline(seen["cluster"]), style="bold"), *_listed(types, TYPES, width)]
    if "away" in seen:
        parts.append(Text(str(seen["away"]), style="red"))
    waiting = f"{len(seen['queue'])} waiting" + (f", {len(seen['held'])} held" if seen["held"] else "")
    waiting += f", {len(seen['dependent'])} after others" if seen["dependent"] else ""
    parts += [Text(), Text(f"{len(running)} running", style="bold"), *_listed(running[:half], RUNNING, width)]
    parts += [Text(), Text(waiting, style="bold"), *_listed(queued[: room - half], QUEUE, width)]
    return Group(*parts)


def _listed(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], width: int) -> list[RenderableType]:
    return [output.built(rows, columns, width)] if rows else []


def headline(cluster: Mapping[str, Any]) -> str:
    """Which cluster it is, and who leads it."""
    leader = cluster.get("leader") or {}
    silence = leader.get("silence")
    said = [
        f"cluster {cluster.get('cluster', '-')}",
        f"leader {leader['holder']} (epoch {leader.get('epoch')})" if leader.get("holder") else "no leader",
        f"{leader.get('silent')} nodes silent ({silence})" if silence not in (None, "none") else "",
    ]
    return output.plain(", ".join(filter(None, said)))
