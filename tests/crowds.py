"""Fleets with work on them, made from facts alone: for what is about who runs where, and who has to go."""

from __future__ import annotations

from typing import Any

from commands.apply import apply
from commands.changed import by_table
from commands.decide.attempts import Draft
from commands.entities import Attempt, Job
from commands.evolve import begin, evolve
from commands.invariants import check_all
from commands.plan import Plan, Ranks, Room
from commands.state import Change, State
from events.envelope import Event
from events.gang import GangAllocated, GangRunning
from events.ids import BlockId, ClusterId, Epoch, GpuMask, GpuType, Instant, JobId, NodeId, NodeIndex, Principal, TeamId
from events.job import CheckpointPlan, JobQueued, JobSpec, JobSubmitted, PriorityClass, QueueReason
from events.node import GpuSlot, NodeRegistered, NodesConfirmed
from events.quota import QuotaChanged
from events.task import TaskEnd, TaskEnded, TaskStarted
from scheduler.planning.capacity import Capacity
from scheduler.planning.forecast import Forecast
from scheduler.planning.pledges import Pledges
from scheduler.planning.preempt import make_room
from scheduler.planning.quota import Shares
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex

H100 = GpuType("h100")
T0 = 1_800_000_000_000
HOUR_MS = 3_600_000
ADA = Principal("user:ada")
SERVING, BATCH, RESEARCH, PREEMPTIBLE = PriorityClass


class Crowd:
    """A state, and the indices that the planner keeps of it. Every commit is a second after the one before."""

    def __init__(self, *, at: int = T0) -> None:
        self.state = State(ClusterId("c1"))
        self.at = at
        self.epoch = Epoch(1)
        self._reports: dict[int, int] = {}
        self.capacity = Capacity.of(self.state)
        self.shares = Shares(self.state)
        self.forecast = Forecast(self.state)
        self.victims = VictimIndex(self.state, self.shares)
        self.pledges = Pledges(self.state)

    def __repr__(self) -> str:
        """What a failing property shows: every node with its leases, every job that waits."""
        lines = [f"Crowd at +{(self.at - T0) // 1000} s"]
        for node in self.state.nodes.rows.values():
            held = [f"{job}:{self.state.attempts[job, number].ranks[rank][1]:b}" for job, number, rank in node.leases]
            lines.append(f"  {node.index} {node.block}/{node.rack} {len(node.gpus)}: {' '.join(held)}")
        for job in self.state.jobs.rows.values():
            spec = job.spec
            asked = f"{spec.replicas}x{spec.gpus_per_replica} {spec.topology}" if not job.open_attempts else ""
            lines.append(f"  {job.id} {spec.team} {job.priority_class} {job.preempted_at} {asked}")
        lines += [f"  {key[0]}: {quota.guaranteed}" for key, quota in self.state.quotas.rows.items()]
        return "\n".join(lines)

    # Facts

    def commit(self, *events: Event, checked: bool = False) -> None:
        """Facts, in one commit."""
        self._begin()
        for event in events:
            evolve(self.state, event)
        if checked:
            check_all(self.state)
        self.feed(self.state.accept())

    def feed(self, changes: list[Change]) -> None:
        """Let the indices follow."""
        news = by_table(changes)
        self.capacity.follow(self.state, news)
        self.shares.follow(news)
        self.forecast.follow(news)
        self.victims.follow(news)
        self.pledges.follow(news)

    def _begin(self) -> None:
        self.at += 1000
        begin(self.state, self.epoch, self.state.meta.n + 1, Instant(self.at))

    def pass_time(self, seconds: int) -> None:
        self.at += seconds * 1000

    def nodes(self, *sizes: int, block: str = "b0", rack: str = "r0", memory_gb: int = 80) -> None:
        """Nodes with so many GPUs each."""
        events: list[Event] = []
        first = len(self.state.nodes)
        for index, size in enumerate(sizes, first):
            events.append(registered(index, size, block=block, rack=rack, memory_gb=memory_gb))
        events.append(NodesConfirmed(nodes=tuple(NodeIndex(index) for index in range(first, first + len(sizes)))))
        self.commit(*events)

    def quota(self, team: str, guaranteed: int, borrow_limit: int = 1 << 20) -> None:
        line: dict[str, Any] = {"gpu_type": H100, "guaranteed": guaranteed, "borrow_limit": borrow_limit}
        self.commit(QuotaChanged(team=TeamId(team), reason="", **line))

    def queue(self, name: str, replicas: int, each: int, **fields: Any) -> Job:
        """A job that waits. `team`, `cls`, and fields of the spec."""
        self.commit(*queued(name, replicas, each, **fields))
        return self.job(name)

    def run(self, name: str, *ranks: tuple[int, int], **fields: Any) -> None:
        """A job that runs on these (node, mask of GPUs)."""
        self.commit(*self.running(name, *ranks, **fields))

    def running(self, name: str, *ranks: tuple[int, int], **fields: Any) -> list[Event]:
        """The facts that make a job run."""
        job_id, each = JobId(name), min(mask.bit_count() for _, mask in ranks)
        fields.setdefault("max_runtime_s", 30 * 86_400)
        limit_s = fields["max_runtime_s"]
        limit_at = None if limit_s is None else Instant(self.at + limit_s * 1000)
        events = queued(name, len(ranks), each, **fields)
        placed = tuple((NodeIndex(index), GpuMask(mask)) for index, mask in ranks)
        events.append(GangAllocated(job_id=job_id, attempt=1, ranks=placed, limit_at=limit_at))
        for rank, (index, _) in enumerate(placed):
            events.append(TaskStarted(job_id=job_id, attempt=1, rank=rank, node=index, report=self._report(index)))
        events.append(GangRunning(job_id=job_id, attempt=1))
        return events

    def gone(self, attempt: Attempt) -> list[Event]:
        """All its ranks were stopped."""
        return [
            TaskEnded(
                job_id=attempt.job_id,
                attempt=attempt.number,
                rank=rank,
                node=index,
                report=self._report(index),
                end=TaskEnd.STOPPED,
                exit_code=143,
            )
            for rank, (index, _) in enumerate(attempt.ranks)
            if attempt.live(rank)
        ]

    def _report(self, index: int) -> int:
        self._reports[index] = self._reports.get(index, 0) + 1
        return self._reports[index]

    # Questions and plans

    def job(self, name: str) -> Job:
        return self.state.jobs[JobId(name)]

    def trial(self) -> Trial:
        now = Instant(self.at + 1000)
        return Trial(state=self.state, now=now, capacity=self.capacity, shares=self.shares)

    def covered(self, name: str) -> bool:
        """Would the job start covered?"""
        spec = self.job(name).spec
        return spec.gpus <= self.shares.standing((spec.team, spec.gpu_type)).covered_room

    def rooms(self, *names: str, trial: Trial | None = None, covered: bool | None = None) -> list[Room | None]:
        """Room for these, one after the other, as one cycle would make it. Nothing is kept."""
        trial, told = trial or self.trial(), covered
        try:
            return [
                make_room(
                    trial,
                    self.forecast,
                    self.job(name),
                    self.covered(name) if told is None else told,
                    self.victims,
                )
                for name in names
            ]
        finally:
            self.undo()

    def undo(self) -> None:
        self.capacity.undo()
        self.shares.undo()
        self.victims.undo()

    def apply(self, plan: Plan) -> list[Event]:
        """Make a plan facts; all of it has to hold."""
        self._begin()
        draft = Draft(self.state)
        stale = apply(draft, plan)
        assert stale == []
        check_all(self.state)
        self.feed(self.state.accept())
        return draft.events

    def stale(self, plan: Plan) -> list[tuple[JobId, str]]:
        """What of the plan may not be, with why. Nothing is kept."""
        self._begin()
        found = apply(Draft(self.state), plan)
        self.state.discard()
        return found

    def order(self, name: str) -> Room:
        """Room for the job is made, in fact."""
        (room,) = self.rooms(name)
        assert room is not None, f"no room for {name}"
        self.apply(Plan(n=self.state.meta.n, rooms=(room,)))
        return room


def queued(name: str, replicas: int, each: int, **fields: Any) -> list[Event]:
    """The facts that make a job wait."""
    team = TeamId(fields.pop("team", "red"))
    cls = fields.pop("cls", RESEARCH)
    checkpoint = CheckpointPlan(preemptible=fields.pop("preemptible", True), grace_s=fields.pop("grace_s", 60))
    spec = JobSpec(
        **{
            "team": team,
            "command": ("train",),
            "gpu_type": H100,
            "max_runtime_s": HOUR_MS // 1000,
            "replicas": replicas,
            "gpus_per_replica": each,
            "priority_class": cls,
            "checkpoint": checkpoint,
            **fields,
        }
    )
    job_id = JobId(name)
    return [
        JobSubmitted(job_id=job_id, spec=spec, principal=ADA),
        JobQueued(job_id=job_id, attempt=1, reason=QueueReason.SUBMITTED),
    ]


def stopped(room: Room | None) -> list[str]:
    """Names of the victims."""
    assert room is not None, "no room"
    return [job_id for job_id, _ in room.victims]


def masks(ranks: Ranks) -> dict[int, int]:
    """GPUs by node."""
    found: dict[int, int] = {}
    for index, mask in ranks:
        found[index] = found.get(index, 0) | mask
    return found


def registered(index: int, size: int, *, block: str = "b0", rack: str = "r0", memory_gb: int = 80) -> NodeRegistered:
    """A node's first registration."""
    return NodeRegistered(
        node=NodeIndex(index),
        node_id=NodeId(f"n{index}"),
        generation=1,
        boot_id="boot",
        incarnation="agent",
        journal="journal",
        address=f"n{index}.example",
        block=BlockId(block),
        rack=rack,
        gpu_type=H100,
        gpu_memory_gb=memory_gb,
        gpus=tuple(GpuSlot(uuid=f"{index}-{slot}", island=slot // 4) for slot in range(size)),
    )
