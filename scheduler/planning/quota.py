"""Who stands where with its quota: covered and borrowed use (R-12).

Which leases are covered is found by walking them (commands.coverage: the one place for that rule); here the walks are
kept, and what a cycle grants for trial is added. A queued job is covered if covered use + its charged GPUs stays within
the guarantee. While a team uses no more than its guarantee all of it is covered, and nothing has to be walked.
"""

from collections.abc import Collection, Iterable

from commands.changed import News, other_class
from commands.coverage import Walk, promise_of, tier_of, turn_of
from commands.entities import Attempt, AttemptKey, Job, Pledge
from commands.state import Change, State
from events.ids import GpuType, JobId, TeamId

ShareKey = tuple[TeamId, GpuType]


class Standing:
    """A team's place on one type, in GPUs, with what is granted for trial. `limit`: guarantee plus borrow limit; `use`:
    charged and pledged. `room`: GPUs it may still start, borrowed ones included; `covered_room`: inside its guarantee.
    """

    __slots__ = ("covered", "covered_room", "guaranteed", "limit", "room", "use")

    def __init__(self, *, guaranteed: int, limit: int, use: int, covered: int) -> None:
        self.guaranteed = guaranteed
        self.limit = limit
        self.use = use
        self.covered = covered
        self.room = limit - use
        self.covered_room = guaranteed - covered

    @property
    def over(self) -> bool:
        """Has it more than is guaranteed to it?"""
        return self.use > self.guaranteed

    def count(self, gpus: int, covered: bool) -> None:
        """So many more are granted for trial, or with a minus fewer."""
        self.use += gpus
        self.room -= gpus
        if covered:
            self.covered += gpus
            self.covered_room -= gpus


class Shares:
    """Standings of all teams, kept in step with accepted commits, with what a cycle grants for trial on top."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._walks: dict[ShareKey, Walk] = {}
        self._repledged: dict[ShareKey, set[JobId]] = {}
        """Jobs whose pledges may be others than at the walk before."""
        self._pledged: dict[ShareKey, int] = {}
        self._walked: dict[ShareKey, tuple[int, frozenset[AttemptKey]]] = {}
        self._granted: list[tuple[Standing, int, bool]] = []
        self._known: dict[ShareKey, Standing] = {}
        self.version = 0
        """Rises with each grant for trial, and when one is taken off."""
        self._on: dict[GpuType, int] = {}
        """How many attempts there are on each type."""
        for attempt in state.attempts.rows.values():
            self._enter(attempt)
            self._on[attempt.gpu_type] = self._on.get(attempt.gpu_type, 0) + 1
        for pledge in state.pledges.rows.values():
            self._count_pledge(pledge, 1)

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        assert not self._granted, "a plan is on trial"
        for change in news.get("attempts", ()):
            self._follow_attempt(change)
        for _, _, old, new in news.get("jobs", ()):
            if other_class(old, new):
                self._reorder(old if new is None else new)
        for _, key, _, _ in news.get("quotas", ()):
            self._forget(key)
        for _, _, old, new in news.get("pledges", ()):
            self._count_pledge(old, -1)
            self._count_pledge(new, 1)
        for _, key, _, _ in news.get("usage", ()):
            self._known.pop(key, None)

    def _count_pledge(self, pledge: Pledge | None, by: int) -> None:
        """It came, or with a minus went."""
        if pledge is None:
            return
        key = (pledge.team, pledge.gpu_type)
        self._pledged[key] = self._pledged.get(key, 0) + by * pledge.gpus
        self._repledge(key, pledge.job_id)

    def _repledge(self, key: ShareKey, job_id: JobId) -> None:
        self._repledged.setdefault(key, set()).add(job_id)
        self._forget(key)

    def _follow_attempt(self, change: Change) -> None:
        row: Attempt = change.new if change.new is not None else change.old
        key = (row.team, row.gpu_type)
        by = (change.new is not None) - (change.old is not None)
        if by:
            self._on[row.gpu_type] = self._on.get(row.gpu_type, 0) + by
        if change.old is None:
            self._enter(row)
        elif change.new is None:
            self._leave(row)
        elif _turns(change.old) != _turns(change.new):
            self._walk_of(key).changed(row.key)
            self._forget(key)

    def _forget(self, key: ShareKey) -> None:
        """Somebody else may be covered now."""
        self._walked.pop(key, None)
        self._known.pop(key, None)

    def _walk_of(self, key: ShareKey) -> Walk:
        walk = self._walks.get(key)
        if walk is None:
            walk = self._walks[key] = Walk({})
        return walk

    def _enter(self, attempt: Attempt) -> None:
        key = (attempt.team, attempt.gpu_type)
        self._walk_of(key).enter(attempt.key, turn_of(self._state.jobs[attempt.job_id], attempt))
        self._forget(key)

    def _leave(self, attempt: Attempt) -> None:
        key = (attempt.team, attempt.gpu_type)
        self._walk_of(key).leave(attempt.key)
        self._forget(key)

    def _reorder(self, job: Job) -> None:
        """Its class is another, or it is gone."""
        key = (job.spec.team, job.spec.gpu_type)
        if job.id in self._walk_of(key).promises:
            self._repledge(key, job.id)
        for number in job.open_attempts:
            attempt = self._state.attempts.get((job.id, number))
            if attempt is not None and attempt.key in self._walk_of(key).turns:
                self._leave(attempt)
                self._enter(attempt)

    def standing(self, key: ShareKey) -> Standing:
        """Where a team stands on a type, with what was granted for trial."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._standing(key)
        return known

    def _standing(self, key: ShareKey) -> Standing:
        """The same without what was granted for trial."""
        quota, usage = self._state.quotas.get(key), self._state.usage.get(key)
        if quota is None:
            return Standing(guaranteed=0, limit=0, use=0, covered=0)
        use = (usage.charged if usage is not None else 0) + self._pledged.get(key, 0)
        return Standing(
            guaranteed=quota.guaranteed,
            limit=quota.guaranteed + quota.borrow_limit,
            use=use,
            covered=use if use <= quota.guaranteed else self._walk(key)[0],
        )

    def covered_left(self, key: ShareKey) -> int:
        """GPUs of the guarantee that no lease or pledge is covered by, without what is granted for trial."""
        return self._standing(key).covered_room

    def borrowed(self, key: ShareKey) -> frozenset[AttemptKey]:
        """Attempts whose leases are borrowed, those that are ending included."""
        quota, usage = self._state.quotas.get(key), self._state.usage.get(key)
        guaranteed = quota.guaranteed if quota is not None else 0
        use = (usage.charged if usage is not None else 0) + self._pledged.get(key, 0)
        return frozenset() if use <= guaranteed else self._walk(key)[1]

    def covered_without(self, key: ShareKey, gone: Collection[AttemptKey]) -> int:
        """GPUs of the guarantee in use, were these attempts not there; with what is granted for trial."""
        covered, _ = self._ready(key).without(gone).found(self._state.attempts.rows)
        return covered + self.standing(key).covered - self._standing(key).covered

    def pushes(self, given: Iterable[Job]) -> bool:
        """Might a lease, or a pledge, be covered no more, as one of these jobs, for which this cycle counts GPUs,
        comes before it in its team? What one commit gives to a class comes in the order of ids, whoever was covered."""
        firsts: dict[ShareKey, tuple[bool, int]] = {}
        lasts: dict[ShareKey, tuple[bool, int]] = {}
        for job in given:
            key, tier = (job.spec.team, job.spec.gpu_type), tier_of(job)
            firsts[key], lasts[key] = min(tier, firsts.get(key, tier)), max(tier, lasts.get(key, tier))
        for key, first in firsts.items():
            standing = self.standing(key)
            if not standing.over:
                continue
            _, borrowed = self._walk(key)
            walk = self._ready(key)
            turn = walk.last_turn()
            if lasts[key] > first or (turn is not None and turn[:2] > first) or walk.last - borrowed:
                return True
            if len({covered for whose, _, covered in self._granted if whose is standing}) > 1:
                return True
        return False

    def anybody_on(self, gpu_type: GpuType) -> bool:
        """Does any attempt hold GPUs of the type?"""
        return self._on.get(gpu_type, 0) > 0

    # What a cycle grants

    def start(self, standing: Standing, gpus: int) -> None:
        """Count the GPUs of a start for trial: covered if they still fit in the guarantee."""
        self._count(standing, gpus, gpus <= standing.covered_room)

    def grant(self, key: ShareKey, gpus: int, covered: bool) -> None:
        """Count GPUs for trial; `undo` takes them off."""
        self._count(self.standing(key), gpus, covered)

    def _count(self, standing: Standing, gpus: int, covered: bool) -> None:
        standing.count(gpus, covered)
        self._granted.append((standing, gpus, covered))
        self.version += 1

    def mark(self) -> int:
        """A place in the trial to come back to."""
        return len(self._granted)

    def undo(self, mark: int = 0) -> None:
        """Take off what was granted since `mark`."""
        self.version += 1
        if not mark:
            if self._granted:
                self._known.clear()
                self._granted.clear()
            return
        while len(self._granted) > mark:
            standing, gpus, covered = self._granted.pop()
            standing.count(-gpus, covered)

    def _walk(self, key: ShareKey) -> tuple[int, frozenset[AttemptKey]]:
        """(covered GPUs, borrowed attempts) of a team that uses more than its guarantee."""
        known = self._walked.get(key)
        if known is not None:
            return known
        walked = self._walked[key] = self._ready(key).found(self._state.attempts.rows)
        return walked

    def _ready(self, key: ShareKey) -> Walk:
        """A team's walk, by what is guaranteed and pledged now."""
        quota, walk = self._state.quotas.get(key), self._walk_of(key)
        walk.guarantee(quota.guaranteed if quota is not None else 0)
        for job_id in self._repledged.pop(key, ()):
            pledge = self._state.pledges.get(job_id)
            walk.promise(job_id, None if pledge is None else promise_of(self._state, pledge))
        return walk


def _turns(attempt: Attempt) -> tuple[int, bool]:
    """What of an attempt the walk looks at and may change."""
    return (attempt.charged, attempt.ending is not None)
