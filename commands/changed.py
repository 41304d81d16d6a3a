"""What a commit left alone of a row: so that those who follow commits need not look at what is no news to them.

Most commits are reports of agents, of which a node's number and a job's checkpoint are all that changes. Only rows
are compared here; what a change means is for those who ask.
"""

from collections.abc import Iterable

from commands.entities import Job, Node
from commands.state import Change
from events.job import JobState


def news(changes: Iterable[Change]) -> list[Change]:
    """The changes, without nodes of which only a report came."""
    return [change for change in changes if is_news(change)]


def is_news(change: Change) -> bool:
    """Is it more than a node of which only a report came?"""
    table, old, new = change.table, change.old, change.new
    return table != "nodes" or old is None or new is None or not only_reported(old, new)


def only_reported(old: Node, new: Node) -> bool:
    """Is the number of its last report all that may have changed? Rows share what did not change."""
    return (
        new.leases is old.leases
        and new.gpus is old.gpus
        and (new.used, new.broken, new.pledged, new.confirmed) == (old.used, old.broken, old.pledged, old.confirmed)
        and (new.state, new.drained, new.generation) == (old.state, old.drained, old.generation)
        and (new.block, new.rack, new.gpu_type) == (old.block, old.rack, old.gpu_type)
        and new.gpu_memory_gb == old.gpu_memory_gb
    )


def only_saved(old: Job, new: Job) -> bool:
    """Is a newer checkpoint, with what follows from it, all that may have changed of a job that does not wait?"""
    return (
        new.checkpoint is not old.checkpoint
        and new.state is old.state is not JobState.QUEUED
        and new.spec is old.spec
        and new.elements is old.elements
        and (new.priority_class, new.preempted_at) == (old.priority_class, old.preempted_at)
        and (new.attempt, new.open_attempts) == (old.attempt, old.open_attempts)
        and (new.max_runtime_s, new.cancel_requested) == (old.max_runtime_s, old.cancel_requested)
    )
