"""A generated day by the figures of R-100, for a fleet of any size: to size a fleet, and to measure with. Seeded.

Nine of ten jobs want a node or less. A few dozen are giants, a 23rd to a third of the fleet: they hold most of the
GPU-hours. Many jobs run for two minutes; the others from ten minutes to three days, the longer the rarer (Pareto, with
an exponent of 1, which is what users of shared clusters do). People ask for more time than they need. One in eight
waits already as the day begins. A fifth comes in bursts: sweeps of one team, 50 a second, most of them preemptible.
Teams are at work at different hours, so that what one leaves idle another borrows, and has to give back.

Of each kind of job the run times are stretched until together, up to midnight, they ask for its part of `load` of the
fleet's GPU-hours. So at the busiest hours more is asked for than there is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from commands.reports import Register
from events.ids import BlockId, Epoch, GpuType, Instant, JobId, NodeId, TeamId
from events.job import JobSpec, PriorityClass
from events.node import GpuSlot
from replay.scenario import Arrival, Scenario, Silence, TeamQuota, Work

H100 = GpuType("h100")
MIDNIGHT = Instant(1_800_057_600_000)
DAY_S, HOUR_S = 86_400, 3_600
NODES_IN_RACK = 4
SHORTEST_S, LONGEST_S = 120, 3 * DAY_S
LIMIT_MAX_S = 7 * DAY_S

SMALL = ((1, 1),) * 50 + ((1, 2),) * 15 + ((1, 4),) * 15 + ((1, 8),) * 20
"""(replicas, GPUs of each), each as likely as it is often here."""
MIDDLE_NODES = (2,) * 6 + (4,) * 4 + (8,) * 2 + (16,)
GIANT_NODES = (128, 128, 128, 256, 256, 512, 1024)
"""1,024 to 8,192 GPUs of a fleet of 3,000 nodes of eight; of another as much in proportion."""
WHOLE_FLEET = 3_000
HOURS = (4, 3, 3, 3, 3, 3, 4, 4, 5, 6, 7, 7, 6, 7, 7, 7, 6, 5, 5, 4, 4, 4, 4, 4)
"""How many jobs come in each hour of the day, in proportion."""
SHIFTS_H = (0, 0, 0, 3, -3, 8, 12)
"""By how much a team's day is later than that."""
CLASSES = {
    PriorityClass.PROD_SERVING: 2,
    PriorityClass.PROD_BATCH: 13,
    PriorityClass.RESEARCH: 60,
    PriorityClass.PREEMPTIBLE: 25,
}
PARTS = {"giant": 60, "middle": 18, "small": 22}
"""Percent of the GPU-hours that each kind asks for."""
BURSTS_PERCENT, BURST_JOBS, BURST_A_SECOND = 20, (100, 800), 50
SWEEPS_PREEMPTIBLE_PERCENT, SHORT_PERCENT = 75, 40
SMALL_PERCENT, BACKLOG_PERCENT = 90, 12
CANCELLED_PERCENT, FAILED_PERCENT = 4, 6
FAULTS_PER_THOUSAND_NODES = 5
OUTAGE_S = (600, 6 * HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Nodes of one kind, in blocks of which the last may be smaller, four nodes to a rack."""

    nodes: int = 3_000
    nodes_in_block: int = 32
    node_gpus: int = 8

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus


def day(
    seed: int,
    fleet: Fleet | None = None,
    *,
    jobs: int = 40_000,
    giants: int = 40,
    teams: int = 50,
    load: float = 0.95,
    length_s: int = DAY_S,
) -> Scenario:
    """A day of submissions that asks for `load` of the fleet's GPU-hours, and node faults. It is replayed to its end:
    until the last job has ended. The fleet is empty at its beginning."""
    fleet = fleet or Fleet()
    draw = Random(seed)
    named = [TeamId(f"team-{number:02}") for number in range(1, teams + 1)]
    quotas = shares(fleet, named)
    kinds = ["giant" if number < giants else _kind(draw) for number in range(jobs)]
    drafts = [_draft(draw, kind, fleet, quotas) for kind in kinds]
    _swarm(draw, drafts, kinds)
    times = _times(draw, drafts, kinds, length_s)
    made = [_arrival(draw, draft, at_s) for draft, at_s in zip(drafts, times, strict=True)]
    for kind, percent in PARTS.items():
        own = [place for place, other in enumerate(kinds) if other == kind]
        wanted = load * fleet.gpus * length_s * percent / 100
        for place, arrival in zip(own, stretched([made[place] for place in own], wanted, length_s), strict=True):
            made[place] = arrival
    made.sort(key=lambda arrival: arrival.at)
    return Scenario(
        name=f"generated day {seed}: {jobs:,} jobs, {fleet.gpus:,} GPUs, load {load:.0%}",
        start_at=MIDNIGHT,
        nodes=nodes(fleet),
        quotas=quotas,
        arrivals=tuple(replace(arrival, job_id=JobId(f"j_{number:07}")) for number, arrival in enumerate(made, 1)),
        silences=tuple(_faults(draw, fleet, length_s)),
    )


# The fleet and who shares it


def nodes(fleet: Fleet) -> tuple[Register, ...]:
    """What its agents say when they register."""
    return tuple(_node(fleet, number) for number in range(fleet.nodes))


def _node(fleet: Fleet, number: int) -> Register:
    name = f"n{number:05}"
    half = max(1, fleet.node_gpus // 2)
    return Register(
        node_id=NodeId(name),
        boot_id="boot",
        incarnation="agent",
        journal=name,
        last_report=0,
        epoch_floor=Epoch(0),
        block=BlockId(f"b{number // fleet.nodes_in_block:03}"),
        rack=f"r{number // NODES_IN_RACK:05}",
        address=name,
        gpu_type=H100,
        gpu_memory_gb=80,
        gpus=tuple(GpuSlot(uuid=f"{name}-{slot}", island=slot // half) for slot in range(fleet.node_gpus)),
    )


def shares(fleet: Fleet, teams: list[TeamId]) -> tuple[TeamQuota, ...]:
    """Guarantees that fall off with a team's place, together the fleet; each may borrow the rest of it."""
    weights = _weights(len(teams))
    found = [int(fleet.gpus * weight / sum(weights)) for weight in weights]
    return tuple(
        TeamQuota(team=team, gpu_type=H100, guaranteed=guaranteed, borrow_limit=fleet.gpus - guaranteed)
        for team, guaranteed in zip(teams, found, strict=True)
    )


def _weights(teams: int) -> list[float]:
    return [1 / (place + 2) for place in range(teams)]


def _faults(draw: Random, fleet: Fleet, length_s: int) -> Iterator[Silence]:
    """Nodes that nobody hears for a while."""
    count = round(fleet.nodes * FAULTS_PER_THOUSAND_NODES * length_s / DAY_S / 1000)
    times = sorted(draw.randrange(length_s) for _ in range(count))
    for at_s, number in zip(times, draw.sample(range(fleet.nodes), count), strict=True):
        until_s = at_s + draw.randrange(*OUTAGE_S)
        yield Silence(node_id=NodeId(f"n{number:05}"), at=_at(at_s), until=_at(until_s))


# The jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A job before its time and its run time are known."""

    team: TeamId
    priority_class: PriorityClass
    replicas: int
    each: int
    run_s: int


def _kind(draw: Random) -> str:
    return "small" if draw.randrange(100) < SMALL_PERCENT else "middle"


def _draft(draw: Random, kind: str, fleet: Fleet, quotas: tuple[TeamQuota, ...]) -> _Draft:
    replicas, each = _size(draw, kind, fleet)
    quota = draw.choices(quotas, _weights(len(quotas)))[0]
    wanted = draw.choices(list(CLASSES), list(CLASSES.values()))[0]
    serves = wanted is PriorityClass.PROD_SERVING and kind == "small" and quota.guaranteed >= 4 * fleet.node_gpus
    if wanted is PriorityClass.PROD_SERVING and not serves:
        wanted = PriorityClass.PROD_BATCH
    return _Draft(team=quota.team, priority_class=wanted, replicas=replicas, each=each, run_s=_run_s(draw, kind))


def _size(draw: Random, kind: str, fleet: Fleet) -> tuple[int, int]:
    if kind == "small":
        replicas, each = draw.choice(SMALL)
        return replicas, min(each, fleet.node_gpus)
    if kind == "middle":
        return min(draw.choice(MIDDLE_NODES), fleet.nodes), fleet.node_gpus
    return max(1, fleet.nodes * draw.choice(GIANT_NODES) // WHOLE_FLEET), fleet.node_gpus


def _run_s(draw: Random, kind: str) -> int:
    """Many of two minutes; of the others half of those that run for some time run for twice as long."""
    if kind == "giant":
        return draw.randrange(HOUR_S, 6 * HOUR_S)
    if kind == "small" and draw.randrange(100) < SHORT_PERCENT:
        return SHORTEST_S
    least, most = 600, LONGEST_S
    return round(least / (1 - draw.random() * (1 - least / most)))


def _swarm(draw: Random, drafts: list[_Draft], kinds: list[str]) -> None:
    """Small jobs of one burst are alike: a sweep. What one tries takes about as long as what another does."""
    for first, last in _bursts(draw, kinds):
        alike = [place for place in range(first, last) if kinds[place] == "small"]
        if not alike:
            continue
        one = drafts[alike[0]]
        if draw.randrange(100) < SWEEPS_PREEMPTIBLE_PERCENT:
            one = replace(one, priority_class=PriorityClass.PREEMPTIBLE)
        for place in alike:
            drafts[place] = replace(one, run_s=max(SHORTEST_S, one.run_s * draw.randrange(80, 121) // 100))
        for place in range(first, last):
            drafts[place] = replace(drafts[place], team=one.team)


def _bursts(draw: Random, kinds: list[str]) -> Iterator[tuple[int, int]]:
    """Places [first, last) of the jobs that come together: the last of all."""
    place = len(kinds) - len(kinds) * BURSTS_PERCENT // 100
    while place < len(kinds):
        last = min(len(kinds), place + draw.randrange(*BURST_JOBS))
        yield place, last
        place = last


def _times(draw: Random, drafts: list[_Draft], kinds: list[str], length_s: int) -> list[int]:
    """When each comes, in seconds: by the hour of the day; neighbours alike come as a burst."""
    found: list[int] = []
    single = len(kinds) - len(kinds) * BURSTS_PERCENT // 100
    began, team = 0, TeamId("")
    shifts = {team: draw.choice(SHIFTS_H) for team in sorted({draft.team for draft in drafts})}
    for place, draft in enumerate(drafts):
        if place < single or draft.team != team:
            waits = draw.randrange(100) < BACKLOG_PERCENT and place < single
            began, team, first = 0 if waits else _moment(draw, shifts[draft.team], length_s), draft.team, place
        found.append(began if place < single else min(length_s - 1, began + (place - first) // BURST_A_SECOND))
    return found


def _moment(draw: Random, shift_h: int, length_s: int) -> int:
    hour = (draw.choices(range(24), HOURS)[0] + shift_h) % 24
    return (hour * HOUR_S + draw.randrange(HOUR_S)) * length_s // DAY_S


def _at(second: int) -> Instant:
    return Instant(MIDNIGHT + second * 1000)


def _arrival(draw: Random, draft: _Draft, at_s: int) -> Arrival:
    spec = JobSpec(
        team=draft.team,
        command=("train",),
        gpu_type=H100,
        max_runtime_s=round(draft.run_s * draw.choice((1.2, 1.5, 2, 3))),
        replicas=draft.replicas,
        gpus_per_replica=draft.each,
        priority_class=draft.priority_class,
    )
    end = draw.randrange(100)
    work = Work(
        run_s=draft.run_s,
        start_s=draw.choice((10, 20, 30, 60)),
        save_s=draw.choice((5, 20, 50)),
        cancelled=end < CANCELLED_PERCENT,
        exit_code=1 if CANCELLED_PERCENT <= end < CANCELLED_PERCENT + FAILED_PERCENT else 0,
    )
    user = f"{draft.team}-{draw.randrange(8)}"
    return Arrival(at=_at(at_s), job_id=JobId(""), spec=spec, work=work, user=user)


# Run times


def stretched(arrivals: list[Arrival], gpu_s: float, length_s: int) -> list[Arrival]:
    """The same jobs, run longer or shorter in proportion, until together they would ask for so much before the day is
    over, if all started at once. Times stay within two minutes and three days, and two minutes stay two minutes, so
    the factor is found by halving."""
    ends_at = _at(length_s)
    low, high = 0.0, 1000.0
    for _ in range(50):
        factor = (low + high) / 2
        asked = sum(
            arrival.spec.gpus * min((ends_at - arrival.at) // 1000, _run_times(arrival.work.run_s, factor))
            for arrival in arrivals
        )
        low, high = (factor, high) if asked < gpu_s else (low, factor)
    return [_longer(arrival, high) for arrival in arrivals]


def _run_times(run_s: int, factor: float) -> int:
    return run_s if run_s <= SHORTEST_S else min(LONGEST_S, max(SHORTEST_S, round(run_s * factor)))


def _longer(arrival: Arrival, factor: float) -> Arrival:
    run_s = _run_times(arrival.work.run_s, factor)
    asked_s = round((arrival.spec.max_runtime_s or 0) * run_s / arrival.work.run_s)
    return replace(
        arrival,
        spec=replace(arrival.spec, max_runtime_s=_limit_s(run_s, asked_s)),
        work=replace(arrival.work, run_s=run_s),
    )


def _limit_s(run_s: int, asked_s: int) -> int:
    """People ask for round times, and for enough."""
    limit_s = max(run_s + 300, min(LIMIT_MAX_S, asked_s))
    unit = 300 if limit_s < HOUR_S else 1_800
    return -(-limit_s // unit) * unit
