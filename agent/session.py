"""Which scheduler to dial and when, and what is known of the session there is. Pure: `now` and chance come in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.ports import Stream

SILENCE_S = 10.0
"""Without a word for so long, or with so long a gap in its own loop, an agent drops its stream (P-18)."""
PAUSE_MIN_S = 0.2
PAUSE_MAX_S = 3.0
HINTS_MAX = 3
"""So many hints in a row are followed at once; then they are dialed with pauses too."""
LEADER_SAID_S = 120.0
ISOLATED_S = 900.0


@dataclass(slots=True)
class Session:
    """One stream. `sent_report`: newest report sent on it; each session sends all that are kept once more."""

    stream: Stream
    address: str
    last_word: float
    registered: bool = False
    dropped: bool = False
    heartbeat_s: float = 5.0
    heartbeat_due: float = 0.0
    sent_report: int = 0

    def drop(self) -> None:
        """End it; nothing more of it is obeyed."""
        self.dropped = True
        self.stream.close()


@dataclass(slots=True)
class Dialer:
    """Goes round the schedulers, or where a standby points. `chance` draws from [0, 1): without it thousands of agents
    would dial a new leader in the same instant, again and again."""

    addresses: Sequence[str]
    chance: Callable[[], float]
    _next: int = 0
    _hint: str | None = None
    _hints: int = 0
    _failures: int = 0

    def next(self) -> str:
        """The address to dial now."""
        if self._hint is not None:
            hint, self._hint = self._hint, None
            return hint
        address = self.addresses[self._next % len(self.addresses)]
        self._next += 1
        return address

    def hinted(self, address: str | None) -> None:
        """A standby named the leader."""
        if address is not None:
            self._hint = address
            self._hints += 1

    def registered(self) -> None:
        """A leader took us: begin anew after this."""
        self._failures = self._hints = 0

    def pause_s(self) -> float:
        """How long to wait before the next dial."""
        if self._hint is not None and self._hints <= HINTS_MAX:
            return 0.1 * self.chance()
        pause = min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return pause * (0.5 + self.chance())


@dataclass(slots=True)
class Isolation:
    """R-64: whether schedulers have said for 15 min that a leader exists, while none has renewed us.

    If nobody can be reached nothing is concluded: the tasks run on.
    """

    renewed_at: float
    _said_since: float = field(default=float("-inf"))
    _said_at: float = field(default=float("-inf"))

    def renewed(self, now: float) -> None:
        """A leader spoke to us."""
        self.renewed_at = now

    def leader_said(self, now: float) -> bool:
        """A standby named a leader. True: it is time to stop everything."""
        if now - self._said_at > LEADER_SAID_S or self._said_since < self.renewed_at:
            self._said_since = now
        self._said_at = now
        return now - max(self._said_since, self.renewed_at) >= ISOLATED_S
