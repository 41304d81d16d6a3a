"""How attempts went, folded from the log: when their ranks started, saved, and ended, and after what."""

from dataclasses import dataclass, field

from events.checkpoint import CheckpointRecorded
from events.gang import GangAllocated, GangEnding, GangReleased, GangResized, GangRunning, LeaseReleased
from events.ids import Instant, JobId, NodeIndex
from events.job import JobFinished, JobState
from events.task import TaskEnd, TaskEnded, TaskStarted
from replay.scenario import Said, Tried, Work

UNKNOWN_S = 30 * 86_400
"""Of work whose end was not seen, and that has no limit."""


@dataclass(slots=True)
class _Attempt:
    """`granted`, `told`: per rank, when it was granted, and told to stop."""

    granted_at: Instant
    granted: dict[int, Instant]
    nodes: list[NodeIndex]
    told: dict[int, Instant] = field(default_factory=dict)
    by_report: bool = False
    """It was told to stop because of what agents reported."""
    running_at: Instant | None = None
    ending_at: Instant | None = None
    saved_at: Instant | None = None
    last_at: Instant | None = None
    exit_code: int = 0
    said: list[Said] = field(default_factory=list)

    def tried(self) -> Tried:
        ran_ms = max(0, self.ending_at - self.granted_at) if self.ending_at is not None else 0
        return Tried(granted_at=self.granted_at, said=tuple(self.said), told=frozenset(self.told), ran_ms=ran_ms)

    def kept_ms(self) -> int:
        """Of its running time, what the next attempt did not have to do again."""
        if self.running_at is None or self.saved_at is None:
            return 0
        saved = self.saved_at if self.ending_at is None else min(self.saved_at, self.ending_at)
        return max(0, saved - self.running_at)

    def ran_ms(self) -> int:
        """Up to where it was told to stop, or its last rank was gone."""
        end = self.ending_at or self.last_at
        return max(0, end - self.running_at) if self.running_at is not None and end is not None else 0


class Attempts:
    """Those of all jobs."""

    def __init__(self) -> None:
        self._of: dict[JobId, dict[int, _Attempt]] = {}
        self._ended: dict[JobId, JobState] = {}

    def jobs(self) -> list[JobId]:
        """Those that were granted."""
        return list(self._of)

    def take(self, event: object, at: Instant, kind: str) -> None:
        """One event of a commit at `at`, on an input of that kind."""
        match event:
            case GangAllocated():
                granted = dict.fromkeys(range(len(event.ranks)), at)
                self._of.setdefault(event.job_id, {})[event.attempt] = _Attempt(
                    at, granted, [index for index, _ in event.ranks]
                )
            case JobFinished():
                self._ended[event.job_id] = event.state
            case (
                GangRunning() | GangEnding() | GangResized() | GangReleased() | TaskStarted() | TaskEnded()
                | CheckpointRecorded() | LeaseReleased()
            ):  # fmt: skip
                found = self._of.get(event.job_id, {}).get(event.attempt)
                if found is not None:
                    found.by_report = kind == "reports" if isinstance(event, GangEnding) else found.by_report
                    _take(found, event, at)

    def work(self, job_id: JobId, limit_s: int | None) -> tuple[Work, bool]:
        """What the job does, and whether how long it takes is known: its end was its own."""
        attempts = self._of.get(job_id, {})
        tries = {number: attempt.tried() for number, attempt in attempts.items()}
        if not attempts:
            return Work(run_s=limit_s or UNKNOWN_S), False
        last = attempts[max(attempts)]
        kept_ms = sum(attempt.kept_ms() for number, attempt in attempts.items() if number != max(attempts))
        total_s = max(1, -(-(kept_ms + last.ran_ms()) // 1000))
        known = self._ended.get(job_id) in (JobState.SUCCEEDED, JobState.FAILED)
        if not known:
            total_s = max(2 * total_s, limit_s or UNKNOWN_S)
        start_s, save_s = _typical(list(attempts.values()))
        return Work(run_s=total_s, start_s=start_s, save_s=save_s, exit_code=last.exit_code, tries=tries), known


def _take(found: _Attempt, event: object, at: Instant) -> None:
    match event:
        case GangRunning():
            found.running_at = found.running_at or at
        case GangEnding():
            found.ending_at = at
            for rank in found.granted:
                found.told.setdefault(rank, at)
        case GangResized():
            first = len(found.granted)
            found.nodes += [index for index, _ in event.grown]
            found.granted |= dict.fromkeys(range(first, first + len(event.grown)), at)
            for rank in event.stopped:
                found.told.setdefault(rank, at)
        case TaskStarted():
            found.said.append(Said(rank=event.rank, after_ms=at - found.granted[event.rank]))
        case CheckpointRecorded():
            found.saved_at = at
            stopped = found.ending_at is not None
            since = found.ending_at if found.ending_at is not None else found.granted_at
            found.said.append(Said(rank=_rank_on(found, event.node), after_ms=at - since, stopped=stopped, saved=True))
        case LeaseReleased():
            told = found.told.get(event.rank)
            after_ms = at - (told if told is not None else found.granted[event.rank])
            found.said.append(Said(rank=event.rank, after_ms=after_ms, stopped=told is not None, missing=True))
        case TaskEnded():
            found.last_at = at
            found.exit_code = found.exit_code or event.exit_code or 0
            told = found.told.get(event.rank)
            if told == at and found.by_report:
                told = None  # it ended with those whose end told it to stop, and not because of that
            found.said.append(
                Said(
                    rank=event.rank,
                    after_ms=at - (told if told is not None else found.granted[event.rank]),
                    stopped=told is not None,
                    end=event.end,
                    exit_code=event.exit_code,
                    finished=event.finished,
                )
            )


def _rank_on(found: _Attempt, node: NodeIndex) -> int:
    """A rank there: the first whose end was not said, if there is one."""
    ended = {said.rank for said in found.said if said.end is not None}
    own = [rank for rank, index in enumerate(found.nodes) if index == node]
    return next((rank for rank in own if rank not in ended), own[0])


def _typical(attempts: list[_Attempt]) -> tuple[int, int]:
    """(start, save) times of its attempts, for those that it did not have: the middle ones; the defaults of Work where
    there is none."""
    starts = [
        max(said.after_ms for said in one.said if said.end is None and not said.saved and not said.missing)
        for one in attempts
        if one.running_at is not None
    ]
    saves = [said.after_ms for one in attempts for said in one.said if said.stopped and said.end is TaskEnd.STOPPED]
    middle = [-(-sorted(times)[len(times) // 2] // 1000) if times else 20 for times in (starts, saves)]
    return middle[0], middle[1]
