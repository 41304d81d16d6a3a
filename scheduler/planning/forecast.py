"""When running work is expected to end, node by node: what reservations and estimates rest on (C-3)."""

from collections.abc import Iterable

from commands.entities import Attempt, Node
from commands.state import Change, State
from events.ids import Instant, NodeIndex

HORIZON_MS = 7 * 86_400_000
"""A job without a limit is expected to end so long after now: a stated default, never "never" (C-3)."""


class Forecast:
    """Expected free times, kept in step with accepted commits."""

    def __init__(self, state: State) -> None:
        self._state = state

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""

    def whole_at(self, index: NodeIndex, now: Instant) -> Instant:
        """When the whole node is expected to be free; `now` where it is."""
        node: Node = self._state.nodes[index]
        ends = [self.ends_at(self._state.attempts[job, number], now) for job, number, _ in node.leases]
        return max([now, *ends])

    def ends_at(self, attempt: Attempt, now: Instant) -> Instant:
        """When an attempt is expected to have ended, never before `now`."""
        if attempt.ending_at is not None:
            return Instant(max(now, attempt.ending_at + attempt.grace_s * 1000))
        if attempt.limit_at is None:
            return Instant(now + HORIZON_MS)
        return Instant(max(now, attempt.limit_at))
