"""Checkpoints as the log accepted them (R-50)."""

from events.catalogue import event
from events.ids import JobId, NodeIndex


@event("checkpoint.recorded")
class CheckpointRecorded:
    """A complete checkpoint of attempt `attempt`. The resume point is the highest `sequence` of any attempt."""

    job_id: JobId
    attempt: int
    node: NodeIndex
    report: int
    sequence: int
    uri: str
    size_bytes: int
    step: int | None = None


@event("checkpoint.refused")
class CheckpointRefused:
    """A report that came after the next attempt was granted, or is not newer: the zombie writer's (R-50)."""

    job_id: JobId
    attempt: int
    node: NodeIndex
    report: int
    sequence: int
    reason: str
