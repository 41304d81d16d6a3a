"""What preemptions and faults cost: how many, whose, GPU-hours and money, and how long a reclaim took. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from events.ids import GpuType, Instant, JobId
from events.preemption import DISPLACING, PreemptionRule
from replay.outcome import Displacement, Outcome
from replay.report.fleet import bucket_ms
from replay.report.spread import Spread, spread

HOUR_S = 3600
DOLLARS_PER_GPU_HOUR = 2.0
"""What a GPU-hour costs where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Dollars for a GPU-hour: of the types named, and of all others."""

    of_type: Mapping[GpuType, float] = field(default_factory=dict)
    other: float = DOLLARS_PER_GPU_HOUR

    def dollars(self, gpu_type: GpuType, gpu_s: int) -> float:
        return self.of_type.get(gpu_type, self.other) * gpu_s / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """GPU-seconds of work that was kept, and that was lost: to preemptions, and to all else (faults, failed starts).
    `by_rule`: victims stopped, by rule."""

    kept_gpu_s: int
    preempted_gpu_s: int
    other_gpu_s: int
    preempted_dollars: float
    other_dollars: float
    by_rule: dict[PreemptionRule, int]
    jobs_preempted: int
    preemptions_of_a_job_max: int

    @property
    def preemptions(self) -> int:
        """Victims in all."""
        return sum(self.by_rule.values())

    @property
    def lost_gpu_s(self) -> int:
        return self.preempted_gpu_s + self.other_gpu_s

    @property
    def dollars(self) -> float:
        return self.preempted_dollars + self.other_dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamLosses:
    """One team: its jobs stopped for others of other teams and of its own, what that lost it, and whom it stopped."""

    team: str
    suffered: int
    lost_gpu_s: int
    caused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """Room made by one rule: `count` orders, each for one job and with one victim or more; seconds from the order to
    the start, of those that led to one; `unmet` did not."""

    rule: PreemptionRule
    count: int
    unmet: int
    seconds: Spread


def losses(outcome: Outcome, rates: Rates) -> Losses:
    """What all the jobs lost. A victim's loss counts at the rate of its type."""
    types = {job.job_id: job.gpu_type for job in outcome.jobs}
    lost, preempted = Counter[GpuType](), Counter[GpuType]()
    for job in outcome.jobs:
        lost[job.gpu_type] += job.lost_gpu_s
    for row in outcome.displacements:
        preempted[types[row.victim]] += row.lost_gpu_s
    victims = Counter(row.victim for row in outcome.displacements)
    return Losses(
        kept_gpu_s=sum(job.kept_gpu_s for job in outcome.jobs),
        preempted_gpu_s=preempted.total(),
        other_gpu_s=lost.total() - preempted.total(),
        preempted_dollars=sum(rates.dollars(name, preempted[name]) for name in sorted(lost)),
        other_dollars=sum(rates.dollars(name, lost[name] - preempted[name]) for name in sorted(lost)),
        by_rule={rule: sum(row.rule is rule for row in outcome.displacements) for rule in DISPLACING},
        jobs_preempted=len(victims),
        preemptions_of_a_job_max=max(victims.values(), default=0),
    )


def team_losses(outcome: Outcome) -> list[TeamLosses]:
    """Every team that stopped another's job or had one stopped, in order of name."""
    suffered = Counter(row.victim_team for row in outcome.displacements)
    caused = Counter(row.preemptor_team for row in outcome.displacements)
    lost: Counter[str] = Counter()
    for row in outcome.displacements:
        lost[row.victim_team] += row.lost_gpu_s
    return [
        TeamLosses(team=team, suffered=suffered[team], lost_gpu_s=lost[team], caused=caused[team])
        for team in sorted(suffered.keys() | caused.keys())
    ]


def reclaims(displacements: Iterable[Displacement], rule: PreemptionRule) -> Reclaims:
    """The orders by this rule. Victims of one order share its job and its time."""
    orders: dict[tuple[JobId, Instant], list[Instant]] = defaultdict(list)
    for row in displacements:
        if row.rule is rule:
            starts = orders[row.preemptor, row.ordered_at]
            starts += [] if row.started_at is None else [row.started_at]
    took = [(max(starts) - ordered) / 1000 for (_, ordered), starts in orders.items() if starts]
    return Reclaims(rule=rule, count=len(orders), unmet=len(orders) - len(took), seconds=spread(took))


def lost_over_time(outcome: Outcome, buckets_max: int) -> list[tuple[Instant, int, int]]:
    """(end of bucket, victims, GPU-seconds that they lost), by when they were ordered to stop. All buckets."""
    width = bucket_ms(outcome.start_at, outcome.end_at + 1, buckets_max)
    count = (outcome.end_at - outcome.start_at) // width + 1
    victims, lost = [0] * count, [0] * count
    for row in outcome.displacements:
        place = (row.ordered_at - outcome.start_at) // width
        victims[place] += 1
        lost[place] += row.lost_gpu_s
    ends: Sequence[int] = [outcome.start_at + width * (place + 1) for place in range(count)]
    return [(Instant(end), n, gpu_s) for end, n, gpu_s in zip(ends, victims, lost, strict=True)]
