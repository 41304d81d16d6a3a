"""Which leases of a team are covered by its guarantee, and which are borrowed (R-12): the walk.

By class, high first, what may not be displaced before all; then in the order in which GPUs were granted or pledged. One
that fits what is left of the guarantee is covered, one that does not is borrowed and skipped. A pledge stands where its
lease will: its start turns nobody's lease over, and who borrows meanwhile comes after it. What is ending, or makes room
for it, comes last: it pushes nobody out meanwhile.
"""

from collections.abc import Iterable

from commands.displace import untouchable
from commands.entities import Attempt, AttemptKey, Job, Pledge
from commands.state import State
from events.ids import GpuType, TeamId
from events.job import CLASS_RANK

_Turn = tuple[bool, bool, int, tuple[int, bool], str]


def walk(
    state: State, guaranteed: int, attempts: Iterable[Attempt], pledges: Iterable[Pledge] = ()
) -> tuple[int, frozenset[AttemptKey]]:
    """(covered GPUs, borrowed attempts) of a team's attempts and pledges on one type."""
    jobs, left, borrowed, pledges = state.jobs, guaranteed, set(), list(pledges)
    going = {key for row in pledges for key in (*row.victims, *row.awaited)}
    turns = [(_turn(jobs[row.job_id], row, row.key in going), row.charged, row) for row in attempts]
    coming = [
        (_place(jobs[row.job_id], (row.ordered_n, False)), row.gpus, None) for row in pledges if row.job_id in jobs
    ]
    for _, gpus, attempt in sorted([*turns, *coming], key=lambda turn: turn[0]):
        if gpus <= left:
            left -= gpus
        elif attempt is not None:
            borrowed.add(attempt.key)
    return guaranteed - left, frozenset(borrowed)


def _turn(job: Job, attempt: Attempt, makes_room: bool) -> _Turn:
    promised = attempt.promised_n
    since = (attempt.grant[1], True) if promised is None else (promised, False)
    return _place(job, since, attempt.ending is not None or makes_room)


def _place(job: Job, since: tuple[int, bool], goes: bool = False) -> _Turn:
    """`since`: the commit in which its GPUs were promised, and whether they were granted without a pledge."""
    return (goes, not untouchable(job), CLASS_RANK[job.priority_class], since, job.id)


def borrowed_now(state: State, team: TeamId, gpu_type: GpuType) -> tuple[int, frozenset[AttemptKey]]:
    """(GPUs of the guarantee that are left, borrowed attempts), from the state alone: a look at every attempt."""
    quota = state.quotas.get((team, gpu_type))
    guaranteed = quota.guaranteed if quota is not None else 0
    attempts = [row for row in state.attempts.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    pledges = [row for row in state.pledges.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    covered, borrowed = walk(state, guaranteed, attempts, pledges)
    return guaranteed - covered, borrowed
