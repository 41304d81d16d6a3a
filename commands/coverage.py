"""Which leases of a team are covered by its guarantee, and which are borrowed (R-12): the walk.

By class, high first, what may not be displaced before all; then in the order in which GPUs were granted or pledged. One
that fits what is left of the guarantee is covered, one that does not is borrowed and skipped. A pledge stands where its
lease will: its start turns nobody's lease over, and who borrows meanwhile comes after it. What is ending, or makes room
for it, comes last: it pushes nobody out meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence

from commands.displace import untouchable
from commands.entities import Attempt, AttemptKey, Job, Pledge
from commands.state import State
from events.ids import GpuType, TeamId
from events.job import CLASS_RANK

Turn = tuple[bool, int, tuple[int, bool], str]
"""(may be displaced, class rank, (the commit in which its GPUs were promised, they were granted without a pledge), its
job): lower goes first. It holds for as long as the job's class does."""

STRIDE = 32
"""Places from one mark of a trail to the next."""


def walk(
    state: State, guaranteed: int, attempts: Iterable[Attempt], pledges: Iterable[Pledge] = ()
) -> tuple[int, frozenset[AttemptKey]]:
    """(covered GPUs, borrowed attempts) of a team's attempts and pledges on one type."""
    rows = {row.key: row for row in attempts}
    in_order = sorted((turn_of(state.jobs[row.job_id], row), key) for key, row in rows.items())
    return walk_in_order(state, guaranteed, in_order, list(pledges), rows=rows)


class Trail:
    """Where a walk came by: another one of the same attempts goes on from the last mark before what is new. `borrowed`
    and `last` are what it found, and left for the end."""

    __slots__ = ("borrowed", "last", "marks")

    def __init__(self) -> None:
        self.marks: list[tuple[int, int, int, int, int]] = []
        """(place, GPUs of the guarantee left, pledges met, borrowed, left for the end) each STRIDE places."""
        self.borrowed: list[AttemptKey] = []
        self.last: list[tuple[int, AttemptKey]] = []

    def cut(self, place: int) -> None:
        """From that place on the attempts are others, or otherwise."""
        while self.marks and self.marks[-1][0] > place:
            self.marks.pop()

    def resume(self, guaranteed: int) -> tuple[int, int, int]:
        """(place, GPUs left, pledges met) from which to walk on."""
        place, left, met, borrowed, last = self.marks.pop() if self.marks else (0, guaranteed, 0, 0, 0)
        del self.borrowed[borrowed:], self.last[last:]
        return place, left, met


def walk_in_order(
    state: State,
    guaranteed: int,
    in_order: Sequence[tuple[Turn, AttemptKey]],
    pledges: list[Pledge],
    *,
    rows: Mapping[AttemptKey, Attempt] | None = None,
    trail: Trail | None = None,
) -> tuple[int, frozenset[AttemptKey]]:
    """The same, of attempts whose turns are known. `rows`: the attempts, where they are not those of the state.
    `trail`: of a walk before this one with the same guarantee; it is left as that of this one."""
    attempts, trail = state.attempts.rows if rows is None else rows, trail or Trail()
    going = {key for row in pledges for key in (*row.victims, *row.awaited)}
    promised = _promised(state, pledges)
    count = len(promised)
    first, left, met = trail.resume(guaranteed)
    del promised[count - met :]
    borrowed, last = trail.borrowed, trail.last
    for place in range(first, len(in_order), STRIDE):
        trail.marks.append((place, left, count - len(promised), len(borrowed), len(last)))
        for turn, key in in_order[place : place + STRIDE]:
            while promised and promised[-1][0] < turn:
                gpus = promised.pop()[1]
                left -= gpus if gpus <= left else 0
            row = attempts[key]
            gpus = row.charged
            if row.ending is not None or key in going:
                last.append((gpus, key))
            elif gpus <= left:
                left -= gpus
            else:
                borrowed.append(key)
    for _, gpus in reversed(promised):
        left -= gpus if gpus <= left else 0
    found = set(borrowed)
    for gpus, key in last:
        if gpus <= left:
            left -= gpus
        else:
            found.add(key)
    return guaranteed - left, frozenset(found)


def _promised(state: State, pledges: Iterable[Pledge]) -> list[tuple[Turn, int]]:
    """Turns of pledges with their GPUs, the last first."""
    jobs = state.jobs.rows
    return sorted([(turn_of_pledge(jobs[row.job_id], row), row.gpus) for row in pledges if row.job_id in jobs])[::-1]


def turn_of_pledge(job: Job, pledge: Pledge) -> Turn:
    """When the lease that it is there for will come."""
    return _turn(job, (pledge.ordered_n, False))


def turn_of(job: Job, attempt: Attempt) -> Turn:
    """When the attempt comes, unless it is ending or makes room: then it comes after all others."""
    promised = attempt.promised_n
    return _turn(job, (attempt.grant[1], True) if promised is None else (promised, False))


def _turn(job: Job, since: tuple[int, bool]) -> Turn:
    return (not untouchable(job), CLASS_RANK[job.priority_class], since, job.id)


def borrowed_now(state: State, team: TeamId, gpu_type: GpuType) -> tuple[int, frozenset[AttemptKey]]:
    """(GPUs of the guarantee that are left, borrowed attempts), from the state alone: a look at every attempt."""
    quota = state.quotas.get((team, gpu_type))
    guaranteed = quota.guaranteed if quota is not None else 0
    attempts = [row for row in state.attempts.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    pledges = [row for row in state.pledges.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    covered, borrowed = walk(state, guaranteed, attempts, pledges)
    return guaranteed - covered, borrowed
