"""What the API answers, typed where people reach for it; `raw` is always the whole answer, later fields included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from signalbox.times import ago, instant

ENDS = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "REJECTED", "TIMED_OUT"})
"""States after which a job does not change any more (R-3)."""


CONSEQUENCES = {"never_started": 1, "stopped": 2}
"""Ends of a task that follow from another's; the others are causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The answer to a submitted job. `key`: the idempotency key it was sent under."""

    id: str
    state: str
    seq: int | None
    queue_position: int | None
    estimated_start: datetime | None
    key: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_wire(cls, body: Mapping[str, Any], key: str) -> Submission:
        """Read the 202 of POST /v1/jobs."""
        return cls(
            id=str(body["job_id"]),
            state=str(body.get("state") or "SUBMITTED"),
            seq=body.get("seq"),
            queue_position=body.get("queue_position"),
            estimated_start=instant(body.get("estimated_start")),
            key=key,
            raw=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the read side has it."""

    id: str
    state: str
    team: str
    name: str
    priority_class: str
    gpu_type: str
    replicas: int
    gpus_per_replica: int
    attempt: int
    held: bool
    preemptions: int
    nodes: tuple[str, ...]
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    queue_position: int | None
    estimated_start: datetime | None
    exit_code: int | None
    reason: str
    last_checkpoint: str | None
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def gpus(self) -> int:
        """GPUs asked for by all replicas."""
        return self.replicas * self.gpus_per_replica

    @property
    def ended(self) -> bool:
        """Whether the state is an end."""
        return self.state in ENDS

    @property
    def waiting(self) -> str:
        """Why it waits, in a line; empty where it does not, or where nothing is known yet."""
        return "; ".join(reasons(self.raw.get("waiting")))

    @property
    def follows(self) -> tuple[str, ...]:
        """The jobs that have to end before it is in the queue."""
        return tuple(str(job) for each in self._told("dependencies") for job in each.get("jobs") or ())

    @property
    def throttled(self) -> bool:
        """Whether it is an array that waits for its own elements to end."""
        return bool(self._told("throttled"))

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The same to compare by: it stays as it is while nothing but the clock has moved."""
        return tuple(repr(_unmoved(entry)) for entry in self._reasons)

    @property
    def waiting_beyond_place(self) -> str:
        """As `waiting`, without the place in the queue: for those who have told `queue_position`."""
        place = (self.queue_position or 0) - 1
        kept = [each for each in self._reasons if not _of_place(each, place)]
        return "; ".join(reasons({"reasons": kept}))

    @property
    def _reasons(self) -> Sequence[Any]:
        return (self.raw.get("waiting") or {}).get("reasons") or ()

    def _told(self, code: str) -> list[Mapping[str, Any]]:
        """Its reasons of one code."""
        return [each for each in self._reasons if isinstance(each, Mapping) and each.get("code") == code]

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> Job:
        """Read one job; part of what was submitted lies under `spec`."""
        told = {**(body.get("spec") or {}), **body}
        allocation = body.get("allocation") or {}
        return cls(
            id=str(told.get("job_id") or ""),
            state=str(told.get("state") or ""),
            team=str(told.get("team") or ""),
            name=str(told.get("name") or ""),
            priority_class=str(told.get("priority_class") or ""),
            gpu_type=str(told.get("gpu_type") or ""),
            replicas=int(told.get("replicas") or 1),
            gpus_per_replica=int(told.get("gpus_per_replica") or 1),
            attempt=int(told.get("attempt") or 0),
            held=bool(told.get("held")),
            preemptions=int(told.get("preemptions") or 0),
            nodes=tuple(str(node) for node in allocation.get("nodes") or ()),
            submitted_at=instant(told.get("submitted_at")),
            started_at=instant(told.get("started_at")),
            ended_at=instant(told.get("ended_at")),
            queue_position=told.get("queue_position"),
            estimated_start=instant(told.get("estimated_start")),
            exit_code=told.get("exit_code"),
            reason=str(told.get("end_reason") or ""),
            last_checkpoint=told.get("last_checkpoint"),
            raw=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact of the feed. `seq` grows, and is the position to go on from."""

    seq: int
    type: str
    at: datetime | None
    job: str | None
    team: str | None
    actor: str | None
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> Event | None:
        """Read one line of the feed; None where it is none (a sign of life)."""
        if not isinstance(body.get("seq"), int) or "type" not in body:
            return None
        return cls(
            seq=body["seq"],
            type=str(body["type"]),
            at=instant(body.get("at")),
            job=body.get("job_id"),
            team=body.get("team"),
            actor=body.get("actor"),
            raw=body,
        )


def facts(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the event itself, without its envelope."""
    inner = event.get("body")
    return inner if isinstance(inner, Mapping) else {}


def failure(events: Iterable[Mapping[str, Any]], attempt: int | None = None) -> str:
    """Why the ranks of an attempt failed, in their nodes' words; empty where they say nothing.

    `events` are a job's, oldest first. Default: the last attempt of which anything is known. Of several ranks the one
    that failed by itself is told, before those that were stopped for it.
    """
    told: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        fact = facts(event)
        if event.get("type") == "task.ended" and fact.get("detail"):
            told.setdefault(int(fact.get("attempt") or 0), []).append(fact)
    ends = told.get(max(told, default=0) if attempt is None else attempt, [])
    if not ends:
        return ""
    first = min(ends, key=lambda fact: CONSEQUENCES.get(str(fact.get("end")), 0))
    return blame(first)


def blame(end: Mapping[str, Any]) -> str:
    """How a rank ended, in its node's words; empty where there are none."""
    rank = f"rank {end['rank']}: " if end.get("rank") else ""
    return f"{rank}{end['detail']}" if end.get("detail") else ""


def rejected(job: Job) -> str:
    """Why a job was rejected, with the field and the limit at fault; empty where it was not."""
    why = job.raw.get("rejection") or {}
    field = f"{why['field']}: {why.get('value')}" if why.get("field") else ""
    said = [str(why.get("code") or "").replace("_", " "), field, f"limit {why['limit']}" if why.get("limit") else ""]
    return ", ".join(filter(None, said))


def reasons(waiting: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The reasons of a `waiting` object, or of the answer of /why, as sentences: the API's own where it gives them."""
    listed = (waiting or {}).get("reasons") or ()
    return tuple(_sentence(entry) for entry in listed if isinstance(entry, Mapping))


def _of_place(reason: Any, ahead: int) -> bool:
    return isinstance(reason, Mapping) and reason.get("code") == "queued" and reason.get("ahead") == ahead


_MOVING = {"expected_at", "ends_at"}


def _unmoved(reason: Any) -> Any:
    """Without what may move on with the clock: until when it would run if it started now, say."""
    if not isinstance(reason, Mapping):
        return reason
    moves = _MOVING & reason.keys()
    return {name: value for name, value in reason.items() if name not in moves and not (moves and name == "text")}


def _sentence(reason: Mapping[str, Any]) -> str:
    """A reason for people. What this version does not know is told by its code and figures."""
    match reason:
        case {"text": str(text)} | {"message": str(text)}:
            return text
        case {"code": "held"}:
            return "held"
        case {"code": "queued", "ahead": int(ahead)}:
            return "first in the queue" if ahead == 0 else f"{ahead} ahead in the queue"
        case {"code": "dependencies", "jobs": list(jobs)}:
            return f"after {', '.join(map(str, jobs))}"
        case {"code": "backoff", "until": until}:
            return f"tried again {ago(instant(until))}"
    figures = ", ".join(f"{name}: {value}" for name, value in reason.items() if name != "code")
    told = str(reason.get("code", "")).replace("_", " ")
    return f"{told} ({figures})" if figures else told


def rows(body: Any, name: str) -> list[dict[str, Any]]:
    """The rows of a list answer."""
    found = body.get(name) if isinstance(body, Mapping) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
