"""A small fleet's day of submissions by the figures of R-100: seeded, so that a day can be lived again.

What replay.generated makes is meant for fleets of thousands of nodes: on a hundred its sweeps and giants are all there
is. Here nobody sweeps, classes are like those of training clusters, and times are stretched until the whole asks for
`load` of the fleet's GPU-hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from events.ids import Instant, JobId, TeamId
from events.job import PriorityClass
from replay.generated import DAY_S, HOUR_S, LIMIT_MAX_S, LONGEST_S, MIDDLE_NODES, MIDNIGHT, SMALL, Fleet, nodes, shares
from replay.scenario import Arrival, Scenario, Work
from tests.builders import spec

SHORT_S = (120, 120, 180, 300, 600, 900, 1800, 3600)
LONG_S = (1800, 3600, 7200, 4 * HOUR_S, 8 * HOUR_S)
GIANT_S = (HOUR_S, 2 * HOUR_S, 4 * HOUR_S)
GIANT_PARTS = (1 / 24, 1 / 24, 1 / 12, 1 / 12, 1 / 6, 1 / 3)
CLASSES = {PriorityClass.PROD_BATCH: 1, PriorityClass.RESEARCH: 7, PriorityClass.PREEMPTIBLE: 2}


def day(
    seed: int, fleet: Fleet, *, jobs: int, load: float, teams: Sequence[str], length_s: int = DAY_S, giants: int = 30
) -> Scenario:
    """Arrivals over `length_s`, in order; `giants` of `jobs` are giants. The teams' guarantees add up to the fleet."""
    draw = Random(seed)
    made = [_arrival(draw, fleet, teams, number < giants, length_s) for number in range(jobs)]
    asked_gpu_s = sum(one.spec.gpus * (one.work.run_s + one.work.start_s) for one in made)
    factor = load * fleet.gpus * length_s / asked_gpu_s
    return Scenario(
        name=f"day {seed}",
        start_at=MIDNIGHT,
        nodes=nodes(fleet),
        quotas=shares(fleet, [TeamId(team) for team in teams]),
        arrivals=tuple(_times(one, factor) for one in sorted(made, key=lambda one: one.at)),
    )


def _arrival(draw: Random, fleet: Fleet, teams: Sequence[str], giant: bool, length_s: int) -> Arrival:
    """Nine of ten of the others want a node or less."""
    small = not giant and draw.random() < 0.9
    if giant:
        replicas, each = max(2, round(fleet.nodes * draw.choice(GIANT_PARTS))), fleet.node_gpus
    else:
        replicas, each = draw.choice(SMALL if small else [(count, 8) for count in MIDDLE_NODES])
    giant_s, short_s = draw.choice(GIANT_S), draw.choice(SHORT_S)
    team = draw.choices(teams, [1 / (place + 2) for place in range(len(teams))])[0]
    run_s = giant_s if giant else short_s if small else draw.choice(LONG_S)
    asked = spec(
        team=TeamId(team),
        max_runtime_s=round(run_s * draw.choice((1.2, 1.5, 2, 3))) + 300,
        replicas=replicas,
        gpus_per_replica=each,
        priority_class=draw.choices(list(CLASSES), list(CLASSES.values()))[0],
    )
    work = Work(run_s=run_s, start_s=draw.choice((10, 20, 30, 60)), save_s=draw.choice((5, 20, 50)))
    return Arrival(at=Instant(MIDNIGHT + draw.randrange(length_s) * 1000), job_id=JobId(""), spec=asked, work=work)


def _times(arrival: Arrival, factor: float) -> Arrival:
    """The same job, run so many times longer. People ask for round times."""
    run_s = min(LONGEST_S, max(60, round(arrival.work.run_s * factor)))
    limit_s = max(run_s + 300, min(LIMIT_MAX_S, round((arrival.spec.max_runtime_s or 0) * factor)))
    unit = 300 if limit_s < HOUR_S else 1800
    asked = replace(arrival.spec, max_runtime_s=-(-limit_s // unit) * unit)
    return replace(arrival, spec=asked, work=replace(arrival.work, run_s=run_s))
