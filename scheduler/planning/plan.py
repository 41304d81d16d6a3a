"""The plan seam: what to grant now. This is the plain policy: by class, then by time of submission.

Each job in turn gets its whole gang or nothing, within its team's guarantee and borrow limit. A shape that does not
fit is not tried again in the cycle. Whatever more the policy is to do goes in behind the same function.
"""

from collections.abc import Iterable

from commands.entities import Job
from commands.plan import Placement, Plan
from commands.state import Change, State
from events.ids import GpuType, Instant, JobId, TeamId
from scheduler.planning.capacity import Capacity
from scheduler.planning.fit import Ranks, find
from scheduler.planning.queue import Queue


class Planner:
    """The indices of one state, fed with each accepted commit. Two planners of equal states plan alike."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.capacity = Capacity.of(state)
        self.queue = Queue.of(state)

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""
        changes = list(changes)
        self.capacity.feed(self.state, changes)
        self.queue.feed(changes)

    def plan(self, now: Instant, ranks_max: int = 4_000) -> Plan:
        """What to grant at `now`, best first. Ends after `ranks_max` ranks, so that a commit stays small."""
        self.queue.wake(self.state, now)
        used: dict[tuple[TeamId, GpuType], int] = {}
        placements: list[Placement] = []
        poisoned: list[tuple[JobId, str]] = []
        tries = ranks = 0
        walk = self.queue.walk()
        for job_id, _ in walk:
            mark = self.capacity.mark()
            try:
                found = self._try(self.state.jobs[job_id], used)
            except Exception as error:  # our bug in one job must not stop the others (C-46)
                self.capacity.undo(mark)
                poisoned.append((job_id, f"{type(error).__name__}: {error}"))
                found = None
            if found is None:
                tries += 1
                walk.failed()
                continue
            placements.append(Placement(job_id=job_id, ranks=found))
            ranks += len(found)
            if ranks >= ranks_max:
                break
        self.capacity.undo()
        return Plan(n=self.state.meta.n, placements=tuple(placements), poisoned=tuple(poisoned), tries=tries)

    def _try(self, job: Job, used: dict[tuple[TeamId, GpuType], int]) -> Ranks | None:
        """GPUs for the gang within its team's limit, or None."""
        key = (job.spec.team, job.spec.gpu_type)
        quota, usage = self.state.quotas.get(key), self.state.usage.get(key)
        if quota is None:
            return None
        charged = (usage.charged if usage is not None else 0) + used.get(key, 0)
        room = quota.guaranteed + quota.borrow_limit - charged
        if job.spec.gpus > room:
            return None
        ranks = find(self.state, self.capacity, job.spec, room)
        if ranks is not None:
            used[key] = used.get(key, 0) + sum(mask.bit_count() for _, mask in ranks)
        return ranks
