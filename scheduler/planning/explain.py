"""Why a job waits: every factor that holds it back now, with figures, and the event that would release it (C-60).

Pure, and recomputable for any past moment from the state then; never logged. Sentences are made at the edge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from commands.entities import Job, Node, NodeState
from commands.shape import takes_whole_nodes
from events.ids import Instant, JobId
from events.job import JobState, Span, Topology
from scheduler.planning import reserve
from scheduler.planning.fit import find
from scheduler.planning.plan import Planner
from scheduler.planning.quota import untouchable
from scheduler.planning.trial import Trial


class Factor(StrEnum):
    """What holds a job back. Stable: clients compare them."""

    HELD = "held"
    DEPENDENCIES = "dependencies"
    """Jobs that it waits for have not ended (R-7)."""
    THROTTLED = "throttled"
    """As many elements of the array are there as may be at once."""
    BACKOFF = "backoff"
    PLEDGED = "pledged"
    """Room is being made for it."""
    OVER_LIMIT = "over_limit"
    NOT_COVERED = "not_covered"
    """It starts only inside its team's guarantee (R-40)."""
    CAPACITY = "capacity"
    HINT = "hint"
    """It would fit, but not as its strict hint asks."""
    RESERVED = "reserved"
    """It would fit on nodes that are held for another."""
    OUT_OF_SERVICE = "out_of_service"
    """Nodes of its type take no work now."""
    NEXT = "next"
    """Nothing: it starts with the next cycle."""


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
    if not job.eligible:
        return tuple(_ineligible(job))
    trial = planner.trial(now)
    reserve.keep(trial)
    reasons = [*_of_itself(trial, job), *_of_quota(trial, job)]
    if job.id not in planner.state.pledges:
        reasons += _of_room(planner, trial, job)
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
        reasons.append(Reason(Factor.BACKOFF, {"until_at": job.not_before_at, "failed_starts": job.setbacks}))
    pledge = trial.state.pledges.get(job.id)
    if pledge is not None:
        reasons.append(Reason(Factor.PLEDGED, {"gpus": pledge.gpus, "victims": len(pledge.victims)}))
    return reasons


def _of_quota(trial: Trial, job: Job) -> list[Reason]:
    standing = trial.shares.standing((job.spec.team, job.spec.gpu_type))
    asked = trial.charge(job)
    if asked > standing.room:
        figures: dict[str, int | str] = {"asked": asked, "use": standing.use, "limit": standing.limit}
        return [Reason(Factor.OVER_LIMIT, figures)]
    if untouchable(job) and asked > standing.covered_room:
        figures = {"asked": asked, "covered": standing.covered, "guaranteed": standing.guaranteed}
        return [Reason(Factor.NOT_COVERED, figures)]
    return []


def _of_room(planner: Planner, trial: Trial, job: Job) -> list[Reason]:
    """What the fleet lacks. Nothing where the job fits as it is."""
    if _fits(trial, job, job.spec.topology, reserve.usable(trial, job)):
        return []
    reasons: list[Reason] = []
    anywhere = trial.eligible(job)
    if _fits(trial, job, job.spec.topology, anywhere):
        reasons += _held_for_others(trial, job)
    elif job.spec.topology.strict and _fits(trial, job, Topology(), anywhere):
        reasons.append(Reason(Factor.HINT, _capacity_figures(planner, trial, job) | _hint_figures(job.spec.topology)))
    else:
        reasons.append(Reason(Factor.CAPACITY, _capacity_figures(planner, trial, job)))
    return reasons + _out_of_service(trial, job)


def _fits(trial: Trial, job: Job, hint: Topology, among: int | None) -> bool:
    mark = trial.capacity.mark()
    found = find(trial.state, trial.capacity, replace(job.spec, topology=hint), among=among)
    trial.capacity.undo(mark)
    return found is not None


def _held_for_others(trial: Trial, job: Job) -> list[Reason]:
    return [
        Reason(
            Factor.RESERVED,
            {"job": held.job_id, "nodes": len(held.nodes), "start_at": held.start_at},
        )
        for _, held in sorted(trial.reservations.items())
        if held.gpu_type == job.spec.gpu_type and held.job_id != job.id
    ]


def _capacity_figures(planner: Planner, trial: Trial, job: Job) -> dict[str, int | str]:
    """What it needs, what is free, the most that one block has, and when enough is expected."""
    nodes = [node for node in _of_type(trial, job) if node.index in trial.capacity.free]
    free = {node.index: trial.capacity.free[node.index] for node in nodes}
    whole = [node for node in nodes if free[node.index] == node.all_gpus]
    per_block: dict[str, int] = {}
    for node in whole:
        per_block[node.block] = per_block.get(node.block, 0) + 1
    largest = max((len(node.gpus) for node in nodes), default=0)
    figures: dict[str, int | str] = {
        "gpus_needed": job.spec.gpus,
        "gpus_free": sum(mask.bit_count() for mask in free.values()),
        "whole_nodes_free": len(whole),
        "best_block_whole_nodes": max(per_block.values(), default=0),
    }
    if largest and takes_whole_nodes(job.spec, largest):
        per_node = max(1, largest // job.spec.gpus_per_replica)
        figures["whole_nodes_needed"] = -(-job.spec.replicas // per_node)
    found = reserve.earliest(trial, planner.forecast, job)
    if found is not None:
        figures["expected_at"] = found[0]
    return figures


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
    """Nodes of the type that would count, and do not now."""
    drained = silent = unconfirmed = broken = 0
    for node in _of_type(trial, job):
        drained += node.drained is not None
        silent += node.state in (NodeState.SUSPECT, NodeState.LOST)
        unconfirmed += node.confirmed != trial.state.meta.epoch
        broken += node.broken.bit_count()
    figures = {"drained": drained, "silent": silent, "unconfirmed": unconfirmed, "broken_gpus": broken}
    shown: dict[str, int | str] = {name: count for name, count in figures.items() if count}
    return [Reason(Factor.OUT_OF_SERVICE, shown)] if shown else []


def _of_type(trial: Trial, job: Job) -> list[Node]:
    rows = trial.state.nodes.rows
    return [
        rows[index]
        for index in sorted(rows)
        if rows[index].gpu_type == job.spec.gpu_type and rows[index].state is not NodeState.REMOVED
    ]
