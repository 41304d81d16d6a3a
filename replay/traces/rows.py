"""What every format becomes: one row a job, and for each row that could not be used the reason. Values only."""

from collections import Counter
from dataclasses import dataclass, field, fields
from enum import StrEnum

EXAMPLES_MAX = 3
"""Spoilt rows that are kept to be shown, for each reason."""


class BadTrace(Exception):
    """A file that cannot be read as a trace at all. Says which file, and what would be readable."""


class BadOption(ValueError):
    """An option that cannot be used: says which, its value, and what it may be."""

    def __init__(self, option: str, value: object, may_be: str) -> None:
        super().__init__(f"{option}: {str(value)[:80]!r}: {may_be}")
        self.option = option


class Ended(StrEnum):
    """How a job of a trace ended; UNKNOWN where its source does not say."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    UNKNOWN = ""


class Why(StrEnum):
    """Why a row cannot be used."""

    TORN = "torn"
    EMPTY = "empty"
    UNREADABLE = "unreadable"
    NO_GPUS = "no_gpus"
    NEVER_RAN = "never_ran"
    NOT_ENDED = "not_ended"
    BACKWARDS = "backwards"
    NOT_A_JOB = "not_a_job"
    REPEATED = "repeated"
    OVER_FLEET = "over_fleet"
    NO_SUCH_TYPE = "no_such_type"
    NO_QUOTA = "no_quota"
    OVER_RUNTIME = "over_runtime"


class Note(StrEnum):
    """What was changed about a row that is used."""

    SHARED_GPU = "shared_gpu"
    ATTEMPTS_LEFT_OUT = "attempts_left_out"
    END_STATE_UNKNOWN = "end_state_unknown"
    UNDER_A_SECOND = "under_a_second"
    OTHER_TYPE = "other_type"
    LIMIT_RAISED = "limit_raised"
    NO_LIMIT = "no_limit"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A reason to count by: why, and of which columns of the source."""

    why: Why
    columns: str = ""


@dataclass(frozen=True, slots=True)
class Spoilt:
    """An example of a row that cannot be used: its number (the first is 1), and the value that is at fault."""

    row: int
    value: str


@dataclass(slots=True)
class Faults:
    """Rows that cannot be used: how many for each reason, and the first few of them."""

    counts: Counter[Fault] = field(default_factory=Counter)
    examples: dict[Fault, tuple[Spoilt, ...]] = field(default_factory=dict)

    def add(self, fault: Fault, spoilt: Spoilt) -> None:
        """One more."""
        self.counts[fault] += 1
        if self.counts[fault] <= EXAMPLES_MAX:
            self.examples[fault] = (*self.examples.get(fault, ()), spoilt)

    def copy(self) -> "Faults":
        """The same, to add to."""
        return Faults(counts=Counter(self.counts), examples=dict(self.examples))

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One job as its source has it; "" and None: not in the source.

    `submit_s`: from the first submission of the trace. `gpus`: of the whole gang. `duration_s`: how long it ran, of all
    its attempts. `limit_s`: its user's own limit. `gpu_type`: one, or several divided by `|` any of which will do.
    `row`: its number in the source.
    """

    row: int
    job_id: str
    submit_s: int
    gpus: int
    duration_s: int
    team: str = ""
    user: str = ""
    nodes: int | None = None
    gpu_type: str = ""
    end_state: Ended = Ended.UNKNOWN
    priority: str = ""
    limit_s: int | None = None
    recorded_wait_s: int | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A whole trace, by time of submission, in the source's order where that is the same.

    `read`: rows of the source; each is in `rows` or counted in `faults`. `notes`: what was changed, and how often.
    `first_at_s`: submit_s 0 in seconds since 1970, where the source says when it was.
    """

    name: str
    format: str
    read: int
    rows: tuple[TraceRow, ...]
    faults: Faults
    notes: Counter[Note]
    first_at_s: int | None = None

    def filled(self) -> tuple[str, ...]:
        """Columns that at least one row has a value in."""
        names = [each.name for each in fields(TraceRow) if each.name != "row"]
        return tuple(name for name in names if any(getattr(row, name) not in ("", None) for row in self.rows))
