"""Preemptions: room made for one job by stopping others, and pledged to it until it starts (R-40 to R-45)."""

from enum import StrEnum

from events.catalogue import event
from events.ids import GpuMask, JobId, NodeIndex


class PreemptionRule(StrEnum):
    """By which rule of R-40 the victims may be displaced."""

    RECLAIM = "reclaim"
    """A covered job takes borrowed capacity back."""
    PRIORITY = "priority"
    """A job displaces lower classes."""
    NOBODY = "nobody"
    """No rule was needed: what is free, ends that are due, and what elastic jobs give back make room enough."""


DISPLACING = (PreemptionRule.RECLAIM, PreemptionRule.PRIORITY)
"""Rules under which somebody is stopped."""


class PledgeEnd(StrEnum):
    """Why a pledge ended."""

    STARTED = "started"
    GONE = "gone"
    """The preemptor was cancelled or held; victims that had not been told yet are spared (C-10)."""
    BROKEN = "broken"
    """A pledged node was lost, drained or found faulty."""
    TOO_LATE = "too_late"
    """What was to be freed was not freed in time."""


@event("preemption.ordered")
class PreemptionOrdered:
    """Room for `job_id` is made at `ranks` (its coming placement: free GPUs and those of the victims), and pledged to
    it. `victims`: (job, attempt) of those that are stopped for it; `awaited`: those that are due to end by themselves
    within the grace, and are left alone."""

    job_id: JobId
    rule: PreemptionRule
    ranks: tuple[tuple[NodeIndex, GpuMask], ...]
    victims: tuple[tuple[JobId, int], ...]
    awaited: tuple[tuple[JobId, int], ...] = ()


@event("preemption.ended")
class PreemptionEnded:
    """The pledge is over."""

    job_id: JobId
    because: PledgeEnd
