"""Admission at submit: refuse what can never run here, naming the field and the limit (R-11). Form was checked before.

The guards run in the order in which they are listed; the first that fails is the answer.
"""

from collections.abc import Callable

from commands.refusal import Refusal, RefusalCode
from commands.shape import PoolFacts, block_limit, charged_gpus, demanded, nodes_wanted, nodes_within, pool_facts
from commands.state import State
from events.ids import TeamId
from events.job import JobSpec, PriorityClass, Topology

Pools = list[PoolFacts]


def admit(state: State, spec: JobSpec) -> Refusal | None:
    """Why `spec` can never run in this cluster, or None where it can."""
    for guard in BEFORE_HARDWARE:
        if (refusal := guard(state, spec)) is not None:
            return refusal
    pools = pool_facts(state, spec.gpu_type, spec.gpu_memory_gb_min)
    if not pools:
        return _no_hardware(state, spec)
    for narrow in AGAINST_HARDWARE:
        left = narrow(state, spec, pools)
        if isinstance(left, Refusal):
            return left
        pools = left
    return None


def _team(state: State, spec: JobSpec) -> Refusal | None:
    if any(team == spec.team for team, _ in state.quotas):
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


def _not_yet(state: State, spec: JobSpec) -> Refusal | None:
    """What the log can hold and this version does not run yet."""
    if spec.array is not None:
        return Refusal(RefusalCode.NOT_SUPPORTED, "array", "an array", "arrays are not scheduled yet")
    if spec.depends_on:
        return Refusal(RefusalCode.NOT_SUPPORTED, "depends_on", "dependencies", "not scheduled yet")
    if spec.elastic is not None:
        return Refusal(RefusalCode.NOT_SUPPORTED, "elastic", "an elastic range", "not scheduled yet")
    return None


def _no_hardware(state: State, spec: JobSpec) -> Refusal:
    if pools := pool_facts(state, spec.gpu_type, 0):
        value, limit = str(spec.gpu_memory_gb_min), str(max(pool.memory_gb for pool in pools))
        return Refusal(RefusalCode.GPU_MEMORY, "gpu_memory_gb_min", value, limit)
    known = sorted({gpu_type for gpu_type, _, _ in state.pools})
    return Refusal(RefusalCode.UNKNOWN_GPU_TYPE, "gpu_type", spec.gpu_type, ", ".join(known) or "no node is registered")


# Each leaves the pools that could hold the job, or refuses it where none could. A gang is placed within one pool.


def _node_size(state: State, spec: JobSpec, pools: Pools) -> Pools | Refusal:
    left = [pool for pool in pools if pool.node_gpus >= spec.gpus_per_replica]
    largest = max(pool.node_gpus for pool in pools)
    return left or Refusal(RefusalCode.OVER_NODE, "gpus_per_replica", str(spec.gpus_per_replica), str(largest))


def _cluster_size(state: State, spec: JobSpec, pools: Pools) -> Pools | Refusal:
    left = [pool for pool in pools if charged_gpus(spec, pool.node_gpus, demanded(spec)) <= pool.gpus]
    if left:
        return left
    most = max(pools, key=lambda pool: (pool.gpus, pool.node_gpus))
    charged = charged_gpus(spec, most.node_gpus, demanded(spec))
    return Refusal(RefusalCode.OVER_CLUSTER, "replicas", f"{charged} GPUs", f"{most.gpus} GPUs")


def _quota(state: State, spec: JobSpec, pools: Pools) -> Pools | Refusal:
    quota = state.quotas.get((spec.team, spec.gpu_type))
    if quota is None:
        return Refusal(RefusalCode.NO_QUOTA, "gpu_type", spec.gpu_type, f"team {spec.team} has no quota of it")
    limit = quota.guaranteed + quota.borrow_limit
    charged = {pool.node_gpus: charged_gpus(spec, pool.node_gpus, demanded(spec)) for pool in pools}
    left = [pool for pool in pools if charged[pool.node_gpus] <= limit]
    return left or Refusal(RefusalCode.OVER_QUOTA, "replicas", f"{min(charged.values())} GPUs", f"{limit} GPUs")


def _hints(state: State, spec: JobSpec, pools: Pools) -> Pools | Refusal:
    """A strict hint that no hardware can meet, counted over all registered nodes."""
    hint = demanded(spec)
    left = [pool for pool in pools if _holds(pool, spec, hint)]
    return left or _broken_hint(spec, hint, max(pools, key=lambda pool: nodes_within(pool, hint) * pool.node_gpus))


def _holds(pool: PoolFacts, spec: JobSpec, hint: Topology) -> bool:
    return nodes_wanted(spec, pool.node_gpus, hint) <= nodes_within(pool, hint)


def _broken_hint(spec: JobSpec, hint: Topology, pool: PoolFacts) -> Refusal:
    """Names the part of the hint without which the job would fit."""
    within = nodes_within(pool, hint)
    packed = Topology(pack=hint.pack, max_blocks=hint.max_blocks)
    if hint.spread is not None and (block_limit(hint) is None or _holds(pool, spec, packed)):
        value, limit = f"{spec.replicas} replicas", f"{within} {hint.spread}s"
        return Refusal(RefusalCode.HINT_IMPOSSIBLE, "topology.spread", value, limit)
    field = "topology.pack" if hint.max_blocks is None else "topology.max_blocks"
    value = f"{nodes_wanted(spec, pool.node_gpus, hint) * pool.node_gpus} GPUs"
    return Refusal(RefusalCode.HINT_IMPOSSIBLE, field, value, f"{within * pool.node_gpus} GPUs")


BEFORE_HARDWARE: tuple[Callable[[State, JobSpec], Refusal | None], ...] = (
    _team,
    _class,
    _runtime,
    _image,
    _not_yet,
)
AGAINST_HARDWARE: tuple[Callable[[State, JobSpec, Pools], Pools | Refusal], ...] = (
    _node_size,
    _cluster_size,
    _quota,
    _hints,
)
