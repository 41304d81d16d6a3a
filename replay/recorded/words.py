"""What there is to say of a recorded day beside its figures: how true its replay is, and what a log does not tell."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import orjson

from events.ids import Instant
from replay.outcome import Outcome
from replay.recorded.again import NEAR_MS, Again, Other
from replay.recorded.day import Granted, Recorded

LISTED_MAX = 20
"""Exceptions beyond so many are counted, and in the file."""


def of_again(found: Again, file: str) -> Iterator[str]:
    """What replaying it as it was came to. `file`: has the whole list."""
    yield (
        f"Under the recorded policy, looked at whenever the recorded leader looked, {found.same} of {found.recorded} "
        f"recorded starts come out on the same GPUs at the same millisecond, {found.near} more within 2 s."
    )
    if found.honest:
        return
    missed = sum(other.now is None for other in found.others)
    added = sum(other.then is None for other in found.others)
    yield (
        f"{len(found.others)} come out otherwise: {missed} recorded starts do not come, {added} come that were not "
        f"recorded, the others at another time. All are in {file}; the first ones:"
    )
    for other in found.others[:LISTED_MAX]:
        yield _other(other)


def of_day(recorded: Recorded) -> Iterator[str]:
    """What the log does not tell."""
    if recorded.unknown:
        yield (
            f"Of {len(recorded.unknown)} jobs it is not known how long their work takes: they were cancelled, timed "
            "out, or went on behind the window. They are taken to need twice what was seen, and at least their limit."
        )
    if not recorded.whole:
        yield (
            "The window begins in the midst of things: what ran or waited then is submitted as it begins, with the "
            "work that it had left, and all waits count from there; what was held then, when it was released."
        )
    yield from recorded.notes


def of_baseline(recorded: Recorded, outcome: Outcome) -> str:
    """How near the replay that the others are compared with is to what happened."""
    then = {(granted.job_id, granted.attempt): granted.at for granted in recorded.granted}
    now = {(row.job_id, row.attempt): row.granted_at for row in outcome.stretches}
    near = sum(abs(now[key] - at) <= NEAR_MS for key, at in then.items() if key in now)
    return (
        "The replays that are compared all look whenever something happens, and not when the recorded leader did: so "
        f"looked at, {near} of {len(then)} recorded starts come within 2 s of their time under the recorded policy."
    )


def as_json(found: Again) -> bytes:
    """The whole list, for programs."""
    made: dict[str, Any] = {"recorded": found.recorded, "same": found.same, "near": found.near}
    made["others"] = [{"then": _row(other.then), "now": _row(other.now)} for other in found.others]
    return orjson.dumps(made, option=orjson.OPT_INDENT_2)


def _row(granted: Granted | None) -> dict[str, Any] | None:
    return None if granted is None else asdict(granted)


def _other(other: Other) -> str:
    granted = other.then or other.now
    assert granted is not None
    then = "not recorded" if other.then is None else f"recorded {_start(other.then)}"
    now = "now not at all" if other.now is None else f"now {_start(other.now)}"
    return f"{granted.job_id}, attempt {granted.attempt}: {then}, {now}."


def _start(granted: Granted) -> str:
    nodes: Iterable[int] = dict.fromkeys(index for index, _ in granted.ranks)
    return f"{_at(granted.at)} on nodes {', '.join(map(str, nodes))}"


def _at(at: Instant) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
