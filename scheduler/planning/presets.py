"""Three plain planners behind the seam of the policy's own: baselines, to compare with in replay. Not for production.

Per GPU type, jobs in order of submission; no classes, shares, reservations of nodes, preemption or growth. What a team
may not use at all (guarantee plus borrow limit) it does not get here either: a job that fits the fleet and not that is
passed over.

fifo: start the head while it fits; else stop. skip: walk the queue in order and start whatever fits. easy: fifo; then
one reservation for the head at the earliest T at which enough will be free by the run-time limits (ends at or before T
all count); walk the rest in order: a job starts if it fits now and (now + limit <= T, or gpus <= extra), where extra is
what is free at T less the head's GPUs, lowered by each such job that runs past T.

The reservation is of a number of GPUs, not of nodes, and `extra` may be spent on any of them: that is the textbook's
rule (Lifka 1995), and not R-23's.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commands.entities import Job
from commands.plan import Placement, Plan, Ranks
from commands.policy import Preset
from commands.shape import charged_gpus
from events.ids import GpuType, Instant, JobId
from events.preemption import PledgeEnd
from events.reservation import FreedBecause
from scheduler.planning.fit import find
from scheduler.planning.queue import ELEMENT_RANKS, Shape

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner

NEVER = 1 << 60


def plan_plainly(planner: "Planner", now: Instant, ranks_max: int) -> Plan:
    """One cycle under the preset in force. What was pledged or reserved under another policy ends."""
    planner.queue.begin(now)
    walk = _Walk(planner, now, ranks_max)
    for gpu_type, jobs in sorted(_waiting(planner).items()):
        walk.run(gpu_type, jobs)
    state = planner.state
    return Plan(
        n=state.meta.n,
        pledges_over=tuple((job_id, PledgeEnd.GONE) for job_id in sorted(state.pledges)),
        holds_over=tuple((state.reservations[key].job_id, FreedBecause.GONE) for key in sorted(state.reservations)),
        placements=tuple(walk.placements),
        tries=walk.tries,
    )


def _waiting(planner: "Planner") -> dict[GpuType, list[tuple[int, JobId, Shape]]]:
    """The queue of each GPU type, in order of submission."""
    found: dict[GpuType, list[tuple[int, JobId, Shape]]] = {}
    for shape, line in planner.queue.lines.items():
        of_type = found.setdefault(line.gpu_type, [])
        of_type += [(planner.state.jobs[job_id].submit_seq, job_id, shape) for _, job_id in line.entries]
    return {gpu_type: sorted(jobs) for gpu_type, jobs in found.items()}


class _Walk:
    """One pass over the queues; what it starts is taken in the planner's indices for trial."""

    def __init__(self, planner: "Planner", now: Instant, ranks_max: int) -> None:
        self._planner = planner
        self._now = now
        self._ranks_left = ranks_max
        self.placements: list[Placement] = []
        self.tries = 0
        self._ends: list[tuple[int, int]] = []
        """(expected end, GPUs) of what this pass started on the type."""
        self._unfit: set[Shape] = set()

    def run(self, gpu_type: GpuType, jobs: list[tuple[int, JobId, Shape]]) -> None:
        preset = self._planner.state.policy.preset
        self._ends = []
        turns = self._turns(jobs)
        head = None
        for job, shape in turns:
            if not self._start(job, shape) and preset is not Preset.SKIP:
                head = job
                break
        if head is not None and preset is Preset.EASY:
            self._backfill(gpu_type, head, turns)

    def _turns(self, jobs: list[tuple[int, JobId, Shape]]) -> Iterator[tuple[Job, Shape]]:
        """Each job once, an array once for each element that it may start."""
        for _, job_id, shape in jobs:
            job = self._planner.state.jobs[job_id]
            for _ in range(job.grants_max):
                if self._ranks_left <= 0 or shape in self._unfit:
                    break
                yield job, shape

    def _start(self, job: Job, shape: Shape) -> bool:
        """Start it, where it fits and its team's limit lets it. False: it does not fit, and so keeps its turn."""
        mark = self._planner.capacity.mark()
        ranks = find(self._planner.state, self._planner.capacity, job.spec)
        if ranks is None:
            self.tries += 1
            self._unfit.add(shape)
            return False
        gpus = sum(mask.bit_count() for _, mask in ranks)
        if gpus <= self._planner.shares.standing((job.spec.team, job.spec.gpu_type)).room:
            self._take(job, ranks, gpus)
        else:
            self._planner.capacity.undo(mark)
            self._unfit.add(shape)
        return True

    def _take(self, job: Job, ranks: Ranks, gpus: int) -> None:
        self._planner.shares.grant((job.spec.team, job.spec.gpu_type), gpus, False)
        self._ends.append((self._end(job), gpus))
        self._ranks_left -= len(ranks) + (ELEMENT_RANKS if job.elements is not None else 0)
        self.placements.append(Placement(job_id=job.id, ranks=ranks))

    def _backfill(self, gpu_type: GpuType, head: Job, turns: Iterator[tuple[Job, Shape]]) -> None:
        """The rest of the queue, in the hole before the head's start."""
        start_at, extra = self._reserve(gpu_type, head)
        for job, shape in turns:
            gpus, past, before = self._gpus(job), self._end(job) > start_at, len(self.placements)
            if past and gpus > extra:
                continue
            self._start(job, shape)
            if past and len(self.placements) > before:
                extra -= gpus

    def _reserve(self, gpu_type: GpuType, head: Job) -> tuple[int, int]:
        """When enough for the head will be free, and how many GPUs more than that there will be then."""
        wanted = self._gpus(head)
        free = sum(pool.free_gpus for key, pool in self._planner.capacity.pools.items() if key[0] == gpu_type)
        ends = sorted([*self._running(gpu_type), *self._ends])
        for place, (end, gpus) in enumerate(ends):
            free += gpus
            if free >= wanted and (place + 1 == len(ends) or ends[place + 1][0] > end):
                return end, free - wanted
        return NEVER, 0

    def _running(self, gpu_type: GpuType) -> Iterator[tuple[int, int]]:
        for attempt in self._planner.state.attempts.rows.values():
            if attempt.gpu_type == gpu_type and attempt.charged:
                yield self._planner.forecast.ends_at(attempt, self._now), attempt.charged

    def _end(self, job: Job) -> int:
        left_s = job.left_s if job.left_s is not None else self._planner.state.policy.unlimited_horizon_s
        return self._now + left_s * 1000

    def _gpus(self, job: Job) -> int:
        """What it will be charged, on the smallest registered nodes that hold a rank of it. Not of those in service:
        a planner that saw others go remembers their size, and a fresh one would not know it (C-70)."""
        sizes = {size for gpu_type, size, _ in self._planner.state.pools.rows if gpu_type == job.spec.gpu_type}
        holding = [size for size in sorted(sizes) if size >= job.spec.gpus_per_replica]
        return charged_gpus(job.spec, holding[0]) if holding else job.spec.gpus
