"""A trace, under options, as a scenario: who asks for what, when, and how long it really takes."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import NoReturn

from commands.messages import QuotaLine, SetQuota
from commands.policy import Policy
from events.ids import GpuType, Instant, JobId, TeamId
from events.job import CheckpointPlan, JobSpec
from replay.scenario import Arrival, Scenario, TeamQuota, Timed, Work
from replay.traces.options import Options
from replay.traces.quotas import Use
from replay.traces.rows import BadOption, Ended, Fault, Note, Spoilt, Trace, TraceRow, Why
from replay.traces.summary import ImportReport, TeamUse, reason

RUNTIME_MAX_S, QUEUED_MAX = 366 * 86400, 1_000_000
"""No policy allows a longer limit, or more queued jobs of a team (commands.policy)."""
WIDENED = ("max_runtime_max_s", "queued_jobs_max")
"""Bounds of the policy that a trace may make wider."""
_ID_CHARS = re.compile(r"[^0-9A-Za-z]")
_ID_MAX = 40

Shape = tuple[str, int, int]
"""(GPU type, replicas, GPUs of each)."""


def scenario(trace: Trace, options: Options) -> tuple[Scenario, ImportReport]:
    """The trace as it is to be replayed, and what became of its rows. The same bytes for the same input.

    Raises BadOption where an option does not suit the trace, or no row is left.
    """
    return _Import(trace, options).run()


def widened(policy: Policy, arrivals: Sequence[Arrival]) -> Policy:
    """The policy, with its bounds on run-time limits and on queued jobs as wide as these arrivals need: a replay of
    what happened refuses none of it."""
    limit_s = max((each.spec.max_runtime_s or 0 for each in arrivals), default=0)
    queued = max(Counter(each.spec.team for each in arrivals).values(), default=0)
    return policy.model_copy(
        update={
            "max_runtime_max_s": max(policy.max_runtime_max_s, limit_s),
            "queued_jobs_max": min(QUEUED_MAX, max(policy.queued_jobs_max, queued)),
        }
    )


def gang(gpus: int, node_gpus: int) -> tuple[int, int]:
    """(replicas, GPUs of each) of a job of `gpus` GPUs on nodes of `node_gpus`: one replica below a node's worth; else
    as few as there can be on the fewest whole nodes, all of the same size."""
    if gpus < node_gpus:
        return 1, gpus
    nodes = -(-gpus // node_gpus)
    for replicas in range(nodes, gpus + 1):
        if gpus % replicas == 0 and -(-replicas // (node_gpus // (gpus // replicas))) == nodes:
            return replicas, gpus // replicas
    raise AssertionError("one GPU each always fits")


class _Import:
    """One trace, one set of options."""

    def __init__(self, trace: Trace, options: Options) -> None:
        self._trace = trace
        self._options = options
        self._begin_at = options.begin_at(trace)
        self._quotas = options.quotas.beginning(self._begin_s)
        self._faults = trace.faults.copy()
        self._notes: Counter[Note] = Counter(trace.notes)
        self._ids: set[str] = set()
        running = options.running
        self._checkpoint = CheckpointPlan(
            preemptible=running.preemptible, grace_s=running.grace_s, interval_s=running.interval_s
        )
        self._shaped = cache(self._find_shape)

    def run(self) -> tuple[Scenario, ImportReport]:
        inside = [row for row in self._trace.rows if self._inside(row)]
        arrivals = tuple(arrival for row in inside if (arrival := self._arrival(row)) is not None)
        outside = len(self._trace.rows) - len(inside)
        if not arrivals:
            self._nothing_left(outside)
        quotas = self._quotas.shared(_use(arrivals), self._options.fleet)
        made = Scenario(
            name=self._options.name or self._trace.name,
            start_at=self._begin_at,
            nodes=self._options.fleet.registers(),
            quotas=quotas,
            arrivals=arrivals,
            commands=tuple(self._quota_changes(arrivals[-1].at)),
            policy=widened(self._options.policy, arrivals),
        )
        return made, self._report(made, outside)

    def _nothing_left(self, outside: int) -> NoReturn:
        to_s = self._options.to_s
        window = f"{self._options.from_s}..{'' if to_s is None else to_s}"
        why = [f"{outside} rows are outside the window"] if outside else []
        why += [f"{count} rows: {reason(fault)}" for fault, count in sorted(self._faults.counts.items())]
        raise BadOption("window", window, f"no job of {self._trace.name} is left: {'; '.join(why)}")

    @property
    def _begin_s(self) -> int:
        """When the window began in truth, in seconds since 1970. Quotas by day need to know."""
        if self._options.quotas.days and self._trace.first_at_s is None:
            raise BadOption(
                "quotas", "by day", f"{self._trace.name} does not say when it was: give quotas without dates"
            )
        return (self._trace.first_at_s or 0) + self._options.from_s

    def _quota_changes(self, last_at: Instant) -> Iterator[Timed]:
        """Changes of quotas by day, scaled as the arrivals are, up to the last of these."""
        for at_s, quota in self._quotas.changes(self._begin_s, self._options.fleet):
            at = self._scaled(at_s - self._begin_s)
            if at <= last_at:
                line = QuotaLine(gpu_type=quota.gpu_type, guaranteed=quota.guaranteed, borrow_limit=quota.borrow_limit)
                yield Timed(at=at, command=SetQuota(team=quota.team, lines=(line,), reason="the trace's quotas by day"))

    def _inside(self, row: TraceRow) -> bool:
        to_s = self._options.to_s
        return self._options.from_s <= row.submit_s and (to_s is None or row.submit_s < to_s)

    def _arrival(self, row: TraceRow) -> Arrival | None:
        """The row's submission; None where it can never run, which is counted."""
        team = TeamId(self._quotas.team_of(row.team))
        shape = self._shaped(row.gpus, row.gpu_type)
        limit_s, note = self._options.estimate.seconds(row)
        limit_s += self._options.running.allowance_s
        if isinstance(shape, Fault):
            value = row.gpu_type if shape.why is Why.NO_SUCH_TYPE else row.gpus
            self._faults.add(shape, Spoilt(row.row, str(value)))
            return None
        if not self._quotas.known(team, shape[0]):
            self._faults.add(Fault(Why.NO_QUOTA, "team"), Spoilt(row.row, team))
            return None
        if limit_s > RUNTIME_MAX_S:
            self._faults.add(Fault(Why.OVER_RUNTIME, "duration_s"), Spoilt(row.row, str(limit_s)))
            return None
        self._remark(row, shape[0], note)
        return Arrival(
            at=self._scaled(row.submit_s - self._options.from_s),
            job_id=self._id(row),
            spec=self._spec(row, team, shape, limit_s),
            work=self._work(row),
            user=row.user,
        )

    def _spec(self, row: TraceRow, team: TeamId, shape: Shape, limit_s: int) -> JobSpec:
        gpu_type, replicas, each = shape
        return JobSpec(
            team=team,
            command=("replayed",),
            gpu_type=GpuType(gpu_type),
            max_runtime_s=limit_s,
            replicas=replicas,
            gpus_per_replica=each,
            priority_class=self._options.classes.of(row),
            checkpoint=self._checkpoint,
            name=row.job_id,
        )

    def _work(self, row: TraceRow) -> Work:
        """A job that its user cancelled is cancelled after as long; one that failed or ran out of time fails."""
        failed = row.end_state in (Ended.FAILED, Ended.TIMED_OUT)
        return Work(
            run_s=max(1, row.duration_s),
            start_s=self._options.running.start_s,
            save_s=self._options.running.save_s,
            exit_code=1 if failed else 0,
            cancelled=row.end_state is Ended.CANCELLED,
        )

    def _scaled(self, after_s: int) -> Instant:
        """So many seconds of the trace after the beginning."""
        scale = self._options.scale
        return Instant(self._begin_at + 1000 * (after_s * scale.numerator // scale.denominator))

    def _id(self, row: TraceRow) -> JobId:
        """j_ and the letters and digits of the trace's id; with the number of the row where that is taken."""
        stem = _ID_CHARS.sub("", row.job_id)[:_ID_MAX]
        names = (f"{stem[: _ID_MAX - 17]}r{row.row}{'x' * more}" for more in count())
        name = stem if stem and stem not in self._ids else next(each for each in names if each not in self._ids)
        self._ids.add(name)
        return JobId(f"j_{name}")

    def _find_shape(self, gpus: int, wanted: str) -> Shape | Fault:
        """The type, and the gang on the largest nodes of it that hold it; or why there is none."""
        gpu_type = self._type(wanted)
        if gpu_type is None:
            return Fault(Why.NO_SUCH_TYPE, "gpu_type")
        sizes = self._options.fleet.sizes(gpu_type)
        for size, nodes in sizes.items():
            if gpus <= size * nodes:
                return (gpu_type, *gang(gpus, size))
        return Fault(Why.OVER_FLEET, "gpus")

    def _type(self, wanted: str) -> str | None:
        """The fleet's type for a job: its only one; else of those that the job names, or of all where it names none,
        the one with the most GPUs."""
        types = self._options.fleet.types()
        if len(types) == 1:
            return next(iter(types))
        named = {each.casefold() for each in wanted.split("|")}
        may = [each for each in types if not wanted or each.casefold() in named]
        return max(may, key=lambda each: (types[each], each), default=None)

    def _remark(self, row: TraceRow, gpu_type: str, limit: Note | None) -> None:
        if limit is not None:
            self._notes[limit] += 1
        if row.gpu_type and gpu_type.casefold() not in row.gpu_type.casefold().split("|"):
            self._notes[Note.OTHER_TYPE] += 1
        if row.duration_s < 1:
            self._notes[Note.UNDER_A_SECOND] += 1

    def _report(self, made: Scenario, outside: int) -> ImportReport:
        used, now, asked = made.arrivals, made.policy, self._options.policy
        wider = [name for name in WIDENED if getattr(now, name) != getattr(asked, name)]
        return ImportReport(
            trace=self._trace.name,
            format=self._trace.format,
            read=self._trace.read,
            used=len(used),
            outside=outside,
            faults=self._faults,
            notes=self._notes,
            filled=self._trace.filled(),
            span_s=(used[-1].at - used[0].at) // 1000,
            gpu_s=sum(map(_gpu_s, used)),
            fleet_gpus=made.gpus,
            teams=_teams(used, made.quotas),
            widened=tuple((name, getattr(now, name)) for name in wider),
        )


def _gpu_s(arrival: Arrival) -> int:
    return arrival.spec.gpus * arrival.work.run_s


def _use(arrivals: Iterable[Arrival]) -> Use:
    """GPU-seconds of each team on each type."""
    found: Counter[tuple[str, str]] = Counter()
    for each in arrivals:
        found[each.spec.team, each.spec.gpu_type] += _gpu_s(each)
    return found


def _teams(arrivals: Sequence[Arrival], quotas: Sequence[TeamQuota]) -> tuple[TeamUse, ...]:
    """The teams, by use, large ones first."""
    jobs = Counter(each.spec.team for each in arrivals)
    guaranteed: Counter[TeamId] = Counter()
    gpu_s: Counter[str] = Counter()
    for quota in quotas:
        guaranteed[quota.team] += quota.guaranteed
    for (team, _), amount in _use(arrivals).items():
        gpu_s[team] += amount
    teams = (
        TeamUse(team=team, jobs=jobs[team], gpu_s=gpu_s[team], guaranteed=guaranteed[team])
        for team in sorted({*jobs, *guaranteed})
    )
    return tuple(sorted(teams, key=lambda each: -each.gpu_s))
