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

What is certain not to start is not asked about, kind by kind: what no nodes could hold, and of the rest, with one look
at a line of alike jobs, those that would outlast the hole and need more than `extra`.
"""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from typing import TYPE_CHECKING

from commands.entities import Job
from commands.plan import Placement, Plan, Ranks
from commands.policy import Preset
from commands.shape import charged_gpus
from events.ids import GpuType, Instant, JobId
from events.job import JobSpec
from events.preemption import PledgeEnd
from events.reservation import FreedBecause
from scheduler.planning.endings import Ending, Endings
from scheduler.planning.fit import find
from scheduler.planning.forecast import UNLIMITED
from scheduler.planning.queue import ELEMENT_RANKS, Shape, limit_class_s
from scheduler.planning.submitted import FIRST, Alike, Entry, OfType, Submitted

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner


class Plain:
    """What the presets keep of a state, beside what every planner does."""

    def __init__(self, planner: "Planner") -> None:
        self.submitted = Submitted(planner.state, planner.queue)
        self.endings = Endings(planner.state)


def plan_plainly(planner: "Planner", plain: Plain, now: Instant, ranks_max: int) -> Plan:
    """One cycle under the preset in force. What was pledged or reserved under another policy ends."""
    planner.queue.begin(now)
    walk = _Walk(planner, plain, now, ranks_max)
    for gpu_type, waiting in plain.submitted.types():
        walk.run(gpu_type, waiting)
    state = planner.state
    return Plan(
        n=state.meta.n,
        pledges_over=tuple((job_id, PledgeEnd.GONE) for job_id in sorted(state.pledges)),
        holds_over=tuple((state.reservations[key].job_id, FreedBecause.GONE) for key in sorted(state.reservations)),
        placements=tuple(walk.placements),
        tries=len(walk.unfit),
        last=walk.was_last and not state.pledges.rows and not state.reservations.rows,
    )


class _Walk:
    """One pass over the queues; what it starts is taken in the planner's indices for trial."""

    def __init__(self, planner: "Planner", plain: Plain, now: Instant, ranks_max: int) -> None:
        self._planner = planner
        self._plain = plain
        self._now = now
        self._ranks_left = ranks_max
        self.placements: list[Placement] = []
        self.unfit: set[Alike] = set()
        """What is known not to fit any more: less is free than was."""
        self._over: set[Shape] = set()
        """Shapes of those whose team's limit does not let them in."""
        self._ends: list[Ending] = []
        """Of what this pass started on the type."""
        self._hole_s, self._extra = UNLIMITED, 0
        """Until the head's start; and how many GPUs more than its own there will be then."""
        self._as_reckoned = True
        """Was each that ran past a head's start charged what was taken off the extra for it?"""

    @property
    def was_last(self) -> bool:
        """Would another pass after this one find nothing? What did not fit still does not, and the hole and the extra
        come out as they are left. But who was passed over for a limit might be charged less where less is free: when no
        place is as it wished any more. So it is of a commit at the plan's own time: one that comes later moves what it
        starts beyond the hole, by as much."""
        return self._ranks_left > 0 and not self._over and self._as_reckoned

    def run(self, gpu_type: GpuType, waiting: OfType) -> None:
        preset = self._planner.state.policy.preset
        self._ends = []
        if preset is Preset.SKIP:
            self._rest(FIRST, self._fitting(gpu_type, waiting))
            return
        head = self._head(waiting)
        if head is not None and preset is Preset.EASY and (fitting := self._fitting(gpu_type, waiting)):
            self._reserve(self._planner.state.jobs[head[1]].spec)
            self._rest(head, fitting)

    def _head(self, waiting: OfType) -> Entry | None:
        """Start all from the front that fit: the first that does not."""
        for entry in waiting.order:
            if self._ranks_left <= 0:
                return None
            alike = self._plain.submitted.alike(entry[1])
            for job in self._turns(entry[1]):
                if not self._start(job, alike):
                    return entry
        return None

    def _turns(self, job_id: JobId) -> Iterator[Job]:
        """A job once, an array once for each element that it may start."""
        job = self._planner.state.jobs[job_id]
        for _ in range(job.grants_max):
            if self._ranks_left <= 0 or (self._over and self._planner.queue.shape(job_id) in self._over):
                return
            yield job

    def _start(self, job: Job, alike: Alike) -> bool:
        """Start it, where it fits and its team's limit lets it. False: it does not fit, and so keeps its turn."""
        mark = self._planner.capacity.mark()
        ranks = find(self._planner.state, self._planner.capacity, job.spec)
        if ranks is None:
            self.unfit.add(alike)
            return False
        gpus = sum([mask.bit_count() for _, mask in ranks])
        if gpus <= self._planner.shares.standing((job.spec.team, job.spec.gpu_type)).room:
            self._take(job, ranks, gpus)
        else:
            self._planner.capacity.undo(mark)
            shape = self._planner.queue.shape(job.id)
            assert shape is not None, f"{job.id} is not in the queue"
            self._over.add(shape)
        return True

    def _take(self, job: Job, ranks: Ranks, gpus: int) -> None:
        self._planner.shares.grant((job.spec.team, job.spec.gpu_type), gpus, False)
        self._ends.append((self._now + self._left_s(job) * 1000, gpus))
        self._ranks_left -= len(ranks) + (ELEMENT_RANKS if job.elements is not None else 0)
        self.placements.append(Placement(job_id=job.id, ranks=ranks))

    def _fitting(self, gpu_type: GpuType, waiting: OfType) -> list[Alike]:
        """What might fit: the others are known not to."""
        pools, found = self._planner.capacity.by_type.get(gpu_type, ()), []
        for alike in waiting.alike.values():
            replicas, each = alike.spec.replicas, alike.spec.gpus_per_replica
            if alike in self.unfit:
                continue
            if any(pool.could_hold(each, replicas) for pool in pools):
                found.append(alike)
            else:
                self.unfit.add(alike)
        return found

    def _reserve(self, head: JobSpec) -> None:
        """When enough for the head will be free, and how many GPUs more than that there will be then."""
        free = sum([pool.free_gpus for pool in self._planner.capacity.by_type.get(head.gpu_type, ())])
        start_at, self._extra = self._plain.endings.enough_at(
            head.gpu_type, self._gpus(head), free=free, now=self._now, also=self._ends
        )
        self._hole_s = (start_at - self._now) // 1000

    def _rest(self, after: Entry, fitting: list[Alike]) -> None:
        """The rest of the queue, in the hole before the head's start."""
        for (_, job_id), alike, gpus in merge(*self._lines(after, fitting)):
            if self._ranks_left <= 0:
                return
            if alike not in self.unfit:
                self._fill(self._planner.state.jobs[job_id], alike, gpus)

    def _lines(self, after: Entry, fitting: list[Alike]) -> Iterator[Iterator[tuple[Entry, Alike, int]]]:
        """Of those that might fit, those that could be over by the head's start, or need no more than the extra."""
        on_edge, horizon_s = limit_class_s(self._hole_s), self._planner.state.policy.unlimited_horizon_s
        for alike in fitting:
            gpus = self._gpus(alike.spec)
            for limit_s, line in alike.lines.items():
                late = limit_s != on_edge and (limit_s or horizon_s) > self._hole_s
                if not (late and gpus > self._extra) and line[-1] > after:
                    yield self._line(alike, line if line[0] > after else line[bisect_right(line, after) :], gpus, late)

    def _line(self, alike: Alike, line: list[Entry], gpus: int, late: bool) -> Iterator[tuple[Entry, Alike, int]]:
        """One after the other, while any of it may start."""
        for entry in line:
            if alike in self.unfit or (late and gpus > self._extra):
                return
            yield entry, alike, gpus

    def _fill(self, job: Job, alike: Alike, gpus: int) -> None:
        """Start it, if it is over by the head's start, or needs no more than the extra."""
        past = self._left_s(job) > self._hole_s
        for _ in self._turns(job.id):
            if past and gpus > self._extra:
                return
            before = len(self.placements)
            if not self._start(job, alike):
                return
            if past and len(self.placements) > before:
                self._extra -= gpus
                self._as_reckoned &= self._ends[-1][1] == gpus

    def _left_s(self, job: Job) -> int:
        return job.left_s if job.left_s is not None else self._planner.state.policy.unlimited_horizon_s

    def _gpus(self, spec: JobSpec) -> int:
        """What it will be charged, on the smallest registered nodes that hold a rank of it. Not of those in service:
        a planner that saw others go remembers their size, and a fresh one would not know it (C-70)."""
        sizes = {size for gpu_type, size, _ in self._planner.state.pools.rows if gpu_type == spec.gpu_type}
        holding = [size for size in sorted(sizes) if size >= spec.gpus_per_replica]
        return charged_gpus(spec, holding[0]) if holding else spec.gpus
