"""What a team has used, for its fair share (R-21): accrued as it runs, and in advance; settled at release; decaying.

Integers only: GPU-seconds, a decay in whole hours by fixed point (2^-(1/168) for a half-life of 7 days), so that
every process finds the same figure. What runs does not decay before it is settled.
"""

from functools import cache

from commands.entities import Attempt, FairUse, Job
from commands.rows import replacer
from commands.state import State
from events.ids import GpuType, Instant, TeamId

ShareKey = tuple[TeamId, GpuType]
HOUR_S = 3_600
ONE = 1 << 32
_counted = replacer(FairUse, "settled", "settled_hour", "running", "since", "advance")


def advance_s(job: Job, most_s: int) -> int:
    """Seconds that are charged in advance for each GPU: its run-time limit, at most `most_s`."""
    limit_s = job.max_runtime_s
    return most_s if limit_s is None or limit_s > most_s else limit_s


def granted(state: State, key: ShareKey, gpus: int, advance_gpu_s: int) -> None:
    """GPUs that are granted now begin to count."""
    _count(state, key, gpus, state.meta.at, settled=0, advance_gpu_s=advance_gpu_s)


def returned(state: State, attempt: Attempt, gpus: int) -> None:
    """GPUs of a lost node that is back count again, from now on; as `ended` reckons from the grant, the time between is
    taken off first."""
    away_s = (state.meta.at - attempt.granted_at) // 1000
    _recount(state, attempt, gpus, settled=-gpus * away_s)


def ended(state: State, attempt: Attempt, gpus: int) -> None:
    """`gpus` of an attempt count no more: what they ran is settled, what was charged in advance is given back."""
    ran_s = (state.meta.at - attempt.granted_at) // 1000
    _recount(state, attempt, -gpus, settled=gpus * ran_s)


def _recount(state: State, attempt: Attempt, gpus: int, settled: int) -> None:
    """GPUs of an attempt that count again, or no more."""
    key = (attempt.team, attempt.gpu_type)
    _count(state, key, gpus, attempt.granted_at, settled, gpus * attempt.advance_s)


def _count(state: State, key: ShareKey, gpus: int, since: Instant, settled: int, advance_gpu_s: int) -> None:
    hour = state.meta.at // 1000 // HOUR_S
    now = state.fair_use.get(key) or FairUse(team=key[0], gpu_type=key[1], settled_hour=hour)
    state.fair_use.put(
        key,
        _counted(
            now,
            settled=decayed(now.settled, hour - now.settled_hour, state.policy.fair_half_life_h) + settled,
            settled_hour=max(hour, now.settled_hour),
            running=now.running + gpus,
            since=now.since + gpus * (since // 1000),
            advance=now.advance + advance_gpu_s,
        ),
    )


def used_gpu_s(use: FairUse, now: Instant, half_life_h: int) -> int:
    """GPU-seconds used by `now`, those in advance included."""
    second = now // 1000
    accrued = use.running * second - use.since
    return decayed(use.settled, second // HOUR_S - use.settled_hour, half_life_h) + accrued + use.advance


def decayed(amount: int, hours: int, half_life_h: int) -> int:
    """An amount after so many hours, by fixed-point powers; never grows, and ends at 0."""
    if hours <= 0 or amount == 0:
        return amount
    factor, power = ONE, _decay_per_hour(half_life_h)
    while hours:
        if hours & 1:
            factor = factor * power >> 32
        power = power * power >> 32
        hours >>= 1
    return amount * factor >> 32


@cache
def _decay_per_hour(half_life_h: int) -> int:
    """2^(-1/half_life) x 2^32, rounded down: the largest x with 2 x^h <= 2^32h. In integers, so the same everywhere."""
    low, high = 0, ONE
    while high - low > 1:
        middle = (low + high) // 2
        if 2 * middle**half_life_h <= ONE**half_life_h:
            low = middle
        else:
            high = middle
    return low
