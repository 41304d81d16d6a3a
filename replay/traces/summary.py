"""What became of a trace's rows, as values and as a text for people."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from replay.traces.rows import Fault, Faults, Note, Why

TEAMS_SHOWN = 20
WORDS: dict[Why, str] = {
    Why.TORN: "not as many cells as the header has",
    Why.EMPTY: "no {columns}",
    Why.UNREADABLE: "{columns} cannot be read",
    Why.NO_GPUS: "asks for no GPUs ({columns})",
    Why.NEVER_RAN: "never ran ({columns})",
    Why.NOT_ENDED: "had not ended ({columns})",
    Why.BACKWARDS: "times run backwards ({columns})",
    Why.NOT_A_JOB: "a step, not a job ({columns})",
    Why.REPEATED: "{columns} occurs twice",
    Why.OVER_FLEET: "more GPUs than the fleet has of the type",
    Why.NO_SUCH_TYPE: "a GPU type that the fleet has not",
    Why.NO_QUOTA: "its team has no quota of the type",
    Why.OVER_RUNTIME: "a run-time limit of over 366 days",
}
NOTES: dict[Note, str] = {
    Note.SHARED_GPU: "asked for a part of a GPU, and get whole ones",
    Note.ATTEMPTS_LEFT_OUT: "have attempts without a start or an end, which are left out",
    Note.END_STATE_UNKNOWN: "have the same end state as all others, which is taken as not known",
    Note.UNDER_A_SECOND: "ran for under a second, and run for one",
    Note.OTHER_TYPE: "go to a GPU type that is called otherwise than theirs",
    Note.LIMIT_RAISED: "ran past their own limit, which is raised to what they ran",
    Note.NO_LIMIT: "have no limit of their own, and get what they ran",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUse:
    """A team in what is replayed. `gpu_s`: GPUs asked for, times how long they ran. `guaranteed`: over all types."""

    team: str
    jobs: int
    gpu_s: int
    guaranteed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of each row: `read` = `used` + `outside` (the window) + `faults.total`. `span_s`: from the first
    arrival to the last, as replayed. `filled`: columns that have values; `widened`: policy parameters that the trace
    made larger, with their values."""

    trace: str
    format: str
    read: int
    used: int
    outside: int
    faults: Faults
    notes: Counter[Note]
    filled: tuple[str, ...]
    span_s: int
    gpu_s: int
    fleet_gpus: int
    teams: tuple[TeamUse, ...]
    widened: tuple[tuple[str, int], ...]

    @property
    def load(self) -> float:
        """GPU-hours asked for, in those that the fleet has from the first arrival to the last."""
        return self.gpu_s / (self.fleet_gpus * self.span_s) if self.span_s else 0.0


def reason(fault: Fault) -> str:
    """Why rows cannot be used, in words."""
    return WORDS[fault.why].format(columns=fault.columns)


def summary(report: ImportReport) -> str:
    """The report as lines for a terminal."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ImportReport) -> Iterator[str]:
    yield f"{report.trace} ({report.format}): {report.read:,} rows"
    yield f"  {report.used:>9,} used"
    yield f"  {report.outside:>9,} outside the window"
    yield f"  {report.faults.total:>9,} cannot be used"
    for fault, count in sorted(report.faults.counts.items(), key=lambda item: (-item[1], item[0])):
        shown = ", ".join(f"row {each.row}: {each.value!r}" for each in report.faults.examples[fault])
        yield f"  {count:>9,}   {reason(fault)} ({shown})"
    for note, count in sorted(report.notes.items()):
        yield f"  {count:>9,} {NOTES[note]}"
    days, gpu_h = report.span_s / 86_400, report.gpu_s / 3600
    yield f"{days:,.1f} days, {gpu_h:,.0f} GPU-hours on {report.fleet_gpus:,} GPUs: load {report.load:.2f}"
    yield f"columns: {', '.join(report.filled)}"
    for name, value in report.widened:
        yield f"policy: {name} is {value:,}, or jobs of this trace would be refused"
    yield from _team_lines(report)


def _team_lines(report: ImportReport) -> Iterator[str]:
    yield f"{'team':<20} {'jobs':>9} {'GPU-hours':>12} {'share':>6} {'guaranteed':>10}"
    for team in report.teams[:TEAMS_SHOWN]:
        share = team.gpu_s / report.gpu_s if report.gpu_s else 0.0
        yield f"{team.team:<20} {team.jobs:>9,} {team.gpu_s / 3600:>12,.0f} {share:>6.1%} {team.guaranteed:>10,}"
    if len(report.teams) > TEAMS_SHOWN:
        yield f"and {len(report.teams) - TEAMS_SHOWN} teams more"
