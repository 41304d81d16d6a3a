"""When attempts have to be looked at again: run-time limits and start time-outs. Kept in step by accepted commits.

It only proposes: the tick judges each against the state (commands.decide.ticks).
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from commands.entities import Attempt, AttemptKey, RankPhase
from commands.state import Change, State
from events.ids import Instant

AGAIN_MS = 1_000


class Timers:
    """A heap of (time, attempt)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[Instant, AttemptKey]] = []
        for key in sorted(state.attempts.rows):
            self._add(state.attempts[key])

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""
        for change in changes:
            if change.table == "attempts" and change.new is not None and _times_changed(change.old, change.new):
                self._add(change.new)

    def due(self, now: Instant) -> list[AttemptKey]:
        """Attempts whose time has come, in order; each stays until it has been dealt with."""
        keys: dict[AttemptKey, None] = {}
        while self._heap and self._heap[0][0] <= now:
            _, key = heappop(self._heap)
            attempt = self._state.attempts.get(key)
            if attempt is not None and attempt.ending is None and self._is_due(key, now):
                keys[key] = None
        for key in keys:
            heappush(self._heap, (Instant(now + AGAIN_MS), key))
        return list(keys)

    def _is_due(self, key: AttemptKey, now: Instant) -> bool:
        return any(at <= now for at in self._times(self._state.attempts[key]))

    def _add(self, attempt: Attempt) -> None:
        for at in self._times(attempt):
            heappush(self._heap, (at, attempt.key))

    def _times(self, attempt: Attempt) -> list[Instant]:
        policy, job = self._state.policy, self._state.jobs[attempt.job_id]
        times: list[Instant] = []
        if attempt.running_at is None:
            times.append(Instant(attempt.granted_at + policy.start_timeout_s * 1000))
        for growth in attempt.growths:
            if RankPhase.GRANTED in attempt.phases[growth.first :]:
                times.append(Instant(growth.at + policy.start_timeout_s * 1000))
        if attempt.limit_at is not None:
            grace_s = min(job.spec.checkpoint.grace_s, policy.grace_s_max)
            times.append(Instant(attempt.limit_at - grace_s * 1000))
        return times


def _times_changed(old: Attempt | None, new: Attempt) -> bool:
    return old is None or (old.limit_at, old.growths) != (new.limit_at, new.growths)
