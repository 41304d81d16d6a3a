"""Whether a cycle was the last for now: another one at the same time would find nothing, and need not be run.

All had their turn, and who failed did so with more there than is left: what the cycle gave is gone for the others. So
it is where it did nothing but start jobs and make room. Not where that might have helped somebody: by freeing more than
was asked for, by pushing a lease over its team's guarantee, by starting what a job of the same team may displace, or
what is soon over, so that its end can be waited for; by starting on pledged GPUs what anybody may displace, as a pledge
is nobody's to take; by leaving a team more of its guarantee, as it waits for an end of its own; by other spares; or by
using up what a team needs for a job that has nodes held. What is seldom is not gone into: a yes is to be certain (the
tests run the other cycle), a no is not.
"""

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from commands.entities import Job
from commands.plan import Placement, Room
from events.ids import JobId, TeamId
from events.job import CLASS_RANK
from events.preemption import PledgeEnd
from scheduler.planning import reserve
from scheduler.planning.queue import Line
from scheduler.planning.trial import Trial
from scheduler.planning.used_up import borrows

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner
    from scheduler.planning.turns import Turns


def nothing_more(planner: "Planner", trial: Trial, turns: "Turns", *, over: list[tuple[JobId, PledgeEnd]]) -> bool:
    """Is it certain that a cycle right after this one finds nothing? Nobody grew, and all who wait had their turn.
    `over`: pledges that this cycle ends."""
    if any(end is not PledgeEnd.STARTED for _, end in over):
        return False
    if turns.poisoned or turns.holds_over or turns.holds_made or turns.ranks_left <= 0:
        return False
    if turns.elements or planner.victims.elastic or turns.by_loss or trial.put_off:
        return False
    if turns.rooms and (trial.left_over or trial.uncovers):
        return False
    jobs, lines = trial.state.jobs.rows, planner.queue.lines.values()
    steps: list[Placement | Room] = [*turns.placements, *turns.rooms]
    given = [jobs[step.job_id] for step in steps]
    if not given:
        return True
    pledged = [jobs[job_id] for job_id, _ in over]
    if any(_might_displace(trial, lines, job) for job in pledged):
        return False
    if any(trial.soon_over(jobs[placement.job_id]) for placement in turns.placements):
        return False
    if trial.shares.pushes(given) or _eases(trial, turns.rooms):
        return False
    if planner.pools.moves_spares(given, [step.ranks for step in steps]):
        return False
    lowest = _lowest(given)
    if any(line.class_rank < lowest.get(line.team, 0) for line in lines):
        return False
    if not trial.reservations:
        return True
    return _held_as_before(planner, trial, rooms=turns.rooms, pledged=pledged, given=lowest)


def _might_displace(trial: Trial, lines: Iterable[Line], started: Job) -> bool:
    """Might somebody else who waits displace this job, which is a victim once it has started on what was pledged to it?
    Or may more of it start, as it is an array?"""
    rank, gpu_type = CLASS_RANK[started.priority_class], started.spec.gpu_type
    return started.elements is not None or any(
        line.gpu_type == gpu_type
        and (line.class_rank < rank or not borrows(trial, line))
        and (len(line.entries) > 1 or line.entries[0][1] != started.id)
        for line in lines
    )


def _eases(trial: Trial, rooms: Iterable[Room]) -> bool:
    """Might more of its guarantee be left to a team, as one of its jobs waits for the end of its own lease? A covered
    one comes last in the team's walk then, and others may be covered in its stead."""
    attempts, jobs, shares = trial.state.attempts.rows, trial.state.jobs.rows, trial.shares
    for room in rooms:
        spec = jobs[room.job_id].spec
        share = (spec.team, spec.gpu_type)
        own = [key for key in room.awaited if attempts[key].team == spec.team]
        if own and shares.standing(share).over and not shares.borrowed(share).issuperset(own):
            return True
    return False


def _held_as_before(
    planner: "Planner", trial: Trial, *, rooms: Iterable[Room], pledged: Iterable[Job], given: Container[TeamId]
) -> bool:
    """Do the reservations stay where they are, and as hard to overtake? No nodes come free sooner than was expected,
    and the holders' teams were given nothing."""
    held = trial.reservations.values()
    soonest = max([each.start_at for each in held])
    if any(room.victims or room.shrinks for room in rooms) or any(trial.until(job) < soonest for job in pledged):
        return False
    teams = {trial.state.jobs.rows[each.job_id].spec.team for each in held}
    return not any(team in given for team in teams) and all(
        reserve.stands(trial, planner.forecast, each) for each in held
    )


def _lowest(given: list[Job]) -> dict[TeamId, int]:
    """Rank of the lowest class of each team that was given something."""
    lowest: dict[TeamId, int] = {}
    for job in given:
        rank = CLASS_RANK[job.priority_class]
        lowest[job.spec.team] = max(rank, lowest.get(job.spec.team, rank))
    return lowest
