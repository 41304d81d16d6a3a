"""Why a job waits: every factor that holds it back now, with figures, and the event that would release it (C-60).

Pure, and recomputable for any past moment from the state then; never logged. Sentences are made at the edge.

Where a job does not fit, each of its conditions is dropped in turn: those without any one of which it would fit are
told (its hint, its memory floor, nodes that are held for others or set apart), and capacity where none is enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from commands.displace import borrows_too_long, untouchable
from commands.entities import Job, Node, NodeState
from commands.policy import Preset
from commands.shape import replicas_min, takes_whole_nodes
from events.gang import GangReleased, LeaseReleased
from events.ids import Instant, JobId
from events.job import (
    JobDependencyEnded,
    JobFinished,
    JobPriorityChanged,
    JobReleased,
    JobSpec,
    JobState,
    PriorityClass,
    Span,
    Topology,
)
from events.node import GpuRepaired, NodeRegistered, NodeReturned, NodesConfirmed, NodeUndrained
from events.policy import PolicyChanged
from events.preemption import PreemptionEnded
from events.quota import QuotaChanged
from events.reservation import BlocksFreed, BlocksMoved
from events.task import TaskEnded
from scheduler.planning import reserve
from scheduler.planning.fit import Ranks, find
from scheduler.planning.plan import Planner
from scheduler.planning.pool import Pool
from scheduler.planning.quota import Standing
from scheduler.planning.trial import Trial


class Factor(StrEnum):
    """What holds a job back. Stable: clients compare them. Where a job asks for more than its team's whole guarantee
    (NOT_COVERED) or limit (OVER_LIMIT), no end of another lets it start: the figures say so."""

    HELD = "held"
    DEPENDENCIES = "dependencies"
    """Jobs that it waits for have not ended (R-7)."""
    THROTTLED = "throttled"
    """As many elements of the array are there as may be at once."""
    BACKOFF = "backoff"
    PLEDGED = "pledged"
    """Room is being made for it."""
    OVER_LIMIT = "over_limit"
    """More than its team may use, by guarantee and borrow limit."""
    NOT_COVERED = "not_covered"
    """It starts only inside its team's guarantee (R-40)."""
    BORROWS_TOO_LONG = "borrows_too_long"
    """It would borrow, and what is left of its run-time limit is longer than GPUs are lent for."""
    CAPACITY = "capacity"
    """Too little is free, whatever else were given up."""
    HINT = "hint"
    """It would fit, but not as its strict hint asks."""
    GPU_MEMORY = "gpu_memory"
    """It would fit on GPUs of its type with less memory than it asks for."""
    SET_APART = "set_apart"
    """It would fit on nodes of a pool that is not open to it, or on hot spares (R-34, R-37)."""
    RESERVED = "reserved"
    """It would fit on nodes that are held for another."""
    OUT_OF_SERVICE = "out_of_service"
    """Nodes of its type take no work now."""
    ORDER = "order"
    """Under a plain preset: it would fit, and jobs that were submitted before it go first."""
    NEXT = "next"
    """Nothing: it starts with the next cycle."""


RELEASED_BY: dict[Factor, tuple[type, ...]] = {
    Factor.HELD: (JobReleased,),
    Factor.DEPENDENCIES: (JobDependencyEnded,),
    Factor.THROTTLED: (JobFinished,),
    Factor.BACKOFF: (),
    Factor.PLEDGED: (TaskEnded, LeaseReleased, PreemptionEnded),
    Factor.OVER_LIMIT: (GangReleased, QuotaChanged),
    Factor.NOT_COVERED: (GangReleased, QuotaChanged, JobPriorityChanged),
    Factor.BORROWS_TOO_LONG: (GangReleased, QuotaChanged, PolicyChanged),
    Factor.CAPACITY: (TaskEnded, LeaseReleased, NodeRegistered),
    Factor.HINT: (TaskEnded, LeaseReleased, NodeRegistered),
    Factor.GPU_MEMORY: (TaskEnded, LeaseReleased, NodeRegistered),
    Factor.SET_APART: (TaskEnded, LeaseReleased, PolicyChanged, JobPriorityChanged),
    Factor.RESERVED: (BlocksFreed, BlocksMoved),
    Factor.OUT_OF_SERVICE: (NodeUndrained, NodeReturned, NodesConfirmed, GpuRepaired),
    Factor.ORDER: (GangReleased, PolicyChanged),
    Factor.NEXT: (),
}
"""Events that can make a factor go away. None: time alone does."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A factor and its figures: integers, instants (ms) and ids, by names that say what they are."""

    factor: Factor
    figures: dict[str, int | str] = field(default_factory=dict)


def explain(planner: Planner, job_id: JobId, now: Instant) -> tuple[Reason, ...]:
    """All factors, in the order in which they would have to go away. Empty for a job that does not wait."""
    job = planner.state.jobs.get(job_id)
    if job is None or job.state is not JobState.QUEUED:
        return ()
    trial = planner.trial(now)
    reasons = [*_ineligible(job), *_of_itself(trial, job)]
    if planner.state.policy.preset is not Preset.DEFAULT:
        reasons += _under_a_preset(planner, trial, job)
    else:
        reasons += _under_the_policy(planner, trial, job)
    return tuple(reasons) or (Reason(Factor.NEXT),)


def _ineligible(job: Job) -> Iterator[Reason]:
    """What keeps it out of the queue."""
    if job.held:
        yield Reason(Factor.HELD)
    if job.waits_on:
        yield Reason(Factor.DEPENDENCIES, {"jobs": len(job.waits_on), "first": job.waits_on[0]})
    if job.elements is not None and job.grants_max <= 0:
        yield Reason(Factor.THROTTLED, {"elements": job.elements.open, "waiting": job.unmade})


def _of_itself(trial: Trial, job: Job) -> list[Reason]:
    reasons: list[Reason] = []
    if job.not_before_at is not None and job.not_before_at > trial.now:
        figures: dict[str, int | str] = {
            "until_at": job.not_before_at,
            "retries": job.retried,
            "starts_failed": job.setbacks,
        }
        reasons.append(Reason(Factor.BACKOFF, figures))
    pledge = trial.state.pledges.get(job.id)
    if pledge is not None:
        counts = {"victims": len(pledge.victims), "awaited": len(pledge.awaited)}
        reasons.append(Reason(Factor.PLEDGED, {"rule": pledge.rule.value, "gpus": pledge.gpus, **counts}))
    return reasons


def _under_the_policy(planner: Planner, trial: Trial, job: Job) -> list[Reason]:
    """Quota and room. What is pledged to the job has both, and reservations of a lower tier are no obstacle."""
    if job.id in planner.state.pledges:
        return []
    reserve.keep(trial)
    asked, standing = trial.charge(job), trial.shares.standing((job.spec.team, job.spec.gpu_type))
    for holder in reserve.overtaken(trial, job, asked <= standing.covered_room):
        reserve.drop(trial, holder)
    return [*_of_quota(trial, job, asked), *_of_room(planner, trial, job)]


def _of_quota(trial: Trial, job: Job, asked: int) -> list[Reason]:
    """Both limits, where both are in the way."""
    standing = trial.shares.standing((job.spec.team, job.spec.gpu_type))
    reasons = _over_limit(standing, asked)
    if asked > standing.covered_room:
        figures: dict[str, int | str] = {"asked": asked, "covered": standing.covered, "guaranteed": standing.guaranteed}
        if untouchable(job):
            if reasons or not _fits_its_pool(trial, job):
                reasons.append(Reason(Factor.NOT_COVERED, figures))
        elif borrows_too_long(trial.policy, job.left_s):
            lent: dict[str, int | str] = {"left_s": job.left_s or 0, "lent_s": trial.policy.borrow_runtime_max_s}
            reasons.append(Reason(Factor.BORROWS_TOO_LONG, figures | lent))
    return reasons


def _fits_its_pool(trial: Trial, job: Job) -> bool:
    """prod-serving starts in its pool though it is not covered (R-40)."""
    home, usable = trial.home(job)[1], reserve.usable(trial, job)
    if not home or job.priority_class is not PriorityClass.PROD_SERVING:
        return False
    return _fitting(trial, job.spec, home if usable is None else home & usable) is not None


def _over_limit(standing: Standing, asked: int) -> list[Reason]:
    if asked <= standing.room:
        return []
    return [Reason(Factor.OVER_LIMIT, {"asked": asked, "use": standing.use, "limit": standing.limit})]


def _of_room(planner: Planner, trial: Trial, job: Job) -> list[Reason]:
    """What the fleet lacks. Where the job fits as it is: what its team lacks, if it is charged for more there than it
    would be elsewhere; else nothing."""
    found = _fitting(trial, job.spec, reserve.usable(trial, job))
    if found is not None:
        charged = sum(mask.bit_count() for _, mask in found)
        return _of_quota(trial, job, charged) if charged > trial.charge(job) and job.spec.elastic is None else []
    reasons = [*_relaxed(planner, trial, job)] or [Reason(Factor.CAPACITY, _capacity_figures(planner, trial, job))]
    return reasons + _out_of_service(trial, job)


def _relaxed(planner: Planner, trial: Trial, job: Job) -> Iterator[Reason]:
    """The conditions without any one of which it would fit."""
    spec, usable, eligible = job.spec, reserve.usable(trial, job), trial.eligible(job)
    if spec.topology.strict and _fitting(trial, replace(spec, topology=Topology()), usable):
        yield Reason(Factor.HINT, _capacity_figures(planner, trial, job) | _hint_figures(spec.topology))
    if spec.gpu_memory_gb_min and _fitting(trial, replace(spec, gpu_memory_gb_min=0), usable):
        yield Reason(Factor.GPU_MEMORY, _memory_figures(trial, job))
    if eligible is not None and _fitting(trial, spec, None if usable is None else usable | ~eligible):
        yield Reason(Factor.SET_APART, _set_apart_figures(trial, job, eligible))
    if _fitting(trial, spec, eligible):
        yield from _held_for_others(trial, job)


def _fitting(trial: Trial, spec: JobSpec, among: int | None) -> Ranks | None:
    """A placement of as many replicas as it starts with at least, given back at once."""
    mark = trial.capacity.mark()
    found = find(trial.state, trial.capacity, spec, among=among, replicas=replicas_min(spec))
    trial.capacity.undo(mark)
    return found


def _held_for_others(trial: Trial, job: Job) -> Iterator[Reason]:
    """Reservations that it might outlast. `ends_at`: when its own limit would be up; 0: never."""
    ends_at = 0 if job.left_s is None else trial.now + job.left_s * 1000
    for held in sorted(reserve.shut(trial, job), key=lambda one: one.key):
        figures: dict[str, int | str] = {"job": held.job_id, "nodes": len(held.nodes), "start_at": held.start_at}
        yield Reason(Factor.RESERVED, figures | {"ends_at": ends_at})


def _under_a_preset(planner: Planner, trial: Trial, job: Job) -> list[Reason]:
    """These know limits, capacity and the order of submission, and nothing else."""
    standing = trial.shares.standing((job.spec.team, job.spec.gpu_type))
    reasons = _over_limit(standing, trial.charge(job))
    if _fitting(trial, job.spec, None) is None:
        return [*reasons, Reason(Factor.CAPACITY, _free_figures(trial, job)), *_out_of_service(trial, job)]
    jobs, preset = planner.state.jobs, planner.state.policy.preset
    lines = [line for line in planner.queue.lines.values() if line.gpu_type == job.spec.gpu_type]
    ahead = sum(jobs[queued].submit_seq < job.submit_seq for line in lines for _, queued in line.entries)
    return reasons + ([Reason(Factor.ORDER, {"preset": preset.value, "ahead": ahead})] if ahead else [])


def _capacity_figures(planner: Planner, trial: Trial, job: Job) -> dict[str, int | str]:
    """What it needs, what is free for it, the most that one block has, and when enough is expected: no word where that
    rests on a job without a limit, whose end nobody knows."""
    figures = _free_figures(trial, job)
    found = reserve.earliest(trial, planner.forecast, job)
    if found is not None and found[0] < trial.now + trial.policy.unlimited_horizon_s * 1000:
        figures["expected_at"] = found[0]
    return figures


def _free_figures(trial: Trial, job: Job) -> dict[str, int | str]:
    """Of the nodes that it may use. `gpus_pledged`: idle, and kept for others that room was made for."""
    gpus = whole = best_block = most = largest = 0
    for pool, nodes in _pools(trial, job):
        counts = [(bits & nodes).bit_count() for bits in pool.nodes]
        size = pool.node_gpus
        gpus += sum(free * count for free, count in enumerate(counts))
        most = max(most, *[free for free, count in enumerate(counts) if count])
        whole += counts[size]
        largest = max(largest, size)
        idle = pool.nodes[size] & nodes
        if idle:
            best_block = max(best_block, *[(block.mask & idle).bit_count() for block in pool.blocks])
    figures: dict[str, int | str] = {
        "gpus_needed": replicas_min(job.spec) * job.spec.gpus_per_replica,
        "gpus_free": gpus,
        "gpus_pledged": _gpus_pledged(trial, job),
        "largest_free_on_one_node": most,
        "whole_nodes_free": whole,
        "best_block_whole_nodes": best_block,
    }
    if largest and takes_whole_nodes(job.spec, largest, replicas_min(job.spec)):
        per_node = max(1, largest // job.spec.gpus_per_replica)
        figures["whole_nodes_needed"] = -(-replicas_min(job.spec) // per_node)
    return figures


def _pools(trial: Trial, job: Job) -> Iterator[tuple[Pool, int]]:
    """Nodes of one size each that take work, and the bitset of those that it may use, where there are any."""
    eligible = trial.eligible(job)
    for pool in trial.capacity.by_type.get(job.spec.gpu_type, ()):
        nodes = pool.with_memory_all(job.spec.gpu_memory_gb_min)
        if eligible is not None:
            nodes &= eligible
        if nodes:
            yield pool, nodes


def _gpus_pledged(trial: Trial, job: Job) -> int:
    state = trial.state
    pledged = {index for pledge in state.pledges.rows.values() for index, _ in pledge.ranks}
    nodes = [state.nodes[index] for index in pledged.intersection(trial.capacity.free)]
    return sum((node.pledged & ~node.used & ~node.broken).bit_count() for node in nodes if _open_to(trial, job, node))


def _memory_figures(trial: Trial, job: Job) -> dict[str, int | str]:
    """How many nodes have as much memory a GPU as it asks for, and how many there are in all."""
    nodes, least = _of_type(trial, job), job.spec.gpu_memory_gb_min
    enough = sum(node.gpu_memory_gb >= least for node in nodes)
    return {"gpu_memory_gb_min": least, "nodes_with": enough, "nodes_of_type": len(nodes)}


def _set_apart_figures(trial: Trial, job: Job, eligible: int) -> dict[str, int | str]:
    """How many nodes of its type are not for it, and how many GPUs are free there."""
    nodes = [node for node in _of_type(trial, job) if not eligible >> node.index & 1]
    free = sum(trial.capacity.free.get(node.index, 0).bit_count() for node in nodes)
    return {"nodes": len(nodes), "gpus_free": free}


def _hint_figures(hint: Topology) -> dict[str, int | str]:
    figures: dict[str, int | str] = {}
    if hint.pack is not None:
        figures["pack"] = hint.pack
    if hint.spread is not None:
        figures["spread"] = hint.spread
    if hint.max_blocks is not None or hint.pack is Span.BLOCK:
        figures["max_blocks"] = hint.max_blocks or 1
    return figures


def _out_of_service(trial: Trial, job: Job) -> list[Reason]:
    """Nodes that it might use, and that take no work now."""
    drained = silent = unconfirmed = broken = 0
    free = trial.capacity.free
    for node in [node for index, node in trial.state.nodes.rows.items() if index not in free or node.broken]:
        if _open_to(trial, job, node):
            drained += node.drained is not None
            silent += node.state in (NodeState.SUSPECT, NodeState.LOST)
            unconfirmed += node.confirmed != trial.state.meta.epoch
            broken += node.broken.bit_count()
    figures = {"drained": drained, "silent": silent, "unconfirmed": unconfirmed, "broken_gpus": broken}
    shown: dict[str, int | str] = {name: count for name, count in figures.items() if count}
    return [Reason(Factor.OUT_OF_SERVICE, shown)] if shown else []


def _open_to(trial: Trial, job: Job, node: Node) -> bool:
    """Is it a node that the job may use, with the memory that it asks for?"""
    if not _is_of_type(job, node) or node.gpu_memory_gb < job.spec.gpu_memory_gb_min:
        return False
    eligible = trial.eligible(job)
    return eligible is None or bool(eligible >> node.index & 1)


def _of_type(trial: Trial, job: Job) -> list[Node]:
    return [node for node in trial.state.nodes.rows.values() if _is_of_type(job, node)]


def _is_of_type(job: Job, node: Node) -> bool:
    return node.gpu_type == job.spec.gpu_type and node.state is not NodeState.REMOVED
