"""Whether a cycle was the last for now: another one at the same time would find nothing, and need not be run.

All had their turn, and who failed did so with more there than is left: what the cycle gave is gone for the others. So
it is where it did nothing but start jobs and make room. Not where that might have helped somebody: by freeing more than
was asked for, by pushing a lease over its team's guarantee, by starting what a job of the same team may displace, or
what is soon over, so that its end can be waited for; by leaving the guarantee to the team of one whose end is waited
for; by other spares; or by using up what a team needs for a job that has nodes held. What is seldom is not gone into: a
yes is to be certain (the tests run the other cycle), a no is not.
"""

from typing import TYPE_CHECKING

from commands.entities import Job
from commands.plan import Placement, Room
from events.ids import TeamId
from events.job import CLASS_RANK
from scheduler.planning import reserve
from scheduler.planning.trial import Trial

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner
    from scheduler.planning.turns import Turns


def nothing_more(planner: "Planner", trial: Trial, turns: "Turns") -> bool:
    """Is it certain that a cycle right after this one finds nothing? No pledge was over, nobody grew, and all who wait
    had their turn."""
    if turns.poisoned or turns.holds_over or turns.holds_made or turns.ranks_left <= 0:
        return False
    if turns.elements or planner.victims.elastic or turns.by_loss or trial.put_off:
        return False
    if turns.rooms and (trial.reservations or trial.left_over or trial.uncovers):
        return False
    jobs = trial.state.jobs.rows
    steps: list[Placement | Room] = [*turns.placements, *turns.rooms]
    given = [jobs[step.job_id] for step in steps]
    if not given:
        return True
    if any(map(trial.soon_over, given)) or trial.shares.pushes(given):
        return False
    if planner.pools.moves_spares(given, [step.ranks for step in steps]):
        return False
    lines, lowest = planner.queue.lines.values(), _lowest(given)
    eased = {trial.state.attempts.rows[key].team for room in turns.rooms for key in room.awaited}
    if any(line.team in eased or line.class_rank < lowest.get(line.team, 0) for line in lines):
        return False
    return all(
        jobs[held.job_id].spec.team not in lowest and reserve.stands(trial, planner.forecast, held)
        for held in trial.reservations.values()
    )


def _lowest(given: list[Job]) -> dict[TeamId, int]:
    """Rank of the lowest class of each team that was given something."""
    lowest: dict[TeamId, int] = {}
    for job in given:
        rank = CLASS_RANK[job.priority_class]
        lowest[job.spec.team] = max(rank, lowest.get(job.spec.team, rank))
    return lowest
