"""Agents that repeat what was recorded of an attempt, as far as it applies; what it does not tell is the model's.

How long ranks take to start, and to go when they are told to, is true of an attempt whenever it is granted. When it
saves and ends is so only where it is granted when it was granted then: else its work is done when its work is done.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from commands.entities import Attempt, AttemptKey
from commands.reports import TaskEndedReport, TaskStartedReport
from commands.state import State
from events.gang import GangAllocated, GangEnding, GangResized, GangRunning
from events.ids import Instant, NodeIndex, lease_id
from events.task import TaskEnd
from replay.engine.agents import LEAST_MS, OFF, SIGTERMED, UNSAVED, Agents, Later, Run
from replay.engine.models import FULL, Models
from replay.scenario import Said, Tried

NEAR_MS = 2_000
NEVER = Instant(1 << 62)


@dataclass(slots=True)
class Script:
    """Of one attempt. `told`: ranks that were told to stop; `gone`: that have reported their end. `again`: it was
    granted when it was granted then."""

    tried: Tried
    again: bool
    told: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    @property
    def ends_itself(self) -> bool:
        return self.again and any(said.end is not None and not said.stopped for said in self.tried.said)


class ScriptedAgents(Agents):
    """All agents of a cluster; those of attempts without a record are the model's."""

    def __init__(self, state: State, clock: Callable[[], Instant], later: Later, *, models: Models = OFF) -> None:
        super().__init__(state, clock, later, models=models)
        self._scripts: dict[AttemptKey, Script] = {}

    def _allocated(self, event: GangAllocated) -> None:
        key = (event.job_id, event.attempt)
        tried = self.work_of(event.job_id).tries.get(event.attempt)
        if tried is None:
            super()._allocated(event)
            return
        again = self._models.off and abs(self._clock() - tried.granted_at) <= NEAR_MS
        self.runs[key] = Run(self._clock())
        self._scripts[key] = Script(tried, again)
        self._begin(key, range(len(event.ranks)))

    def _begin(self, key: AttemptKey, ranks: range) -> None:
        """These ranks were granted now."""
        script = self._scripts[key]
        unknown = set() if script.again else set(ranks)
        for said in script.tried.said:
            if said.rank not in ranks or said.stopped:
                continue
            if said.end is None and not said.saved and not said.missing:
                unknown.discard(said.rank)
                self._in(said.after_ms, lambda rank=said.rank: self._started(key, rank))  # type: ignore[misc]
            elif script.again:
                self._in(said.after_ms, lambda said=said: self._does(key, said))  # type: ignore[misc]
        if unknown:
            self._in(self.work_of(key[0]).start_s * 1000, lambda: self._start(key, sorted(unknown)))

    def _started(self, key: AttemptKey, rank: int) -> None:
        """It runs; also where it was told to stop meanwhile, if it was then, and its start was heard all the same."""
        script, attempt = self._scripts.get(key), self._state.attempts.get(key)
        stops = attempt is not None and (attempt.ending is not None or not attempt.stays(rank))
        if script is None or attempt is None or not stops:
            self._start(key, (rank,))
        elif script.again and rank in script.tried.told and rank not in script.gone and attempt.live(rank):
            self._say(attempt, rank, TaskStartedReport)

    def _heard_then(self, attempt: Attempt) -> bool:
        script = self._scripts.get(attempt.key)
        return script is not None and script.again

    def _running(self, event: GangRunning) -> None:
        key = (event.job_id, event.attempt)
        script, run = self._scripts.get(key), self.runs.get(key)
        if script is None or run is None or not script.again:
            super()._running(event)
            return
        run.since = run.running_at = self._clock()
        checkpoint = self._state.jobs[key[0]].checkpoint
        run.done_ms = (checkpoint.step or 0) if checkpoint is not None else 0
        if script.ends_itself:
            run.go_on(self._clock(), FULL)
            run.ends_at = NEVER
        else:
            self._go_on(key, run)
            self._seen_until(key, run, Instant(self._state.attempts[key].granted_at + script.tried.ran_ms))

    def _seen_until(self, key: AttemptKey, run: Run, at: Instant) -> None:
        """It did not end by itself before that."""
        if at >= run.ends_at:
            run.ends_at = Instant(at + LEAST_MS)
            self._later(run.ends_at, lambda: self._end(key))

    def _does(self, key: AttemptKey, said: Said) -> None:
        """It saves, or a rank ends."""
        script, run, attempt = self._scripts.get(key), self.runs.get(key), self._state.attempts.get(key)
        if script is None or run is None or attempt is None:
            return
        if said.saved:
            self._saved_on(key, run, attempt.ranks[said.rank][0])
            return
        if not attempt.live(said.rank) or said.rank in script.gone:
            return
        if said.missing:
            self.register_again(attempt.ranks[said.rank][0], without=lease_id(*key, said.rank))
            return
        assert said.end is not None
        if said.rank in script.told and not said.stopped:
            return  # it was told to stop before it came to its end
        self._say(attempt, said.rank, TaskEndedReport, end=said.end, exit_code=said.exit_code, finished=said.finished)
        script.gone.add(said.rank)
        if len(script.gone) == len(attempt.ranks):
            self.runs.pop(key, None)
            del self._scripts[key]

    def _saved_on(self, key: AttemptKey, run: Run, index: NodeIndex) -> None:
        """A checkpoint came from that node: by whichever rank still lives there."""
        attempt, gone = self._state.attempts[key], self._scripts[key].gone
        for rank, (own, _) in enumerate(attempt.ranks):
            if own == index and attempt.live(rank) and rank not in gone:
                self._save(key, run, self._clock(), rank=rank)
                return

    def _stops(self, event: GangEnding) -> None:
        key = (event.job_id, event.attempt)
        script, run, attempt = self._scripts.get(key), self.runs.get(key), self._state.attempts.get(key)
        if script is None or run is None or attempt is None:
            super()._stops(event)
            return
        if run.running_at is not None:
            run.go_on(self._clock(), 0)
        live = [rank for rank in range(len(attempt.ranks)) if attempt.live(rank)]
        left = [rank for rank in live if rank not in script.told | script.gone]
        self._told(key, left, event.grace_s, saves=event.reason not in UNSAVED)

    def _resized(self, event: GangResized) -> None:
        key = (event.job_id, event.attempt)
        script, attempt = self._scripts.get(key), self._state.attempts[key]
        if script is None:
            super()._resized(event)
            return
        if event.grown:
            self._begin(key, range(len(attempt.ranks) - len(event.grown), len(attempt.ranks)))
        self._told(key, event.stopped, event.grace_s, saves=False)
        self._changed_size(key)

    def _told(self, key: AttemptKey, ranks: Iterable[int], grace_s: int, *, saves: bool) -> None:
        """These ranks were told to stop now: each goes as it went then; one of which that is not known, as modelled."""
        script, work = self._scripts[key], self.work_of(key[0])
        known = [said for said in script.tried.said if said.stopped]
        for rank in ranks:
            script.told.add(rank)
            own = [said for said in known if said.rank == rank]
            as_then = script.again and rank in script.tried.told  # and if it never went then, it does not now
            if not as_then and not any(said.end is not None for said in own):
                started = self.runs[key].running_at is not None
                end, code = (TaskEnd.STOPPED, SIGTERMED) if started else (TaskEnd.NEVER_STARTED, None)
                after_ms = min(work.save_s, grace_s) * 1000 if started else 1_000
                own = [Said(rank=rank, after_ms=after_ms, stopped=True, end=end, exit_code=code)]
                own = [Said(rank=rank, after_ms=after_ms, stopped=True, saved=True), *own] if started and saves else own
            for said in own:
                self._in(said.after_ms, lambda said=said: self._does(key, said))  # type: ignore[misc]
