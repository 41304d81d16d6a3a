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

from commands.entities import Job
from events.ids import GpuType
from events.job import PriorityClass
from scheduler.planning import reserve
from scheduler.planning.preempt_ground import could_empty, could_give, levels_of
from scheduler.planning.queue import Line
from scheduler.planning.trial import Trial

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner


CLASSES = tuple(PriorityClass)


def used_up(planner: "Planner", trial: Trial, gpu_type: GpuType, lines: Collection[Line]) -> bool:
    """Is the type used up, for the queued shapes of it that are left?"""
    if trial.capacity.most_free(gpu_type) >= min([line.each for line in lines]):
        return False
    return not (_anybody_gives(planner, trial, gpu_type, lines) or _anybody_may_hold(planner, trial, gpu_type, lines))


def borrows(trial: Trial, line: Line) -> bool:
    """Would the next job of the line borrow?"""
    return line.charge > trial.shares.standing(line.share).covered_room


class HopeAfterAll(Exception):
    """A line was left out, and what others were given might help it: all have to have their turns."""


class LeftOut:
    """Lines that get no turn in a cycle, and what that rests on."""

    def __init__(self, planner: "Planner", trial: Trial) -> None:
        self._planner = planner
        self._trial = trial
        self._held: dict[GpuType, tuple[reserve.Held, ...]] = {}

    def without_hope(self, gpu_type: GpuType, lines: Iterable[Line]) -> set[Line]:
        """Those that cannot start, displace or have nodes held."""
        trial, planner = self._trial, self._planner
        free, held = trial.capacity.most_free(gpu_type), reserve.held_on(trial, gpu_type)
        sizes = planner.forecast.node_gpus(gpu_type)
        gives: dict[tuple[int, bool], bool] = {}
        found: set[Line] = set()
        for line in lines:
            if line.each <= free and (line.single or trial.capacity.could_hold(line.spec)):
                continue
            tier = (line.class_rank, borrows(trial, line))
            if tier not in gives:
                gives[tier] = self._gives(gpu_type, *tier)
            job = trial.state.jobs.rows[line.entries[0][1]]
            if gives[tier] and self._could_empty(job, not tier[1]):
                continue
            if not any(line.each <= size <= line.gpus for size in sizes) or _is_held(trial, held, job, tier):
                found.add(line)
        if found:
            self._held[gpu_type] = held
        return found

    def check(self) -> None:
        """At the end: raises HopeAfterAll where it does not hold of all that were left out."""
        for gpu_type, held in self._held.items():
            if gpu_type in self._trial.left_over or reserve.held_on(self._trial, gpu_type) != held:
                raise HopeAfterAll

    def _gives(self, gpu_type: GpuType, class_rank: int, borrowing: bool) -> bool:
        victims = self._planner.victims
        victims.refresh(self._trial.now)
        return could_give(victims.grounds, gpu_type, levels_of(CLASSES[class_rank], not borrowing))

    def _could_empty(self, job: Job, covered: bool) -> bool:
        victims = self._planner.victims
        return could_empty(victims.grounds, victims.held_by, job, covered)


def _is_held(trial: Trial, held: Iterable[reserve.Held], job: Job, tier: tuple[int, bool]) -> bool:
    """Are nodes held already where they would be for the job, for somebody whom it does not overtake?"""
    key = (job.spec.gpu_type, trial.pool_of(job))
    return any(each.key == key and not each.yields(job, not tier[1]) for each in held)


def _anybody_gives(planner: "Planner", trial: Trial, gpu_type: GpuType, lines: Collection[Line]) -> bool:
    """Is anybody there whom one of them might displace?"""
    if not trial.shares.anybody_on(gpu_type):
        return False
    planner.victims.refresh(trial.now)
    for class_rank, borrowing in {(line.class_rank, borrows(trial, line)) for line in lines}:
        if could_give(planner.victims.grounds, gpu_type, levels_of(CLASSES[class_rank], not borrowing)):
            return True
    return False


def _anybody_may_hold(planner: "Planner", trial: Trial, gpu_type: GpuType, lines: Collection[Line]) -> bool:
    """Might nodes be held for one of them that has none?"""
    sizes = planner.forecast.node_gpus(gpu_type)
    tiers = {held.key: held.tier for held in reserve.held_on(trial, gpu_type)}
    for line in lines:
        if any(line.each <= size <= line.gpus for size in sizes):
            job = trial.state.jobs[line.entries[0][1]]
            tier = tiers.get((gpu_type, trial.pool_of(job)))
            if tier is None or (borrows(trial, line), line.class_rank) < tier:
                return True
    return False
