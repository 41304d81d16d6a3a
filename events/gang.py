"""Gangs and their leases: from the grant to the confirmed end (PROTOCOL P-15)."""

from enum import StrEnum

from events.catalogue import event
from events.ids import GpuMask, Instant, JobId, NodeIndex
from events.job import EndReason


class ReleasedBy(StrEnum):
    """On whose word a lease ended, other than the agent's own report of its task."""

    RECONCILED = "reconciled"
    WIPED = "wiped"
    REMOVED = "removed"


class ResizeReason(StrEnum):
    """Why an elastic gang changed its size (R-44)."""

    GREW = "grew"
    """Onto GPUs that no queued job could use."""
    GAVE_BACK = "gave_back"
    """To make room for a queued job, before anybody is preempted for it."""
    LOST = "lost"
    """Replicas were lost, and enough of them are left."""


@event("gang.allocated", version=2)
class GangAllocated:
    """All ranks of an attempt were granted at once (I-3). `ranks[r]` = (node index, mask of the claimed GPUs).

    Masks hold every claimed and charged GPU, also those beyond `gpus_per_replica` on whole nodes (R-32).
    `limit_at`: when max_runtime is up; None = unlimited. `fallback`: plain first fit placed it (R-35). `promised_n`:
    the commit that pledged these GPUs to the job; in the walk (R-12) it stands where it was promised. None: no pledge.
    Version 1 was without it.
    """

    job_id: JobId
    attempt: int
    ranks: tuple[tuple[NodeIndex, GpuMask], ...]
    limit_at: Instant | None
    fallback: bool = False
    promised_n: int | None = None


@event("gang.running")
class GangRunning:
    """Every rank of the attempt runs."""

    job_id: JobId
    attempt: int


@event("gang.ending")
class GangEnding:
    """The attempt is to stop: its live leases get StopTask, and stay claimed until each is confirmed gone (P-15).

    `grace_s`: between SIGTERM and SIGKILL.
    """

    job_id: JobId
    attempt: int
    reason: EndReason
    grace_s: int


@event("gang.resized")
class GangResized:
    """An elastic attempt goes on with another number of ranks.

    `grown`: (node index, mask) of new ranks, numbered on from the last there was; `stopped`: ranks that it goes on
    without: their live leases get StopTask, and stay claimed until each is confirmed gone (P-15). `grace_s`: between
    SIGTERM and SIGKILL. `on_behalf_of`: the job that room is made for.
    """

    job_id: JobId
    attempt: int
    because: ResizeReason
    grown: tuple[tuple[NodeIndex, GpuMask], ...] = ()
    stopped: tuple[int, ...] = ()
    grace_s: int = 0
    on_behalf_of: JobId | None = None


@event("gang.released")
class GangReleased:
    """The last lease of the attempt ended; nothing of it holds a GPU any more."""

    job_id: JobId
    attempt: int


@event("lease.released")
class LeaseReleased:
    """One lease ended without a report of its task: by reconciliation or an operator's word."""

    job_id: JobId
    attempt: int
    rank: int
    by: ReleasedBy
