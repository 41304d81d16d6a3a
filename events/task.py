"""Tasks: the process tree of one rank under its lease, as its agent reported it."""

from enum import StrEnum

from events.catalogue import event
from events.ids import JobId, NodeIndex


class TaskEnd(StrEnum):
    """How a task came to be gone."""

    EXITED = "exited"
    """By itself; `exit_code` says how (128 + n for signal n)."""
    STOPPED = "stopped"
    """By our StopTask."""
    TIMED_OUT = "timed_out"
    """The shim enforced the persisted limit."""
    START_FAILED = "start_failed"
    """It never ran: image, working directory, executable or GPU missing."""
    NEVER_STARTED = "never_started"
    """The stop overtook the start; it will never start."""
    LOST = "lost"
    """The agent found it gone without an exit status (node reboot)."""


@event("task.started")
class TaskStarted:
    """The rank's process runs. `report`: number of the agent's report (journal in NodeRegistered)."""

    job_id: JobId
    attempt: int
    rank: int
    node: NodeIndex
    report: int


@event("task.ended")
class TaskEnded:
    """Nothing of the rank is left on its node: the confirmation that frees the lease (P-15).

    `finished`: the job had reported itself finished (C-51).
    """

    job_id: JobId
    attempt: int
    rank: int
    node: NodeIndex
    report: int
    end: TaskEnd
    exit_code: int | None
    finished: bool = False
    detail: str = ""


@event("report.dropped")
class ReportDropped:
    """A report that changes nothing: late, doubled, or an impossible transition (C-42). Counted, acknowledged."""

    node: NodeIndex
    report: int
    reason: str


@event("zombie.reclaimed")
class ZombieReclaimed:
    """The agent found a process on a GPU that no lease covers, and killed it (R-63)."""

    node: NodeIndex
    report: int
    gpu: int
    pid: int
