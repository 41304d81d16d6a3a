"""When a type is used up: whatever still waits for it has to wait on, so its turns need not be given (C-5).

No node has as many GPUs free as the least of them asks for; nobody is there whom one of them could displace; and nodes
are held already, for a job that none of them overtakes. Each turn would end as it began, in whatever order. What is
remembered of failures is not looked at: a planner that has just begun finds the same.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from commands.entities import ReservationKey
from events.ids import GpuType
from events.job import PriorityClass
from scheduler.planning import reserve
from scheduler.planning.preempt_ground import could_give, levels_of
from scheduler.planning.queue import Line
from scheduler.planning.trial import Trial

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner


CLASSES = tuple(PriorityClass)
Kind = tuple[bool, int, int, int, ReservationKey]
"""(borrowing, class rank, GPUs of a rank, GPUs of the smallest gang, where nodes would be held): lines alike here."""


def used_up(planner: "Planner", trial: Trial, gpu_type: GpuType, lines: Iterable[Line]) -> bool:
    """Is the type used up, for the queued shapes of it that are left?"""
    kinds = {_kind(planner, trial, line) for line in lines}
    if trial.capacity.most_free(gpu_type) >= min(each for _, _, each, _, _ in kinds):
        return False
    return not _anybody_gives(planner, trial, gpu_type, kinds) and not _anybody_may_hold(
        planner, trial, gpu_type, kinds
    )


def borrows(trial: Trial, line: Line) -> bool:
    """Would the next job of the line borrow?"""
    return line.charge > trial.shares.standing(line.share).covered_room


def _kind(planner: "Planner", trial: Trial, line: Line) -> Kind:
    pool = trial.pool_of(trial.state.jobs[line.entries[0][1]]) if planner.pools.sets_apart else ""
    return (borrows(trial, line), line.class_rank, line.each, line.gpus, (line.gpu_type, pool))


def _anybody_gives(planner: "Planner", trial: Trial, gpu_type: GpuType, kinds: Iterable[Kind]) -> bool:
    if not trial.shares.anybody_on(gpu_type):
        return False
    planner.victims.refresh(trial.now)
    turns = {(CLASSES[class_rank], not borrowing) for borrowing, class_rank, _, _, _ in kinds}
    gives = any(could_give(planner.victims.grounds, gpu_type, levels_of(*turn)) for turn in turns)
    planner.somebody_gives |= gives
    return gives


def _anybody_may_hold(planner: "Planner", trial: Trial, gpu_type: GpuType, kinds: Iterable[Kind]) -> bool:
    """Might nodes be held for one of them that has none?"""
    sizes = planner.forecast.node_gpus(gpu_type)
    tiers = {held.key: held.tier for held in reserve.held_on(trial, gpu_type)}
    for borrowing, class_rank, each, gpus, key in kinds:
        tier = tiers.get(key)
        overtakes = tier is None or (borrowing, class_rank) < tier
        if overtakes and any(each <= size <= gpus for size in sizes):
            return True
    return False
