"""Which accepted changes could let somebody be displaced who could not be before: the memory of failures goes by it."""

from collections.abc import Callable
from typing import Any

from commands.entities import Attempt, Job, Node
from commands.state import Change
from events.ids import GpuType

Stake = tuple[object, ...]


def moved(change: Change) -> GpuType | None:
    """The type on which the change could let somebody be displaced who could not be before."""
    old, new = change.old, change.new
    row = new if new is not None else old
    matters = _MATTERS.get(change.table)
    if matters is None or (matters(old) if old is not None else ()) == (matters(new) if new is not None else ()):
        return None
    gpu_type: GpuType = row.spec.gpu_type if change.table == "jobs" else row.gpu_type
    return gpu_type


def _stake(attempt: Attempt) -> Stake:
    """Since when it runs is left out: that changes who goes first; and who becomes a victim by it, `turned` tells."""
    stopping = (attempt.stopping, attempt.stopping_at)
    return (attempt.charged, attempt.ending_at, attempt.limit_at, attempt.ranks, attempt.growths, *stopping)


def _room(node: Node) -> Stake:
    return (node.used, node.broken, node.pledged, node.state, node.drained, node.confirmed, node.block, node.gpus)


def _rank(job: Job) -> Stake:
    """Of a job that holds GPUs."""
    return (job.priority_class, job.preempted_at, job.open_attempts) if job.open_attempts else ()


_MATTERS: dict[str, Callable[[Any], object]] = {
    "attempts": _stake,
    "nodes": _room,
    "jobs": _rank,
    "quotas": lambda quota: quota,
    "pledges": lambda pledge: pledge,
}
