"""Quotas: what a team may use of a GPU type (R-12, R-14)."""

from events.catalogue import event
from events.ids import GpuType, TeamId


@event("quota.changed")
class QuotaChanged:
    """GPUs guaranteed to a team, and how many more it may borrow. The actor is the commit's. Where it was set in
    percent of the registered GPUs outside pools, that as well: resolved once, as the fleet was then (R-12)."""

    team: TeamId
    gpu_type: GpuType
    guaranteed: int
    borrow_limit: int
    reason: str = ""
    guaranteed_percent: int | None = None
    borrow_limit_percent: int | None = None


@event("team.classes_changed")
class TeamClassesChanged:
    """The priority classes that a team may use."""

    team: TeamId
    classes: tuple[str, ...]
    reason: str = ""
