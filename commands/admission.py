"""Admission at submit: refuse what can never run here, naming the field and the limit (R-11). Form was checked before.

The guards run in the order in which they are listed; the first that fails is the answer.
"""

from collections.abc import Callable
from dataclasses import replace

from commands.displace import borrows_too_long, protected
from commands.policy import Preset
from commands.refusal import Refusal, RefusalCode
from commands.shape import (
    ANYWHERE,
    SizeFacts,
    TypeFacts,
    charged_gpus,
    demanded,
    memories,
    pool_facts,
    replicas_min,
    type_facts,
)
from commands.state import State
from events.ids import TeamId
from events.job import JobSpec, PriorityClass


def admit(state: State, spec: JobSpec) -> Refusal | None:
    """Why `spec` can never run in this cluster, or None where it can."""
    for guard in BEFORE_HARDWARE:
        if (refusal := guard(state, spec)) is not None:
            return refusal
    facts = type_facts(state, spec, spec.gpu_memory_gb_min)
    if facts is None:
        return _no_hardware(state, spec)
    for fits in AGAINST_HARDWARE:
        if (refusal := fits(state, spec, facts)) is not None:
            return refusal
    return None


def _team(state: State, spec: JobSpec) -> Refusal | None:
    if (spec.team, spec.gpu_type) in state.quotas or any(team == spec.team for team, _ in state.quotas):
        return None
    return Refusal(RefusalCode.UNKNOWN_TEAM, "team", spec.team, "a team with a quota")


def _class(state: State, spec: JobSpec) -> Refusal | None:
    return class_refusal(state, spec.team, spec.priority_class)


def class_refusal(state: State, team_id: TeamId, wanted: PriorityClass) -> Refusal | None:
    """Why the team may not use a class, or None where it may."""
    team = state.teams.get(team_id)
    allowed = state.policy.default_classes if team is None or team.classes is None else team.classes
    if wanted in allowed:
        return None
    return Refusal(RefusalCode.CLASS_NOT_ALLOWED, "priority_class", wanted, ", ".join(allowed) or "none")


def _runtime(state: State, spec: JobSpec) -> Refusal | None:
    longest = state.policy.max_runtime_max_s
    if spec.max_runtime_s is None:
        if spec.priority_class is PriorityClass.PROD_SERVING:
            return None
        return Refusal(RefusalCode.NO_MAX_RUNTIME, "max_runtime", "unlimited", f"{longest}s")
    if spec.max_runtime_s <= longest:
        return None
    return Refusal(RefusalCode.MAX_RUNTIME_TOO_LONG, "max_runtime", f"{spec.max_runtime_s}s", f"{longest}s")


def _image(state: State, spec: JobSpec) -> Refusal | None:
    allowed = state.policy.image_registries
    if spec.image is None or not allowed or spec.image.startswith(allowed):
        return None
    return Refusal(RefusalCode.IMAGE_NOT_ALLOWED, "image", spec.image, ", ".join(allowed))


def _dependencies(state: State, spec: JobSpec) -> Refusal | None:
    """Only jobs that are there, or are remembered, can be waited for: so no circle can come about."""
    for place, dependency in enumerate(spec.depends_on):
        if dependency.job not in state.jobs and dependency.job not in state.ended:
            field, limit = f"depends_on[{place}].job", "a job of this cluster"
            return Refusal(RefusalCode.UNKNOWN_DEPENDENCY, field, dependency.job, limit)
    return None


def _array(state: State, spec: JobSpec) -> Refusal | None:
    if spec.array is None:
        return None
    count, most = spec.array.last - spec.array.first + 1, state.policy.array_elements_max
    if count <= most:
        return None
    return Refusal(RefusalCode.ARRAY_TOO_LARGE, "array", f"{count} elements", f"{most} elements")


def _no_hardware(state: State, spec: JobSpec) -> Refusal:
    if spec.gpu_memory_gb_min and type_facts(state, spec, 0) is not None:
        value, limit = str(spec.gpu_memory_gb_min), str(max(memories(state, spec)))
        return Refusal(RefusalCode.GPU_MEMORY, "gpu_memory_gb_min", value, limit)
    known = sorted({gpu_type for gpu_type, _, _ in state.pools})
    return Refusal(RefusalCode.UNKNOWN_GPU_TYPE, "gpu_type", spec.gpu_type, ", ".join(known) or "no node is registered")


def _node_size(state: State, spec: JobSpec, facts: TypeFacts) -> Refusal | None:
    if spec.gpus_per_replica <= facts.node_gpus:
        return None
    return Refusal(RefusalCode.OVER_NODE, "gpus_per_replica", str(spec.gpus_per_replica), str(facts.node_gpus))


def _cluster_size(state: State, spec: JobSpec, facts: TypeFacts) -> Refusal | None:
    if facts.holding(spec, ANYWHERE):
        return None
    charged = charged_gpus(spec, facts.node_gpus, replicas_min(spec))
    return Refusal(RefusalCode.OVER_CLUSTER, "replicas", f"{charged} GPUs", f"{facts.gpus(spec.gpus_per_replica)} GPUs")


def _quota(state: State, spec: JobSpec, facts: TypeFacts) -> Refusal | None:
    quota = state.quotas.get((spec.team, spec.gpu_type))
    if quota is None:
        return Refusal(RefusalCode.NO_QUOTA, "gpu_type", spec.gpu_type, f"team {spec.team} has no quota of it")
    return _over_quota(state, spec, facts.holding(spec, ANYWHERE))


def _over_quota(state: State, spec: JobSpec, sizes: list[SizeFacts]) -> Refusal | None:
    """Is it more than the team may have, on each of these sizes of nodes? What is charged depends on the size."""
    quota = state.quotas[spec.team, spec.gpu_type]
    charged = min(charged_gpus(spec, size.node_gpus, replicas_min(spec)) for size in sizes)
    limit = quota.guaranteed + quota.borrow_limit
    if charged > limit:
        return Refusal(RefusalCode.OVER_QUOTA, "replicas", f"{charged} GPUs", f"{limit} GPUs")
    return _over_guarantee(state, spec, charged, quota.guaranteed) if charged > quota.guaranteed else None


def _over_guarantee(state: State, spec: JobSpec, charged: int, guaranteed: int) -> Refusal | None:
    """A job that would borrow, however little else its team runs: may it ever? (R-12, R-40, C-73)"""
    policy = state.policy
    if policy.preset is not Preset.DEFAULT:  # the baselines know no coverage
        return None
    if protected(spec, spec.priority_class):
        if _pool_holds(state, spec):
            return None
        return Refusal(RefusalCode.OVER_GUARANTEE, "replicas", f"{charged} GPUs", f"{guaranteed} GPUs")
    if not borrows_too_long(policy, spec.max_runtime_s):
        return None
    value = "unlimited" if spec.max_runtime_s is None else f"{spec.max_runtime_s}s"
    return Refusal(RefusalCode.BORROWS_TOO_LONG, "max_runtime", value, f"{policy.borrow_runtime_max_s}s")


def _pool_holds(state: State, spec: JobSpec) -> bool:
    """Does a pool that is there for it hold it? Then prod-serving starts there, covered or not."""
    if spec.priority_class is not PriorityClass.PROD_SERVING:
        return False
    facts = pool_facts(state, spec)
    return facts is not None and bool(facts.holding(spec, demanded(spec)))


def _hints(state: State, spec: JobSpec, facts: TypeFacts) -> Refusal | None:
    """A strict hint that no hardware can meet, or only such as the team's quota is too small for. Counted over all
    registered nodes."""
    hint = spec.topology
    if not hint.strict:
        return None
    holding = facts.holding(spec, hint)
    if holding:
        return _over_quota(state, spec, holding)
    room = max(size.room(spec.gpus_per_replica, hint) for size in facts.sizes)
    if hint.spread is not None and facts.holding(spec, replace(hint, spread=None)):
        field = "topology.spread"
    elif hint.max_blocks is not None and facts.holding(spec, replace(hint, max_blocks=None)):
        field = "topology.max_blocks"
    else:
        field = "topology.pack" if hint.pack is not None else "topology.max_blocks"
    return Refusal(RefusalCode.HINT_IMPOSSIBLE, field, f"{replicas_min(spec)} replicas", f"{room} replicas")


BEFORE_HARDWARE: tuple[Callable[[State, JobSpec], Refusal | None], ...] = (
    _team,
    _class,
    _runtime,
    _image,
    _array,
    _dependencies,
)
AGAINST_HARDWARE: tuple[Callable[[State, JobSpec, TypeFacts], Refusal | None], ...] = (
    _node_size,
    _cluster_size,
    _quota,
    _hints,
)
