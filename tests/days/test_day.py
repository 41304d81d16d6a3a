"""What days come to: use, waits, shares and kept work, by the figures of R-22, R-100 and R-102."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pytest

from events.job import PriorityClass
from replay.generated import DAY_S, MIDNIGHT, Fleet
from replay.scenario import Work
from tests.builders import spec
from tests.days.arrivals import day
from tests.days.ledger import Ledger, evicted_ratio
from tests.days.referee import Referee
from tests.days.world import World

HOUR_S = 3600
TEAMS = [f"t{number:02}" for number in range(10)]


@cache
def lived(load: float, *, days: int, jobs: int, seed: int, giants: int = 3) -> tuple[Ledger, Referee]:
    """A small fleet's days: 128 nodes, ten teams with guarantees that add up to the fleet."""
    fleet = Fleet(nodes=128, nodes_in_block=16)
    world = World(fleet, step_s=5, idle_s=30)
    ledger, referee = Ledger(world), Referee(world)
    world.play(day(seed, fleet, jobs=jobs, load=load, teams=TEAMS, length_s=days * DAY_S, giants=giants))
    world.run(days * DAY_S)
    return ledger, referee


busy = partial(lived, 0.95, days=2, jobs=3000, giants=8)
overfull = partial(lived, 1.3, days=1, jobs=2000)


def test_a_busy_day_is_used_well_and_small_jobs_do_not_wait() -> None:
    """At 95% load over 90% of the healthy GPUs are allocated, 95 of 100 jobs of a node or less wait under 10 min, and
    at least 85% of the GPU-hours are kept."""
    ledger, _ = busy(seed=11)
    assert ledger.allocated_share(12 * 60) > 0.90
    assert ledger.wait_s(95, lambda start: start.gpus <= 8) < 600
    assert ledger.kept_share() > 0.85


def test_an_overfull_day_keeps_every_rule() -> None:
    """With a third more than fits, and every class and size in it: the referee sees no foul, room that is made is used
    within 5 min, and preemptions stay few: reclaims alone may be more than three of one, and are of 1 in 100."""
    ledger, referee = overfull(seed=12)
    assert ledger.allocated_share(6 * 60) > 0.95
    assert ledger.preemptions
    assert max(ledger.reclaims_s) <= 300
    times = list(map(len, referee.preempted.values()))
    assert sum(count > 3 for count in times) < 0.01 * 2000
    assert max(times) <= 12
    assert ledger.pledges_lost == []


@pytest.mark.parametrize(("lives", "seeds", "alone_max"), [(busy, (11, 20, 21), 1.6), (overfull, (12, 20, 21), 1.5)])
def test_about_as_many_gpus_are_stopped_as_are_asked_for(
    lives: Callable[..., tuple[Ledger, Referee]], seeds: tuple[int, ...], alone_max: float
) -> None:
    """Over days, one GPU for each that orders ask for (C-12). Those that stop somebody stop more: what is borrowed are
    whole gangs, often larger than what is asked for. The rest of such a gang is what the other orders wait for."""
    orders = [one for seed in seeds for one in lives(seed=seed)[0].preemptions]
    assert 0 < evicted_ratio(orders) < 1.2
    assert evicted_ratio(one for one in orders if one.victims) < alone_max


def test_no_team_with_standing_demand_is_starved_of_its_share() -> None:
    """Over 7 days every team that always wants more has at least 95% of what its guarantee entitles it to, however
    little the others leave idle."""
    fleet = Fleet(nodes=16, nodes_in_block=8)
    world = World(fleet, step_s=30, idle_s=120)
    shares = {"big": 64, "middle": 32, "small": 16, "tiny": 8}
    for team, guaranteed in shares.items():
        world.quota(team, guaranteed)
    ledger, _ = Ledger(world), Referee(world)
    for place, team in enumerate(shares):
        for number in range(7 * 24 * 2):
            each = (1, 2, 4, 8)[(number + place) % 4]
            run_s = (2 + number % 5) * 1800
            asked = spec(team=team, gpus_per_replica=each, replicas=1, max_runtime_s=run_s * 2)
            world.submit(number * 1800 + 60 * place, asked, Work(run_s=run_s * (8 >> place) // 2))
    world.run(7 * DAY_S)
    standing = {team: ledger.delivered[team] / ledger.entitled[team] for team in shares}  # type: ignore[index]
    assert min(standing.values()) >= 0.95, standing


def test_a_flood_of_interactive_jobs_leaves_the_others_their_shares() -> None:
    """One team's flood takes what is idle, and nothing of what the others are entitled to."""
    fleet = Fleet(nodes=32, nodes_in_block=16)
    world = World(fleet, step_s=10, idle_s=60)
    for team in ("flood", "red", "blue"):
        world.quota(team, 80)
    ledger, _ = Ledger(world), Referee(world)
    for number in range(4000):
        asked = spec(team="flood", interactive=True, max_runtime_s=3600)
        world.submit(HOUR_S + number * 5, asked, Work(run_s=1800))
    for number in range(68):
        for team in ("red", "blue"):
            asked = spec(team=team, replicas=1, gpus_per_replica=8, max_runtime_s=7200)
            world.submit(number * 420, asked, Work(run_s=3600))
    world.run(8 * HOUR_S)
    for team in ("red", "blue"):
        assert ledger.delivered[team] >= 0.95 * ledger.entitled[team]  # type: ignore[index]
        assert ledger.wait_s(99, lambda start, team=team: start.team == team) < 600  # type: ignore[misc]


def test_small_jobs_are_served_while_a_giant_is_reserved() -> None:
    """A gang of three quarters of the fleet waits for ends; covered small jobs that come meanwhile start within 10 min,
    and the gang starts by its first estimate."""
    fleet = Fleet(nodes=32, nodes_in_block=8)
    world = World(fleet, step_s=5, idle_s=30)
    world.quota("small", 64)
    world.quota("batch", 192)
    ledger, _ = Ledger(world), Referee(world)
    for number in range(48):
        asked = spec(
            team="batch",
            replicas=1,
            gpus_per_replica=4,
            max_runtime_s=2 * HOUR_S,
            priority_class=PriorityClass.PROD_BATCH,
        )
        world.submit(number, asked, Work(run_s=3600 + 60 * number))
    giant = world.submit(600, spec(team="batch", replicas=24, gpus_per_replica=8, max_runtime_s=7200), Work(run_s=3600))
    for number in range(700):
        asked = spec(team="small", gpus_per_replica=(1, 2, 4)[number % 3], max_runtime_s=900)
        world.submit(660 + number * 12, asked, Work(run_s=240))
    world.run(5 * HOUR_S)
    _, first = ledger.estimates[giant][0]
    (began,) = [start for start in ledger.starts if start.job_id == giant]
    assert began.at_s * 1000 + MIDNIGHT <= first
    assert ledger.wait_s(95, lambda start: start.team == "small") < 600


def test_a_job_whose_node_is_lost_goes_on_from_its_last_interval() -> None:
    """What it saved each half hour is known, though nobody told it to save."""
    world = World(Fleet(nodes=4, nodes_in_block=4), step_s=10)
    world.quota("red", 32)
    ledger = Ledger(world)
    job_id = world.submit(0, spec(team="red", gpus_per_replica=8, max_runtime_s=6 * HOUR_S), Work(run_s=4 * HOUR_S))
    world.run(HOUR_S)
    ((index, _),) = world.state.attempts[job_id, 1].ranks
    world.lose(index, 2 * HOUR_S - 60, 4 * HOUR_S)
    world.run(3 * HOUR_S)
    assert ledger.resumed[job_id, 2] == HOUR_S * 1500
