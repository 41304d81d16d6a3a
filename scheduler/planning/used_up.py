"""Whatever still waits has to wait on, so that its turns need not be given (C-5): all of a type, or single lines.

A type is used up when no node has as many GPUs free as the least of them asks for; nobody is there whom one of them
could displace; and nodes are held already, for a job that none of them overtakes. Each turn would end as it began, in
whatever order. (Holders have theirs: should one lose its nodes by it, as its team may not start it any more, then the
next cycle finds somebody else for whom they are held.) What is remembered of failures is not looked at: a planner that
has just begun finds the same.

Where a type is not used up a line of it may be without hope for the same reasons, whatever the others get; unless more
comes free by that than was asked for, or reservations move. Then the cycle is run again, with all turns.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from commands.entities import ReservationKey
from events.ids import GpuType
from events.job import PriorityClass
from scheduler.planning import reserve
from scheduler.planning.preempt_ground import could_empty, could_give, levels_of
from scheduler.planning.queue import Line
from scheduler.planning.trial import Trial

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner
    from scheduler.planning.turns import Turns


CLASSES = tuple(PriorityClass)


def borrows(trial: Trial, line: Line) -> bool:
    """Would the next job of the line borrow?"""
    return line.charge > trial.shares.standing(line.share).covered_room


class Chances:
    """What there is of one type for those who wait, as things are in this cycle."""

    def __init__(self, planner: "Planner", trial: Trial, gpu_type: GpuType) -> None:
        self._planner = planner
        self._trial = trial
        self._gpu_type = gpu_type
        self._free = trial.capacity.most_free(gpu_type)
        self._gives: dict[tuple[int, bool], bool] = {}
        """Is anybody there to be displaced, by class rank and whether who asks would borrow?"""
        self._sizes: list[int] | None = None
        self._tiers: dict[ReservationKey, reserve.Tier] = {}

    def used_up(self, lines: Collection[Line]) -> bool:
        """Is the type used up, for the queued shapes of it that are left?"""
        if self._free >= min([line.each for line in lines]):
            return False
        return not (any(map(self._gives_to, lines)) or any(map(self._may_hold, lines)))

    def without_hope(self, lines: Iterable[Line]) -> set[Line]:
        """Those that cannot start, displace or have nodes held."""
        return {line for line in lines if not self._hopes(line)}

    def _hopes(self, line: Line) -> bool:
        try:
            return self._fits(line) or self._makes_room(line) or self._may_hold(line)
        except Exception:  # our bug in one job: its turn says whose it is (C-46)
            return True

    def _fits(self, line: Line) -> bool:
        """Might it start on what is free?"""
        return line.each <= self._free and (line.single or self._trial.capacity.could_hold(line.spec))

    def _gives_to(self, line: Line) -> bool:
        """Is anybody there whom it might displace?"""
        tier = (line.class_rank, borrows(self._trial, line))
        gives = self._gives.get(tier)
        if gives is None:
            gives = self._gives[tier] = self._gives_at(*tier)
        return gives

    def _gives_at(self, class_rank: int, borrowing: bool) -> bool:
        if not self._trial.shares.anybody_on(self._gpu_type):
            return False
        victims = self._planner.victims
        victims.refresh(self._trial.now)
        return could_give(victims.grounds, self._gpu_type, levels_of(CLASSES[class_rank], not borrowing))

    def _makes_room(self, line: Line) -> bool:
        """The same, and enough of them."""
        if not self._gives_to(line):
            return False
        victims, job = self._planner.victims, self._trial.state.jobs.rows[line.entries[0][1]]
        return could_empty(victims.grounds, victims.held_by, job, not borrows(self._trial, line))

    def _may_hold(self, line: Line) -> bool:
        """Might nodes be held for it? Where they are already, only if it overtakes."""
        trial, sizes = self._trial, self._sizes
        if sizes is None:
            sizes = self._sizes = self._planner.forecast.node_gpus(self._gpu_type)
            self._tiers = {held.key: held.tier for held in reserve.held_on(trial, self._gpu_type)}
        for size in sizes:
            if line.each <= size <= line.gpus:
                pool = trial.pool_of(trial.state.jobs.rows[line.entries[0][1]])
                tier = self._tiers.get((self._gpu_type, pool))
                return tier is None or (borrows(trial, line), line.class_rank) < tier
        return False


class HopeAfterAll(Exception):
    """A line was left out, and what others were given might help it: all have to have their turns."""


class LeftOut:
    """On what it rests that lines get no turn in a cycle though others of their type do."""

    def __init__(self, planner: "Planner", trial: Trial, turns: "Turns") -> None:
        self._planner = planner
        self._trial = trial
        self._turns = turns
        self._held: dict[GpuType, tuple[reserve.Held, ...]] = {}
        self._moved = self._moves()

    def begin(self, gpu_type: GpuType) -> None:
        """Some of this type are left out."""
        self._held[gpu_type] = reserve.held_on(self._trial, gpu_type)

    def check(self) -> None:
        """At the end: raises HopeAfterAll where more came free than was asked for, reservations moved or are others to
        overtake; or where the commit is full, and whether anybody may grow goes by who had a turn."""
        if not self._held:
            return
        full = self._turns.ranks_left <= 0 and bool(self._planner.victims.elastic)
        if full or self._moves() != self._moved:
            raise HopeAfterAll
        for gpu_type, held in self._held.items():
            if gpu_type in self._trial.left_over or reserve.held_on(self._trial, gpu_type) != held:
                raise HopeAfterAll

    def _moves(self) -> tuple[int, int]:
        """Changes with each reservation that is made, moved or over."""
        return self._turns.holds_made, len(self._turns.holds_over)
