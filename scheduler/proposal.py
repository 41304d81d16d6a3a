"""A decision on trial: from an input and how it is decided to the commit that it would be. Pure.

The writer makes every commit here, and verify makes it again: what is recorded is what can be recomputed (I-9).
"""

from collections.abc import Callable
from dataclasses import dataclass

from commands.decide.attempts import Draft
from commands.evolve import begin, finish
from commands.invariants import check_touched
from commands.state import State
from events import codec
from events.chain import Head
from events.envelope import RECORD_BYTES_MAX, Commit, Input
from events.ids import Instant, Principal

Decide = Callable[[Draft], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """What a commit is made for and when; the fields are those of the commit."""

    made_by: Input
    actor: Principal
    at: Instant
    cycle: int | None = None
    planned_at_n: int | None = None


def propose(state: State, head: Head, occasion: Occasion, decide: Decide) -> Commit | None:
    """The commit after `head` in its term, its facts folded into the state, on trial; None, and nothing on trial, where
    there are none. Raises whatever deciding raises, and InvariantBroken; then the caller discards."""
    first = state.meta.seq + 1
    begin(state, head.epoch, head.n + 1, occasion.at)
    draft = Draft(state)
    decide(draft)
    if not draft.events:
        state.discard()
        return None
    commit = Commit(
        cluster=state.cluster,
        epoch=head.epoch,
        nonce=head.nonce,
        n=head.n + 1,
        at=occasion.at,
        actor=occasion.actor,
        input=occasion.made_by,
        policy=state.meta.policy_version,
        prev=head.hash,
        seq=first,
        events=tuple(draft.events),
        cycle=occasion.cycle,
        planned_at_n=occasion.planned_at_n,
        cause=_cause(occasion.made_by),
    )
    finish(state, occasion.made_by, commit.events)
    check_touched(state, state.touched())
    return commit


def fitting(commit: Commit) -> bytes:
    """The record's bytes, which must keep to the limit (P-7). Raises ValueError."""
    raw = codec.encode(commit)
    if len(raw) > RECORD_BYTES_MAX:
        raise ValueError(f"{len(raw)} bytes, at most {RECORD_BYTES_MAX}")
    return raw


def _cause(made_by: Input) -> str:
    """In a word what led to it: the command's type, or the kind of the input."""
    command = made_by.body.get("command") if made_by.kind == "command" and made_by.body is not None else None
    return made_by.kind if command is None else str(command["type"])
