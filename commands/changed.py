"""What a commit left alone of a row: so that those who follow commits need not look at what is no news to them.

Most commits are reports of agents, of which a node's number and a job's checkpoint are all that changes. Only rows
are compared here; what a change means is for those who ask.
"""

from collections.abc import Iterable

from commands.entities import Job, Node
from commands.state import Change
from events.job import JobState

News = dict[str, list[Change]]
"""Changes by table; tables without any are not in it."""


def by_table(changes: Iterable[Change]) -> News:
    """What is news of a commit's changes. Left out: nodes of which only a report came; `meta` of the same epoch."""
    found: News = {}
    for change in changes:
        table, _, old, new = change
        if old is not None and new is not None:
            if table == "nodes" and only_reported(old, new):
                continue
            if table == "meta" and old.epoch == new.epoch:
                continue
        if table in found:
            found[table].append(change)
        else:
            found[table] = [change]
    return found


def other_class(old: Job | None, new: Job | None) -> bool:
    """Is a job that was there gone, or of another class? Its leases and its pledge have another turn in the walk then,
    or none: the pledge of one that is gone counts no more, though it is there until the next cycle."""
    return old is not None and (new is None or old.priority_class != new.priority_class)


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
