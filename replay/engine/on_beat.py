"""A recorded day as it was: looked at and planned at the very times at which the recorded leader did.

The engine plans whenever something happens. A leader does too, but a few milliseconds later, and with all that came
until then; what time alone brings it sees with its next tick; and it may stand still for a while. Its beats are in the
log, those at least that decided something. Between two beats nothing is planned, unless none follows for so long that
the day must have gone another way.
"""

from collections import deque

from events.ids import Instant
from replay.engine.moments import SECOND_MS
from replay.engine.run import Replay
from replay.scenario import Beat

PATIENCE_MS = 1_500
"""A leader looks each second; how late it may be."""
STILL_MS = 20_000
"""For how long a leader may stand still (scheduler.tenure ends it then). As long as all goes as it went, one that
decided nothing did stand still: had it looked, it would have decided what is decided now."""


class OnBeat(Replay):
    """One scenario with beats."""

    def _boot(self) -> None:
        self._beats = deque(self.scenario.beats)
        self._pending: Instant | None = None
        """Since when there is something to plan for."""
        self._as_then = True
        """So far something was decided at each beat."""
        super()._boot()

    def _next(self) -> Instant | None:
        """When something happens next, or the leader looked."""
        core, times = self.core, self._to_come()
        if self._beats:
            times.append(self._beats[0].at)
        elif self._arrived == len(self.scenario.arrivals) and not core.state.jobs.rows:
            return None
        moment = self._moment()
        if moment is not None and not self._awaited(self._seen_at(moment)):
            times.append(self._seen_at(moment))
        if self._pending is not None and not self._awaited(self._led_again(self._pending), STILL_MS):
            times.append(self._overdue_at(self._pending))
        return Instant(max(core.now, min(times))) if times else None

    def _awaited(self, since: Instant, patience_ms: int | None = None) -> bool:
        """Did the leader look soon after?"""
        patience_ms = patience_ms or (STILL_MS if self._as_then else PATIENCE_MS)
        return bool(self._beats) and since <= self._beats[0].at <= since + patience_ms

    def _instant(self) -> None:
        """What happens now; then the beats of now, in order."""
        now = self.core.now
        late = self._is_late(now)
        self._to_plan = False
        while self._beats and self._beats[0].at <= now and self._beats[0].first:
            self._cycle(self._beats.popleft())
        self._ends()
        self._comes()
        beats = self._due(now)
        if late or any(not beat.plans for beat in beats):
            self._looks()
            self._moments = None
        for beat in beats:
            if beat.plans:
                self._cycle(beat)
        if late or self._is_overdue(now):
            self.core.plan()
            self._to_plan, self._pending = False, None
        if self._to_plan or self._grew_smaller:
            self._pending = self._pending or now
        self._grew_smaller = False

    def _is_late(self, now: Instant) -> bool:
        """Has a moment passed that the recorded leader would have seen by now?"""
        moment = None if self._moments is None else self._moments.next_at
        if moment is None or not self._led(now):
            return False
        seen_at = self._seen_at(moment)
        return seen_at <= now and not self._awaited(seen_at)

    def _seen_at(self, moment: Instant) -> Instant:
        """When time that passes is seen: a leader looks each second, and one that was gone by then did not."""
        at, others = max(moment, self.core.now), self.scenario.taken_over
        return next((other.at for other in others if other.gone_at <= at + SECOND_MS and at < other.at), at)

    def _due(self, now: Instant) -> list[Beat]:
        found: list[Beat] = []
        while self._beats and self._beats[0].at <= now:
            found.append(self._beats.popleft())
        return found

    def _overdue_at(self, pending: Instant) -> Instant:
        return self._led_again(Instant(pending + SECOND_MS))

    def _led_again(self, at: Instant) -> Instant:
        """Then, or when the next leader begins; not before now."""
        at = max(at, self.core.now)
        return next((other.at for other in self.scenario.taken_over if other.gone_at <= at < other.at), at)

    def _is_overdue(self, now: Instant) -> bool:
        if self._pending is None or now < self._overdue_at(self._pending):
            return False
        return self._led(now) and not self._awaited(self._led_again(self._pending), STILL_MS)

    def _cycle(self, beat: Beat) -> None:
        self._to_plan, self._pending = False, None
        self._moments = None
        self._as_then = bool(self.core.cycle(beat.made_at)) and self._as_then
