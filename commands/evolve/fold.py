"""Fold commits and terms into state: dispatch by event type, and what a commit itself says (its place, its input)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from commands.entities import KeyUse, Meta
from commands.evolve import cluster, following, gangs, holdings, jobs, nodes
from commands.rows import maker, replacer
from commands.state import State, pruned
from events.envelope import Commit, Event, Input, Term
from events.gang import GangAllocated, GangEnding
from events.ids import Epoch, Instant
from events.preemption import PreemptionOrdered

DAY_MS = 86_400_000

RULES: dict[type, Callable[[State, Any], None]] = {
    **jobs.RULES,
    **following.RULES,
    **gangs.RULES,
    **nodes.RULES,
    **holdings.RULES,
    **cluster.RULES,
}
"""Every event type of the catalogue has exactly one entry (test_evolve shows it)."""


def _rooms(state: State, events: Sequence[Any]) -> None:
    """Who has to go, and what is pledged to whom: neither looks at what the other changes."""
    holdings.all_ordered(state, [event for event in events if type(event) is PreemptionOrdered])
    gangs.all_ending(state, [event for event in events if type(event) is GangEnding])


TOGETHER: dict[type, Callable[[State, Sequence[Any]], None]] = {
    GangAllocated: gangs.allocated,
    PreemptionOrdered: _rooms,
    GangEnding: _rooms,
}
"""Events of which many come in a row, and none looks at the number of its own."""

_numbered = replacer(Meta, "seq")
_taken = replacer(Meta, "command_position", "command_id", "command_log")
_key_use = maker(KeyUse)
_begun = replacer(Meta, "epoch", "n", "at", "day")


def begin(state: State, epoch: Epoch, n: int, at: Instant) -> None:
    """The next events are those of commit `n` at `at`. Forgets keys and ends that are past their days."""
    day, meta = at // DAY_MS, state.meta
    state.meta = _begun(meta, epoch=epoch, n=n, at=at, day=day)
    if day != meta.day:
        _expire(state, day - state.policy.key_days)


def evolve(state: State, event: Event) -> None:
    """Fold one event. KeyError for a type that is not in RULES: a bug, never passed over."""
    rule = RULES[type(event)]
    meta = state.meta
    state.numbered(_numbered(meta, seq=meta.seq + 1))
    rule(state, event)


def evolve_all(state: State, events: Iterable[Event]) -> None:
    """Fold events of one commit, in order. What may be folded together, in a row, is: the same, for less."""
    for together, run in groupby(events, lambda event: TOGETHER.get(type(event))):
        if together is None:
            for event in run:
                evolve(state, event)
            continue
        some = tuple(run)
        state.numbered(_numbered(state.meta, seq=state.meta.seq + len(some)))
        together(state, some)


def finish(state: State, made_by: Input, events: tuple[Event, ...]) -> None:
    """Fold what the commit says beside its events: how far the commands log was taken, and its key (P-13, P-14)."""
    if made_by.kind != "command":
        return
    assert made_by.position is not None
    state.meta = _taken(
        state.meta,
        command_position=made_by.position,
        command_id=made_by.id,
        command_log=made_by.log_id or "",
    )
    record = made_by.body
    if record is None or not cluster.binds_key(events):
        return
    first = state.meta.seq - len(events) + 1
    use = _key_use(
        key=record["key"],
        body=record["body"],
        job_id=record["command"].get("job_id", ""),
        seq=first,
        day=state.meta.day,
    )
    state.keys.put(use.key, use)


def fold_commit(state: State, commit: Commit) -> None:
    """Fold an accepted commit; the caller accepts or discards."""
    begin(state, commit.epoch, commit.n, commit.at)
    evolve_all(state, commit.events)
    finish(state, commit.input, commit.events)


def fold_term(state: State, term: Term) -> None:
    """A new leadership: from now on its epoch is the one in which nodes confirm."""
    begin(state, term.epoch, term.n, term.at)


def _expire(state: State, day: int) -> None:
    for key in pruned(state.keys.rows, day):
        state.keys.drop(key)
    for job in pruned(state.ended.rows, day):
        if job not in state.follow_ups:  # what is to be drawn from an end needs it, however long nobody led
            state.ended.drop(job)
