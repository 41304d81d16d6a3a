"""A plan: what the planner proposes. Data; nothing holds until the applier has checked it and the log has it."""

from dataclasses import dataclass

from commands.entities import AttemptKey, ReservationKey
from events.ids import Instant, JobId, NodeIndex
from events.preemption import PledgeEnd, PreemptionRule
from events.reservation import FreedBecause

Ranks = tuple[tuple[NodeIndex, int], ...]
"""Rank r gets the GPUs of the mask on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Grant a job's next attempt. `fallback`: plain first fit found it (R-35)."""

    job_id: JobId
    ranks: Ranks
    fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Make room for a job at `ranks`: stop the victims, wait for those that end by themselves (R-40 to R-45)."""

    job_id: JobId
    ranks: Ranks
    victims: tuple[AttemptKey, ...]
    awaited: tuple[AttemptKey, ...]
    rule: PreemptionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An elastic attempt grows by `grown` ranks (numbered on from its last), or stops the ranks `stopped` (R-44)."""

    key: AttemptKey
    grown: Ranks = ()
    stopped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Hold nodes for the start of a blocked job (R-23): a new reservation, or the same moved."""

    job_id: JobId
    key: ReservationKey
    nodes: tuple[NodeIndex, ...]
    start_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one cycle found, made at commit `n`. Applied in the order of the fields.

    `pledges_over`: pledges that end, those of jobs that start now among them; `holds_over`: reservations that end.
    `poisoned`: jobs on which planning failed by our own fault, and how: they are held (P-7). `tries`: shapes that were
    tried, or are known, not to fit (R-24).
    """

    n: int
    poisoned: tuple[tuple[JobId, str], ...] = ()
    pledges_over: tuple[tuple[JobId, PledgeEnd], ...] = ()
    holds_over: tuple[tuple[JobId, FreedBecause], ...] = ()
    resizes: tuple[Resize, ...] = ()
    placements: tuple[Placement, ...] = ()
    rooms: tuple[Room, ...] = ()
    holds: tuple[Hold, ...] = ()
    tries: int = 0

    def empty(self) -> bool:
        """Would it change nothing?"""
        return not (
            self.poisoned
            or self.pledges_over
            or self.holds_over
            or self.resizes
            or self.placements
            or self.rooms
            or self.holds
        )
