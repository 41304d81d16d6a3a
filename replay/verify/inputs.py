"""From a commit's recorded input back to how it is decided: by the same functions, in the same order, as the leader.

One case for each kind of input. Whatever the leader does where deciding fails by our own fault (P-7) is here too.
"""

from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from commands.decide import decide_command, decide_conflict, decide_leader, decide_messages, decide_tick
from commands.decide.attempts import Draft
from commands.messages import NoCommand, decode_command, read_command
from commands.plan import Planned
from commands.reports import ClaimSeen, FromNode, Register, Tick
from events.envelope import Input
from events.ids import Instant, Principal
from events.leadership import CommandUnreadable, InputRefused
from events.task import ReportDropped
from scheduler.proposal import Decide
from scheduler.takeover import SCHEDULER


class NoInput(Exception):
    """What is recorded is not what a leader of this build records: says why."""


class OnlyHash(Exception):
    """The input is kept as a hash alone: it cannot be decided again from the events log."""


@dataclass(frozen=True, slots=True)
class Question:
    """How an input is decided, and on whose behalf. `instead`: the fact that passes it over where that fails, given
    why (P-7); None: then the leader records nothing."""

    actor: Principal
    decide: Decide
    instead: Callable[[Draft, str], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicted:
    """Body of a conflict."""

    claims: tuple[ClaimSeen, ...]
    planned: Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """Body of the first input of a term."""

    holder: str
    last_at: Instant
    restored: tuple[str, str] | None


def command(made_by: Input) -> Question:
    """A command, or a record of the commands log that is none. Raises NoInput, OnlyHash."""
    if not isinstance(made_by.body, dict):
        raise NoInput("a command without its record")
    if (unread := made_by.body.get("unreadable")) is not None:
        return _unreadable(unread)
    try:
        record = read_command(made_by.body)
    except NoCommand as error:
        raise NoInput(f"no command: {error}") from None
    if record.id != made_by.id:
        raise NoInput(f"the input is {made_by.id}, its record is {record.id}")
    return Question(record.principal, lambda draft: decide_command(draft, record), refusal(made_by))


def refusal(made_by: Input) -> Callable[[Draft, str], object]:
    """See Intake._refuse."""
    return lambda draft, why: draft.add(InputRefused(input=made_by.id, why=why[:300]))


def _unreadable(unread: dict[str, Any]) -> Question:
    if unread["base64"] is None:
        raise OnlyHash("of an unreadable command its hash alone is kept")
    try:
        decode_command(b64decode(unread["base64"]))
    except NoCommand as error:
        why = str(error)
        return Question(SCHEDULER, lambda draft: draft.add(CommandUnreadable(why=why)))
    raise NoInput("what was passed over as unreadable is a command")


def reports(made_by: Input) -> Question:
    """A batch of messages. Raises NoInput."""
    batch = read_reports(made_by)
    alone = _set_aside(batch[0]) if len(batch) == 1 else None
    return Question(SCHEDULER, lambda draft: decide_messages(draft, batch), alone)


def _set_aside(said: FromNode) -> Callable[[Draft, str], object] | None:
    """See Leader._set_aside."""
    message = said.message
    if isinstance(message, Register):
        return None
    number = message.number

    def instead(draft: Draft, why: str) -> None:
        if (node := draft.state.node_by_id(said.node_id)) is not None:
            draft.add(ReportDropped(node=node.index, report=number, reason=f"poison: {why}"[:300]))

    return instead


def read_reports(made_by: Input) -> tuple[FromNode, ...]:
    """The batch. Raises NoInput."""
    batch: tuple[FromNode, ...] = _typed(tuple[FromNode, ...], made_by.body)
    return batch


def read_tick(made_by: Input) -> Tick:
    """What was observed. Raises NoInput."""
    observed: Tick = _typed(Tick, made_by.body)
    return observed


def tick(made_by: Input) -> Question:
    """What was observed. Raises NoInput."""
    observed = read_tick(made_by)
    return Question(SCHEDULER, lambda draft: decide_tick(draft, observed))


def leader(made_by: Input) -> Question:
    """The first input of a term. Raises NoInput."""
    elected: Elected = _typed(Elected, made_by.body)
    return Question(SCHEDULER, lambda draft: decide_leader(draft, elected.holder, elected.last_at, elected.restored))


def conflict(made_by: Input) -> tuple[Question, Planned]:
    """Claims that the log does not know, and the plan that met them. Raises NoInput."""
    met: Conflicted = _typed(Conflicted, made_by.body)
    return Question(SCHEDULER, lambda draft: decide_conflict(draft, met.claims)), met.planned


def cycle(made_by: Input) -> Planned:
    """What a cycle took of a plan. Raises NoInput."""
    planned: Planned = _typed(Planned, made_by.body)
    return planned


def _typed(wanted: Any, body: Any) -> Any:
    try:
        return _adapter(wanted).validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise NoInput(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    return TypeAdapter(wanted)
