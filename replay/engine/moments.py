"""When time alone could change what is decided, so that nobody has to look each second.

The leader runs a cycle each second. Between two things that happen its outcome could change only through what is
listed here; what was looked at until quiet stays quiet in between. Looked at a second later than an instant of its own
at the latest, as in production. Left out: the order of teams, which moves each minute with what they use. It decides
who comes first of those that fit, and nothing that waits fits; but under a limit of failed tries (R-24) it could let
another shape be tried.
"""

from collections.abc import Iterator

from commands.entities import NodeState
from commands.policy import Preset
from events.ids import Instant, NodeIndex
from replay.engine.agents import Agents
from replay.engine.core import Core
from scheduler.planning.order import HOUR_MS
from scheduler.planning.pledges import given_up_at

SECOND_MS = 1_000


def next_moment(core: Core, agents: Agents) -> Instant | None:
    """The next one after now; None: time alone changes nothing any more."""
    found = [at for at in _moments(core, agents) if at > core.now]
    return min(found, default=None)


def _moments(core: Core, agents: Agents) -> Iterator[Instant]:
    for at in (core.timers.next_at(), core.planner.queue.next_at()):
        if at is not None:
            yield at
    for _, at in _thresholds(core, agents):
        yield at
    if len(core.planner.queue) and core.state.attempts.rows:
        yield from _of_queue(core)


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
    """What those that wait could be helped by: protections that end, ends that are near enough to be waited for,
    pledges and reservations that are overdue, the hour that puts the queue in order anew."""
    state, now = core.state, core.now
    yield Instant((now // HOUR_MS + 1) * HOUR_MS)
    if state.policy.preset is not Preset.DEFAULT:
        return
    core.planner.victims.refresh(now)
    yield _second_after(core.planner.victims.next_change_at())
    for pledge in state.pledges.rows.values():
        yield _second_after(given_up_at(state, pledge) + 1)
    for held in state.reservations.rows.values():
        yield _second_after(held.start_at + 1)


def _second_after(at: int) -> Instant:
    return Instant(-(-at // SECOND_MS) * SECOND_MS)
