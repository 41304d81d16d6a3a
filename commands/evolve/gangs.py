"""What the facts about gangs, leases and tasks mean.

A lease holds its GPUs from GangAllocated until TaskEnded or LeaseReleased, whatever is said in between (P-15).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from commands.entities import Attempt, AttemptKey, Growth, Job, Node, NodeState, RankPhase, Usage
from commands.evolve import fair
from commands.evolve.jobs import checkpoint_recorded, put_job, put_jobs, retire, waited_ms
from commands.rows import maker, replace, replacer
from commands.state import State
from events.checkpoint import CheckpointRecorded, CheckpointRefused
from events.gang import GangAllocated, GangEnding, GangReleased, GangResized, GangRunning, LeaseReleased
from events.ids import GpuType, JobId, NodeIndex, TeamId
from events.job import EndReason, JobState, QueueReason
from events.task import ReportDropped, TaskEnd, TaskEnded, TaskStarted, ZombieReclaimed

EXIT_COUNTS = {None, EndReason.NODE_LOST, EndReason.LEASE_MISSING, EndReason.NONZERO_EXIT}
"""Exit 0 is success while nobody asked the attempt to stop; trainers save and exit 0 on SIGTERM (C-51)."""

_STARTED = (JobState.STARTING, JobState.RUNNING)
ENDING_STATES = {EndReason.CANCELLED: JobState.CANCELLING, EndReason.PREEMPTED: JobState.PREEMPTING}


def charge(state: State, team: TeamId, gpu_type: GpuType, gpus: int) -> None:
    """Add `gpus` (may be negative) to the ledger."""
    usage = state.usage.get((team, gpu_type)) or Usage(team=team, gpu_type=gpu_type)
    state.usage.put((team, gpu_type), _charged(usage, charged=usage.charged + gpus))


def granted(state: State, event: GangAllocated) -> None:
    allocated(state, (event,))


def allocated(state: State, events: Sequence[GangAllocated]) -> None:
    """Grants of one commit, in order. Every GPU must be free, whole and of one type: anything else is a bug, found
    before it is in the log (P-7). What they come to is put at once, for a node and a team's use what they add up to."""
    rows, most_s = state.jobs.rows, state.policy.fair_advance_s
    jobs = [rows[event.job_id] for event in events]
    nodes, gpus = _taken(state, events, jobs)
    advances_s = [fair.advance_s(job, most_s) for job in jobs]
    _put_attempts(state, events, zip(jobs, gpus, advances_s, strict=True))
    _put_granted(state, events, jobs)
    state.nodes.put_all(nodes)
    _count(state, zip(jobs, gpus, advances_s, strict=True))


class _Taken:
    """What grants take of a node."""

    __slots__ = ("before", "free", "gpu_type", "leases", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.gpu_type = node.gpu_type
        self.before = self.free = node.free
        self.leases: list[tuple[JobId, int, int]] = []

    def in_use(self) -> Node:
        """The node without that."""
        node = self.node
        return _in_use(node, used=node.used | self.before & ~self.free, leases=(*node.leases, *self.leases))


def _taken(
    state: State, events: Iterable[GangAllocated], jobs: Iterable[Job]
) -> tuple[dict[NodeIndex, Node], list[int]]:
    """The nodes without the GPUs of all ranks, and how many these are for each grant."""
    rows, nodes, charged = state.nodes.rows, dict[NodeIndex, _Taken](), []
    for event, job in zip(events, jobs, strict=True):
        job_id, number, gpu_type, gpus = event.job_id, event.attempt, job.spec.gpu_type, 0
        for rank, (index, mask) in enumerate(event.ranks):
            taken = nodes.get(index)
            if taken is None:
                taken = nodes[index] = _Taken(rows[index])
            assert mask, f"{taken.node.id}: a rank without gpus"
            assert taken.free & mask == mask, f"{taken.node.id}: gpus {mask:#x} are not free"
            assert taken.gpu_type == gpu_type, f"{taken.node.id} has {taken.gpu_type}"
            taken.free ^= mask
            taken.leases.append((job_id, number, rank))
            gpus += mask.bit_count()
        charged.append(gpus)
    return {index: taken.in_use() for index, taken in nodes.items()}, charged


def _put_attempts(state: State, events: Iterable[GangAllocated], takes: Iterable[tuple[Job, int, int]]) -> None:
    """`takes`: of each grant its job, GPUs, and seconds that are charged in advance."""
    grant, at = (state.meta.epoch, state.meta.n), state.meta.at
    state.attempts.put_all(
        {
            (event.job_id, event.attempt): _made(
                job_id=event.job_id,
                number=event.attempt,
                team=job.spec.team,
                gpu_type=job.spec.gpu_type,
                ranks=event.ranks,
                phases=_GRANTED * len(event.ranks),
                grant=grant,
                granted_at=at,
                limit_at=event.limit_at,
                charged=gpus,
                after_preemption=job.queue_reason is QueueReason.PREEMPTED,
                advance_s=advance_s,
                promised_n=event.promised_n,
            )
            for event, (job, gpus, advance_s) in zip(events, takes, strict=True)
        }
    )


def _put_granted(state: State, events: Iterable[GangAllocated], jobs: Sequence[Job]) -> None:
    """Their jobs are out of the queue."""
    at = state.meta.at
    out = {
        job.id: _out_of_the_queue(
            job,
            state=JobState.STARTING,
            attempt=event.attempt,
            front=False,
            not_before_at=None,
            open_attempts=(*job.open_attempts, event.attempt),
            waited_ms=waited_ms(at, job),
            waits_since=None,
        )
        for event, job in zip(events, jobs, strict=True)
    }
    assert len(out) == len(jobs), "a job is granted twice"
    put_jobs(state, out)


def _count(state: State, takes: Iterable[tuple[Job, int, int]]) -> None:
    """Charge the teams, and their fair shares in advance."""
    use: dict[tuple[TeamId, GpuType], list[int]] = {}
    for job, gpus, advance_s in takes:
        share = (job.spec.team, job.spec.gpu_type)
        adds = use.get(share)
        if adds is None:
            adds = use[share] = [0, 0]
        adds[0] += gpus
        adds[1] += gpus * advance_s
    for (team, gpu_type), (gpus, in_advance) in use.items():
        charge(state, team, gpu_type, gpus)
        fair.granted(state, (team, gpu_type), gpus, in_advance)


_GRANTED = bytes((RankPhase.GRANTED,))
_made = maker(Attempt)
_charged = replacer(Usage, "charged")
_running = replacer(Attempt, "running_at")
_ending = replacer(Attempt, "ending", "ending_at", "grace_s")
_in_state = replacer(Job, "state")
_job_running = replacer(Job, "state", "setbacks")
_still_open = replacer(Job, "open_attempts")
_in_use = replacer(Node, "used", "leases")
_heard = replacer(Node, "last_report")
_phased = replacer(Attempt, "phases")
_smaller = replacer(Attempt, "phases", "charged")
_out_of_the_queue = replacer(
    Job, "state", "attempt", "front", "not_before_at", "open_attempts", "waited_ms", "waits_since"
)


def running(state: State, event: GangRunning) -> None:
    attempt = state.attempts[event.job_id, event.attempt]
    state.attempts.put(attempt.key, _running(attempt, running_at=state.meta.at))
    job = state.jobs[event.job_id]
    if job.attempt == event.attempt and job.state is JobState.STARTING:
        put_job(state, _job_running(job, state=JobState.RUNNING, setbacks=0))


def ending(state: State, event: GangEnding) -> None:
    all_ending(state, (event,))


def all_ending(state: State, events: Iterable[GangEnding]) -> None:
    """Attempts are to stop, as is said last; a job shows it while the attempt is its present one."""
    attempts, jobs, at = dict[AttemptKey, Attempt](), dict[JobId, Job](), state.meta.at
    for event in events:
        key, reason = (event.job_id, event.attempt), event.reason
        attempts[key] = _ending(state.attempts.rows[key], ending=reason, ending_at=at, grace_s=event.grace_s)
        shown, job = ENDING_STATES.get(reason), jobs.get(event.job_id) or state.jobs.rows[event.job_id]
        if shown is not None and job.attempt == event.attempt and job.state in _STARTED:
            jobs[job.id] = _in_state(job, state=shown)
    state.attempts.put_all(attempts)
    put_jobs(state, jobs)


def released(state: State, event: GangReleased) -> None:
    state.attempts.drop((event.job_id, event.attempt))
    job = state.jobs[event.job_id]
    still_open = tuple(number for number in job.open_attempts if number != event.attempt)
    put_job(state, _still_open(job, open_attempts=still_open))
    retire(state, event.job_id)


def resized(state: State, event: GangResized) -> None:
    """New ranks count from now on; those that are stopped stay charged until they are gone."""
    key = (event.job_id, event.attempt)
    if event.grown:
        _grow(state, key, event.grown)
    attempt = state.attempts[key]
    phases = attempt.phases
    for rank in event.stopped:
        if not attempt.live(rank):
            phases = _phase_set(phases, rank, RankPhase.GIVEN_BACK)
    if event.stopped:
        stopping = tuple(sorted({*attempt.stopping, *event.stopped}))
        state.attempts.put(key, replace(attempt, phases=phases, stopping=stopping, stopping_at=state.meta.at))


def _grow(state: State, key: AttemptKey, grown: tuple[tuple[NodeIndex, int], ...]) -> None:
    attempt = state.attempts[key]
    first, gpus = len(attempt.ranks), 0
    for rank, (index, mask) in enumerate(grown, first):
        node = state.nodes[index]
        assert mask, f"{node.id}: a rank without gpus"
        assert node.free & mask == mask, f"{node.id}: gpus {mask:#x} are not free"
        gpus += mask.bit_count()
        state.nodes.put(index, replace(node, used=node.used | mask, leases=(*node.leases, (*key, rank))))
    state.attempts.put(
        key,
        replace(
            attempt,
            ranks=(*attempt.ranks, *grown),
            phases=attempt.phases + bytes(len(grown)),
            charged=attempt.charged + gpus,
            growths=(
                *attempt.growths,
                Growth(first=first, grant=(state.meta.epoch, state.meta.n), at=state.meta.at),
            ),
        ),
    )
    charge(state, attempt.team, attempt.gpu_type, gpus)
    fair.returned(state, attempt, gpus)


def _ended_as(attempt: Attempt, rank: int, well: bool) -> int:
    if well:
        return RankPhase.ENDED_OK
    return RankPhase.GIVEN_BACK if rank in attempt.stopping else RankPhase.ENDED_BAD


def lease_released(state: State, event: LeaseReleased) -> None:
    key = (event.job_id, event.attempt)
    free(state, key, event.rank, _ended_as(state.attempts[key], event.rank, well=False))


def task_started(state: State, event: TaskStarted) -> None:
    take_report(state, event.node, event.report)
    key = (event.job_id, event.attempt)
    attempt = state.attempts[key]
    state.attempts.put(key, _phased(attempt, phases=_phase_set(attempt.phases, event.rank, RankPhase.RUNNING)))


def task_ended(state: State, event: TaskEnded) -> None:
    take_report(state, event.node, event.report)
    key = (event.job_id, event.attempt)
    by_itself = event.end is TaskEnd.EXITED and state.attempts[key].ending in EXIT_COUNTS
    stopped = event.rank in state.attempts[key].stopping
    well = event.finished or (by_itself and event.exit_code == 0 and not stopped)
    free(state, key, event.rank, _ended_as(state.attempts[key], event.rank, well))
    attempt = state.attempts[key]
    if attempt.exit_code is None and event.exit_code:
        state.attempts.put(key, replace(attempt, exit_code=event.exit_code))


def free(state: State, key: AttemptKey, rank: int, phase: int) -> None:
    """A lease ends: its GPUs are free, and charged no more (those on a lost node were not)."""
    attempt = state.attempts[key]
    assert attempt.live(rank), f"lease {key} rank {rank} has ended already"
    index, mask = attempt.ranks[rank]
    node = state.nodes[index]
    lease = (*key, rank)
    left = tuple([held for held in node.leases if held != lease])
    state.nodes.put(index, _in_use(node, used=node.used & ~mask, leases=left))
    gpus = charged_gpus(node, mask)
    if gpus:
        charge(state, attempt.team, attempt.gpu_type, -gpus)
        fair.ended(state, attempt, gpus)
    state.attempts.put(
        key,
        _smaller(attempt, phases=_phase_set(attempt.phases, rank, phase), charged=attempt.charged - gpus),
    )


def charged_gpus(node: Node, mask: int) -> int:
    """GPUs of a live lease that its team is charged for: none on a lost node (P-15)."""
    return 0 if node.state is NodeState.LOST else mask.bit_count()


def take_report(state: State, index: NodeIndex, number: int) -> None:
    """Reports of a node up to `number` are in the log."""
    node = state.nodes[index]
    assert number > node.last_report, f"{node.id}: report {number} was taken before"
    state.nodes.put(index, _heard(node, last_report=number))


def report_only(state: State, event: ReportDropped | ZombieReclaimed | CheckpointRefused) -> None:
    take_report(state, event.node, event.report)


def checkpoint(state: State, event: CheckpointRecorded) -> None:
    take_report(state, event.node, event.report)
    checkpoint_recorded(state, event)


def _phase_set(phases: bytes, rank: int, phase: int) -> bytes:
    return phases[:rank] + bytes((phase,)) + phases[rank + 1 :]


RULES: dict[type, Callable[[State, Any], None]] = {
    GangAllocated: granted,
    GangResized: resized,
    GangRunning: running,
    GangEnding: ending,
    GangReleased: released,
    LeaseReleased: lease_released,
    TaskStarted: task_started,
    TaskEnded: task_ended,
    ReportDropped: report_only,
    ZombieReclaimed: report_only,
    CheckpointRefused: report_only,
    CheckpointRecorded: checkpoint,
}
