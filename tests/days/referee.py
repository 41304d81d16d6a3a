"""What no plan may do, whatever happens: judged on each plan before it is applied, and on the state after steps.

Told from requirements alone (R-12, R-40, R-42), not by the functions that the planner and the applier share.
"""

from __future__ import annotations

from dataclasses import dataclass

from commands.entities import Attempt, Job
from commands.plan import Placement, Plan, Room
from events.envelope import Event
from events.gang import GangEnding
from events.ids import Instant, JobId
from events.job import CLASS_RANK, EndReason, PriorityClass
from events.preemption import PreemptionRule
from scheduler.planning.quota import Standing
from tests.days.world import World

MINUTE_MS = 60_000
DAY_MS = 86_400_000
LOOK_EVERY_MS = 10 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """How the two teams stood before an order: guarantee and use of the preemptor's; guarantee of the victim's, and
    what of it others covered."""

    winner: tuple[int, int]
    loser: tuple[int, int]


class Referee:
    """Fails the test at the first foul. `displaced`: (who, whom), the last time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.displaced: dict[tuple[JobId, JobId], Displaced] = {}
        self.preempted: dict[JobId, list[Instant]] = {}
        self._looked_at = Instant(0)
        world.core.before_plan.append(self.judge)
        world.core.watchers.append(self.see)
        world.each_step.append(self.look)

    def judge(self, plan: Plan) -> None:
        """A plan that is about to be applied."""
        for placement in plan.placements:
            self._start(placement)
        for room in plan.rooms:
            for key in room.victims:
                victim = self.world.state.attempts[key]
                self._victim(room, victim)
                self._displaces(self.world.state.jobs[room.job_id], victim)

    def _start(self, placement: Placement) -> None:
        """prod-serving, and what may not be preempted, starts inside its team's guarantee only (R-40)."""
        job = self.world.state.jobs[placement.job_id]
        if _untouchable(job) and job.id not in self.world.state.pledges:
            standing, gpus = self._standing(job), _gpus(placement)
            assert standing.use + gpus <= standing.guaranteed or gpus <= standing.covered_room, job

    def _victim(self, room: Room, attempt: Attempt) -> None:
        """R-40 and R-42, one by one."""
        state, now = self.world.state, self.world.core.now
        job, victim = state.jobs[room.job_id], state.jobs[attempt.job_id]
        assert not _untouchable(victim), f"{victim.id} is never a victim"
        lower = CLASS_RANK[victim.priority_class] > CLASS_RANK[job.priority_class]
        own = victim.spec.team == job.spec.team
        borrowed = attempt.key in self.world.core.planner.shares.borrowed((attempt.team, attempt.gpu_type))
        reclaim = room.rule is PreemptionRule.RECLAIM and borrowed and not own
        assert reclaim or lower, f"{victim.id} is of no lower class than {job.id}"
        covered = _gpus(room) <= self._standing(job).covered_room
        assert covered or borrowed or own, f"{job.id} borrows, and {victim.id} does not"
        if reclaim:
            return
        began = attempt.running_at or now
        if attempt.after_preemption:
            assert now - began >= 30 * MINUTE_MS, f"{victim.id} was preempted just before (R-42)"
        recent = [at for at in self.preempted.get(victim.id, ()) if at > now - DAY_MS]
        assert len(recent) < 3, f"{victim.id} was preempted {len(recent)} times in 24 h (R-42)"
        if len(recent) == 2:
            assert now - began >= 60 * MINUTE_MS, f"{victim.id} was preempted twice: an hour's protection (R-42)"

    def see(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, GangEnding) and event.reason is EndReason.PREEMPTED:
                self.preempted.setdefault(event.job_id, []).append(self.world.core.now)

    def _displaces(self, job: Job, victim: Attempt) -> None:
        """Nobody is displaced by the one that he displaced, unless somebody's start, end or quota came between (C-11,
        ADR 9): his team uses as much as then, and others of the victim's team cover no less."""
        shares = self.world.core.planner.shares
        own, theirs = self._standing(job), shares.standing((victim.team, victim.gpu_type))
        borrowed = victim.key in shares.borrowed((victim.team, victim.gpu_type))
        covered = theirs.covered - (0 if borrowed else victim.charged)
        before = self.displaced.get((victim.job_id, job.id))
        if before is not None:
            same_quotas = (before.winner[0], before.loser[0]) == (theirs.guaranteed, own.guaranteed)
            nobody_else = theirs.use == before.winner[1] + victim.charged
            nobody_less = own.covered >= before.loser[1]
            assert not (same_quotas and nobody_else and nobody_less), f"{job.id} and {victim.job_id} play ping-pong"
        self.displaced[job.id, victim.job_id] = Displaced(
            winner=(own.guaranteed, own.use), loser=(theirs.guaranteed, covered)
        )

    def look(self) -> None:
        """Covered use never exceeds the guarantee, use never the limit, nothing is negative (R-12, I-11)."""
        now, state = self.world.core.now, self.world.state
        if now < self._looked_at + LOOK_EVERY_MS:
            return
        self._looked_at = now
        for key in state.quotas.rows:
            standing = self.world.core.planner.shares.standing(key)
            assert 0 <= standing.covered <= standing.guaranteed, (key, standing)
            assert standing.use >= standing.covered, (key, standing)

    def _standing(self, job: Job) -> Standing:
        return self.world.core.planner.shares.standing((job.spec.team, job.spec.gpu_type))


def _gpus(given: Placement | Room) -> int:
    """GPUs that it is charged for; of an elastic job it may be less than it asked for."""
    return sum(mask.bit_count() for _, mask in given.ranks)


def _untouchable(job: Job) -> bool:
    return job.priority_class is PriorityClass.PROD_SERVING or not job.spec.checkpoint.preemptible
