"""Worked examples in Markdown, run against the policy: a picture of a cluster and steps in, a table of decisions out.

An example is a fenced block `cluster` (a picture as tests.builders reads it), a fenced block `steps`, and the table
after it: job, state, where, why. Steps, one a line:

    quota TEAM GUARANTEED + BORROW [CLASS ...]      policy NAME=VALUE ...
    submit NAME: TEAM RxG TIME [CLASS] [WORD ...]   runs NAME: the same, granted and running
    cycle [N]      wait TIME      starts NAME       ends NAME [EXIT]      stops NAME      saves NAME
    cancel | hold | release | requeue NAME          extend NAME TIME [refused CODE]       lost NODE

RxG: replicas x GPUs of each. TIME: 90s, 30m, 2h, 3d, or unlimited. WORDs: pack=block, spread=rack, max_blocks=2,
array=0-9%2, after_ok=NAME, after_any=NAME, elastic=1-4, retries=1, grace=60s, interactive, protected (not preemptible).

`where`: node*GPUs of each rank; or, in brackets, the nodes that are reserved for it. `why`: what holds it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from commands.policy import Policy
from events.ids import Instant
from events.job import (
    ArrayRange,
    CheckpointPlan,
    Dependency,
    DependsWhen,
    Elastic,
    JobState,
    PriorityClass,
    Span,
    Topology,
)
from scheduler.planning.explain import explain
from tests.builders import ALL_CLASSES, H100, job_id, quota
from tests.scenario import Scenario
from tests.unit import steps

Row = tuple[str, str, str, str]
"""(job, state, where, why)."""
_FENCE = re.compile(r"```(cluster|steps)\n(.*?)```", re.DOTALL)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_QUIET_CYCLES = 5


@dataclass(frozen=True, slots=True)
class Example:
    """`title`: the heading it stands under, and its number there."""

    title: str
    picture: str
    steps: tuple[str, ...]
    table: tuple[Row, ...]


def examples(page: str) -> list[Example]:
    """All of a page, in order. Raises AssertionError where a picture has no steps, or the steps no table."""
    found: list[Example] = []
    for part in re.split(r"^(?=#+ )", page, flags=re.MULTILINE):
        heading = part.partition("\n")[0].strip("# ")
        blocks = list(_FENCE.finditer(part))
        for number, (picture, script) in enumerate(zip(blocks[::2], blocks[1::2], strict=True), 1):
            assert (picture[1], script[1]) == ("cluster", "steps"), f"{heading}: a picture, then its steps"
            lines = tuple(line.strip() for line in script[2].splitlines() if line.strip())
            found.append(Example(f"{heading} {number}", picture[2], lines, tuple(_rows(part[script.end() :]))))
            assert found[-1].table, f"{heading}: no table"
    return found


def _rows(text: str) -> Iterator[Row]:
    """Rows of the table that comes first."""
    for line in text.strip().splitlines():
        if not line.startswith("|"):
            return
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] != "job" and not cells[0].startswith("--"):
            job, state, where, why = cells
            yield job, state, where, why


def decided(example: Example) -> tuple[Row, ...]:
    """What the policy decides; then five quiet cycles, in which nothing may move."""
    scenario = Scenario().given(steps.cluster(example.picture))
    for line in example.steps:
        _do(scenario, line)
    found = tuple(_row(scenario, name) for name, *_ in example.table)
    if example.steps[-1].startswith("cycle"):
        for _ in range(_QUIET_CYCLES):
            scenario.when(steps.plan()).then_nothing()
    return found


def _row(scenario: Scenario, name: str) -> Row:
    state = scenario.job_state(name)
    if job_id(name) not in scenario.state.jobs:
        return name, state, "", ""
    placed = scenario.table(name)[name]
    where = "" if placed == "waits" else placed
    for held in scenario.state.reservations.rows.values():
        if held.job_id == job_id(name):
            where = "(" + " ".join(scenario.state.nodes[index].id for index in held.nodes) + ")"
    reasons = explain(scenario.planner, job_id(name), Instant(scenario.at + 1000))
    why = ", ".join(reason.factor for reason in reasons) if state == JobState.QUEUED else ""
    return name, state, where, why


# Steps


def _do(scenario: Scenario, line: str) -> None:
    word, _, rest = line.partition(" ")
    assert word in _STEPS, f"not a step: {line}"
    _STEPS[word](scenario, rest)


def _quota(scenario: Scenario, rest: str) -> None:
    team, guaranteed, _, borrow, *classes = rest.split()
    allowed = tuple(map(PriorityClass, classes)) or ALL_CLASSES
    scenario.take(quota(team, int(guaranteed), int(borrow), H100, allowed))


def _policy(scenario: Scenario, rest: str) -> None:
    given = dict(pair.split("=") for pair in rest.split())
    scenario.given(steps.policy(**Policy.model_validate(given).model_dump(include=set(given))))


def _submit(scenario: Scenario, rest: str) -> None:
    name, _, asked = rest.partition(":")
    scenario.take(steps.submit(name, **_fields(asked.split())))


def _runs(scenario: Scenario, rest: str) -> None:
    name, _, asked = rest.partition(":")
    scenario.given(steps.runs(name, **_fields(asked.split())))


def _extend(scenario: Scenario, rest: str) -> None:
    name, by, *refused = rest.split()
    scenario.when(steps.extend(name, _seconds(by) or 0))
    if refused:
        scenario.then_refused(refused[1])


def _ends(scenario: Scenario, rest: str) -> None:
    name, *code = rest.split()
    for rank in range(len(scenario.attempt(name).ranks)):
        scenario.given(steps.ended(name, rank, exit_code=int(code[0]) if code else 0))


def _stops(scenario: Scenario, name: str) -> None:
    for rank in range(len(scenario.attempt(name).ranks)):
        scenario.given(steps.stopped(name, rank))


def _saves(scenario: Scenario, name: str) -> None:
    before = scenario.job(name).checkpoint
    scenario.given(steps.checkpointed(name, before.sequence + 1 if before is not None else 1))


def _cycle(scenario: Scenario, rest: str) -> None:
    for _ in range(int(rest or 1)):
        scenario.plan()


_STEPS: dict[str, Callable[[Scenario, str], object]] = {
    "quota": _quota,
    "policy": _policy,
    "submit": _submit,
    "runs": _runs,
    "cycle": _cycle,
    "wait": lambda scenario, rest: steps.after(_seconds(rest) or 0)(scenario),
    "starts": lambda scenario, name: steps.all_started(name)(scenario),
    "ends": _ends,
    "stops": _stops,
    "saves": _saves,
    "cancel": lambda scenario, name: scenario.take(steps.cancel(name)),
    "hold": lambda scenario, name: scenario.take(steps.hold(name)),
    "release": lambda scenario, name: scenario.take(steps.release(name)),
    "requeue": lambda scenario, name: scenario.take(steps.requeue(name)),
    "extend": _extend,
    "lost": lambda scenario, name: steps.lost(name)(scenario),
}


def _fields(words: list[str]) -> dict[str, Any]:
    """`red 2x8 1h prod-batch pack=block` as fields of a spec."""
    team, size, time, *more = words
    replicas, gpus = size.split("x")
    fields: dict[str, Any] = {"team": team, "replicas": int(replicas), "gpus_per_replica": int(gpus)}
    fields["max_runtime_s"] = _seconds(time)
    hint: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {}
    depends: list[Dependency] = []
    for word in more:
        key, _, value = word.partition("=")
        match key:
            case "pack" | "spread":
                hint[key] = Span(value)
            case "max_blocks":
                hint[key] = int(value)
            case "array":
                fields["array"] = _array(value)
            case "after_ok" | "after_any":
                depends.append(Dependency(job=job_id(value), when=DependsWhen(key)))
            case "elastic":
                low, high = map(int, value.split("-"))
                fields["elastic"] = Elastic(min_replicas=low, max_replicas=high)
            case "retries":
                fields["retries"] = int(value)
            case "grace":
                checkpoint["grace_s"] = _seconds(value)
            case "protected":
                checkpoint["preemptible"] = False
            case "interactive":
                fields["interactive"] = True
            case _:
                fields["priority_class"] = PriorityClass(key)
    return {
        **fields,
        "topology": Topology(**hint),
        "checkpoint": CheckpointPlan(**checkpoint),
        "depends_on": tuple(depends),
    }


def _array(text: str) -> ArrayRange:
    span, _, throttle = text.partition("%")
    first, last = map(int, span.split("-"))
    return ArrayRange(first=first, last=last, throttle=int(throttle) if throttle else None)


def _seconds(text: str) -> int | None:
    return None if text == "unlimited" else int(text[:-1]) * _UNITS[text[-1]]
