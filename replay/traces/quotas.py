"""The teams of a trace, and what each of them is guaranteed and may borrow. Guarantees never exceed the fleet."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from events.ids import GpuType, TeamId
from replay.scenario import TeamQuota
from replay.traces.cells import Unfit, stamp
from replay.traces.fleet import Fleet
from replay.traces.records import opened, reading
from replay.traces.rows import BadOption

EVERYBODY = "all"
"""The team of jobs whose source names none, and of all jobs where there is to be one team."""

Use = Mapping[tuple[str, str], int]
"""(team, GPU type) -> GPU-seconds."""


class Share(StrEnum):
    """How the fleet is guaranteed to the teams."""

    USE = "use"
    EQUAL = "equal"
    ONE = "one"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a file of quotas. `gpu_type` "": the only one of the fleet; `borrow_limit` None: the rest of it."""

    team: str
    guaranteed: int
    gpu_type: str = ""
    borrow_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The lines of a file from a day on, which begins `at_s` seconds after 1970."""

    at_s: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The rule. `lines`: of a file. `days`: of one that changes, in order, one at each change. `borrow_percent`: of
    what is not guaranteed to a team it may borrow so much."""

    share: Share = Share.USE
    lines: tuple[Line, ...] = ()
    days: tuple[Day, ...] = ()
    borrow_percent: int = 100

    def team_of(self, team: str) -> str:
        """The team that a job of the trace's team belongs to."""
        return EVERYBODY if self.share is Share.ONE or not team else team

    def known(self, team: str, gpu_type: str) -> bool:
        """May the team have a quota of the type? A file decides; else any may."""
        lines = [*self.lines, *(line for day in self.days[:1] for line in day.lines)]
        return self.share is not Share.FILE or any(
            line.team == team and line.gpu_type in ("", gpu_type) for line in lines
        )

    def beginning(self, at_s: int) -> "Quotas":
        """As they are at that time, seconds since 1970; before the first day as on it."""
        if not self.days:
            return self
        return replace(
            self, lines=next((day.lines for day in reversed(self.days) if day.at_s <= at_s), self.days[0].lines)
        )

    def changes(self, from_s: int, fleet: Fleet) -> Iterator[tuple[int, TeamQuota]]:
        """(when, quota) of each change after `from_s`; of one day those first that lower a guarantee."""
        now = {(each.team, each.gpu_type): each for each in self.beginning(from_s).shared({}, fleet)}
        for day in self.days:
            if day.at_s > from_s:
                then = {(each.team, each.gpu_type): each for each in replace(self, lines=day.lines).shared({}, fleet)}
                new = [each for key, each in then.items() if now.get(key) != each]
                yield from ((day.at_s, each) for each in sorted(new, key=partial(_raised, now)))
                now = then

    def shared(self, use: Use, fleet: Fleet) -> tuple[TeamQuota, ...]:
        """The quota of each team, for each type that it uses. Raises BadOption where guarantees exceed the fleet."""
        if self.share is Share.FILE:
            return tuple(self._of_file(fleet))
        return tuple(self._of_use(use, fleet))

    def _of_use(self, use: Use, fleet: Fleet) -> Iterator[TeamQuota]:
        for gpu_type, gpus in fleet.types().items():
            of_type = {team: gpu_s for (team, kind), gpu_s in sorted(use.items()) if kind == gpu_type}
            if self.share is Share.EQUAL:
                of_type = dict.fromkeys(of_type, 1)
            for team, guaranteed in shared_out(of_type, gpus).items():
                yield self._quota(team, gpu_type, guaranteed, (gpus - guaranteed) * self.borrow_percent // 100)

    def _of_file(self, fleet: Fleet) -> Iterator[TeamQuota]:
        left = fleet.types()
        for line in self.lines:
            gpu_type = _type_of(line, fleet)
            left[gpu_type] -= line.guaranteed
            if left[gpu_type] < 0:
                most = f"the guarantees of {gpu_type} exceed the fleet's {fleet.types()[gpu_type]} GPUs"
                raise BadOption("quotas", f"{line.team}: {line.guaranteed}", most)
            rest = (fleet.types()[gpu_type] - line.guaranteed) * self.borrow_percent // 100
            yield self._quota(
                line.team, gpu_type, line.guaranteed, rest if line.borrow_limit is None else line.borrow_limit
            )

    @staticmethod
    def _quota(team: str, gpu_type: str, guaranteed: int, borrow_limit: int) -> TeamQuota:
        return TeamQuota(
            team=TeamId(team), gpu_type=GpuType(gpu_type), guaranteed=guaranteed, borrow_limit=borrow_limit
        )


BY_USE = Quotas()


def _raised(now: Mapping[tuple[TeamId, GpuType], TeamQuota], then: TeamQuota) -> int:
    """By how much the guarantee grows."""
    before = now.get((then.team, then.gpu_type))
    return then.guaranteed - (before.guaranteed if before is not None else 0)


def _type_of(line: Line, fleet: Fleet) -> str:
    types = fleet.types()
    if line.gpu_type in types:
        return line.gpu_type
    if line.gpu_type or len(types) > 1:
        raise BadOption("quotas", f"{line.team}: {line.gpu_type or 'no type'}", f"has to be one of {', '.join(types)}")
    return next(iter(types))


def shared_out(weights: Mapping[str, int], gpus: int) -> dict[str, int]:
    """`gpus` in proportion to the weights, whole ones, all of them: the largest remainders are rounded up.

    A team that would get none gets one, of the largest share: with no guarantee at all it would be last for ever.
    """
    total = sum(weights.values())
    if len(weights) > gpus:
        raise BadOption("quotas", f"{len(weights)} teams", f"cannot share {gpus} GPUs: use one, or a file")
    shares = {team: weight * gpus // total for team, weight in weights.items()}
    by_rest = sorted(weights, key=lambda team: (-(weights[team] * gpus % total), team))
    for team in by_rest[: gpus - sum(shares.values())] if weights else ():
        shares[team] += 1
    for team in [team for team, share in shares.items() if not share]:
        largest = max(shares, key=lambda each: (shares[each], -weights[each], each))
        shares[largest] -= 1
        shares[team] = 1
    return shares


def parse_quotas(text: str, borrow_percent: int = 100) -> Quotas:
    """`use`, `equal`, `one`, or the path of a file: CSV of team, guaranteed and, if wished, borrow_limit, gpu_type; or
    of date, a column of GPUs for each team, and total, as HeliosData's cluster_gpu_number.csv."""
    if not 0 <= borrow_percent <= 100:
        raise BadOption("borrow_percent", borrow_percent, "has to be 0 to 100")
    if text in (Share.USE, Share.EQUAL, Share.ONE):
        return Quotas(share=Share(text), borrow_percent=borrow_percent)
    path = Path(text)
    if not path.is_file():
        raise BadOption("quotas", text, "has to be use, equal, one, or a file of quotas")
    with reading(path), opened(path) as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        if "date" in (rows.fieldnames or ()):
            days = tuple(_days(path, rows))
            return Quotas(share=Share.FILE, days=days, borrow_percent=borrow_percent)
        return Quotas(share=Share.FILE, lines=tuple(_lines(path, rows)), borrow_percent=borrow_percent)


def _lines(path: Path, rows: "csv.DictReader[str]") -> Iterator[Line]:
    _check_header(path, rows.fieldnames or ())
    seen = set()
    for number, row in enumerate(rows, 1):
        team, gpu_type = (row["team"] or "").strip(), (row.get("gpu_type") or "").strip()
        if not team or (team, gpu_type) in seen:
            raise BadOption("quotas", f"{path.name}, row {number}: {team}", "each team has one line for each type")
        seen.add((team, gpu_type))
        borrow = _gpus(row.get("borrow_limit") or "", f"{path.name}, row {number}", least=None)
        guaranteed = _gpus(row["guaranteed"] or "", f"{path.name}, row {number}", least=0)
        yield Line(team=team, guaranteed=guaranteed or 0, gpu_type=gpu_type, borrow_limit=borrow)


def _check_header(path: Path, names: Iterable[str]) -> None:
    if not {"team", "guaranteed"} <= set(names):
        wanted = "team,guaranteed and, if wished, borrow_limit,gpu_type"
        raise BadOption("quotas", f"{path.name}: {','.join(names)}", f"the header has to have {wanted}")


def _gpus(text: str, where: str, *, least: int | None) -> int | None:
    """A number of GPUs; nothing is None where `least` is None."""
    if not text.strip() and least is None:
        return None
    if not (text.strip().isdecimal() and len(text) < 10):
        raise BadOption("quotas", f"{where}: {text}", "has to be a whole number of GPUs")
    return int(text)


def _days(path: Path, rows: "csv.DictReader[str]") -> Iterator[Day]:
    """The first day, and each that is not as the one before it."""
    before: Day | None = None
    for number, row in enumerate(rows, 1):
        where, date = f"{path.name}, row {number}", row["date"] or ""
        try:
            at_s = stamp(date)
        except Unfit:
            raise BadOption("quotas", f"{where}: {date}", "has to begin with a date") from None
        teams = {team: count for team, count in row.items() if team not in ("date", "total", None)}
        lines = tuple(
            Line(team=team, guaranteed=_gpus(count or "", where, least=0) or 0) for team, count in sorted(teams.items())
        )
        if before is not None and at_s <= before.at_s:
            raise BadOption("quotas", f"{where}: {date}", "days have to be in order")
        if before is None or lines != before.lines:
            before = Day(at_s=at_s, lines=lines)
            yield before
    if before is None:
        raise BadOption("quotas", path, "there is no day in it")
