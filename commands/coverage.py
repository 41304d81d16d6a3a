"""Which leases of a team are covered by its guarantee, and which are borrowed (R-12): the walk.

By class, high first, what may not be displaced before all; then in the order in which GPUs were granted or pledged. One
that fits what is left of the guarantee is covered, one that does not is borrowed and skipped. A pledge stands where its
lease will: its start turns nobody's lease over, and who borrows meanwhile comes after it. What is ending, or makes room
for it, comes last: it pushes nobody out meanwhile.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from commands.displace import untouchable
from commands.entities import Attempt, AttemptKey, Job, Pledge
from commands.state import State
from events.ids import GpuType, JobId, TeamId
from events.job import CLASS_RANK

Turn = tuple[bool, int, tuple[int, bool], str]
"""(may be displaced, class rank, (the commit in which its GPUs were promised, they were granted without a pledge), its
job): lower goes first. It holds for as long as the job's class does."""

NOBODY: AttemptKey = (JobId(""), 0)
"""Before every attempt."""
ANEW = -1
"""Of a step of a walk: to be taken anew."""


class Promise(NamedTuple):
    """What a pledge means for the walk: GPUs, when they come (None: its job is gone), and who is to go for it."""

    turn: Turn | None
    gpus: int
    going: tuple[AttemptKey, ...]


def promise_of(state: State, pledge: Pledge) -> Promise:
    """As the pledge and its job are now."""
    job = state.jobs.rows.get(pledge.job_id)
    turn = None if job is None else turn_of_pledge(job, pledge)
    return Promise(turn, pledge.gpus, (*pledge.victims, *pledge.awaited))


def walk(
    state: State, guaranteed: int, attempts: Iterable[Attempt], pledges: Iterable[Pledge] = ()
) -> tuple[int, frozenset[AttemptKey]]:
    """(covered GPUs, borrowed attempts) of a team's attempts and pledges on one type."""
    rows = {row.key: row for row in attempts}
    walked = Walk({key: turn_of(state.jobs[row.job_id], row) for key, row in rows.items()})
    walked.guarantee(guaranteed)
    for pledge in pledges:
        walked.promise(pledge.job_id, promise_of(state, pledge))
    return walked.found(rows)


class Walk:
    """A team's attempts on one type, and where the walk over them came by. It is taken anew from where something
    changed until it comes by as before: what follows is then as it was."""

    __slots__ = (
        "_borrowed",
        "_gathered",
        "_going",
        "_guaranteed",
        "_in_order",
        "_left",
        "_promised",
        "last",
        "promises",
        "turns",
    )

    def __init__(self, turns: Mapping[AttemptKey, Turn]) -> None:
        self.turns = dict(turns)
        self._in_order = sorted([(turn, key) for key, turn in turns.items()])
        self._left = [ANEW] * (len(turns) + 1)
        """GPUs of the guarantee left after each step, the last of which is past all attempts."""
        self._guaranteed = 0
        self.promises: dict[JobId, Promise] = {}
        self._promised: list[tuple[Turn, int]] = []
        self._going: set[AttemptKey] = set()
        self._gathered = True
        self._borrowed: set[AttemptKey] = set()
        self.last: set[AttemptKey] = set()
        """Attempts that come last."""

    def enter(self, key: AttemptKey, turn: Turn) -> None:
        """An attempt came."""
        self.turns[key] = turn
        place = self._place_of(turn, key)
        self._in_order.insert(place, (turn, key))
        self._left.insert(place, ANEW)

    def leave(self, key: AttemptKey) -> None:
        """It is gone."""
        turn = self.turns.pop(key)
        place = self._place_of(turn, key)
        assert self._in_order[place] == (turn, key), "it is not walked"
        del self._in_order[place], self._left[place]
        self._left[place] = ANEW
        self._borrowed.discard(key)
        self.last.discard(key)

    def changed(self, key: AttemptKey) -> None:
        """It has other GPUs, or is to go, or is so no more. Nothing if it is none of these."""
        turn = self.turns.get(key)
        if turn is not None:
            self._left[self._place_of(turn, key)] = ANEW

    def guarantee(self, guaranteed: int) -> None:
        """So many GPUs are guaranteed from now on."""
        if guaranteed != self._guaranteed:
            self._guaranteed = guaranteed
            self._left = [ANEW] * len(self._left)

    def promise(self, job_id: JobId, promise: Promise | None) -> None:
        """A job's pledge came, changed, or is gone (None)."""
        before = self.promises.pop(job_id, None)
        if promise is not None:
            self.promises[job_id] = promise
        self._gathered = False
        for one in (before, promise):
            if one is not None:
                if one.turn is not None:
                    self._left[self._place_of(one.turn, NOBODY)] = ANEW
                for key in one.going:
                    self.changed(key)

    def _gather(self) -> None:
        """What all pledges say together."""
        promises = self.promises.values()
        self._promised = sorted([(one.turn, one.gpus) for one in promises if one.turn is not None])
        self._going = {key for one in promises for key in one.going}
        self._gathered = True

    def last_turn(self) -> Turn | None:
        """Of the attempt or pledge that is walked last; None where there is none."""
        turns = [promise.turn for promise in self.promises.values() if promise.turn is not None]
        return max([*turns, *[turn for turn, _ in self._in_order[-1:]]], default=None)

    def without(self, gone: Collection[AttemptKey]) -> "Walk":
        """The same, were these attempts not there."""
        walked = Walk({key: turn for turn, key in self._in_order if key not in gone})
        walked.guarantee(self._guaranteed)
        for job_id, promise in self.promises.items():
            walked.promise(job_id, promise)
        return walked

    def found(self, rows: Mapping[AttemptKey, Attempt]) -> tuple[int, frozenset[AttemptKey]]:
        """(covered GPUs, borrowed attempts)."""
        if not self._gathered:
            self._gather()
        place = self._next_anew(0)
        while place < len(self._left):
            place = self._next_anew(self._steps(rows, place) + 1)
        left, over = self._left[-1], set[AttemptKey]()
        for _, key in sorted([(self.turns[key], key) for key in self.last]):
            gpus = rows[key].charged
            if gpus <= left:
                left -= gpus
            else:
                over.add(key)
        return self._guaranteed - left, frozenset(self._borrowed | over if over else self._borrowed)

    def _steps(self, rows: Mapping[AttemptKey, Attempt], first: int) -> int:
        """Walk from a place on until it comes by as before. Returns the place of that."""
        promised, going = self._promised, self._going
        lefts, in_order, borrowed, last = self._left, self._in_order, self._borrowed, self.last
        left, met = self._guaranteed, 0
        if first:
            left, met = lefts[first - 1], bisect_left(promised, (in_order[first - 1][0],))
        for place in range(first, len(in_order)):
            turn, key = in_order[place]
            while met < len(promised) and promised[met][0] < turn:
                gpus = promised[met][1]
                left -= gpus if gpus <= left else 0
                met += 1
            row = rows[key]
            gpus = row.charged
            borrowed.discard(key)
            last.discard(key)
            if row.ending is not None or key in going:
                last.add(key)
            elif gpus <= left:
                left -= gpus
            else:
                borrowed.add(key)
            if lefts[place] == left:
                return place
            lefts[place] = left
        for _, gpus in promised[met:]:
            left -= gpus if gpus <= left else 0
        lefts[-1] = left
        return len(in_order)

    def _place_of(self, turn: Turn, key: AttemptKey) -> int:
        return bisect_left(self._in_order, (turn, key))

    def _next_anew(self, place: int) -> int:
        """From a place on the first step to be taken anew; past all if there is none."""
        try:
            return self._left.index(ANEW, place)
        except ValueError:
            return len(self._left)


def turn_of_pledge(job: Job, pledge: Pledge) -> Turn:
    """When the lease that it is there for will come."""
    return _turn(job, (pledge.ordered_n, False))


def turn_of(job: Job, attempt: Attempt) -> Turn:
    """When the attempt comes, unless it is ending or makes room: then it comes after all others."""
    promised = attempt.promised_n
    return _turn(job, (attempt.grant[1], True) if promised is None else (promised, False))


def _turn(job: Job, since: tuple[int, bool]) -> Turn:
    return (*tier_of(job), since, job.id)


def tier_of(job: Job) -> tuple[bool, int]:
    """What of its turn is known before it is granted anything: lower goes first."""
    return (not untouchable(job), CLASS_RANK[job.priority_class])


def borrowed_now(state: State, team: TeamId, gpu_type: GpuType) -> tuple[int, frozenset[AttemptKey]]:
    """(GPUs of the guarantee that are left, borrowed attempts), from the state alone: a look at every attempt."""
    quota = state.quotas.get((team, gpu_type))
    guaranteed = quota.guaranteed if quota is not None else 0
    attempts = [row for row in state.attempts.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    pledges = [row for row in state.pledges.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    covered, borrowed = walk(state, guaranteed, attempts, pledges)
    return guaranteed - covered, borrowed
