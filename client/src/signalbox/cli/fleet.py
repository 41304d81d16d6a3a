"""Commands about nodes, quotas, the policy and the audit trail: what operators and admins need."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from signalbox.cli import output
from signalbox.cli.app import Defaulting, Json, app, client, stated
from signalbox.cli.output import Column
from signalbox.cli.specfile import read_policy
from signalbox.cli.timeline import fields_of
from signalbox.errors import NoProfile
from signalbox.times import ago, instant

quota_app = typer.Typer(
    cls=Defaulting, rich_markup_mode=None, help="A team's quota: quota [TEAM], quota set TEAM TYPE."
)
policy_app = typer.Typer(
    cls=Defaulting, rich_markup_mode=None, help="The policy in force: policy, policy history, policy set FILE."
)
app.add_typer(quota_app, name="quota")
app.add_typer(policy_app, name="policy")

NodeId = Annotated[str, typer.Argument(metavar="NODE", help="A node's id.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; it goes into the log.")]


def _state(row: Mapping[str, Any]) -> str:
    return f"{str(row.get('state') or '').upper()}{' (drained)' if row.get('drained') else ''}"


def _faulted(row: Mapping[str, Any]) -> str:
    return f"{row['gpus_faulted']} faulted GPUs" if row.get("gpus_faulted") else ""


def _remark(row: Mapping[str, Any]) -> str:
    silent = f"silent for {row['silent_s']} s" if row.get("silent_s") else ""
    return "; ".join(filter(None, [str(row.get("drain_reason") or ""), silent, _faulted(row)]))


def _share(row: Mapping[str, Any], name: str) -> str:
    """The GPUs, and the percentage that they were set by."""
    percent = row.get(f"{name}_percent")
    return f"{row.get(name)}{f' ({percent}%)' if percent is not None else ''}"


def _changes(row: Mapping[str, Any]) -> str:
    """name: before -> after."""
    found = row.get("changed") or {}
    return ", ".join(f"{name}: {each.get('from')} -> {each.get('to')}" for name, each in found.items())


NODES = (
    Column(title="NODE", read=lambda row: row.get("node_id")),
    Column(title="STATE", read=_state, state=True),
    Column(title="SINCE", read=lambda row: ago(instant(row.get("state_changed_at"))), drop=3),
    Column(title="TYPE", read=lambda row: row.get("gpu_type"), drop=2),
    Column(title="USED", read=lambda row: f"{row.get('gpus_used')}/{row.get('gpu_count')}", right=True),
    Column(title="BLOCK", read=lambda row: row.get("block"), drop=1),
    Column(title="RACK", read=lambda row: row.get("rack"), drop=5),
    Column(title="JOBS", read=lambda row: len(row.get("jobs") or ()), right=True, drop=4),
    Column(title="REMARK", read=_remark, cut=True),
)
QUOTA = (
    Column(title="TYPE", read=lambda row: row["gpu_type"]),
    Column(title="GUARANTEED", read=lambda row: _share(row, "guaranteed"), right=True),
    Column(title="BORROW LIMIT", read=lambda row: _share(row, "borrow_limit"), right=True),
    Column(title="IN USE", read=lambda row: row.get("in_use"), right=True),
    Column(title="BORROWED", read=lambda row: row.get("borrowed"), right=True),
)
SHARES = (
    Column(title="TEAM", read=lambda row: row.get("team")),
    Column(title="TYPE", read=lambda row: row.get("gpu_type")),
    Column(title="GUARANTEED", read=lambda row: row.get("guaranteed"), right=True),
    Column(title="IN USE", read=lambda row: row.get("in_use"), right=True),
    Column(title="COVERED", read=lambda row: row.get("covered"), right=True),
    Column(title="BORROWED", read=lambda row: row.get("borrowed"), right=True),
    Column(title="PLEDGED", read=lambda row: row.get("pledged"), right=True, drop=3),
    Column(title="WAITING", read=lambda row: row.get("waiting"), right=True, drop=2),
    Column(title="ENTITLED", read=lambda row: row.get("entitled"), right=True),
    Column(title="USED GPU-H", read=lambda row: row.get("used_gpu_hours"), right=True, drop=1),
    Column(title="SHARE", read=lambda row: "-" if row.get("share") is None else row["share"], right=True),
)
POLICIES = (
    Column(title="VERSION", read=lambda row: row.get("version"), right=True),
    Column(title="WHEN", read=lambda row: ago(instant(row.get("changed_at")))),
    Column(title="ACTOR", read=lambda row: row.get("actor")),
    Column(title="REASON", read=lambda row: row.get("reason")),
    Column(title="CHANGED", read=_changes, cut=True),
)
AUDIT = (
    Column(title="WHEN", read=lambda row: ago(instant(row.get("at")))),
    Column(title="ACTOR", read=lambda row: row.get("actor")),
    Column(title="EVENT", read=lambda row: row.get("type")),
    Column(title="JOB", read=lambda row: row.get("job_id"), drop=2),
    Column(title="NODE", read=lambda row: row.get("node_id"), drop=3),
    Column(title="", read=fields_of, cut=True),
)


def told(subject: str, answer: Mapping[str, Any], done: str) -> str:
    """What became of a write: done, or taken down and not yet decided."""
    return f"{subject} {'not decided yet: there is no leader now' if answer.get('state') == 'SUBMITTED' else done}"


@app.command()
def nodes(
    block: Annotated[str | None, typer.Option("--block", help="Only of this block.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only in these states: up, suspect, lost, removed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The nodes, with their GPUs and health."""
    with client() as api:
        rows = api.nodes(block=block, state=[name.lower() for name in state or ()] or None)
    output.show(rows, as_json, lambda: output.table(rows, NODES, "No such nodes."))


@app.command()
def drain(
    node: NodeId,
    reason: Reason,
    now: Annotated[bool, typer.Option("--now", help="Stop what runs there, with grace, and queue it again.")] = False,
    as_json: Json = False,
) -> None:
    """(operator) Take a node out of service: no new work for it."""
    with client() as api:
        answer = api.drain(node, reason, now)
    output.show(answer, as_json, lambda: output.line(told(node, answer, "drained")))


@app.command()
def undrain(node: NodeId, as_json: Json = False) -> None:
    """(operator) Put a node back in service."""
    with client() as api:
        answer = api.undrain(node)
    output.show(answer, as_json, lambda: output.line(told(node, answer, "back in service")))


@quota_app.command("show")
def quota_show(
    team: Annotated[
        str | None, typer.Argument(metavar="[TEAM]", callback=stated, help="Default: the profile's team.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a team is guaranteed, may borrow, and uses, by GPU type."""
    with client() as api:
        asked = team or api.profile.team
        if asked is None:
            raise NoProfile('Which team? Name one, or put team = "..." in the profile.')
        answer = api.quota(asked)
    lines = [{"gpu_type": name, **line} for name, line in answer.items() if isinstance(line, dict)]
    output.show(answer, as_json, lambda: output.table(lines, QUOTA, f"{asked} has no quota."))


@app.command()
def shares(
    team: Annotated[str | None, typer.Argument(metavar="[TEAM]", callback=stated, help="Default: all teams.")] = None,
    as_json: Json = False,
) -> None:
    """How the teams stand on each GPU type: what they have, what they are entitled to, what they used of late."""
    with client() as api:
        lines = api.shares(team)
    output.show(lines, as_json, lambda: output.table(lines, SHARES, "No team has a quota, or uses anything."))


@quota_app.command("set")
def quota_set(
    team: Annotated[str, typer.Argument(metavar="TEAM")],
    gpu_type: Annotated[str, typer.Argument(metavar="TYPE", help="A GPU type.")],
    guaranteed: Annotated[
        str, typer.Option("--guaranteed", "-g", metavar="N|N%", help="GPUs that are the team's own, or percent of all.")
    ],
    borrow_limit: Annotated[
        str, typer.Option("--borrow-limit", "-b", metavar="N|N%", help="GPUs beyond it, or percent of all.")
    ] = "0",
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it goes into the log.")] = "",
    as_json: Json = False,
) -> None:
    """(admin) Set a team's quota for one GPU type; the others stay. Percent are of the registered GPUs outside
    pools, as they are now.
    """
    line = {**figure("guaranteed", guaranteed), **figure("borrow_limit", borrow_limit)}
    with client() as api:
        answer = api.set_quota(team, {gpu_type: line}, reason=reason)
    said = f"{team} {gpu_type}: guaranteed {guaranteed}, borrow limit {borrow_limit}:"
    output.show(answer, as_json, lambda: output.line(told(said, answer, "set")))


def figure(name: str, given: str) -> dict[str, int]:
    """{"guaranteed": 16} of "16", {"guaranteed_percent": 25} of "25%". Raises BadParameter."""
    digits = given.removesuffix("%")
    if not (digits.isascii() and digits.isdecimal()):
        raise typer.BadParameter(f"--{name.replace('_', '-')} {given!r}: a number of GPUs, or a percentage as 25%")
    return {f"{name}_percent" if given.endswith("%") else name: int(digits)}


@policy_app.command("show")
def policy_show(
    version: Annotated[int | None, typer.Option("--version", min=0, help="Another than the one in force.")] = None,
    as_json: Json = False,
) -> None:
    """Every parameter of the policy, who set it, and why."""
    with client() as api:
        answer = api.policy(version)
    told = {name: value for name, value in answer.items() if name not in ("history", "seq")}
    output.show(answer, as_json, lambda: output.pairs(_flat(told)))


@policy_app.command("history")
def policy_history(as_json: Json = False) -> None:
    """Who changed which parameters of the policy, when and why; newest first."""
    with client() as api:
        rows = list(api.policy().get("history") or ())
    output.show(rows, as_json, lambda: output.table(rows, POLICIES, "The built-in policy was never changed."))


def _flat(body: Mapping[str, Any]) -> list[tuple[str, object]]:
    told: list[tuple[str, object]] = []
    for name, value in body.items():
        if isinstance(value, dict):
            told += [(f"{name}.{inner}", deeper) for inner, deeper in _flat(value)]
        else:
            told.append((name, ", ".join(map(str, value)) if isinstance(value, list) else value))
    return told


@policy_app.command("set")
def policy_set(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML, JSON or TOML; - is stdin.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it goes into the log.")] = "",
    as_json: Json = False,
) -> None:
    """(admin) Put a policy in force: the whole of it, what the file leaves out gets its default."""
    body = read_policy(sys.stdin.read() if str(file) == "-" else file)
    with client() as api:
        answer = api.set_policy(body, reason=reason)
    output.show(answer, as_json, lambda: output.line(told("The policy is", answer, "in force")))


@app.command()
def audit(
    actor: Annotated[str | None, typer.Option("--actor")] = None,
    job: Annotated[str | None, typer.Option("--job")] = None,
    node: Annotated[str | None, typer.Option("--node")] = None,
    team: Annotated[str | None, typer.Option("--team", "-t", callback=stated)] = None,
    kind: Annotated[str | None, typer.Option("--type")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 50,
    as_json: Json = False,
) -> None:
    """(auditor) Who did what to which job, node or team, when and why."""
    with client() as api:
        rows = list(api.audit(limit=limit, actor=actor, job=job, node=node, team=team, type=kind))
    output.show(rows, as_json, lambda: output.table(rows, AUDIT, "Nothing of the kind."))
