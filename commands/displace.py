"""Who may displace whom (R-40, R-42), and who may start on GPUs that can be taken back (R-12). The one place for these
rules: admission and the planner choose by them, the applier checks by them.

Borrowed leases give way to covered jobs, lower classes to higher ones; what was preempted of late is left alone. Why
nobody can displace the job that displaced it: docs/adr/0009-no-preemption-loops.md.
"""

from commands.entities import Attempt, Job
from commands.policy import Policy
from events.ids import Instant
from events.job import CLASS_RANK, JobSpec, PriorityClass

DAY_MS = 86_400_000


def untouchable(job: Job) -> bool:
    """prod-serving, and what said `preemptible: false`: starts only covered, and is never a victim."""
    return protected(job.spec, job.priority_class)


def protected(spec: JobSpec, priority_class: PriorityClass) -> bool:
    """The same of a job that is only asked for."""
    return priority_class is PriorityClass.PROD_SERVING or not spec.checkpoint.preemptible


def starts_only_covered(policy: Policy, job: Job) -> bool:
    """Does the job start inside its team's guarantee or not at all? As nobody may stop it, or as it would keep what it
    borrows for longer than the policy lets it."""
    return untouchable(job) or borrows_too_long(policy, job.left_s)


def borrows_too_long(policy: Policy, left_s: int | None) -> bool:
    """Is what is left of a run-time limit (None: there is none) too long for GPUs that are borrowed from now on?"""
    longest = policy.borrow_runtime_max_s
    return longest > 0 and (left_s is None or left_s > longest)


def may_displace(
    policy: Policy, now: Instant, job: Job, covered: bool, victim: Job, attempt: Attempt, borrowed: bool
) -> bool:
    """May the queued `job`, which would start covered or not, stop the victim's attempt, which is borrowed or not?"""
    if untouchable(victim) or victim.id == job.id:
        return False
    if victim.spec.team != job.spec.team:
        if covered and borrowed:
            return True
        if job.priority_class is PriorityClass.PROD_SERVING or not (covered or borrowed):
            return False
    lower = CLASS_RANK[victim.priority_class] > CLASS_RANK[job.priority_class]
    return lower and shielded_until(policy, now, victim, attempt) <= now


def shielded_until(policy: Policy, now: Instant, job: Job, attempt: Attempt) -> Instant:
    """Until when the attempt is shielded by what its job has suffered of late (R-42); `now` or before: it is not.

    After a preemption for half an hour from its start, after two for an hour, but only until the first of them is a
    day ago; after three until then in any case. While it has not started yet, its start is now.
    """
    recent = [at for at in job.preempted_at if at > now - DAY_MS]
    began = attempt.running_at if attempt.running_at is not None else now
    until = 0
    if attempt.after_preemption:
        until = began + policy.shield_after_preemption_s * 1000
    if len(recent) >= 2:
        until = max(until, min(began + policy.shield_after_two_s * 1000, recent[-2] + DAY_MS))
    if len(recent) >= policy.preemptions_max:
        until = max(until, recent[-policy.preemptions_max] + DAY_MS)
    return Instant(until)


def saved_at(job: Job, attempt: Attempt) -> Instant:
    """Up to when the attempt's work is safe: its last checkpoint, or its start. What came after is lost if it stops."""
    began = attempt.running_at if attempt.running_at is not None else attempt.granted_at
    return began if job.checkpoint is None else Instant(max(began, job.checkpoint.at))
