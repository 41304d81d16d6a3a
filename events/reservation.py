"""Reservations: nodes held for the start of the first blocked job of a node or more (R-23)."""

from enum import StrEnum

from events.catalogue import event
from events.ids import GpuType, Instant, JobId, NodeIndex


class FreedBecause(StrEnum):
    """Why a reservation ended."""

    STARTED = "started"
    OVERTAKEN = "overtaken"
    """Another job is first now."""
    GONE = "gone"
    """The job ended, is held, waits for something else, or is of another pool by now."""
    PREEMPTS = "preempts"
    """Room is made for it: a pledge takes the reservation's place."""


@event("blocks.reserved")
class BlocksReserved:
    """`nodes` are held for the job, which is expected to start at `start_at`. `pool`: "" or a declared pool's name."""

    job_id: JobId
    gpu_type: GpuType
    pool: str
    nodes: tuple[NodeIndex, ...]
    start_at: Instant


@event("blocks.moved")
class BlocksMoved:
    """The reservation is now for these nodes and this start. Later than before only for what we did not start
    (R-23): a node that was lost or drained, or a limit that was extended."""

    job_id: JobId
    nodes: tuple[NodeIndex, ...]
    start_at: Instant


@event("blocks.freed")
class BlocksFreed:
    """The reservation ended."""

    job_id: JobId
    because: FreedBecause
