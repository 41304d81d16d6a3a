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
    """Make room for a job at `ranks`: shrink elastic attempts by some of theirs, wait for those that end by themselves,
    stop the victims (R-40 to R-45)."""

    job_id: JobId
    ranks: Ranks
    victims: tuple[AttemptKey, ...]
    awaited: tuple[AttemptKey, ...]
    rule: PreemptionRule
    shrinks: tuple[tuple[AttemptKey, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An elastic attempt grows by `grown` ranks, numbered on from its last (R-44)."""

    key: AttemptKey
    grown: Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Hold nodes for the start of a blocked job (R-23): a new reservation, or the same moved."""

    job_id: JobId
    key: ReservationKey
    nodes: tuple[NodeIndex, ...]
    start_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The input of a cycle: with the state at the commit's `planned_at_n`, all that its facts follow from (I-9).

    `at`: the time that it was planned for. `part`: only these jobs of the plan, because all of it would not make a
    commit; `held`: in its place, this one job is held, on which deciding failed, and `why` (P-7).
    """

    at: Instant
    part: tuple[JobId, ...] | None = None
    held: JobId | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one cycle found, made at commit `n`. Applied in the order of the fields.

    `pledges_over`: pledges that end, those of jobs that start now among them; `holds_over`: reservations that end.
    `poisoned`: jobs on which planning failed by our own fault, and how: they are held (P-7). `tries`: shapes that were
    tried, or are known, not to fit (R-24). `last`: once all of it is applied, a cycle at the same time finds nothing.
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
    last: bool = False

    def jobs(self) -> list[JobId]:
        """Jobs that it is about, in the order in which they come."""
        found = [job_id for job_id, _ in (*self.poisoned, *self.pledges_over, *self.holds_over)]
        found += [resize.key[0] for resize in self.resizes]
        found += [step.job_id for step in self.placements]
        found += [step.job_id for step in self.rooms]
        found += [step.job_id for step in self.holds]
        return list(dict.fromkeys(found))

    def only(self, jobs: set[JobId]) -> "Plan":
        """The part about these jobs: what is about one job stays together."""
        return Plan(
            n=self.n,
            poisoned=tuple(step for step in self.poisoned if step[0] in jobs),
            pledges_over=tuple(step for step in self.pledges_over if step[0] in jobs),
            holds_over=tuple(step for step in self.holds_over if step[0] in jobs),
            resizes=tuple(step for step in self.resizes if step.key[0] in jobs),
            placements=tuple(step for step in self.placements if step.job_id in jobs),
            rooms=tuple(step for step in self.rooms if step.job_id in jobs),
            holds=tuple(step for step in self.holds if step.job_id in jobs),
        )

    def taken(self, planned: Planned) -> "Plan":
        """What of it one commit takes."""
        if planned.held is not None:
            return Plan(n=self.n, poisoned=((planned.held, planned.why),))
        return self if planned.part is None else self.only(set(planned.part))

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
