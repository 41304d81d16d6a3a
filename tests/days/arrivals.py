"""A day's submissions by the figures of R-100, for a fleet of any size: seeded, so that a day can be lived again.

Nine of ten jobs want a node or less; a few per thousand are giants, a 24th to a third of the fleet, and hold most of
the GPU-hours. Run times go from two minutes to days; people ask for more time than they need. The times are stretched
until the whole asks for `load` of the fleet's GPU-hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from events.ids import TeamId
from events.job import JobSpec, PriorityClass
from tests.builders import H100
from tests.days.agents import Work
from tests.days.world import Fleet, World

DAY_S = 86_400
SMALL = ((1, 1),) * 50 + ((1, 2),) * 15 + ((1, 4),) * 15 + ((1, 8),) * 20
MIDDLE = ((2, 8),) * 6 + ((4, 8),) * 4 + ((8, 8),) * 2 + ((16, 8),)
SHORT_S = (120, 120, 180, 300, 600, 900, 1800, 3600)
LONG_S = (1800, 3600, 7200, 4 * 3600, 8 * 3600)
CLASSES = ((PriorityClass.PROD_BATCH, 1), (PriorityClass.RESEARCH, 7), (PriorityClass.PREEMPTIBLE, 2))
SHORTEST_S, LONGEST_S = 60, 3 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job to come."""

    at_s: int
    spec: JobSpec
    work: Work

    @property
    def gpu_s(self) -> int:
        return self.spec.gpus * (self.work.run_s + self.work.start_s)


def day(
    fleet: Fleet,
    *,
    seed: int,
    jobs: int,
    load: float,
    teams: Sequence[str],
    length_s: int = DAY_S,
    giants: int = 30,
) -> list[Arrival]:
    """Arrivals over `length_s`, in order; `giants` of `jobs` are giants."""
    draw = Random(seed)
    weights = [1 / (place + 2) for place in range(len(teams))]
    made: list[Arrival] = []
    for number in range(jobs):
        kind = "giant" if number < giants else "small" if draw.random() < 0.9 else "middle"
        replicas, each = _size(draw, kind, fleet)
        run_s = {"giant": draw.choice((3600, 7200, 14_400)), "small": draw.choice(SHORT_S)}.get(kind)
        team = draw.choices(teams, weights)[0]
        made.append(_arrival(draw, length_s, team, replicas, each, run_s or draw.choice(LONG_S)))
    return stretched(sorted(made, key=lambda arrival: arrival.at_s), load * fleet.gpus * length_s)


def _size(draw: Random, kind: str, fleet: Fleet) -> tuple[int, int]:
    if kind == "giant":
        return max(2, round(fleet.nodes * draw.choice((1 / 24, 1 / 24, 1 / 12, 1 / 12, 1 / 6, 1 / 3)))), fleet.node_gpus
    return draw.choice(SMALL if kind == "small" else MIDDLE)


def _arrival(draw: Random, length_s: int, team: str, replicas: int, each: int, run_s: int) -> Arrival:
    spec = JobSpec(
        team=TeamId(team),
        command=("train",),
        gpu_type=H100,
        max_runtime_s=round(run_s * draw.choice((1.2, 1.5, 2, 3))) + 300,
        replicas=replicas,
        gpus_per_replica=each,
        priority_class=draw.choices([name for name, _ in CLASSES], [weight for _, weight in CLASSES])[0],
    )
    work = Work(run_s=run_s, start_s=draw.choice((10, 20, 30, 60)), save_s=draw.choice((5, 20, 50)))
    return Arrival(at_s=draw.randrange(length_s), spec=spec, work=work)


def stretched(arrivals: list[Arrival], gpu_s: float) -> list[Arrival]:
    """The same jobs, run longer or shorter in proportion, until together they ask for so much."""
    factor = gpu_s / sum(arrival.gpu_s for arrival in arrivals)
    return [_times(arrival, factor) for arrival in arrivals]


def _times(arrival: Arrival, factor: float) -> Arrival:
    spec, work = arrival.spec, arrival.work
    run_s = min(LONGEST_S, max(SHORTEST_S, round(work.run_s * factor)))
    asked = spec.max_runtime_s or 0
    limit_s = max(run_s + 300, min(7 * DAY_S, round(asked * factor)))
    return Arrival(
        at_s=arrival.at_s,
        spec=_with_limit(spec, limit_s),
        work=Work(run_s=run_s, start_s=work.start_s, save_s=work.save_s),
    )


def _with_limit(spec: JobSpec, limit_s: int) -> JobSpec:
    """People ask for round times."""
    unit = 300 if limit_s < 3600 else 1800
    return JobSpec(
        team=spec.team,
        command=spec.command,
        gpu_type=spec.gpu_type,
        max_runtime_s=-(-limit_s // unit) * unit,
        replicas=spec.replicas,
        gpus_per_replica=spec.gpus_per_replica,
        priority_class=spec.priority_class,
    )


def share_out(world: World, teams: Sequence[str], part: float = 1.0) -> None:
    """Guarantees in proportion to what the teams submit, together `part` of the fleet."""
    weights = [1 / (place + 2) for place in range(len(teams))]
    for team, weight in zip(teams, weights, strict=True):
        world.quota(team, int(world.fleet.gpus * part * weight / sum(weights)))


def submit_all(world: World, arrivals: Sequence[Arrival]) -> None:
    for arrival in arrivals:
        world.submit(arrival.at_s, arrival.spec, arrival.work)
