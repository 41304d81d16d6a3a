"""A plan: what the planner proposes. Data; nothing holds until the applier has checked it and the log has it."""

from dataclasses import dataclass

from events.ids import JobId, NodeIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Grant a job's next attempt: `ranks[r]` = (node, mask of the GPUs to claim)."""

    job_id: JobId
    ranks: tuple[tuple[NodeIndex, int], ...]
    fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one cycle found, made at commit `n`. `tries`: shapes that were tried and did not fit.

    `poisoned`: jobs on which planning failed by our own fault, and how: they are held (P-7).
    """

    n: int
    placements: tuple[Placement, ...] = ()
    poisoned: tuple[tuple[JobId, str], ...] = ()
    tries: int = 0
