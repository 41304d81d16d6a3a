"""When time alone could change what is decided, so that nobody has to look each second.

The leader runs a cycle each second. Between two things that happen its outcome could change only through what is
listed here; what was looked at until quiet stays quiet in between. Looked at a second later than an instant of its own
at the latest, as in production. Left out: the order of teams, which moves each minute with what they use. It decides
who comes first of those that fit, and nothing that waits fits; but under a limit of failed tries (R-24) it could let
another shape be tried.
"""

from collections.abc import Iterator
from typing import NamedTuple

from commands.entities import NodeState
from commands.policy import Preset
from events.ids import Instant, NodeIndex
from replay.engine.agents import Agents
from replay.engine.core import Core
from scheduler.planning.order import HOUR_MS

SECOND_MS = 1_000
NEVER = Instant(1 << 62)


class Moments(NamedTuple):
    """The next of each kind after now; NEVER: time alone changes nothing of it any more.

    `looks`: a tick finds something, and what comes of that is planned for like all that happens. `plans`: something
    else is planned. `turns`: somebody in the queue might displace others, if they have `turned` by then, which many do
    not live to see."""

    looks: Instant
    plans: Instant
    turns: Instant
    turned: int

    @property
    def next_at(self) -> Instant | None:
        """The next of all."""
        at = min(self.looks, self.plans, self.turns)
        return at if at < NEVER else None

    def is_over(self, now: Instant) -> bool:
        """Has one come?"""
        return self.next_at is not None and self.next_at <= now


def moments(core: Core, agents: Agents) -> Moments:
    """As of now."""
    now, planner = core.now, core.planner
    looks = [at for _, at in _thresholds(core, agents)] if agents.silent else []
    looks.append(core.timers.next_at() or NEVER)
    plans, turns = [planner.queue.next_at() or NEVER], NEVER
    if len(planner.queue) and core.state.attempts:
        plans += _of_queue(core)
        if core.state.policy.preset is Preset.DEFAULT:
            planner.victims.refresh(now)
            turns = _second_after(planner.victims.next_change_at())
    return Moments(_first(looks, now), _first(plans, now), _first([turns], now), planner.victims.turned)


def _first(found: list[Instant], now: Instant) -> Instant:
    return min([at for at in found if at > now], default=NEVER)


def plans_now(core: Core, known: Moments) -> bool:
    """Has one come at which time alone could change what is planned?"""
    if known.plans <= core.now:
        return True
    if known.turns > core.now:
        return False
    core.planner.victims.refresh(core.now)
    return core.planner.victims.turned != known.turned


def silences(core: Core, agents: Agents) -> Iterator[tuple[NodeIndex, int]]:
    """What a tick says of nodes that are silent for longer than their state shows."""
    for index, at in _thresholds(core, agents):
        if at <= core.now:
            yield index, (core.now - agents.silent[index]) // SECOND_MS


def _thresholds(core: Core, agents: Agents) -> Iterator[tuple[NodeIndex, Instant]]:
    """A node that is not heard becomes suspect, and then lost (R-70): when next."""
    policy = core.state.policy
    limits = {NodeState.UP: policy.node_suspect_s, NodeState.SUSPECT: policy.node_lost_s}
    for index, since in sorted(agents.silent.items()):
        limit_s = limits.get(core.state.nodes[index].state)
        if limit_s is not None:
            yield index, Instant(since + limit_s * SECOND_MS)


def _of_queue(core: Core) -> Iterator[Instant]:
    """What those that wait could be helped by, beside others who turn (protections that end, ends that are near enough
    to be waited for): pledges and reservations that are overdue, the hour that puts the queue in order anew."""
    state, now = core.state, core.now
    yield Instant((now // HOUR_MS + 1) * HOUR_MS)
    if state.policy.preset is not Preset.DEFAULT:
        return
    for at in core.planner.pledges.given_up():
        yield _second_after(at + 1)
    for held in state.reservations.rows.values():
        yield _second_after(held.start_at + 1)


def _second_after(at: int) -> Instant:
    return Instant(-(-at // SECOND_MS) * SECOND_MS)
