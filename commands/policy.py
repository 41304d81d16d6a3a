"""The policy: every parameter with its default, bounds and unit. Data; each is read by the one rule it belongs to.

docs/policy.md has the same as a table, and says in plain words what the rules are. A parameter is here once some rule
reads it, and nowhere else has a default.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from commands.pools import Pools
from events.job import PriorityClass

Seconds = Annotated[int, Field(ge=0, le=366 * 86400)]
Percent = Annotated[int, Field(ge=0, le=10_000)]


class Preset(StrEnum):
    """Which planner holds. All but the default are plain baselines, to compare with in replay: in order of submission,
    with no regard to classes, quotas' order, hints beyond the strict ones, or preemption."""

    DEFAULT = "default"
    FIFO = "fifo"
    SKIP = "skip"
    EASY = "easy"


NOT_BELOW = {
    "node_lost_s": "node_suspect_s",
    "retry_backoff_max_s": "retry_backoff_s",
    "shield_after_two_s": "shield_after_preemption_s",
}
"""Field -> the one before it that it must not be smaller than."""


class Policy(BaseModel):
    """All parameters. A change is a PolicyChanged event; it holds from the next decision, and the next cycle, on."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)

    preset: Preset = Preset.DEFAULT
    """Which planner holds: `default` is the policy of this page; `fifo`, `skip` and `easy` are baselines for replay."""

    # Submission

    queued_jobs_max: Annotated[int, Field(ge=1, le=1_000_000)] = 5_000
    """Queued jobs of a team beyond which submissions are refused; an array counts as one (R-13)."""
    array_elements_max: Annotated[int, Field(ge=1, le=50_000)] = 50_000
    """Elements of an array (R-7)."""
    image_registries: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Prefixes that images must have; empty: any (R-11)."""
    default_classes: tuple[PriorityClass, ...] = (PriorityClass.RESEARCH, PriorityClass.PREEMPTIBLE)
    """Classes of a team for which none were set (R-11)."""
    max_runtime_max_s: Annotated[int, Field(ge=60, le=366 * 86400)] = 30 * 86400
    """Longest run time that may be asked for, extensions included (R-5)."""

    # Order

    ease_per_hour_percent: Annotated[int, Field(ge=0, le=1000)] = 10
    """An hour of waiting eases a team's share by so many hundredths (R-21)."""
    ease_max_percent: Percent = 100
    """In all it is eased by at most so many hundredths (R-21)."""
    fair_half_life_h: Annotated[int, Field(ge=1, le=8784)] = 168
    """What a team used counts half after so many hours (R-21)."""
    fair_advance_s: Annotated[int, Field(ge=0, le=86_400)] = 3600
    """Charged in advance at a start: the run-time limit, at most this (R-21)."""
    failed_tries_max: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    """Tries that fail, or are known to, in one cycle, shared out among teams (R-24); none on a type that is used up."""

    # Placement

    pools: Pools = ()
    """Nodes set apart for some jobs (R-34, R-37). A node that is named belongs to that pool, not to its block's."""
    spare_gang_gpus_min: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Gangs of so many GPUs or more have hot spares (R-34)."""
    spare_nodes_percent: Annotated[int, Field(ge=0, le=100)] = 1
    """Hot spares of such a gang, in percent of its nodes, rounded up; 0: none (R-34)."""
    borrow_runtime_max_s: Seconds = 0
    """A job starts borrowing only where at most so much of its run-time limit is left; 0: however long (R-12)."""
    unlimited_horizon_s: Annotated[int, Field(ge=60, le=366 * 86400)] = 7 * 86400
    """A job without a limit is expected to end so long after now (C-3)."""
    start_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = 600
    """A gang in which any rank does not run by then is released whole (R-30)."""

    # Preemption

    grace_s_max: Seconds = 240
    """Longest grace between SIGTERM and SIGKILL, whatever the job asks for (R-41)."""
    preemptions_max: Annotated[int, Field(ge=1, le=1000)] = 3
    """Preemptions of a job in 24 h, after which it can be displaced from borrowed capacity only (R-42)."""
    shield_after_preemption_s: Seconds = 1800
    """An attempt that follows a preemption is not preempted for so long from its start (R-42)."""
    shield_after_two_s: Seconds = 3600
    """The same after two preemptions in 24 h (R-42)."""
    await_ends_s: Seconds = 60
    """Ends due within so long are waited for, rather than brought about (R-43)."""
    pledge_margin_s: Seconds = 120
    """What is to end is given up so long after its grace; a pledge that it was to serve ends, and is planned anew."""
    evicted_percent_max: Annotated[int, Field(ge=100, le=10_000)] = 110
    """GPUs stopped for each 100 asked for, beyond which more, smaller victims are preferred (C-12)."""

    # Faults

    lease_missing_s: Annotated[int, Field(ge=1, le=86_400)] = 120
    """A lease absent from reports so long after its start was sent fails its attempt (R-63)."""
    node_suspect_s: Annotated[int, Field(ge=1, le=86_400)] = 30
    """Silence after which a node is suspect: nothing starts there (R-70)."""
    node_lost_s: Annotated[int, Field(ge=1, le=86_400)] = 90
    """Silence after which a node is down: its gangs are queued again (R-70)."""
    mass_silence_percent: Annotated[int, Field(ge=1, le=100)] = 10
    """More of the nodes than that silent together are no loss of nodes (R-70)."""
    mass_silence_nodes_min: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Nor is a whole block; either only from so many nodes on (R-70)."""
    fault_restarts_without_progress_max: Annotated[int, Field(ge=0, le=1000)] = 3
    """Infrastructure faults in a row, without a new checkpoint, that end a job (R-6)."""
    retry_backoff_s: Seconds = 30
    """The first retry is at once; the second waits so long, each later one twice as long as the one before (R-6)."""
    retry_backoff_max_s: Seconds = 900
    """No retry waits longer (R-6)."""

    isolation_s: Seconds = 900
    """A job with `overlap: never` ends itself after so long without word from a leader (P-22)."""
    isolation_margin_s: Seconds = 60
    """So much longer, after its grace, its successor waits."""

    # Memory

    key_days: Annotated[int, Field(ge=1, le=366)] = 30
    """Days for which idempotency keys and ends of jobs are remembered (R-2)."""

    @field_validator("node_lost_s", "retry_backoff_max_s", "shield_after_two_s")
    @classmethod
    def _not_below(cls, value: int, info: ValidationInfo) -> int:
        """Of two figures that belong together the later one is not the smaller."""
        other = NOT_BELOW[str(info.field_name)]
        least = info.data.get(other)
        if least is not None and value < least:
            raise PydanticCustomError(
                "below", "has to be at least {least}, as {other} is", {"other": other, "least": least}
            )
        return value


DEFAULT = Policy()
