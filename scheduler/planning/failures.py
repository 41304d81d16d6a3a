"""What did not fit, remembered: with all that this rested on, so that it is tried again only for what could help (C-5).

It only saves work: a planner that has just begun remembers nothing, and plans the same.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from commands.changed import News
from commands.entities import Attempt, Job, Node
from commands.state import Change
from events.ids import GpuType, Instant, JobId
from scheduler.planning.queue import Line

Stamp = tuple[object, ...]
"""What a failure rested on."""


class Memory:
    """Failures, and until when they hold: kept with each line of the queue, and for the jobs that have nodes held. Each
    holds of the state, whatever becomes of the plan: what was searched for in vain is noted only while nothing of the
    type was taken for trial, what the counts alone say (no search could help) whenever it is met."""

    def __init__(self) -> None:
        self._holders: dict[JobId, Note] = {}
        self._since = 0
        self.moves: dict[GpuType, int] = {}
        """Rises with whatever could change who might have to make room on a type."""

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        if "policies" in news or "meta" in news:
            self._holders.clear()
            self._since += 1
        for table, matters in _MATTERS.items():
            for change in news.get(table, ()):
                gpu_type = _moved(change, matters)
                if gpu_type is not None:
                    self.moves[gpu_type] = self.moves.get(gpu_type, 0) + 1

    def of(self, line: Line, holder: JobId | None) -> "Note | None":
        """What is remembered of a line, or of one of its jobs that has nodes held."""
        note = line.failed if holder is None else self._holders.get(holder)
        return note if isinstance(note, Note) and note.since == self._since else None

    def note(self, line: Line, holder: JobId | None, stamp: Stamp, until: Instant) -> None:
        """It failed, and will until then, unless something of the stamp changes."""
        note = Note(stamp, until, self._since)
        if holder is None:
            line.failed = note
            return
        if len(self._holders) > 1_000:
            self._holders.clear()
        self._holders[holder] = note


class Note(NamedTuple):
    """A failure. `since`: the policy and the epoch under which it was noted."""

    stamp: Stamp
    until: Instant
    since: int


def _moved(change: Change, matters: Callable[[Any], object]) -> GpuType | None:
    """The type on which the change could let somebody be displaced who could not be before."""
    table, _, old, new = change
    if (matters(old) if old is not None else ()) == (matters(new) if new is not None else ()):
        return None
    row = new if new is not None else old
    gpu_type: GpuType = row.spec.gpu_type if table == "jobs" else row.gpu_type
    return gpu_type


def _stake(attempt: Attempt) -> Stamp:
    """Since when it runs is left out: that changes who goes first; and who becomes a victim by it, `turned` tells."""
    stopping = (attempt.stopping, attempt.stopping_at)
    return (attempt.charged, attempt.ending_at, attempt.limit_at, attempt.ranks, attempt.growths, *stopping)


def _room(node: Node) -> Stamp:
    return (node.used, node.broken, node.pledged, node.state, node.drained, node.confirmed, node.generation)


def _rank(job: Job) -> Stamp:
    """Of a job that holds GPUs."""
    return (job.priority_class, job.preempted_at, job.open_attempts) if job.open_attempts else ()


_MATTERS: dict[str, Callable[[Any], object]] = {
    "attempts": _stake,
    "nodes": _room,
    "jobs": _rank,
    "quotas": lambda quota: quota,
    "pledges": lambda pledge: pledge,
}
