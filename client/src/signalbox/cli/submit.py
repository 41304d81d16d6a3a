"""`submit` a file, or `run` a command line; with or without waiting for the end."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from signalbox.cli import ending, output
from signalbox.cli.app import Json, app, client, complain, duration, stated
from signalbox.cli.jobs import split_pair
from signalbox.cli.shape import gang
from signalbox.cli.specfile import read_mapping, settled
from signalbox.cli.watch import Watcher
from signalbox.client import Client
from signalbox.errors import Unreachable
from signalbox.shapes import Submission
from signalbox.times import ago

UNLIMITED = "unlimited"
"""The max runtime of services."""
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Idempotency key: the same key and job again name the same job."),
]


@app.command()
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A job as YAML or JSON; - is stdin.")],
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Show its output, and exit with its exit code.")] = False,
    array: Annotated[
        str | None,
        typer.Option("--array", "-a", metavar="0-99[%N]", callback=stated, help="One job of many alike, N at a time."),
    ] = None,
    after_ok: Annotated[
        list[str] | None, typer.Option("--after-ok", metavar="JOB", help="Start once this job succeeded; repeatable.")
    ] = None,
    after_any: Annotated[
        list[str] | None, typer.Option("--after-any", metavar="JOB", help="Start once this job ended; repeatable.")
    ] = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Submit the job in a file. A relative workdir, and a missing one without an image, are those of the file. Options
    add to what the file says; --array replaces it.
    """
    spec = read_mapping(sys.stdin.read() if file == "-" else Path(file))
    spec |= {"array": array} if array else {}
    spec = following(spec, after_ok or [], after_any or [])
    if wait and spec.get("array"):
        raise typer.BadParameter("--wait has no one output to show of an array: submit it, and wait for its id")
    spec = settled(spec, Path.cwd() if file == "-" else Path(file).parent.absolute())
    warn_of(spec)
    with client() as api:
        made = send(api, spec, key)
        if not wait:
            output.show(made.raw, as_json, lambda: output.line(accepted(made)))
            raise typer.Exit(ending.REFUSED if made.state == "REJECTED" else ending.OK)
        stand_by(api, made, as_json=as_json, cancels=False)


@app.command(context_settings={"ignore_unknown_options": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, as an argument list.")],
    team: Annotated[str | None, typer.Option("--team", "-t", callback=stated)] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=1, help="GPUs of the whole job; default 1.")] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", "-n", min=1, help="Ranks to start together.")] = None,
    per_replica: Annotated[int | None, typer.Option("--gpus-per-replica", min=1, help="GPUs of each rank.")] = None,
    gpu_type: Annotated[str | None, typer.Option("--type", callback=stated, help="GPU type.")] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="DURATION", help="Max runtime: 30m, 2h, 3d.")] = None,
    priority_class: Annotated[str | None, typer.Option("--class", callback=stated, help="Priority class.")] = None,
    name: Annotated[str | None, typer.Option("--name")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K[=V]", help="Repeatable; without =V the value is taken from here."),
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE")] = None,
    workdir: Annotated[
        str | None, typer.Option("--workdir", "-C", callback=stated, help="Default without --image: here.")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Container image.")] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help="Someone waits at it: a latency pool.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit, print the job's id, and leave.")] = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Run a command on GPUs, as if it ran here: its output comes as it is written, Ctrl-C cancels it, and the exit
    code is the job's. With --json the output goes to stderr, and stdout holds the job as it ended.
    """
    try:
        shaped = gang(gpus, replicas, per_replica)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    stated: dict[str, Any] = {
        "team": team,
        "gpu_type": gpu_type,
        "max_runtime": duration(time) if time not in (None, UNLIMITED) else time,
        "priority_class": priority_class,
        "name": name,
        "image": image,
        "workdir": folder(workdir, image),
        "env": environment(env or []),
        "labels": dict(split_pair(pair, "--label") for pair in label or []),
        "interactive": interactive,
    }
    spec = {field: value for field, value in stated.items() if value}
    spec |= {"command": list(command), "replicas": shaped[0], "gpus_per_replica": shaped[1]}
    warn_of(spec)
    with client() as api:
        made = send(api, spec, key)
        if detach:
            output.show(made.raw, as_json, lambda: output.line(made.id))
            raise typer.Exit(ending.REFUSED if made.state == "REJECTED" else ending.OK)
        stand_by(api, made, as_json=as_json, cancels=True)


def send(api: Client, spec: dict[str, Any], key: str | None) -> Submission:
    """Submit under a key that is told where the outcome is unknown, so that the job need not exist twice."""
    used = key or str(uuid.uuid4())
    try:
        return api.submit(spec, used)
    except Unreachable:
        complain(f"it is not known whether the job was submitted; to try again as the same job: --key {used}")
        raise
    except KeyboardInterrupt:
        complain(f"the job may have been submitted; to find out: the same command with --key {used}")
        raise


def stand_by(api: Client, made: Submission, *, as_json: bool, cancels: bool) -> None:
    """Watch the job to its end, and exit with what stands for it. `cancels`: Ctrl-C cancels it."""
    complain(accepted(made))
    target = sys.stderr.buffer if as_json else sys.stdout.buffer
    job = Watcher(api, made.id, target, cancels=cancels, said=accepted(made)).until_end()
    if as_json:
        output.document(job.raw)
    raise typer.Exit(ending.of_job(job))


def following(spec: dict[str, Any], after_ok: list[str], after_any: list[str]) -> dict[str, Any]:
    """The spec with these jobs among those that it waits for."""
    added = [{"job": job, "when": "after_ok"} for job in after_ok] + [
        {"job": job, "when": "after_any"} for job in after_any
    ]
    return {**spec, "depends_on": [*(spec.get("depends_on") or []), *added]} if added else spec


def accepted(made: Submission) -> str:
    """The answer to a submission in a line."""
    said = [f"{made.id} {made.state}"]
    said += [f"position {made.queue_position}"] if made.queue_position is not None else []
    said += [f"estimated start {ago(made.estimated_start)}"] if made.estimated_start else []
    return ", ".join(said)


def warn_of(spec: Mapping[str, Any]) -> None:
    """Say that a working directory is not here: it has to be where the job runs, which may be elsewhere."""
    given = spec.get("workdir")
    if isinstance(given, str) and not spec.get("image") and not os.path.isdir(given):
        complain(f"there is no folder {given} here; the job starts only on a node that has it")


def folder(workdir: str | None, image: str | None) -> str | None:
    """Where the command runs: as given, and absolute; here without an image; the image's own otherwise."""
    if workdir is not None:
        return os.path.abspath(workdir)
    return None if image else os.getcwd()


def environment(given: list[str]) -> dict[str, str]:
    """K=V pairs; K alone takes its value from this environment."""
    made: dict[str, str] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if equals:
            made[name] = value
        elif name in os.environ:
            made[name] = os.environ[name]
        else:
            raise typer.BadParameter(f"--env {name}: it is not set here; write {name}=VALUE")
    return made
