"""Elastic attempts that grow or shrink, as facts (R-44), each checked against the newest state."""

from commands.decide.attempts import Draft
from commands.decide.elastic import staying
from commands.entities import Attempt, AttemptKey, Job, NodeState
from commands.plan import Resize
from commands.shape import breaks_hint, demanded, takes_whole_nodes
from commands.state import State
from events.gang import GangResized, ResizeReason
from events.ids import GpuMask, JobId
from events.job import JobSpec


def size_allowed(spec: JobSpec, replicas: int) -> bool:
    """May the gang start with so many replicas? An elastic one with any number in its range."""
    if spec.elastic is None:
        return replicas == spec.replicas
    return spec.elastic.min_replicas <= replicas <= spec.elastic.max_replicas


def grow(draft: Draft, resizes: tuple[Resize, ...]) -> list[tuple[JobId, str]]:
    """Growth that may be; the rest with why not."""
    stale: list[tuple[JobId, str]] = []
    for resize in resizes:
        why = _objection(draft.state, resize)
        if why is not None:
            stale.append((resize.key[0], why))
            continue
        grown = tuple((index, GpuMask(mask)) for index, mask in resize.grown)
        job_id, number = resize.key
        draft.add(GangResized(job_id=job_id, attempt=number, because=ResizeReason.GREW, grown=grown))
    return stale


def shrink(draft: Draft, key: AttemptKey, stopped: tuple[int, ...], on_behalf_of: JobId) -> None:
    """Ranks of an attempt make room for a job."""
    job = draft.state.jobs[key[0]]
    grace_s = min(job.spec.checkpoint.grace_s, draft.state.policy.grace_s_max)
    draft.add(
        GangResized(
            job_id=key[0],
            attempt=key[1],
            because=ResizeReason.GAVE_BACK,
            stopped=stopped,
            grace_s=grace_s,
            on_behalf_of=on_behalf_of,
        )
    )


def shrink_objection(state: State, key: AttemptKey, stopped: tuple[int, ...]) -> str | None:
    """Why the attempt may not go on without these ranks."""
    attempt = state.attempts.get(key)
    if attempt is None or attempt.ending is not None:
        return "attempt_ends"
    elastic = state.jobs[attempt.job_id].spec.elastic
    if elastic is None:
        return "not_elastic"
    stay = staying(state, attempt)
    if 0 in stopped or not stay.issuperset(stopped) or len(stay) - len(stopped) < elastic.min_replicas:
        return "too_few_ranks"
    return None


def _objection(state: State, resize: Resize) -> str | None:
    attempt = state.attempts.get(resize.key)
    if attempt is None or attempt.ending is not None or attempt.running_at is None:
        return "attempt_not_running"
    job = state.jobs[attempt.job_id]
    if job.spec.elastic is None:
        return "not_elastic"
    if len(staying(state, attempt)) + len(resize.grown) > job.spec.elastic.max_replicas:
        return "too_many_ranks"
    return _over_quota(state, attempt, resize) or _not_free(state, job, resize) or _breaks_hint(state, attempt, resize)


def _over_quota(state: State, attempt: Attempt, resize: Resize) -> str | None:
    key = (attempt.team, attempt.gpu_type)
    quota, usage = state.quotas.get(key), state.usage.get(key)
    limit = quota.guaranteed + quota.borrow_limit if quota is not None else 0
    gpus = sum(mask.bit_count() for _, mask in resize.grown)
    return "over_quota" if (usage.charged if usage is not None else 0) + gpus > limit else None


def _breaks_hint(state: State, attempt: Attempt, resize: Resize) -> str | None:
    """The hint holds for all ranks that run on, new ones included (C-30)."""
    stay = staying(state, attempt)
    ranks = tuple(placed for rank, placed in enumerate(attempt.ranks) if rank in stay) + resize.grown
    return "hint_broken" if breaks_hint(state, demanded(state.jobs[attempt.job_id].spec), ranks) else None


def _not_free(state: State, job: Job, resize: Resize) -> str | None:
    claimed: dict[int, int] = {}
    for index, mask in resize.grown:
        node = state.nodes.get(index)
        if node is None or node.gpu_type != job.spec.gpu_type:
            return "no_such_node"
        if node.state is not NodeState.UP or node.drained is not None or node.confirmed != state.meta.epoch:
            return "node_not_in_service"
        if mask & ~node.free or mask & claimed.get(index, 0):
            return "gpus_not_free"
        if mask.bit_count() < job.spec.gpus_per_replica or node.gpu_memory_gb < job.spec.gpu_memory_gb_min:
            return "too_few_gpus"
        claimed[index] = claimed.get(index, 0) | mask
        ranks = len(staying(state, state.attempts[resize.key])) + len(resize.grown)
        others = any(lease[:2] != resize.key for lease in node.leases)
        if others and takes_whole_nodes(job.spec, len(node.gpus), ranks):
            return "node_shared"
    return None
