"""Who goes first (R-20, R-21). The one place for that rule.

Covered before borrowing; then class; then jobs hit by a fault or a drain; then the team's share, eased by waiting;
then, within a team, the deadline; then the time of submission.

A team's share is the GPU-hours it used (decaying, half-life 7 days) over its guarantee, the largest over GPU types,
measured so that steady use of exactly the guarantee is 1. Waiting eases it by 0.1 an hour, at most by 1. Shares are
fixed-point integers (ONE = 1.0); hours are whole hours of the clock.
"""

from commands.entities import Job
from commands.evolve.fair import used_gpu_s
from commands.state import State
from events.ids import GpuType, Instant, TeamId

ONE = 1 << 20
NO_GUARANTEE = 1 << 60
"""A team without a guarantee sorts last in its group; among such teams, by what they used."""
HOUR_MS = 3_600_000
NEVER = 1 << 62

EntryKey = tuple[bool, int, int, int]
"""(not in front, hour in which its waiting began, deadline, seq of submission): the order within a shape."""


Turn = tuple[bool, int, bool, int, int]
"""(borrowing, class rank, not in front, eased share, seq of submission): lower goes first."""


def entry_key(job: Job, now: Instant, ease_max_hours: int) -> EntryKey:
    """The job's place among those of its shape. Waiting beyond what eases counts no more."""
    since = job.waits_since if job.waits_since is not None else now
    began = max((since - job.waited_ms) // HOUR_MS, now // HOUR_MS - ease_max_hours)
    return (not job.front, began, job.spec.deadline_at or NEVER, job.submit_seq)


def turn(covered: bool, class_rank: int, entry: EntryKey, share: int, now: Instant, ease_percent: int) -> Turn:
    """The turn of the first job of a shape. `ease_percent`: how much an hour of waiting eases, in hundredths."""
    not_front, began, _, seq = entry
    waited_hours = now // HOUR_MS - began
    if waited_hours > 0:
        share -= waited_hours * ease_percent * ONE // 100
    return (not covered, class_rank, not_front, share, seq)


def mean_life_s(half_life_h: int) -> int:
    """Half-life / ln 2: steady use of the guarantee adds up to the guarantee times this."""
    return half_life_h * 3600 * 1_442_695_041 // 1_000_000_000


class FairShares:
    """Shares of teams. Kept for a minute, or until a team's use changes: the order of teams moves slowly."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._minute = -1
        self._known: dict[TeamId, int] = {}
        self._types: dict[TeamId, list[GpuType]] = {}
        self._extra: dict[TeamId, int] = {}
        self._whole: dict[tuple[TeamId, GpuType], int] = {}
        """GPU-seconds that are a share of 1."""

    def begin(self, now: Instant) -> None:
        """A new cycle: forget what the last one granted for trial, and what is older than a minute."""
        self._extra.clear()
        if now // 60_000 != self._minute:
            self._minute = now // 60_000
            self._known.clear()

    def changed(self, team: TeamId) -> None:
        """The team's use or quotas changed."""
        self._known.pop(team, None)
        self._types.pop(team, None)
        self._whole.clear()

    def forget(self) -> None:
        """Another policy holds."""
        self._known.clear()
        self._whole.clear()

    def share(self, team: TeamId) -> int:
        """Its share now, what this cycle granted included."""
        known = self._known.get(team)
        if known is None:
            known = self._known[team] = self._compute(team)
        return known + self._extra.get(team, 0)

    def grant(self, team: TeamId, gpu_type: GpuType, gpu_s: int) -> None:
        """Charge a start for trial, as the log will (R-21)."""
        self._extra[team] = self._extra.get(team, 0) + self.fraction(team, gpu_type, gpu_s)

    def _compute(self, team: TeamId) -> int:
        now = Instant(self._minute * 60_000)
        shares = [0]
        types = self._types.get(team)
        if types is None:
            types = self._types[team] = [key[1] for key in sorted(self._state.fair_use) if key[0] == team]
        for gpu_type in types:
            used = used_gpu_s(self._state.fair_use[team, gpu_type], now, self._state.policy.fair_half_life_h)
            shares.append(self.fraction(team, gpu_type, max(0, used)))
        guaranteed = any(quota.guaranteed for key, quota in self._state.quotas.rows.items() if key[0] == team)
        return max(shares) + (0 if guaranteed else NO_GUARANTEE)

    def fraction(self, team: TeamId, gpu_type: GpuType, gpu_s: int) -> int:
        """GPU-seconds as a share of what steady use of the team's guarantee comes to, in units of 1/ONE."""
        return gpu_s * ONE // (self._whole.get((team, gpu_type)) or self._whole_of(team, gpu_type))

    def _whole_of(self, team: TeamId, gpu_type: GpuType) -> int:
        quota = self._state.quotas.get((team, gpu_type))
        guaranteed = quota.guaranteed if quota is not None else 0
        whole = max(1, guaranteed) * mean_life_s(self._state.policy.fair_half_life_h)
        self._whole[team, gpu_type] = whole
        return whole
