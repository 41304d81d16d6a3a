"""A window of a log as a scenario: what came, and what the work really took; and beside it what was decided.

From the start of the log on nothing is lost by it. From later on the cluster is set up as it then was, but for what ran
and waited: that is submitted anew as the window begins, with the work that it had left; what was held then, once it is
released. Nodes that were out of service then take no work until they are back, and GPUs that were broken are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from commands.entities import Job, Node, NodeState
from commands.evolve import fold_commit, fold_term
from commands.messages import CommandRecord, DrainNode, SubmitJob, UndrainNode, read_command
from commands.policy import DEFAULT
from commands.reports import FromNode, Register, Tick
from commands.state import State
from events.envelope import Commit, Event, Term
from events.gang import GangAllocated, LeaseReleased
from events.ids import Epoch, Instant, JobId, NodeId, NodeIndex, Principal
from events.job import Dependency, JobReleased, JobSpec, PriorityClass
from events.leadership import CommandRepeated, CommandUnreadable, InputRefused
from events.log import RecordLog, accepted
from events.node import NodeReturned
from replay.recorded.attempts import Attempts
from replay.recorded.midst import goes_on, spec_by_then
from replay.recorded.nodes import Nodes, registrations, released_on
from replay.scenario import Arrival, Beat, Noticed, Scenario, TeamQuota, Timed, Work
from replay.verify import Window
from replay.verify.inputs import cycle, read_reports, read_tick
from replay.verify.window import EVERYTHING

PASSED_OVER = (CommandRepeated, CommandUnreadable, InputRefused)


class NothingRecorded(ValueError):
    """There is no commit in the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A recorded decision: an attempt got these GPUs then."""

    at: Instant
    job_id: JobId
    attempt: int
    ranks: tuple[tuple[NodeIndex, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """`unknown`: jobs of which it is not known how long their work takes: they were cancelled or timed out, or went on
    behind the window; they are taken to need twice what was seen, and at least their limit. `notes`: what else the
    scenario does not tell. `whole`: from the start of the log on."""

    scenario: Scenario
    granted: tuple[Granted, ...]
    unknown: tuple[JobId, ...]
    notes: tuple[str, ...]
    whole: bool


def _untold(read: int, total: int) -> None:
    """Nobody asks."""


async def read_day(
    log: RecordLog, window: Window = EVERYTHING, *, name: str = "", progress: Callable[[int, int], None] = _untold
) -> Recorded:
    """The window of the log. `progress`: told (records read, records in all). Raises NothingRecorded,
    events.chain.ChainBroken, events.codec.Unreadable, LogUnavailable."""
    day, end = _Day(State(log.cluster)), await log.end()
    async for outcome in accepted(log):
        progress(outcome.head.offset + 1, end + 1)
        if window.over(outcome.head):
            break
        record = outcome.record()
        if isinstance(record, Term):
            day.term(record)
        elif isinstance(record, Commit):
            if not day.open and window.holds(outcome.head):
                day.begin(record.at)
            day.commit(record)
    return day.recorded(name or f"{log.cluster}, recorded")


class _Day:
    def __init__(self, state: State) -> None:
        self.open = False
        self._state = state
        self._attempts = Attempts()
        self._nodes = Nodes()
        self._arrivals: list[tuple[Instant, CommandRecord | None, Job | None]] = []
        self._commands: list[Timed] = []
        self._beats: list[Beat] = []
        self._granted: list[Granted] = []
        self._at = Instant(0)
        self._start = Instant(0)
        self._input_at = Instant(0)
        """Of the last commit that was no cycle."""
        self._policy = DEFAULT
        self._quotas: tuple[TeamQuota, ...] = ()
        self._standing: tuple[Register, ...] = ()
        self._held: set[JobId] = set()
        """Jobs that were held as the window began, and are still."""
        self._away: set[NodeIndex] = set()
        """Nodes that were silent then, and are still."""
        self._ids: set[JobId] = set()

    # What is folded

    def term(self, term: Term) -> None:
        """A leader begins."""
        self._nodes.term(term.at, self._state.meta.at)
        fold_term(self._state, term)
        self._state.settle()

    def begin(self, at: Instant) -> None:
        """The window begins: this is how things stand."""
        self.open, self._start = True, at
        state = self._state
        if not state.nodes.rows:
            return
        self._policy = state.policy
        self._quotas = tuple(_quotas(state))
        self._standing = tuple(_register(state, index) for index in sorted(state.nodes.rows))
        self._nodes.stand(state)
        for job in sorted(state.jobs.rows.values(), key=lambda job: job.submit_seq):
            if goes_on(job) and not job.held:
                self._arrivals.append((at, None, job))
            elif goes_on(job):
                self._held.add(job.id)
        for node in state.nodes.rows.values():
            self._node_stands(node, at)

    def _node_stands(self, node: Node, at: Instant) -> None:
        """One that is silent would be given work until it is found out to be: it is drained until it returns."""
        reason = node.drained
        if reason is None and node.state in (NodeState.SUSPECT, NodeState.LOST):
            self._away.add(node.index)
            reason = "silent as the window began"
        if reason is not None:
            self._commands.append(Timed(at=at, command=DrainNode(node_id=node.id, reason=reason)))
        if node.broken:
            self._nodes.noticed.append(Noticed(at=at, tick=Tick(faults=((node.index, node.broken),))))

    def commit(self, commit: Commit) -> None:
        """One commit: of the window, once that has begun."""
        leases = self._leases(commit)
        fold_commit(self._state, commit)
        self._state.settle()
        if not self.open:
            return
        self._at = commit.at
        self._input(commit)
        said = self._said(commit)
        released = released_on(commit.events, leases)
        for event in commit.events:
            self._is_back(event, commit.at)
            self._attempts.take(event, commit.at, commit.input.kind)
            self._nodes.take(event, commit.at, said, released)
            if isinstance(event, GangAllocated):
                granted = Granted(at=commit.at, job_id=event.job_id, attempt=event.attempt, ranks=event.ranks)
                self._granted.append(granted)

    def _is_back(self, event: Event, at: Instant) -> None:
        """What was away as the window began is there, or is released, now."""
        if isinstance(event, NodeReturned) and event.node in self._away:
            self._away.discard(event.node)
            node = self._state.nodes[event.node]
            if node.drained is None:
                self._commands.append(Timed(at=at, command=UndrainNode(node_id=node.id)))
        elif isinstance(event, JobReleased) and event.job_id in self._held:
            self._held.discard(event.job_id)
            self._arrivals.append((at, None, self._state.jobs[event.job_id]))

    def _leases(self, commit: Commit) -> dict[tuple[str, int, int], NodeIndex]:
        """Where the leases are that it may end without a report."""
        if not any(isinstance(event, LeaseReleased) for event in commit.events):
            return {}
        return {
            (*key, rank): index
            for key, attempt in self._state.attempts.rows.items()
            for rank, (index, _) in enumerate(attempt.ranks)
        }

    def _said(self, commit: Commit) -> dict[NodeId, Register]:
        if commit.input.kind != "reports":
            return {}
        batch: list[FromNode] = list(read_reports(commit.input))
        return registrations(batch)

    def _input(self, commit: Commit) -> None:
        match commit.input.kind:
            case "command":
                self._command(commit)
            case "tick":
                self._tick(read_tick(commit.input), commit.at)
            case "cycle":
                at = cycle(commit.input).at
                self._beats.append(Beat(at=at, made_at=commit.at, plans=True, first=self._input_at < at))
                return
            case _:
                pass
        self._input_at = commit.at

    def _command(self, commit: Commit) -> None:
        if any(isinstance(event, PASSED_OVER) for event in commit.events):
            return
        record = read_command(commit.input.body)
        if isinstance(record.command, SubmitJob):
            self._arrivals.append((commit.at, record, None))
        else:
            self._commands.append(Timed(at=commit.at, command=record.command))

    def _tick(self, tick: Tick, at: Instant) -> None:
        self._beats.append(Beat(at=at, made_at=at, plans=False))
        if tick.missing or tick.faults:
            self._nodes.noticed.append(Noticed(at=at, tick=Tick(missing=tick.missing, faults=tick.faults)))

    # What comes of it

    def recorded(self, name: str) -> Recorded:
        """The scenario, once all was taken."""
        if not self.open:
            raise NothingRecorded("no commit lies in the window")
        unknown: list[JobId] = []
        self._ids = {job.id if job is not None else _submitted(record) for _, record, job in self._arrivals}
        arrivals = tuple(self._arrival(at, record, job, unknown) for at, record, job in self._arrivals)
        first_at = min([arrival.at for arrival in arrivals] + [timed.at for timed in self._commands] + [self._at])
        joined = self._nodes.joined
        early = [one.node for one in joined if one.at <= first_at]
        scenario = Scenario(
            name=name,
            start_at=self._start,
            nodes=(*self._standing, *early),
            quotas=self._quotas,
            arrivals=arrivals,
            commands=tuple(self._commands),
            silences=self._nodes.silences(),
            policy=self._policy,
            end_at=self._at,
            noticed=tuple(self._nodes.noticed),
            joined=tuple(joined[len(early) :]),
            anew=self._nodes.anew(),
            taken_over=self._nodes.taken_over(),
            beats=tuple(self._beats),
            refuses=True,
        )
        return Recorded(
            scenario=scenario,
            granted=tuple(self._granted),
            unknown=tuple(dict.fromkeys(unknown)),
            notes=tuple(self._nodes.notes),
            whole=not self._standing,
        )

    def _arrival(self, at: Instant, record: CommandRecord | None, job: Job | None, unknown: list[JobId]) -> Arrival:
        if record is None:
            assert job is not None
            return self._carried(at, job, unknown)
        command = record.command
        assert isinstance(command, SubmitJob)
        spec = replace(command.spec, depends_on=self._known_dependencies(command.spec))
        if spec.array is not None:
            return self._array(at, command.job_id, spec, record.principal, unknown)
        work = self._work(command.job_id, spec.max_runtime_s, unknown)
        user = record.principal.removeprefix("user:")
        return Arrival(at=at, job_id=command.job_id, spec=spec, work=work, user=user)

    def _known_dependencies(self, spec: JobSpec) -> tuple[Dependency, ...]:
        """Those on jobs that the replay has: the others had ended before the window, and cannot be waited for."""
        if not self._standing:
            return spec.depends_on
        return tuple(each for each in spec.depends_on if each.job in self._ids)

    def _array(self, at: Instant, job_id: JobId, spec: JobSpec, principal: Principal, unknown: list[JobId]) -> Arrival:
        own = [each for each in self._attempts.jobs() if each.startswith(f"{job_id}_")]
        elements = {each: self._work(each, spec.max_runtime_s, unknown) for each in own}
        work = next(iter(elements.values()), Work(run_s=spec.max_runtime_s or 3_600))
        user = principal.removeprefix("user:")
        return Arrival(at=at, job_id=job_id, spec=spec, work=replace(work, tries={}), user=user, elements=elements)

    def _carried(self, at: Instant, job: Job, unknown: list[JobId]) -> Arrival:
        """What ran or waited as the window began: as if submitted then. Its attempts of before are not repeated."""
        if job.elements is not None:
            return self._array(at, job.id, spec_by_then(job), job.principal, unknown)
        work = replace(self._work(job.id, job.max_runtime_s, unknown), tries={})
        user = job.principal.removeprefix("user:")
        return Arrival(at=at, job_id=job.id, spec=spec_by_then(job), work=work, user=user)

    def _work(self, job_id: JobId, limit_s: int | None, unknown: list[JobId]) -> Work:
        work, known = self._attempts.work(job_id, limit_s)
        if not known:
            unknown.append(job_id)
        return work


def _submitted(record: CommandRecord | None) -> JobId:
    assert record is not None
    assert isinstance(record.command, SubmitJob)
    return record.command.job_id


def _quotas(state: State) -> Iterable[TeamQuota]:
    for (team, gpu_type), quota in sorted(state.quotas.rows.items()):
        row = state.teams.get(team)
        line = TeamQuota(team=team, gpu_type=gpu_type, guaranteed=quota.guaranteed, borrow_limit=quota.borrow_limit)
        yield (
            line
            if row is None or row.classes is None
            else replace(line, classes=tuple(map(PriorityClass, row.classes)))
        )


def _register(state: State, index: NodeIndex) -> Register:
    node = state.nodes[index]
    return Register(
        node_id=node.id,
        boot_id=node.boot_id,
        incarnation=node.incarnation,
        journal=node.journal,
        last_report=0,
        epoch_floor=Epoch(0),
        block=node.block,
        rack=node.rack,
        address=node.address,
        gpu_type=node.gpu_type,
        gpu_memory_gb=node.gpu_memory_gb,
        gpus=node.gpus,
    )
