"""The plan: what to start, stop, grow and hold now. A cycle is six named steps on one Trial.

1. what room was made for starts first (pledges), 2. reservations that stand are kept, 3. the queue is walked in order:
each job starts, or room is made for it, or the first blocked one of its type and pool has nodes held, 4. elastic jobs
grow onto what nobody could use. The order matters: a pledge must not lose its GPUs to the walk, nor a reservation to a
job behind it, nor a queued job to growth.

Nothing is kept that the state would not give again: memories of failures only save work (P-23, C-70).
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from commands.entities import Job
from commands.evolve.fair import advance_s
from commands.plan import Hold, Placement, Plan, Ranks, Resize, Room
from commands.policy import Preset
from commands.state import Change, State
from events.ids import Instant, JobId, TeamId
from events.preemption import PledgeEnd
from events.reservation import FreedBecause
from scheduler.planning import elastic, pledges, preempt, reserve
from scheduler.planning.capacity import Capacity
from scheduler.planning.fit import find
from scheduler.planning.forecast import Forecast
from scheduler.planning.order import FairShares, Turn, turn
from scheduler.planning.presets import plan_plainly
from scheduler.planning.queue import ELEMENT_RANKS, Line, Queue, Shape
from scheduler.planning.quota import Shares, untouchable
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex

MEMORY_MS = 5_000
"""A shape that did not fit is tried again after so long, whatever happened."""
Stamp = tuple[object, ...]


class Planner:
    """The indices of one state, fed with each accepted commit. Two planners of equal states plan alike."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.capacity = Capacity.of(state)
        self.queue = Queue(state)
        self.shares = Shares(state)
        self.fair = FairShares(state)
        self.forecast = Forecast(state)
        self.victims = VictimIndex(state, self.shares)
        self.failed: dict[Shape, Stamp] = {}

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""
        changes = list(changes)
        self.capacity.feed(self.state, changes)
        self.queue.feed(changes)
        self.shares.feed(changes)
        self.forecast.feed(changes)
        self.victims.feed(changes)
        for change in changes:
            if change.table in ("fair_use", "quotas"):
                self.fair.changed(change.key[0])
            elif change.table == "policies":
                self.fair.forget()
                self.failed.clear()

    def plan(self, now: Instant, ranks_max: int = 4_000) -> Plan:
        """What to do at `now`. Ends after about `ranks_max` ranks, so that a commit stays small."""
        try:
            if self.state.policy.preset is not Preset.DEFAULT:
                return plan_plainly(self, now, ranks_max)
            return Cycle(self, now, ranks_max).run()
        finally:
            self.capacity.undo()
            self.shares.undo()
            self.victims.undo()
            if len(self.failed) > 2 * len(self.queue.lines) + 100:
                self.failed = {shape: self.failed[shape] for shape in self.queue.lines if shape in self.failed}


class Cycle:
    """One run of the steps."""

    def __init__(self, planner: Planner, now: Instant, ranks_max: int) -> None:
        self._planner = planner
        self._ranks_left = ranks_max
        self._trial = Trial(state=planner.state, now=now, capacity=planner.capacity, shares=planner.shares)
        self._poisoned: list[tuple[JobId, str]] = []
        self._pledges_over: list[tuple[JobId, PledgeEnd]] = []
        self._holds_over: list[tuple[JobId, FreedBecause]] = []
        self._placements: list[Placement] = []
        self._rooms: list[Room] = []
        self._holds: list[Hold] = []
        self._resizes: list[Resize] = []
        self._tries = 0
        self._elements: dict[JobId, int] = {}
        """Elements that it starts of each array."""

    def run(self) -> Plan:
        """The steps, in order."""
        self._planner.queue.begin(self._trial.now)
        self._planner.fair.begin(self._trial.now)
        self._start_pledged()
        self._keep_reservations()
        self._walk_queue()
        self._grow()
        return Plan(
            n=self._trial.state.meta.n,
            poisoned=tuple(self._poisoned),
            pledges_over=tuple(self._pledges_over),
            holds_over=tuple(self._holds_over),
            resizes=tuple(self._resizes),
            placements=tuple(self._placements),
            rooms=tuple(self._rooms),
            holds=tuple(self._holds),
            tries=self._tries,
        )

    def _start_pledged(self) -> None:
        placements, over = pledges.settle(self._trial)
        self._placements += placements
        self._pledges_over += over
        for placement in placements:
            self._trial.started.add(placement.job_id)

    def _keep_reservations(self) -> None:
        self._holds_over += reserve.keep(self._trial)

    def _grow(self) -> None:
        if not self._tries:
            self._resizes += elastic.grow(self._trial)

    # The walk

    def _walk_queue(self) -> None:
        """Best turn first. A turn that got worse meanwhile (a grant raised the team's share, or used up its
        guarantee) is put back; a shape that does not fit is left out for the rest of the cycle."""
        heap = [(self._turn(line, line.entries[0]), shape, 0) for shape, line in self._planner.queue.lines.items()]
        heapify(heap)
        allowance = Allowance(self._trial.policy.failed_tries_max, (line.team for line in self._lines()))
        while heap and self._ranks_left > 0:
            key, shape, place = heappop(heap)
            line = self._planner.queue.lines[shape]
            now = self._turn(line, line.entries[place])
            if now > key:
                heappush(heap, (now, shape, place))
                continue
            if not allowance.left(line.team):
                continue
            job_id = line.entries[place][1]
            if self._take_turn(line, shape, job_id):
                after = place if self._elements_left(job_id) else place + 1
                if after < len(line.entries):
                    heappush(heap, (self._turn(line, line.entries[after]), shape, after))
            else:
                self._tries += 1
                allowance.use(line.team)

    def _lines(self) -> Iterable[Line]:
        return self._planner.queue.lines.values()

    def _turn(self, line: Line, entry: tuple[tuple[bool, int, int, int], JobId]) -> Turn:
        job = self._trial.state.jobs[entry[1]]
        standing = self._trial.shares.standing((line.team, line.gpu_type))
        covered = job.spec.gpus <= standing.covered_room
        share = self._planner.fair.share(line.team)
        policy = self._trial.policy
        return turn(covered, line.class_rank, entry[0], share, self._trial.now, policy.ease_per_hour_percent)

    def _take_turn(self, line: Line, shape: Shape, job_id: JobId) -> bool:
        """Start the job, or make room or hold nodes for it. False: others of its shape need not be tried."""
        job = self._trial.state.jobs[job_id]
        if job_id in self._trial.state.pledges or job_id in self._trial.started:
            return True
        stamp = self._stamp(line)
        if self._planner.failed.get(shape) == stamp:
            return False
        marks = (self._trial.capacity.mark(), self._trial.shares.mark(), self._planner.victims.mark())
        try:
            if self._decide(job):
                return True
            self._planner.failed[shape] = stamp
            return False
        except Exception as error:  # our bug in one job must not stop the others (C-46)
            self._trial.capacity.undo(marks[0])
            self._trial.shares.undo(marks[1])
            self._planner.victims.undo(marks[2])
            self._elements.pop(job_id, None)
            self._poisoned.append((job_id, f"{type(error).__name__}: {error}"))
            return True

    def _elements_left(self, job_id: JobId) -> bool:
        """Is it an array of which this cycle started an element, and may start more (R-7)? It keeps its entry."""
        if not 0 < self._elements.get(job_id, 0) < self._trial.state.jobs[job_id].grants_max:
            return False
        return all(room.job_id != job_id for room in self._rooms)

    def _stamp(self, line: Line) -> Stamp:
        """Whatever could let a shape fit that did not: GPUs that came free, its team's standing, reservations, time
        (protections end, and new victims start)."""
        trial = self._trial
        held = tuple((held.job_id, held.start_at) for _, held in sorted(trial.reservations.items()))
        standing = trial.shares.standing((line.team, line.gpu_type))
        freed = trial.capacity.freed.get(line.gpu_type, 0)
        return (freed, standing.room, standing.covered_room, held, trial.now // MEMORY_MS)

    def _decide(self, job: Job) -> bool:
        """In this order: start on what is free; take nodes held for a lower tier; make room; hold nodes (R-43)."""
        key = (job.spec.team, job.spec.gpu_type)
        standing = self._trial.shares.standing(key)
        covered = job.spec.gpus <= standing.covered_room
        if job.spec.gpus > standing.room or (untouchable(job) and not covered):
            return False
        if self._start_on_free(job, reserve.usable(self._trial, job)):
            return True
        if self._overtake(job, covered):
            return True
        planner = self._planner
        room = preempt.make_room(self._trial, planner.forecast, job, covered, planner.victims)
        if room is not None:
            self._rooms.append(room)
            return True
        self._hold(job, covered)
        return False

    def _start_on_free(self, job: Job, among: int | None) -> bool:
        mark = self._trial.capacity.mark()
        if job.spec.elastic is not None:
            ranks = elastic.find(self._trial, job, among)
        else:
            ranks = find(self._trial.state, self._trial.capacity, job.spec, among=among)
        if ranks is None:
            return False
        if not self._may_start(job, ranks):
            self._trial.capacity.undo(mark)
            return False
        self._start(job, ranks)
        return True

    def _may_start(self, job: Job, ranks: Ranks) -> bool:
        """Within the limit; and covered, where the job starts only so (R-40)."""
        gpus = sum(mask.bit_count() for _, mask in ranks)
        standing = self._trial.shares.standing((job.spec.team, job.spec.gpu_type))
        return gpus <= standing.room and (not untouchable(job) or gpus <= standing.covered_room)

    def _start(self, job: Job, ranks: Ranks) -> None:
        gpus = sum(mask.bit_count() for _, mask in ranks)
        key = (job.spec.team, job.spec.gpu_type)
        self._trial.shares.grant(key, gpus, gpus <= self._trial.shares.standing(key).covered_room)
        self._planner.fair.grant(*key, gpus * advance_s(job, self._trial.policy.fair_advance_s))
        if job.elements is None:
            self._trial.started.add(job.id)
        else:
            self._elements[job.id] = self._elements.get(job.id, 0) + 1
            self._ranks_left -= ELEMENT_RANKS
        until = 0 if job.max_runtime_s is None else self._trial.now + (job.max_runtime_s - job.consumed_s) * 1000
        for index, _ in ranks:
            self._trial.busy_until[index] = until
        self._placements.append(Placement(job_id=job.id, ranks=ranks))
        self._ranks_left -= len(ranks)
        self._over(job.id, FreedBecause.STARTED)

    def _overtake(self, job: Job, covered: bool) -> bool:
        """Nodes held for a job of a lower group or class are no obstacle: its reservation ends, if that helps."""
        lower = reserve.overtaken(self._trial, job, covered)
        if not lower:
            return False
        held = dict(self._trial.reservations)
        for job_id in lower:
            reserve.drop(self._trial, job_id)
        if self._start_on_free(job, reserve.usable(self._trial, job)):
            self._holds_over += [(job_id, FreedBecause.OVERTAKEN) for job_id in lower]
            return True
        self._trial.reservations = held
        return False

    def _over(self, job_id: JobId, because: FreedBecause) -> None:
        """The job's reservation, if it has one, ends."""
        if any(held.job_id == job_id for held in self._trial.reservations.values()):
            reserve.drop(self._trial, job_id)
            self._holds_over.append((job_id, because))

    def _hold(self, job: Job, covered: bool) -> None:
        """The first blocked job of a node or more, of each type and pool, has its nodes held (R-23)."""
        before = self._trial.reservations.get((job.spec.gpu_type, self._trial.pool_of(job)))
        if before is not None and before.job_id in reserve.overtaken(self._trial, job, covered):
            reserve.drop(self._trial, before.job_id)
        else:
            before = None
        hold = reserve.reserve(self._trial, self._planner.forecast, job)
        if hold is not None:
            self._holds.append(hold)
            if before is not None:
                self._holds_over.append((before.job_id, FreedBecause.OVERTAKEN))
        elif before is not None:
            self._trial.reservations[before.key] = before


class Allowance:
    """Failed tries of a cycle, shared out among the teams with queued work (R-24, C-72)."""

    def __init__(self, tries_max: int, teams: Iterable[TeamId]) -> None:
        known = sorted(set(teams))
        each = max(1, tries_max // max(1, len(known)))
        self._left = dict.fromkeys(known, each)

    def left(self, team: TeamId) -> bool:
        return self._left[team] > 0

    def use(self, team: TeamId) -> None:
        self._left[team] -= 1
