"""When a type is used up: whatever still waits for it has to wait on, so its turns need not be given (C-5).

No node has as many GPUs free as the least of them asks for; nobody is there whom one of them could displace; and nodes
are held already, for a job that none of them overtakes. Each turn would end as it began, in whatever order. (Holders
have theirs: should one lose its nodes by it, as its team may not start it any more, then the next cycle finds somebody
else for whom they are held.) What is remembered of failures is not looked at: a planner that has just begun finds the
same.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from events.ids import GpuType
from events.job import PriorityClass
from scheduler.planning import reserve
from scheduler.planning.preempt_ground import could_give, levels_of
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
