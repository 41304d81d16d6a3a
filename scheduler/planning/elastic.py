"""Elastic jobs: the size at which to start, growing onto idle GPUs, giving them back first (R-44)."""

from commands.entities import Job
from commands.plan import Ranks, Resize
from scheduler.planning.trial import Trial


def find(trial: Trial, job: Job, among: int | None) -> Ranks | None:
    """The largest size in range that fits and that the quota allows, taken for trial; None where not even the
    smallest does."""
    return None


def grow(trial: Trial) -> list[Resize]:
    """Growth onto what no queued job could use."""
    return []
