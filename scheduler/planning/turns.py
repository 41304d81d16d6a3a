"""What a job gets when its turn comes: a start, room that is made for it, nodes that are held, or nothing.

In this order (R-43): start on what is free; take nodes held for a lower tier; make room; hold nodes. What did not come
about is remembered, with all that could change it: to try again would only cost time (C-5).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from commands.entities import Job, Reservation, ReservationKey
from commands.evolve.fair import advance_s
from commands.plan import Hold, Placement, Ranks, Room
from commands.rows import maker
from events.ids import GpuType, Instant, JobId
from events.job import PriorityClass
from events.reservation import FreedBecause
from scheduler.planning import elastic, preempt, reserve
from scheduler.planning.failures import Stamp
from scheduler.planning.fit import find_with_fallback, one_rank
from scheduler.planning.forecast import UNLIMITED
from scheduler.planning.preempt_ground import could_empty, could_give, levels_of
from scheduler.planning.preempt_own import Own, own_of
from scheduler.planning.queue import ELEMENT_RANKS, Line
from scheduler.planning.quota import Standing
from scheduler.planning.trial import Trial

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner

Over = tuple[JobId, FreedBecause]
ALWAYS = Instant(1 << 62)
NO_MATTER = -1
_placement = maker(Placement)
_HOPELESS = (NO_MATTER,) * 3
"""Nothing that came free, moved or ends could help."""


class Turns:
    """What one cycle gives, as it is given."""

    def __init__(self, planner: "Planner", trial: Trial, ranks_max: int) -> None:
        self._planner = planner
        self._trial = trial
        self.ranks_left = ranks_max
        self.given = 0
        """Rises with whatever is given: a start, room that is made, nodes that are held."""
        self.poisoned: list[tuple[JobId, str]] = []
        self.placements: list[Placement] = []
        self.rooms: list[Room] = []
        self.holds: list[Hold] = []
        self.holds_over: list[Over] = []
        self.holds_made = 0
        """Those that another turn took back count too."""
        self.by_loss = False
        """Has a turn failed that might not have, were other victims the least harm?"""
        self.elements: dict[JobId, int] = {}
        """Elements that it starts of each array."""
        self._unreckoned: list[Ranks] = []
        """Starts that the index of victims does not know yet."""
        self._all_alike = not planner.pools.sets_apart
        self._advance_s = trial.policy.fair_advance_s
        self._asked: tuple[object, bool] = (None, False)
        """Who was asked about last, and whether anybody might make room for it."""
        self._roomy: Line | None = None
        """The line for which the last room was made, while no nodes were held for anybody."""
        self._touched: set[GpuType] = set()
        """Types of which something was taken."""

    def take(self, line: Line, job_id: JobId) -> bool:
        """The turn of a job. False: others of its shape need not be tried."""
        trial, planner = self._trial, self._planner
        job = trial.state.jobs.rows[job_id]
        if job_id in trial.state.pledges.rows:
            return True
        holder = job_id if trial.reservations and trial.holds(job_id) else None
        note = planner.memory.of(line, holder) if line.failed is not None or holder is not None else None
        if line.gpu_type in self._touched and (line.gpu_type in trial.left_over or (holder and self._seeks(job))):
            note = None
        stamp = self._stamp(line, job) if note is not None and trial.now < note.until else None
        if note is not None and note.stamp == stamp:
            return False
        marks = (trial.capacity.mark(), trial.shares.mark(), planner.victims.mark())
        held, over = self.holds_made, len(self.holds_over)
        before = self._holdings() if trial.reservations or self.holds or over else ({}, [], [])
        trial.by_loss = False
        try:
            if self._decide(line, job):
                self.given += 1
                return True
        except Exception as error:  # our bug in one job must not stop the others (C-46)
            trial.capacity.undo(marks[0])
            trial.shares.undo(marks[1])
            planner.victims.undo(marks[2])
            trial.reservations, self.holds, self.holds_over = before
            self.elements.pop(job_id, None)
            self.poisoned.append((job_id, f"{type(error).__name__}: {error}"))
            return True
        self.by_loss |= trial.by_loss
        if held == self.holds_made and not trial.by_loss:
            self._remember(line, job, holder, stamp if len(self.holds_over) == over else None)
        return False

    def _holdings(self) -> "tuple[dict[ReservationKey, Reservation], list[Hold], list[Over]]":
        """What is held so far, to come back to."""
        return self._trial.reservations.copy(), self.holds.copy(), self.holds_over.copy()

    def count(self, job: Job, standing: Standing, *, gpus: int, ranks: int) -> int:
        """A start takes of its team's quota and share, and of what a commit holds. Returns when it should end."""
        spec = job.spec
        self._trial.shares.start(standing, gpus)
        self._planner.fair.grant(spec.team, spec.gpu_type, gpus * advance_s(job, self._advance_s))
        self.ranks_left -= ranks
        if job.elements is not None:
            self.elements[job.id] = self.elements.get(job.id, 0) + 1
            self.ranks_left -= ELEMENT_RANKS
        return self._trial.until(job)

    def started(self, gpu_type: GpuType, jobs: list[JobId], until: list[int], places: list[Ranks]) -> None:
        """Starts that are counted already, in order. `until`: when each is expected to end."""
        self._touched.add(gpu_type)
        self.given += len(jobs)
        self._trial.taken += zip(until, places, strict=True)
        self._unreckoned += places
        self.placements += [_placement(job_id=job_id, ranks=ranks) for job_id, ranks in zip(jobs, places, strict=True)]

    def elements_left(self, job_id: JobId) -> bool:
        """Is it an array of which this cycle started an element, and may start more (R-7)? It keeps its entry."""
        if not 0 < self.elements.get(job_id, 0) < self._trial.state.jobs[job_id].grants_max:
            return False
        return all(room.job_id != job_id for room in self.rooms)

    # What is remembered

    def _remember(self, line: Line, job: Job, holder: JobId | None, stamp: Stamp | None) -> None:
        """It failed, and why that holds. What only the counts of the present trial say is looked up again each time;
        what was searched for in vain holds of the state, and only while nothing was taken for trial. `stamp`: where it
        is known."""
        stamp = self._stamp(line, job) if stamp is None else stamp
        if stamp[:3] == _HOPELESS:
            self._planner.memory.note(line, holder, stamp, ALWAYS)
        elif line.gpu_type not in self._touched and line.gpu_type not in self._trial.unpledged:
            self._planner.memory.note(line, holder, stamp, self._until(job))

    def _stamp(self, line: Line, job: Job) -> Stamp:
        """Whatever could let a shape fit that did not: GPUs that came free; who is to be displaced, with those that
        this cycle stops; for one that has nodes held, or might, when others end; its team's standing; reservations.
        What cannot help, whatever became of it, is left out: where too few GPUs are free it does not matter which."""
        trial, planner, gpu_type = self._trial, self._planner, line.gpu_type
        standing = trial.shares.standing(line.share)
        room, covered_room = standing.room, standing.covered_room
        covered = line.charge <= covered_room
        outlook = reserve.outlook(trial, job, covered)
        fits = trial.capacity.could_hold(line.spec, outlook.reach)
        gives = self._could_give(job, covered, outlook.reach)
        if not (fits or gives):
            room, covered_room = line.charge <= room, covered
        return (
            trial.capacity.freed.get(gpu_type, 0) if fits else NO_MATTER,
            (planner.memory.moves.get(gpu_type, 0), planner.victims.turned, planner.victims.mark())
            if gives
            else NO_MATTER,
            planner.forecast.version if outlook.might else NO_MATTER,
            room,
            covered_room,
            (planner.pools.declared, outlook.eligible),
            (line.alone, self._limited(line, standing)),
            outlook.held,
        )

    def _could_give(self, job: Job, covered: bool, reach: int | None) -> bool:
        """Is anybody there, on the nodes that it might come to, that might make room for it?"""
        trial, victims = self._trial, self._planner.victims
        if not trial.shares.anybody_on(job.spec.gpu_type):
            return False
        victims.refresh(trial.now)
        asked = (job.id, covered, reach, victims.mark(), len(self.placements), len(self.rooms))
        if asked == self._asked[0]:
            return self._asked[1]
        grounds, levels = victims.grounds, levels_of(job.priority_class, covered)
        gives = could_give(grounds, job.spec.gpu_type, levels)
        gives = gives and could_empty(grounds, victims.held_by, job, covered, reach)
        self._asked = (asked, gives)
        return gives

    def _seeks(self, job: Job) -> bool:
        """Does its reservation not stand any more? Then the best other place changes with what this cycle takes."""
        held = self._trial.reservations.get((job.spec.gpu_type, self._trial.pool_of(job)))
        if held is None or held.job_id != job.id:
            return False
        return not reserve.stands(self._trial, self._planner.forecast, held)

    def _until(self, job: Job) -> Instant:
        """Up to when time alone changes nothing that the stamp does not say: a start is overdue."""
        held, now = self._trial.reservations.values(), self._trial.now
        starts = [each.start_at for each in held if each.job_id == job.id and each.start_at >= now]
        return Instant(min(starts) + 1) if starts else ALWAYS

    # What is given

    def _decide(self, line: Line, job: Job) -> bool:
        standing, charge = self._trial.shares.standing(line.share), line.charge
        covered, alone = charge <= standing.covered_room, line.alone
        if charge > standing.room or (alone and not covered):
            if charge <= standing.room and self._in_pool(job, standing.room):
                return True
            if self._make_room(job, False):
                return True
            if alone or self._limited(line, standing):
                self._over(job.id, FreedBecause.GONE)
            else:
                self._hold(job, reserve.overtaken(self._trial, job, covered))
            return False
        if self._roomy is line and self._make_another(job, covered, own_of(standing, alone)):
            return True
        gpus_max = standing.covered_room if alone else standing.room
        if self._start_on_free(job, gpus_max):
            return True
        lower = reserve.overtaken(self._trial, job, covered)
        if lower and self._overtakes(lower, lambda: self._start_on_free(job, gpus_max)):
            return True
        if self._make_room(job, covered, line):
            return True
        if lower and self._overtakes(lower, lambda: self._make_room(job, covered)):
            return True
        self._hold(job, lower)
        return False

    def _limited(self, line: Line, standing: Standing) -> bool:
        """Is it the team's limit that stops a job that is too large for its room? A team that may have all there is
        has too little room only because too little is free: its job waits for ends, like others."""
        return standing.limit < self._trial.capacity.total_schedulable.get(line.gpu_type, 0)

    def _in_pool(self, job: Job, gpus_max: int) -> bool:
        """Outside its team's guarantee prod-serving starts in its pool only (R-40), for `gpus_max` at most."""
        if job.priority_class is not PriorityClass.PROD_SERVING:
            return False
        _, home = self._trial.home(job)
        if not home:
            return False
        usable = reserve.usable(self._trial, job)
        return self._place(job, home if usable is None else home & usable, gpus_max)

    def _start_on_free(self, job: Job, gpus_max: int) -> bool:
        """In its own pool first, then wherever it may (R-37)."""
        anywhere = self._all_alike and not self._trial.reservations
        if not (anywhere and job.spec.replicas == 1) and not self._trial.capacity.could_hold(job.spec):
            return False  # for one rank to look for a place costs no more than that
        if anywhere:
            return self._place(job, None, gpus_max)
        usable = reserve.usable(self._trial, job)
        _, home = self._trial.home(job)
        if home and self._place(job, home if usable is None else home & usable, gpus_max):
            return True
        return self._place(job, usable, gpus_max)

    def _place(self, job: Job, among: int | None, gpus_max: int) -> bool:
        """Start it on nodes of `among` where it fits. False, and nothing taken, where it does not."""
        trial = self._trial
        if job.spec.elastic is not None:
            ranks = elastic.find(trial, job, among)
        elif job.spec.replicas == 1:
            ranks = one_rank(trial.capacity, job.spec, among)
        else:
            found = find_with_fallback(trial.state, trial.capacity, job.spec, among=among, gpus_max=gpus_max)
            if found is not None:
                self._start(job, found.ranks, found.fallback)
            return found is not None
        if ranks is not None:
            self._start(job, ranks, False)
        return ranks is not None

    def _start(self, job: Job, ranks: Ranks, fallback: bool) -> None:
        trial, spec = self._trial, job.spec
        gpus = ranks[0][1].bit_count() if len(ranks) == 1 else sum([mask.bit_count() for _, mask in ranks])
        standing = trial.shares.standing((spec.team, spec.gpu_type))
        until = self.count(job, standing, gpus=gpus, ranks=len(ranks))
        self._touched.add(spec.gpu_type)
        trial.taken.append((until, ranks))
        self._unreckoned.append(ranks)
        self.placements.append(_placement(job_id=job.id, ranks=ranks, fallback=fallback))
        if trial.reservations:
            self._over(job.id, FreedBecause.STARTED)

    def _overtakes(self, lower: list[JobId], succeeds: Callable[[], bool]) -> bool:
        """Nodes held for jobs of a lower group or class are no obstacle: their reservations end, if that helps."""
        held = dict(self._trial.reservations)
        for job_id in lower:
            reserve.drop(self._trial, job_id)
        if succeeds():
            for job_id in lower:
                self._hold_over(job_id, FreedBecause.OVERTAKEN)
            return True
        self._trial.reservations = held
        return False

    def _make_room(self, job: Job, covered: bool, line: Line | None = None) -> bool:
        """By others' end, where somebody runs at all. `line`: of which the next may go on with the search."""
        trial, planner = self._trial, self._planner
        if not self._could_give(job, covered, reserve.outlook(trial, job, covered).reach):
            return False
        for ranks in self._unreckoned:
            for index, _ in ranks:
                planner.victims.taken(index, trial.capacity.free[index])
        self._unreckoned.clear()
        room = preempt.make_room(trial, planner.forecast, job, covered, planner.victims)
        if room is None:
            return False
        self._roomy = line if not trial.reservations else None
        return self._made(room, job)

    def _make_another(self, job: Job, covered: bool, own: Own) -> bool:
        """For a job of the line for which the last room was made, as nothing free would do: even less is free now."""
        trial = self._trial
        if trial.reservations or not (self._all_alike and trial.in_rows) or self._unreckoned or job.spec.elastic:
            return False
        room = preempt.make_another(trial, self._planner.victims, job, covered, own)
        return room is not None and self._made(room, job)

    def _made(self, room: Room, job: Job) -> bool:
        self._touched.add(job.spec.gpu_type)
        self.rooms.append(room)
        self._trial.taken.append((UNLIMITED, room.ranks))
        return True

    def _over(self, job_id: JobId, because: FreedBecause) -> None:
        """The job's reservation, if it has one, ends."""
        if self._trial.holds(job_id):
            reserve.drop(self._trial, job_id)
            self._hold_over(job_id, because)

    def _hold_over(self, job_id: JobId, because: FreedBecause) -> None:
        """A reservation ends that is in the log, or that this very cycle made or moved."""
        self.holds = [hold for hold in self.holds if hold.job_id != job_id]
        if any(held.job_id == job_id for held in self._trial.state.reservations.rows.values()):
            self.holds_over.append((job_id, because))

    def _hold(self, job: Job, lower: list[JobId]) -> None:
        """The first blocked job of a node or more, of each type and pool, has its nodes held (R-23). `lower`: holders
        that it overtakes."""
        before = self._trial.reservations.get((job.spec.gpu_type, self._trial.pool_of(job)))
        if before is not None and before.job_id in lower:
            reserve.drop(self._trial, before.job_id)
        else:
            before = None
        hold = reserve.reserve(self._trial, self._planner.forecast, job)
        if hold is not None:
            if before is not None:
                self._hold_over(before.job_id, FreedBecause.OVERTAKEN)
            self.holds_made += 1
            self.given += 1
            self.holds.append(hold)
        elif before is not None:
            self._trial.reservations[before.key] = before
