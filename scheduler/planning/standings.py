"""How every team stands on every GPU type: what it has, what it is owed, and what it used, for people to look at (R-12,
R-21, R-22). Pure. The figures are those that the planner goes by; nothing is decided here.
"""

from dataclasses import dataclass

from commands.entities import Job
from commands.evolve.fair import used_gpu_s
from commands.shape import least_charge
from commands.state import State
from events.ids import GpuType, Instant, TeamId
from events.job import JobState
from scheduler.planning.order import ONE
from scheduler.planning.plan import Planner
from scheduler.planning.quota import ShareKey


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamStanding:
    """One team on one type, in GPUs.

    `in_use`: charged; `pledged`: room that is made for its jobs. Both are walked: `covered` inside the guarantee,
    `borrowed` the rest. `waiting`: what its queued jobs ask for that wait for GPUs alone. `entitled`: the smaller of
    its guarantee and all that it asks for, waiting included (R-22). `used_gpu_s`: what it used, decaying, with what is
    charged in advance (R-21); `share`: that over its guarantee, where steady use of just the guarantee is 1; None
    without a guarantee.
    """

    team: TeamId
    gpu_type: GpuType
    guaranteed: int
    borrow_limit: int
    in_use: int
    pledged: int
    covered: int
    borrowed: int
    waiting: int
    entitled: int
    used_gpu_s: int
    share: float | None


def standings(planner: Planner, now: Instant, team: TeamId | None = None) -> list[TeamStanding]:
    """Of all teams, or of one, by team and type: those with a quota, with GPUs, or with use that still counts."""
    state, waiting = planner.state, _waiting(planner.state)
    keys = {*state.quotas.rows, *(key for key, use in state.usage.rows.items() if use.charged), *waiting}
    keys.update(key for key in state.fair_use.rows if _used(state, key, now))
    return [_standing(planner, key, waiting.get(key, 0), now) for key in sorted(keys) if team in (None, key[0])]


def _standing(planner: Planner, key: ShareKey, waiting: int, now: Instant) -> TeamStanding:
    state = planner.state
    quota, usage, now_standing = state.quotas.get(key), state.usage.get(key), planner.shares.standing(key)
    guaranteed = quota.guaranteed if quota is not None else 0
    in_use = usage.charged if usage is not None else 0
    use, used = max(in_use, now_standing.use), _used(state, key, now)
    return TeamStanding(
        team=key[0],
        gpu_type=key[1],
        guaranteed=guaranteed,
        borrow_limit=quota.borrow_limit if quota is not None else 0,
        in_use=in_use,
        pledged=use - in_use,
        covered=now_standing.covered,
        borrowed=use - now_standing.covered,
        waiting=waiting,
        entitled=min(guaranteed, use + waiting),
        used_gpu_s=used,
        share=planner.fair.fraction(*key, used) / ONE if guaranteed else None,
    )


def _used(state: State, key: ShareKey, now: Instant) -> int:
    use = state.fair_use.get(key)
    return max(0, used_gpu_s(use, now, state.policy.fair_half_life_h)) if use is not None else 0


def _waiting(state: State) -> dict[ShareKey, int]:
    """What queued jobs will be charged at least; of an array as many elements as may be there at once. What is pledged
    to a job is counted as pledged."""
    found: dict[ShareKey, int] = {}
    for job in state.jobs.rows.values():
        if job.state is JobState.QUEUED and job.eligible and job.id not in state.pledges:
            key = (job.spec.team, job.spec.gpu_type)
            found[key] = found.get(key, 0) + _asked(state, job)
    return found


def _asked(state: State, job: Job) -> int:
    return least_charge(state, job.spec) * job.grants_max
