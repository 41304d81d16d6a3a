"""What a person says about how a trace is to be replayed: each option as a value, and how it is written.

What is written wrong raises BadOption, which names the option, the value, and what it may be.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from commands.policy import DEFAULT, Policy
from events.ids import Instant
from events.job import PriorityClass
from replay.traces.fleet import Fleet, fleet_of
from replay.traces.quotas import BY_USE, Quotas, parse_quotas
from replay.traces.rows import BadOption, Note, Trace, TraceRow

_FACTOR = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?|[0-9]{1,9}/[1-9][0-9]{0,8}")
OTHERS = "*"


class Guess(StrEnum):
    """What a job's run-time limit is made of."""

    DURATION = "duration"
    LIMIT = "limit"
    FACTOR = "factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long each job may run: as long as it did; as its user's limit says; or `factor` times as long as it did."""

    by: Guess = Guess.DURATION
    factor: Fraction = Fraction(1)

    def seconds(self, row: TraceRow) -> tuple[int, Note | None]:
        """The limit of a row that runs for `row.duration_s`. Never below it: what happened is not killed."""
        ran_s = max(1, row.duration_s)
        if self.by is not Guess.LIMIT:
            return max(ran_s, -(-ran_s * self.factor.numerator // self.factor.denominator)), None
        if row.limit_s is None:
            return ran_s, Note.NO_LIMIT
        return (ran_s, Note.LIMIT_RAISED) if row.limit_s < ran_s else (row.limit_s, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """Each job's class: `others`, unless its `column` (priority or kind) has one of its own in `classes`."""

    others: PriorityClass | None = PriorityClass.RESEARCH
    column: str = ""
    classes: dict[str, PriorityClass] = field(default_factory=dict)

    def of(self, row: TraceRow) -> PriorityClass:
        """The class of a row. Raises BadOption where its value has none, and no class is given for the others."""
        value = getattr(row, self.column) if self.column else ""
        found = self.classes.get(value, self.others)
        if found is None:
            raise BadOption(
                "classes", value, f"this {self.column} of job {row.job_id} has no class: name it, or *=CLASS"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the source never says. `start_s`: from the grant to running; `save_s`: to write a checkpoint when told to
    stop; `grace_s`: allowed for that; `interval_s`: between checkpoints. `restarts`: the run-time limit leaves room for
    so many, so that no job is stopped for the time that its own starts took."""

    start_s: int = 20
    save_s: int = 20
    grace_s: int = 60
    interval_s: int = 1800
    preemptible: bool = True
    restarts: int = 3

    @property
    def allowance_s(self) -> int:
        """What the run-time limit has on top of the estimate: it counts from the grant, and ends with the grace."""
        return self.grace_s + self.start_s + self.restarts * (self.start_s + self.save_s)


AT_ONCE = Running(start_s=0, save_s=0, grace_s=0, restarts=0)
"""Starts take no time, and limits are exactly the estimates: as plain simulators of other people have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which part of a trace comes, when, on what fleet, for whom.

    Rows with `from_s` <= submit_s < `to_s` are taken. A job comes floor((submit_s - from_s) * `scale`) seconds after
    the beginning, which is `start_at`, or when it was in truth, or the year 2000. How long jobs run is not scaled.
    """

    fleet: Fleet
    scale: Fraction = Fraction(1)
    from_s: int = 0
    to_s: int | None = None
    quotas: Quotas = BY_USE
    classes: ClassRule = ClassRule()
    estimate: Estimate = Estimate()
    running: Running = Running()
    policy: Policy = DEFAULT
    start_at: Instant | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise BadOption("scale", self.scale, "has to be above 0")
        if self.from_s < 0 or (self.to_s is not None and self.to_s <= self.from_s):
            raise BadOption("window", f"{self.from_s}..{self.to_s}", "has to be FROM..TO in seconds, 0 <= FROM < TO")

    def begin_at(self, trace: Trace) -> Instant:
        """When the scenario begins."""
        if self.start_at is not None:
            return self.start_at
        return Instant(1000 * (MILLENNIUM_S if trace.first_at_s is None else trace.first_at_s + self.from_s))


MILLENNIUM_S = 946_684_800
"""2000-01-01 in seconds since 1970: where a source has no dates."""


def parse_options(
    *,
    fleet: str,
    window: str = "..",
    scale: str = "1",
    quotas: str = "use",
    borrow_percent: int = 100,
    classes: str = "research",
    estimate: str = "duration",
    running: Running = Running(),
    policy: Policy = DEFAULT,
    name: str = "",
) -> Options:
    """All options as they are written on a command line (docs/traces.md). Raises BadOption, or BadTrace of a file."""
    from_s, to_s = parse_window(window)
    return Options(
        fleet=fleet_of(fleet),
        scale=parse_factor(scale),
        from_s=from_s,
        to_s=to_s,
        quotas=parse_quotas(quotas, borrow_percent),
        classes=parse_classes(classes),
        estimate=parse_estimate(estimate),
        running=running,
        policy=policy,
        name=name,
    )


def parse_factor(text: str, option: str = "scale") -> Fraction:
    """`0.25` or `1/4`, exactly."""
    if _FACTOR.fullmatch(text) is None or not (value := Fraction(text)):
        raise BadOption(option, text, "has to be a number above 0, as 0.25 or 1/4")
    return value


def parse_window(text: str) -> tuple[int, int | None]:
    """`FROM..TO` in seconds from the first submission, either of which may be left out."""
    begin, dots, end = text.partition("..")
    if not dots or not all(part.isdecimal() and len(part) < 16 for part in (begin, end) if part):
        raise BadOption("window", text, "has to be FROM..TO in seconds from the first submission")
    return int(begin or 0), int(end) if end else None


def parse_estimate(text: str) -> Estimate:
    """`duration`, `limit`, or `factor:2`."""
    by, _, factor = text.partition(":")
    if by == Guess.FACTOR:
        return Estimate(by=Guess.FACTOR, factor=_at_least_one(factor))
    if factor or by not in (Guess.DURATION, Guess.LIMIT):
        raise BadOption("estimate", text, "has to be duration, limit, or factor:NUMBER")
    return Estimate(by=Guess(by))


def _at_least_one(text: str) -> Fraction:
    factor = parse_factor(text, "estimate")
    if factor < 1:
        raise BadOption("estimate", text, "the factor has to be at least 1: what happened is not killed")
    return factor


def parse_classes(text: str) -> ClassRule:
    """One class for all, as `research`; or by a column, as `priority:HP=prod-batch,Spot=preemptible,*=research`."""
    column, colon, pairs = text.partition(":")
    if not colon:
        return ClassRule(others=_class(text))
    if column not in ("priority", "kind"):
        raise BadOption("classes", column, "the column has to be priority or kind")
    found = {}
    for pair in pairs.split(","):
        value, equals, name = pair.rpartition("=")
        if not equals:
            raise BadOption("classes", pair, "has to be VALUE=CLASS")
        found[value.strip()] = _class(name.strip())
    return ClassRule(column=column, others=found.pop(OTHERS, None), classes=found)


def _class(name: str) -> PriorityClass:
    try:
        return PriorityClass(name)
    except ValueError:
        raise BadOption("classes", name, f"has to be one of {', '.join(PriorityClass)}") from None
