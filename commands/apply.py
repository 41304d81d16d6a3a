"""The applier: turns a plan into facts, after checking every invariant. The only place where allocations come from.

A placement that the newest state does not allow any more is left out, with its reason; the others go on (C-6, C-46).
"""

from commands.apply_holds import end_holds, make_holds
from commands.apply_resizes import grow, size_allowed
from commands.apply_rooms import end_pledges, make_rooms, start_pledged
from commands.decide.attempts import Draft
from commands.entities import Job, NodeState
from commands.plan import Placement, Plan
from commands.shape import breaks_hint, demanded, takes_whole_nodes
from commands.state import State
from events.gang import GangAllocated
from events.ids import GpuMask, Instant, JobId, element_id
from events.job import JobElementMade, JobHeld, JobState
from events.leadership import InputRefused


def apply(draft: Draft, plan: Plan) -> list[tuple[JobId, str]]:
    """Facts for what holds of a plan, added to `draft`; the rest by job, with why it does not."""
    for job_id, why in plan.poisoned:
        if (job := draft.state.jobs.get(job_id)) is None or job.state is not JobState.QUEUED:
            continue
        draft.add(InputRefused(input=job_id, why=why[:300]))
        draft.add(JobHeld(job_id=job_id))
    end_pledges(draft, plan.pledges_over)
    end_holds(draft, plan.holds_over)
    stale = grow(draft, plan.resizes)
    for placement in plan.placements:
        objected = objection(draft.state, placement)
        if objected is not None:
            stale.append((placement.job_id, objected))
            continue
        promised_n = start_pledged(draft, placement.job_id)
        draft.add(_allocated(draft.state, _job_to_grant(draft, placement.job_id), placement, promised_n))
    return stale + make_rooms(draft, plan.rooms, plan.n) + make_holds(draft, plan.holds)


def objection(state: State, placement: Placement) -> str | None:
    """Why the placement may not be made, or None."""
    job = state.jobs.get(placement.job_id)
    if job is None or job.state is not JobState.QUEUED:
        return "job_not_queued"
    if job.held:
        return "job_held"
    if not job.eligible:
        return "job_not_eligible"
    if job.not_before_at is not None and state.meta.at < job.not_before_at:
        return "job_waits_out_a_backoff"
    if not size_allowed(job.spec, len(placement.ranks)):
        return "ranks_missing"
    if (why := _over_quota(state, job, placement)) is not None:
        return why
    claimed: dict[int, int] = {}
    pledge = state.pledges.get(job.id)
    if pledge is not None and pledge.ranks != placement.ranks:
        return "not_as_pledged"
    for index, mask in placement.ranks:
        why = _rank_objection(state, job, index, mask, claimed.get(index, 0), mask if pledge is not None else 0)
        if why is not None:
            return why
        claimed[index] = claimed.get(index, 0) | mask
    if any(_node_divided(state, job, index, mask, len(placement.ranks)) for index, mask in claimed.items()):
        return "node_divided"
    return "hint_broken" if breaks_hint(state, demanded(job.spec), placement.ranks) else None


def _rank_objection(state: State, job: Job, index: int, mask: int, claimed: int, own: int) -> str | None:
    """`own`: those of the mask that are pledged to the job itself."""
    node = state.nodes.get(index)  # type: ignore[arg-type]
    if node is None or node.gpu_type != job.spec.gpu_type:
        return "no_such_node"
    if node.state is not NodeState.UP or node.drained is not None:
        return "node_not_in_service"
    if node.confirmed != state.meta.epoch:
        return "node_not_confirmed"
    free = node.free | own & node.pledged & ~node.used & ~node.broken
    if mask & ~free or mask & claimed:
        return "gpus_not_free"
    if mask.bit_count() < job.spec.gpus_per_replica:
        return "too_few_gpus"
    if node.gpu_memory_gb < job.spec.gpu_memory_gb_min:
        return "gpu_memory"
    return None


def _node_divided(state: State, job: Job, index: int, claimed: int, ranks: int) -> bool:
    """From a node's worth up every GPU of a node is claimed (R-32)."""
    node = state.nodes[index]  # type: ignore[index]
    return takes_whole_nodes(job.spec, len(node.gpus), ranks) and claimed != node.all_gpus


def _over_quota(state: State, job: Job, placement: Placement) -> str | None:
    """Use stays within guarantee plus borrow limit (R-12)."""
    key = (job.spec.team, job.spec.gpu_type)
    quota, usage = state.quotas.get(key), state.usage.get(key)
    gpus = sum(mask.bit_count() for _, mask in placement.ranks)
    limit = quota.guaranteed + quota.borrow_limit if quota is not None else 0
    return "over_quota" if (usage.charged if usage is not None else 0) + gpus > limit else None


def _job_to_grant(draft: Draft, job_id: JobId) -> Job:
    """The job itself; of an array its next element, which with this is a job of its own (R-7)."""
    job = draft.state.jobs[job_id]
    if job.spec.array is None or job.elements is None:
        return job
    index = job.spec.array.first + job.elements.made
    element = element_id(job.id, index)
    draft.add(JobElementMade(job_id=element, array=job.id, index=index))
    return draft.state.jobs[element]


def _allocated(state: State, job: Job, placement: Placement, promised_n: int | None) -> GangAllocated:
    left_s = None if job.max_runtime_s is None else max(1, job.max_runtime_s - job.consumed_s)
    return GangAllocated(
        job_id=job.id,
        attempt=job.attempt + 1,
        ranks=tuple((index, GpuMask(mask)) for index, mask in placement.ranks),
        limit_at=None if left_s is None else Instant(state.meta.at + left_s * 1000),
        fallback=placement.fallback,
        promised_n=promised_n,
    )
