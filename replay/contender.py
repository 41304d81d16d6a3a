"""A contender: what a replay is to try instead of what was: another policy, other quotas, another fleet.

Named on a command line by a word (`recorded`, `default`, `fifo`, `skip`, `easy`), or by a file of JSON or TOML: either
parameters of a policy alone, or `name`, `policy`, `quotas` and `fleet`. What a file does not say stays as recorded.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from commands.messages import SetPolicy, SetQuota
from commands.policy import DEFAULT, Policy, Preset
from commands.reports import Register
from events.ids import GpuType, TeamId
from events.job import PriorityClass
from replay.scenario import Scenario, Silence, TeamQuota, Timed, widened
from replay.traces.fleet import fleet_of

RECORDED = "recorded"
WORDS = (RECORDED, *Preset)
FILE_BYTES_MAX = 4 * 1024 * 1024
PARTS = {"name", "policy", "quotas", "fleet"}


class BadContender(ValueError):
    """What was given is no contender: names the file, the field, the value and what it may be."""


class _Line(BaseModel):
    """One line of `quotas`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    team: str = Field(min_length=1, max_length=128)
    gpu_type: str = Field(min_length=1, max_length=128)
    guaranteed: int = Field(ge=0, le=1_000_000)
    borrow_limit: int = Field(ge=0, le=1_000_000)


_LINES = TypeAdapter(list[_Line])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`name`: for people. What is None stays as recorded. `changes`: the parameters that `policy` changes, where all
    others stay as recorded, too; None: it says all."""

    name: str
    policy: Policy | None = None
    changes: Mapping[str, Any] | None = None
    quotas: tuple[TeamQuota, ...] | None = None
    nodes: tuple[Register, ...] | None = None


def contender(text: str, recorded: Policy) -> Contender:
    """The one that a word or a file's name says. Raises BadContender. `recorded`: has what a file leaves out."""
    if text == RECORDED:
        return Contender(name=RECORDED)
    if text in WORDS:
        if text == Preset.DEFAULT:
            return Contender(name=text, policy=DEFAULT)
        policy = recorded.model_copy(update={"preset": Preset(text)})
        return Contender(name=text, policy=policy, changes={"preset": text})
    path = Path(text)
    given = _read(path)
    parts = given if given.keys() <= PARTS else {"policy": given}
    return Contender(
        name=str(parts.get("name", path.stem)),
        policy=_policy(path, parts["policy"], recorded) if "policy" in parts else None,
        changes=_changes(path, parts["policy"]) if "policy" in parts else None,
        quotas=_quotas(path, parts["quotas"]) if "quotas" in parts else None,
        nodes=fleet_of(str(parts["fleet"])).registers() if "fleet" in parts else None,
    )


def under(scenario: Scenario, other: Contender) -> Scenario:
    """The scenario as the contender has it. Of recorded changes of the policy what it sets itself is left out, and of
    quotas all where it sets any; bounds on limits and on queued jobs are as wide as what came needs, so that none of it
    is refused, unless the scenario refuses. On another fleet nodes do not come, go, or change their leader."""
    timed = (_under(each, other) for each in scenario.commands)
    policy = scenario.policy if other.policy is None else other.policy
    same = replace(
        scenario,
        policy=policy if scenario.refuses else widened(policy, scenario.arrivals),
        quotas=scenario.quotas if other.quotas is None else other.quotas,
        commands=tuple(each for each in timed if each is not None),
    )
    if other.nodes is None:
        return same
    return replace(
        same,
        nodes=other.nodes,
        silences=_of_nodes(scenario, other.nodes),
        joined=(),
        noticed=(),
        anew=(),
        taken_over=(),
        beats=(),
    )


def _under(timed: Timed, other: Contender) -> Timed | None:
    """A recorded command as the contender leaves it."""
    match timed.command:
        case SetQuota():
            return timed if other.quotas is None else None
        case SetPolicy() if other.policy is not None:
            if other.changes is None:
                return None
            changed = replace(timed.command, policy={**timed.command.policy, **other.changes})
            return replace(timed, command=changed)
        case _:
            return timed


def _of_nodes(scenario: Scenario, nodes: tuple[Register, ...]) -> tuple[Silence, ...]:
    """Silences of nodes that the contender's fleet has, too."""
    known = {node.node_id for node in nodes}
    return tuple(silence for silence in scenario.silences if silence.node_id in known)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadContender(f"{path}: {path.stat().st_size} bytes, at most {FILE_BYTES_MAX}")
        raw = path.read_bytes()
        read = tomllib.loads(raw.decode()) if path.suffix == ".toml" else orjson.loads(raw)
    except OSError as error:
        words = ", ".join(WORDS)
        raise BadContender(f"{path}: {error.strerror or error}; a policy is one of {words}, or a file") from None
    except (ValueError, RecursionError) as error:
        raise BadContender(f"{path}: is neither JSON nor, with the ending .toml, TOML: {error}") from None
    if not isinstance(read, dict):
        raise BadContender(f"{path}: has to be an object of parameters, or of {', '.join(sorted(PARTS))}")
    return read


def _changes(path: Path, given: object) -> Mapping[str, Any]:
    if isinstance(given, str):
        return {"preset": given}
    if not isinstance(given, dict):
        raise BadContender(f"{path}: policy: has to be an object of parameters, or a preset")
    return given


def _policy(path: Path, given: object, recorded: Policy) -> Policy:
    changes = json.dumps(recorded.model_dump(mode="json") | dict(_changes(path, given)), default=str)
    try:
        return Policy.model_validate_json(changes, strict=True)  # as the api reads one: what passes here passes there
    except ValidationError as error:
        raise BadContender(f"{path}: {_first(error, 'policy')}") from None


def _quotas(path: Path, given: object) -> tuple[TeamQuota, ...]:
    try:
        lines = _LINES.validate_python(given)
    except ValidationError as error:
        raise BadContender(f"{path}: {_first(error, 'quotas')}") from None
    twice = [of for of, count in Counter((line.team, line.gpu_type) for line in lines).items() if count > 1]
    if twice:
        raise BadContender(f"{path}: quotas: {' '.join(twice[0])} is there twice")
    return tuple(
        TeamQuota(
            team=TeamId(line.team),
            gpu_type=GpuType(line.gpu_type),
            guaranteed=line.guaranteed,
            borrow_limit=line.borrow_limit,
            classes=tuple(PriorityClass),
        )
        for line in lines
    )


def _first(error: ValidationError, where: str) -> str:
    """The first fault: field, value, and what it may be."""
    fault = error.errors(include_url=False)[0]
    field = ".".join([where, *map(str, fault["loc"])])
    value = "" if fault["type"] == "missing" else f" {str(fault.get('input', ''))[:100]}:"
    return f"{field}:{value} {fault['msg']}"
