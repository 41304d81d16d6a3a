"""The policy: every parameter with its default and unit. Data; the rules that read it are in scheduler/planning."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from commands.pools import Pools

Seconds = Annotated[int, Field(ge=0, le=366 * 86400)]


class Policy(BaseModel):
    """All parameters. A change is a PolicyChanged event; it holds from the next decision on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queued_jobs_max: Annotated[int, Field(ge=1, le=1_000_000)] = 5_000
    """Queued jobs of a team beyond which submissions are refused (R-13)."""
    array_elements_max: Annotated[int, Field(ge=1, le=50_000)] = 50_000
    """Elements of an array (R-7)."""
    pools: Pools = ()
    """Nodes set apart for some jobs (R-34, R-37). A node that is named belongs to that pool, not to its block's."""
    image_registries: tuple[str, ...] = ()
    """Prefixes that images must have; empty: any (R-11)."""
    max_runtime_max_s: Annotated[int, Field(ge=60, le=366 * 86400)] = 30 * 86400
    """Longest max_runtime that may be asked for."""
    default_classes: tuple[str, ...] = ("research", "preemptible")
    """Classes of a team for which none were set (R-11)."""
    ease_per_hour_percent: Annotated[int, Field(ge=0, le=1000)] = 10
    ease_max_percent: Annotated[int, Field(ge=0, le=10_000)] = 100
    """An hour of waiting eases a team's share by so much, in all at most so much (R-21)."""
    failed_tries_max: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    """Tries that fail, or are known to, in one cycle (R-24)."""
    grace_s_max: Seconds = 240
    """Longest grace between SIGTERM and SIGKILL (R-41)."""
    start_timeout_s: Seconds = 600
    """A gang in which any rank does not run by then is released whole (R-30)."""
    lease_missing_s: Seconds = 120
    """A lease absent from reports so long after its start was sent fails its attempt (R-63)."""
    node_suspect_s: Seconds = 30
    node_lost_s: Seconds = 90
    """Silence after which a node is suspect, and down (R-70)."""
    mass_silence_percent: Annotated[int, Field(ge=1, le=100)] = 10
    mass_silence_nodes_min: Annotated[int, Field(ge=1)] = 8
    """So many silent together are no loss of nodes (P-20)."""
    fault_restarts_without_progress_max: Annotated[int, Field(ge=0)] = 3
    """Infrastructure faults in a row, without a new checkpoint, that end a job (R-6)."""
    retry_backoff_s: Seconds = 30
    retry_backoff_max_s: Seconds = 900
    """Second and later retries wait this long, doubled each time, at most the maximum (R-6)."""
    preemptions_max: Annotated[int, Field(ge=1, le=1000)] = 3
    """Preemptions of a job in 24 h, after which only a covered job may displace it, and only what it borrows (R-42)."""
    shield_after_preemption_s: Seconds = 1800
    shield_after_two_s: Seconds = 3600
    """So long from its start an attempt is not preempted that follows a preemption; or two in 24 h (R-42)."""
    await_ends_s: Seconds = 60
    """Ends due within so long are waited for, rather than brought about (R-43)."""
    pledge_margin_s: Seconds = 120
    """What is to end is given up so long after its grace; a pledge that it was to serve ends, and is planned anew."""
    evicted_percent_max: Annotated[int, Field(ge=100, le=10_000)] = 150
    """GPUs stopped for each 100 asked for; rather than more, a job stops several that are smaller (C-12)."""
    isolation_s: Seconds = 900
    """A job with `overlap: never` ends itself after so long without word from a leader (P-22)."""
    isolation_margin_s: Seconds = 60
    """So much longer, after its grace, its successor waits."""
    key_days: Annotated[int, Field(ge=1, le=366)] = 30
    """How long idempotency keys and ends of jobs are remembered (R-2)."""


DEFAULT = Policy()
