"""Which leases of a team are covered by its guarantee, and which are borrowed (R-12): the walk.

By class, high first, what may not be displaced before all; then in the order in which GPUs were granted or pledged. One
that fits what is left of the guarantee is covered, one that does not is borrowed and skipped. A pledge stands where its
lease will: its start turns nobody's lease over, and who borrows meanwhile comes after it. What is ending, or makes room
for it, comes last: it pushes nobody out meanwhile.
"""

from collections.abc import Iterable, Mapping

from commands.displace import untouchable
from commands.entities import Attempt, AttemptKey, Job, Pledge
from commands.state import State
from events.ids import GpuType, TeamId
from events.job import CLASS_RANK

Turn = tuple[bool, int, tuple[int, bool], str]
"""(may be displaced, class rank, (the commit in which its GPUs were promised, they were granted without a pledge), its
job): lower goes first. It holds for as long as the job's class does."""


def walk(
    state: State, guaranteed: int, attempts: Iterable[Attempt], pledges: Iterable[Pledge] = ()
) -> tuple[int, frozenset[AttemptKey]]:
    """(covered GPUs, borrowed attempts) of a team's attempts and pledges on one type."""
    rows = {row.key: row for row in attempts}
    in_order = sorted((turn_of(state.jobs[row.job_id], row), key) for key, row in rows.items())
    return walk_in_order(state, guaranteed, in_order, list(pledges), rows=rows)


def walk_in_order(
    state: State,
    guaranteed: int,
    in_order: Iterable[tuple[Turn, AttemptKey]],
    pledges: list[Pledge],
    *,
    rows: Mapping[AttemptKey, Attempt] | None = None,
) -> tuple[int, frozenset[AttemptKey]]:
    """The same, of attempts whose turns are known. `rows`: the attempts, where they are not those of the state."""
    attempts = state.attempts.rows if rows is None else rows
    left, borrowed = guaranteed, set()
    going = {key for row in pledges for key in (*row.victims, *row.awaited)}
    promised = _promised(state, pledges)
    go: list[tuple[int, AttemptKey]] = []
    for turn, key in in_order:
        while promised and promised[-1][0] < turn:
            gpus = promised.pop()[1]
            left -= gpus if gpus <= left else 0
        row = attempts[key]
        gpus = row.charged
        if row.ending is not None or key in going:
            go.append((gpus, key))
        elif gpus <= left:
            left -= gpus
        else:
            borrowed.add(key)
    for _, gpus in reversed(promised):
        left -= gpus if gpus <= left else 0
    for gpus, key in go:
        if gpus <= left:
            left -= gpus
        else:
            borrowed.add(key)
    return guaranteed - left, frozenset(borrowed)


def _promised(state: State, pledges: Iterable[Pledge]) -> list[tuple[Turn, int]]:
    """Turns of pledges with their GPUs, the last first."""
    jobs = state.jobs.rows
    turns = [(_turn(jobs[row.job_id], (row.ordered_n, False)), row.gpus) for row in pledges if row.job_id in jobs]
    return sorted(turns, reverse=True)


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
