"""The applier: turns a plan into facts, after checking every invariant.

A placement that the newest state does not allow any more is left out, with its reason; the others go on (C-6, C-46).
"""

from commands.apply_grants import make_grants
from commands.apply_holds import end_holds, make_holds
from commands.apply_resizes import grow
from commands.apply_rooms import end_pledges, make_rooms
from commands.decide.attempts import Draft
from commands.plan import Plan
from events.ids import JobId
from events.job import JobHeld, JobState
from events.leadership import InputRefused


def apply(draft: Draft, plan: Plan) -> list[tuple[JobId, str]]:
    """Facts for what holds of a plan, added to `draft`; the rest by job, with why it does not."""
    for job_id, why in plan.poisoned:
        if (job := draft.state.jobs.get(job_id)) is None or job.state is not JobState.QUEUED:
            continue
        draft.add(InputRefused(input=job_id, why=why[:300]))
        draft.add(JobHeld(job_id=job_id))
    end_pledges(draft, plan.pledges_over)
    end_holds(draft, plan.holds_over)
    stale = grow(draft, plan.resizes)
    stale += make_grants(draft, plan.placements)
    return stale + make_rooms(draft, plan.rooms, plan.n) + make_holds(draft, plan.holds)
