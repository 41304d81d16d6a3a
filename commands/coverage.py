"""Which leases of a team are covered by its guarantee, and which are borrowed (R-12): the walk.

By class, high first, what may not be displaced before all; then by start. One that fits what is left of the guarantee
is covered, one that does not is borrowed and skipped. A job that has a pledge is walked as if it started now, so that
its start turns nobody's lease over; what is ending, or makes room for it, comes last: it pushes nobody out meanwhile.
"""

from collections.abc import Iterable

from commands.displace import untouchable
from commands.entities import Attempt, AttemptKey, Job, Pledge
from commands.state import State
from events.ids import GpuType, TeamId
from events.job import CLASS_RANK

_NOW = 1 << 62


def walk(
    state: State, guaranteed: int, attempts: Iterable[Attempt], pledges: Iterable[Pledge] = ()
) -> tuple[int, frozenset[AttemptKey]]:
    """(covered GPUs, borrowed attempts) of a team's attempts and pledges on one type."""
    jobs, left, borrowed, pledges = state.jobs, guaranteed, set(), list(pledges)
    going = {key for row in pledges for key in (*row.victims, *row.awaited)}
    turns = [
        (_turn(jobs[row.job_id], row.ending is not None or row.key in going, row.grant[1]), row.charged, row)
        for row in attempts
    ]
    waiting = [(_turn(jobs[row.job_id], False, _NOW), row.gpus, None) for row in pledges if row.job_id in jobs]
    for _, gpus, attempt in sorted([*turns, *waiting], key=lambda turn: turn[0]):
        if gpus <= left:
            left -= gpus
        elif attempt is not None:
            borrowed.add(attempt.key)
    return guaranteed - left, frozenset(borrowed)


def _turn(job: Job, ending: bool, start: int) -> tuple[bool, bool, int, int, str]:
    return (ending, not untouchable(job), CLASS_RANK[job.priority_class], start, job.id)


def borrowed_now(state: State, team: TeamId, gpu_type: GpuType) -> tuple[int, frozenset[AttemptKey]]:
    """(GPUs of the guarantee that are left, borrowed attempts), from the state alone: a look at every attempt."""
    quota = state.quotas.get((team, gpu_type))
    guaranteed = quota.guaranteed if quota is not None else 0
    attempts = [row for row in state.attempts.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    pledges = [row for row in state.pledges.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    covered, borrowed = walk(state, guaranteed, attempts, pledges)
    return guaranteed - covered, borrowed
