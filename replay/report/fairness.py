"""What each team was delivered against what it was entitled to (R-22). Pure.

Entitled: the integral of min(demand, guarantee). Delivered may be more, by borrowing. A team's shortfall is added up
interval by interval and type by type: what it gets later, or of another type, does not make good for it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from events.ids import Instant
from replay.outcome import TeamSample
from replay.report.fleet import bucket_ms, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamShare:
    """One team, all types, the whole replay. GPU-seconds."""

    team: str
    delivered_gpu_s: int
    entitled_gpu_s: int
    demand_gpu_s: int
    shortfall_gpu_s: int

    @property
    def ratio(self) -> float | None:
        """Delivered of entitled; above 1 it borrowed. None where it was entitled to nothing."""
        return ratio(self.delivered_gpu_s, self.entitled_gpu_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamCourse:
    """Delivered of entitled over time: one value for each of the common `ends`, None where it was entitled to nothing
    there."""

    team: str
    ratios: tuple[float | None, ...]


def shares(samples: Iterable[TeamSample]) -> list[TeamShare]:
    """Every team, in order of name."""
    grouped: dict[str, list[TeamSample]] = defaultdict(list)
    for sample in samples:
        grouped[sample.team].append(sample)
    return [_share(team, grouped[team]) for team in sorted(grouped)]


def shortfall(teams: Iterable[TeamShare]) -> float | None:
    """What was entitled and not delivered at the time, of all that was entitled."""
    rows = list(teams)
    return ratio(sum(row.shortfall_gpu_s for row in rows), sum(row.entitled_gpu_s for row in rows))


def worst(teams: Iterable[TeamShare]) -> TeamShare | None:
    """The team that got least of what it was entitled to."""
    entitled = [(row.ratio, row.team, row) for row in teams if row.ratio is not None]
    return min(entitled)[2] if entitled else None


def evenness(teams: Iterable[TeamShare]) -> float | None:
    """Jain's index of delivered/demand over the teams that asked for anything: 1 where all got the same share of what
    they asked for, 1/n where one got all."""
    got = [row.delivered_gpu_s / row.demand_gpu_s for row in teams if row.demand_gpu_s]
    return ratio(sum(got) ** 2, len(got) * sum(share * share for share in got)) if got else None


def courses(samples: Sequence[TeamSample], buckets_max: int) -> tuple[list[Instant], list[TeamCourse]]:
    """The ends of at most so many buckets of equal time, and every team's course over them, in order of name."""
    if not samples:
        return [], []
    times = sorted({sample.at for sample in samples})
    width = bucket_ms(times[0], times[-1] + 1, buckets_max)
    count = (times[-1] - times[0]) // width + 1
    delivered: dict[str, list[int]] = defaultdict(lambda: [0] * count)
    entitled: dict[str, list[int]] = defaultdict(lambda: [0] * count)
    for sample in samples:
        place = (sample.at - times[0]) // width
        delivered[sample.team][place] += sample.delivered_gpu_s
        entitled[sample.team][place] += sample.entitled_gpu_s
    ends = [Instant(times[0] + width * (place + 1) - 1) for place in range(count)]
    return ends, [
        TeamCourse(team=team, ratios=tuple(map(ratio, delivered[team], entitled[team]))) for team in sorted(delivered)
    ]


def _share(team: str, samples: Sequence[TeamSample]) -> TeamShare:
    return TeamShare(
        team=team,
        delivered_gpu_s=sum(sample.delivered_gpu_s for sample in samples),
        entitled_gpu_s=sum(sample.entitled_gpu_s for sample in samples),
        demand_gpu_s=sum(sample.demand_gpu_s for sample in samples),
        shortfall_gpu_s=sum(max(0, sample.entitled_gpu_s - sample.delivered_gpu_s) for sample in samples),
    )
