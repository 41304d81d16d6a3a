"""What the facts about the cluster as a whole mean: quotas, policy, leadership, and answers that change nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from commands.entities import Quota, Team
from commands.policy import Policy
from commands.state import State
from events.envelope import Event
from events.leadership import (
    ClaimConflictFound,
    ClockGap,
    CommandDone,
    CommandRefused,
    CommandRepeated,
    CommandUnreadable,
    InputRefused,
    LeaderElected,
    LogRestored,
)
from events.policy import PolicyChanged
from events.quota import QuotaChanged, TeamClassesChanged

CHANGES_NOTHING = (CommandRefused, CommandRepeated, CommandUnreadable, InputRefused)


def binds_key(events: tuple[Event, ...]) -> bool:
    """Does the command's idempotency key count as used? Not where it was refused: it may be tried again."""
    return not any(isinstance(event, CHANGES_NOTHING) for event in events)


def quota_changed(state: State, event: QuotaChanged) -> None:
    quota = Quota(
        team=event.team,
        gpu_type=event.gpu_type,
        guaranteed=event.guaranteed,
        borrow_limit=event.borrow_limit,
    )
    state.quotas.put((event.team, event.gpu_type), quota)
    if event.team not in state.teams:
        state.teams.put(event.team, Team(id=event.team))


def classes_changed(state: State, event: TeamClassesChanged) -> None:
    team = state.teams.get(event.team) or Team(id=event.team)
    state.teams.put(event.team, replace(team, classes=event.classes))


def policy_changed(state: State, event: PolicyChanged) -> None:
    """A parameter that this build does not know any more is passed over: old logs keep folding (I-10)."""
    known = {name: value for name, value in event.policy.items() if name in Policy.model_fields}
    state.policies.put("", Policy.model_validate(known))
    state.meta = replace(state.meta, policy_version=event.version)


def conflict_found(state: State, event: ClaimConflictFound) -> None:
    """A GPU that Postgres twice says is held by a claim that the log does not know is quarantined (P-8)."""
    if not event.quarantined:
        return
    node = state.node_by_id(event.node_id)
    if node is not None:
        state.nodes.put(node.index, replace(node, broken=node.broken | 1 << event.gpu))


def clock_gapped(state: State, event: ClockGap) -> None:
    state.meta = replace(state.meta, quiet_until_at=event.until_at)


def nothing(state: State, event: Event) -> None:
    """On record, and no more."""


RULES: dict[type, Callable[[State, Any], None]] = {
    QuotaChanged: quota_changed,
    TeamClassesChanged: classes_changed,
    PolicyChanged: policy_changed,
    ClaimConflictFound: conflict_found,
    ClockGap: clock_gapped,
    LeaderElected: nothing,
    CommandRefused: nothing,
    CommandRepeated: nothing,
    CommandUnreadable: nothing,
    CommandDone: nothing,
    InputRefused: nothing,
    LogRestored: nothing,
}
