"""Pledges: room that was made for a job is its own until it starts (R-45). The one place where a pledge ends."""

from commands.entities import AttemptKey, NodeState, Pledge
from commands.plan import Placement
from commands.state import State
from events.ids import JobId, NodeIndex
from events.job import JobState
from events.preemption import PledgeEnd
from scheduler.planning.quota import ShareKey
from scheduler.planning.trial import Trial


def settle(trial: Trial) -> tuple[list[Placement], list[tuple[JobId, PledgeEnd]]]:
    """Starts of the jobs whose pledged GPUs are all free now, and the pledges that are over."""
    placements: list[Placement] = []
    over: list[tuple[JobId, PledgeEnd]] = []
    starting: dict[ShareKey, int] = {}
    for job_id in sorted(trial.state.pledges.rows):
        pledge = trial.state.pledges[job_id]
        key = (pledge.team, pledge.gpu_type)
        end = _end(trial, pledge, starting.get(key, 0))
        if end is not None:
            over.append((job_id, end))
        if end is not None and end is not PledgeEnd.STARTED:
            trial.unpledged.add(pledge.gpu_type)
        if end is PledgeEnd.STARTED:
            placements.append(Placement(job_id=job_id, ranks=pledge.ranks))
            starting[key] = starting.get(key, 0) + pledge.gpus
    return placements, over


def _end(trial: Trial, pledge: Pledge, starting: int) -> PledgeEnd | None:
    """Why the pledge ends with this cycle; None where it stands. `starting`: GPUs of its team that start before it.

    It is broken where its placement cannot come about any more, as its quota was lowered, say; and too late where
    somebody who was to go is still there when his grace is long over. In both cases the job is planned anew.
    """
    state = trial.state
    job = state.jobs.get(pledge.job_id)
    if job is None or job.state is not JobState.QUEUED or job.held:
        return PledgeEnd.GONE
    free = _free(state, pledge)
    if free is None or _over_limit(state, pledge, starting):
        return PledgeEnd.BROKEN
    if free:
        return PledgeEnd.STARTED
    late = trial.now > _given_up_from(state, pledge) and trial.now > given_up_at(state, pledge)
    return PledgeEnd.TOO_LATE if late else None


def _over_limit(state: State, pledge: Pledge, starting: int) -> bool:
    """Would its start be over guarantee plus borrow limit, as they are now (R-12)?"""
    key = (pledge.team, pledge.gpu_type)
    quota, usage = state.quotas.get(key), state.usage.get(key)
    limit = quota.guaranteed + quota.borrow_limit if quota is not None else 0
    return (usage.charged if usage is not None else 0) + starting + pledge.gpus > limit


def _free(state: State, pledge: Pledge) -> bool | None:
    """Could it start on its nodes now? None: not any more, as a node is out of service, or another than it was, a GPU
    faulty, or in the hands of somebody who is not to go."""
    free, going = True, {*pledge.victims, *pledge.awaited}
    for index, mask in pledge.ranks:
        node = state.nodes[index]
        answers = node.state is NodeState.UP
        if not (answers or node.state is NodeState.SUSPECT) or node.drained is not None or node.broken & mask:
            return None
        if mask & ~node.pledged:
            return None  # it registered with another inventory: nothing of that was pledged
        if node.used & mask and _stays(state, index, mask, going):
            return None
        free = free and answers and not node.used & mask and node.confirmed == state.meta.epoch
    return free


def _stays(state: State, index: NodeIndex, mask: int, going: set[AttemptKey]) -> bool:
    for job_id, number, rank in state.nodes[index].leases:
        key = (job_id, number)
        if key not in going:
            attempt = state.attempts[key]
            if rank not in attempt.stopping and attempt.ranks[rank][1] & mask:
                return True
    return False


def _given_up_from(state: State, pledge: Pledge) -> int:
    """It is not given up before, whoever is still there."""
    policy = state.policy
    return pledge.at + (policy.await_ends_s + policy.pledge_margin_s) * 1000


def given_up_at(state: State, pledge: Pledge) -> int:
    """When the last of those that are still there should have been gone, and a margin."""
    margin_ms, ends = state.policy.pledge_margin_s * 1000, [_given_up_from(state, pledge)]
    for key in (*pledge.victims, *pledge.awaited):
        attempt = state.attempts.get(key)
        if attempt is not None and attempt.ending_at is not None:
            ends.append(attempt.ending_at + attempt.grace_s * 1000 + margin_ms)
    ends += [end + margin_ms for end in _ends_of_shrinking(state, pledge)]
    return max(ends)


def _ends_of_shrinking(state: State, pledge: Pledge) -> list[int]:
    """When ranks that elastic attempts go on without should be gone from the pledged nodes."""
    ends: list[int] = []
    for index, _ in pledge.ranks:
        for job_id, number, rank in state.nodes[index].leases:
            attempt = state.attempts[job_id, number]
            if attempt.stopping_at is not None and rank in attempt.stopping:
                grace_s = min(state.jobs[job_id].spec.checkpoint.grace_s, state.policy.grace_s_max)
                ends.append(attempt.stopping_at + grace_s * 1000)
    return ends
