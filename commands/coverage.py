"""Which leases of a team are covered by its guarantee, and which are borrowed (R-12): the walk.

By class, high first, what may not be displaced before all; then by start. One that fits what is left of the guarantee
is covered, one that does not is borrowed and skipped. What is pledged to the team's jobs is covered before all.
"""

from collections.abc import Iterable

from commands.displace import untouchable
from commands.entities import Attempt, AttemptKey
from commands.state import State
from events.ids import GpuType, TeamId
from events.job import CLASS_RANK


def walk(state: State, guarantee_left: int, attempts: Iterable[Attempt]) -> tuple[int, frozenset[AttemptKey]]:
    """(covered GPUs, borrowed attempts) of a team's attempts on one type."""
    left, borrowed = guarantee_left, set()

    def place(attempt: Attempt) -> tuple[bool, int, int, str]:
        job = state.jobs[attempt.job_id]
        return (not untouchable(job), CLASS_RANK[job.priority_class], attempt.grant[1], attempt.job_id)

    for attempt in sorted(attempts, key=place):
        if attempt.charged <= left:
            left -= attempt.charged
        else:
            borrowed.add(attempt.key)
    return guarantee_left - left, frozenset(borrowed)


def borrowed_now(state: State, team: TeamId, gpu_type: GpuType) -> tuple[int, frozenset[AttemptKey]]:
    """(GPUs of the guarantee that are left, borrowed attempts), from the state alone: a look at every attempt."""
    quota = state.quotas.get((team, gpu_type))
    pledged = sum(
        pledge.gpus for pledge in state.pledges.rows.values() if (pledge.team, pledge.gpu_type) == (team, gpu_type)
    )
    left = (quota.guaranteed if quota is not None else 0) - pledged
    own = [row for row in state.attempts.rows.values() if (row.team, row.gpu_type) == (team, gpu_type)]
    covered, borrowed = walk(state, left, own)
    return left - covered, borrowed
