"""When attempts have to be looked at again: run-time limits and start time-outs. Kept in step by accepted commits.

It only proposes: the tick judges each against the state (commands.decide.ticks).
"""

from heapq import heappop, heappush

from commands.changed import News
from commands.decide.attempts import limit_grace_s
from commands.entities import Attempt, AttemptKey, RankPhase
from commands.state import State
from events.ids import Instant

AGAIN_MS = 1_000
SPARE = 100


class Timers:
    """A heap of (time, attempt): each attempt that is to run stands in it at its next time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[Instant, AttemptKey]] = []
        self._rebuild()

    def follow(self, news: News) -> None:
        """What is news of an accepted commit. Another policy may move every time."""
        for _, _, old, new in news.get("attempts", ()):
            if new is not None and _times_changed(old, new):
                self._add(new)
        if "policies" in news:
            self._rebuild()
        if len(self._heap) > 4 * len(self._state.attempts) + SPARE:
            self._rebuild()  # entries of attempts that ended long before their limit would else stay for weeks

    def due(self, now: Instant) -> list[AttemptKey]:
        """Attempts whose time has come, in order; each comes again until it has been dealt with."""
        due: dict[AttemptKey, None] = {}
        while self._heap and self._heap[0][0] <= now:
            _, key = heappop(self._heap)
            attempt = self._state.attempts.get(key)
            if attempt is None or attempt.ending is not None:
                continue
            times = self._times(attempt)
            if any(at <= now for at in times):
                due[key] = None
            elif times:
                heappush(self._heap, (min(times), key))
        for key in due:
            heappush(self._heap, (Instant(now + AGAIN_MS), key))
        return list(due)

    def next_at(self) -> Instant | None:
        """When an attempt has to be looked at next; None: never, as things are."""
        while self._heap:
            at, key = self._heap[0]
            attempt = self._state.attempts.get(key)
            times = self._times(attempt) if attempt is not None and attempt.ending is None else []
            if times and min(times) <= at:
                return at
            heappop(self._heap)
            if times:
                heappush(self._heap, (min(times), key))
        return None

    def _rebuild(self) -> None:
        self._heap.clear()
        for key in sorted(self._state.attempts.rows):
            self._add(self._state.attempts[key])

    def _add(self, attempt: Attempt) -> None:
        times = self._times(attempt)
        if times:
            heappush(self._heap, (min(times), attempt.key))

    def _times(self, attempt: Attempt) -> list[Instant]:
        policy, job = self._state.policy, self._state.jobs[attempt.job_id]
        times: list[Instant] = []
        if attempt.running_at is None:
            times.append(Instant(attempt.granted_at + policy.start_timeout_s * 1000))
        for growth in attempt.growths:
            if RankPhase.GRANTED in attempt.phases[growth.first :]:
                times.append(Instant(growth.at + policy.start_timeout_s * 1000))
        if attempt.limit_at is not None:
            times.append(Instant(attempt.limit_at - limit_grace_s(policy, job, attempt) * 1000))
        return times


def _times_changed(old: Attempt | None, new: Attempt) -> bool:
    if old is None:
        return True
    return (old.limit_at, old.running_at, old.growths) != (new.limit_at, new.running_at, new.growths)
