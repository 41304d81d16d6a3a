"""An attempt as a victim: its level, its rank among those of that level, what it lends and what it goes on without.

What holds now, and until when time alone leaves it so. Who asks, and when, is in victims.py.
"""

from commands.displace import saved_at, shielded_until, untouchable
from commands.entities import Attempt, Job
from commands.policy import Policy
from commands.state import State
from events.ids import Instant
from events.job import CLASS_RANK, PriorityClass
from scheduler.planning.elastic import lent_ranks
from scheduler.planning.preempt_ground import AWAITED, BORROWED, COVERED, NEVER, SHIELDED, Entry, entry_of, rank_of
from scheduler.planning.quota import Shares

NO_RANKS: frozenset[int] = frozenset()


def victim_of(
    state: State, shares: Shares, attempt: Attempt, *, now: Instant, borrows: bool
) -> tuple[Entry, list[Instant]]:
    """The attempt at `now`, and when time alone changes that. `borrows`: its leases are borrowed."""
    policy, job, ranks = state.policy, state.jobs.rows[attempt.job_id], attempt.ranks
    lent = lent_ranks(state, job, attempt, borrows)
    kept = attempt.charged - sum([ranks[rank][1].bit_count() for rank in lent])
    if borrows and lent:
        # Would it be covered, had it given back what it has lent? Then that is all that it can lose as a borrower.
        borrows = kept > shares.covered_left((attempt.team, attempt.gpu_type))
    level, until = level_of(policy, now, job, attempt, borrowed=borrows)
    overdue = _overdue_at(policy, attempt)
    going = frozenset(attempt.stopping) if now < overdue else NO_RANKS
    lost = (-saved_at(job, attempt), attempt.team, -attempt.granted_at)
    rank = rank_of((kept, *lost, attempt.job_id, attempt.number))
    nodes = (ranks[0][0],) if len(ranks) == 1 else tuple(dict.fromkeys([index for index, _ in ranks]))
    entry = entry_of((level, attempt.gpu_type, rank, nodes, lent, going))
    return entry, [at for at in (until, overdue) if at is not None and at > now]


def _overdue_at(policy: Policy, attempt: Attempt) -> Instant:
    """When ranks that an elastic attempt goes on without should be gone, and are not counted on any more."""
    if attempt.stopping_at is None:
        return Instant(0)
    return Instant(attempt.stopping_at + (policy.grace_s_max + policy.pledge_margin_s) * 1000)


def level_of(policy: Policy, now: Instant, job: Job, attempt: Attempt, *, borrowed: bool) -> tuple[int, Instant | None]:
    """The level of an attempt, and when time alone changes it."""
    margin_ms = policy.pledge_margin_s * 1000
    if attempt.ending_at is not None:
        given_up = Instant(attempt.ending_at + attempt.grace_s * 1000 + margin_ms)
        return (AWAITED, given_up) if now < given_up else (NEVER, None)
    due = None if attempt.limit_at is None else Instant(attempt.limit_at - policy.await_ends_s * 1000)
    if due is not None and now >= due:
        given_up = Instant(due + policy.await_ends_s * 1000 + margin_ms)
        return (AWAITED, given_up) if now < given_up else (NEVER, None)
    if untouchable(job) or len(job.open_attempts) > 1:
        return NEVER, due
    shielded = shielded_until(policy, now, job, attempt)
    if shielded > now:
        until = shielded if due is None else min(shielded, due)
        return (SHIELDED if borrowed else NEVER), until
    class_level = CLASS_RANK[PriorityClass.PREEMPTIBLE] - CLASS_RANK[job.priority_class]
    return (BORROWED if borrowed else COVERED) + class_level, due
