"""Pledges: room that was made for a job is its own until it starts (R-45)."""

from commands.plan import Placement
from events.ids import JobId
from events.preemption import PledgeEnd
from scheduler.planning.trial import Trial


def settle(trial: Trial) -> tuple[list[Placement], list[tuple[JobId, PledgeEnd]]]:
    """Starts of the jobs whose pledged GPUs are all free now, and the pledges that are over."""
    return [], []
