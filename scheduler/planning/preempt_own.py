"""Room inside a team's own quota: where it keeps a job from starting, lower classes of the same team give way (R-40).

Some jobs start only covered (commands.displace), and nobody starts over guarantee plus borrow limit. What a job
is short of then has to come from its own team: the fewest of its lower classes that give it, borrowed before covered,
low classes first. Where it lies on the fleet is sought after that as ever (scheduler.planning.preempt).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from commands.displace import starts_only_covered
from commands.entities import AttemptKey, Job
from events.job import CLASS_RANK, PriorityClass
from scheduler.planning.cover import cover
from scheduler.planning.preempt_ground import COVERED, SHIELDED, Entry
from scheduler.planning.quota import Standing
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex

_LOWEST = CLASS_RANK[PriorityClass.PREEMPTIBLE]


class Own(NamedTuple):
    """Attempts of the job's own team that stop for its quota's sake, and what it has once they do: GPUs that it may
    start in all, and inside the guarantee. `alone`: it starts only inside."""

    keys: tuple[AttemptKey, ...]
    room: int
    covered_room: int
    alone: bool

    def suffices(self, gpus: int) -> bool:
        """May the job start with so many GPUs?"""
        return gpus <= self.room and (gpus <= self.covered_room or not self.alone)


def standing_of(trial: Trial, job: Job) -> Own:
    """What the job has with nobody stopped."""
    standing = trial.shares.standing((job.spec.team, job.spec.gpu_type))
    return own_of(standing, starts_only_covered(trial.policy, job))


def own_of(standing: Standing, alone: bool) -> Own:
    """The same, of a team that stands so."""
    return Own((), standing.room, standing.covered_room, alone)


def give_way(trial: Trial, victims: VictimIndex, job: Job, gpus: int) -> Own | None:
    """The least harmful of its own team that have to stop, for the job to start with so many GPUs; None where all of
    them are not enough."""
    now = standing_of(trial, job)
    if now.suffices(gpus):
        return now
    lower = sorted(_lower(victims, job), key=lambda entry: (entry.level, entry.rank))
    covered = [entry for entry in lower if entry.level >= COVERED]
    first = _fewest(covered, gpus - now.covered_room) if now.alone else []
    if first is None:
        return None
    rest = [entry for entry in lower if entry not in first]
    others = _fewest(rest, gpus - with_stopped(now, first).room)
    return None if others is None else with_stopped(now, [*first, *others])


def _fewest(entries: list[Entry], short: int) -> list[Entry] | None:
    """The fewest that give so many GPUs, of no higher level than has to be; None where all of them do not. They are in
    order of their levels."""
    if short <= 0:
        return []
    for level in sorted({entry.level for entry in entries}):
        among = [entry for entry in entries if entry.level <= level]
        if sum(entry.rank.gpus for entry in among) >= short:
            return [among[place] for place, _ in cover([entry.rank.gpus for entry in among], short)]
    return None


def with_stopped(own: Own, stopped: Iterable[Entry]) -> Own:
    """What the job has once these of its own team stop as well."""
    stopped = list(stopped)
    covered = sum(entry.rank.gpus for entry in stopped if COVERED <= entry.level < SHIELDED)
    keys = tuple(sorted(entry.rank.key for entry in stopped))
    gpus = sum(entry.rank.gpus for entry in stopped)
    return Own((*own.keys, *keys), own.room + gpus, own.covered_room + covered, own.alone)


def _lower(victims: VictimIndex, job: Job) -> Iterator[Entry]:
    """Attempts of the job's own team and type that it may displace: of a lower class, and not shielded."""
    rank, team, gpu_type = CLASS_RANK[job.priority_class], job.spec.team, job.spec.gpu_type
    levels = [level for level in range(SHIELDED) if _LOWEST - level % COVERED > rank]
    if not any(victims.held_by.get((team, level)) for level in levels):
        return
    for entry in victims.entries.values():
        if entry.rank.team == team and entry.gpu_type == gpu_type and entry.level in levels:
            yield entry
