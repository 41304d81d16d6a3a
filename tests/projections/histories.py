"""Random histories that the core accepts: every commit is folded into the core's state, which asserts, as it is
written. The generator looks at that state alone to see what could happen next.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from commands.entities import Attempt, Job, Node, NodeState, RankPhase
from commands.evolve import fold_commit, fold_term
from commands.state import State
from events.checkpoint import CheckpointRecorded, CheckpointRefused
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangReleased, GangRunning, LeaseReleased, ReleasedBy
from events.ids import GpuMask, GpuType, Instant, JobId, NodeIndex, TeamId
from events.job import (
    ENDS,
    EndReason,
    JobCancelRequested,
    JobExtended,
    JobFinished,
    JobHeld,
    JobLabelsChanged,
    JobPriorityChanged,
    JobRejected,
    JobReleased,
    JobState,
    JobSubmitted,
    PriorityClass,
    QueueReason,
)
from events.leadership import ClaimConflictFound, ClockGap, CommandDone, CommandRefused, LeaderElected
from events.node import (
    GpuFaulted,
    GpuRepaired,
    MassSilence,
    NodeDrained,
    NodeLost,
    NodeRemoved,
    NodeReturned,
    NodesConfirmed,
    NodeSuspected,
    NodeUndrained,
    SilenceEased,
)
from events.policy import PolicyChanged
from events.preemption import DISPLACING, PledgeEnd, PreemptionEnded, PreemptionOrdered
from events.quota import QuotaChanged, TeamClassesChanged
from events.reservation import BlocksFreed, BlocksMoved, BlocksReserved, FreedBecause
from events.task import ReportDropped, TaskEnd, TaskEnded, TaskStarted, ZombieReclaimed
from tests.projections.story import ADA, H100, Story, job_spec, queued, registered

T = TypeVar("T")

TEAMS = ("research", "prod", "ünïcode \x00 team")


class History:
    """A cluster of up to six nodes of four GPUs, and whatever happens to it."""

    def __init__(self, seed: int, cluster: str = "eu-1") -> None:
        self.random = Random(seed)
        self.story = Story(cluster)
        self.state = State(self.story.cluster)
        self.jobs = 0
        self.steps: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *[self.submit, self.grant, self.start, self.start, self.start, self.end, self.end] * 3,
            *[self.checkpoint, self.preempt, self.cancel, self.change_job, self.node_up, self.node_state] * 2,
            *[self.hold_nodes, self.make_room, self.make_room],
            *[self.fault, self.lease_reconciled, self.cluster_facts, self.leader, self.noise, self.drain],
        ]

    async def run(self, steps: int) -> Story:
        """Let so many things happen."""
        await self.story.begun()
        await self._take(LeaderElected(epoch=self.story.head.epoch, holder="s"), after_s=0)
        for _ in range(3):
            await self.node_up()
        for _ in range(steps):
            await self.random.choice(self.steps)()
        return self.story

    async def _take(self, *events: Event, **fields: Any) -> None:
        made = await self.story.commit(*events, **fields)
        fold_commit(self.state, made)
        self.state.accept()

    def _live_jobs(self, *states: JobState) -> list[Job]:
        return [job for job in self.state.jobs.rows.values() if not states or job.state in states]

    def _pick(self, things: list[T]) -> T | None:
        return self.random.choice(things) if things else None

    def _node(self) -> Node | None:
        return self._pick([node for node in self.state.nodes.rows.values() if node.state is not NodeState.REMOVED])

    def _report(self, node: NodeIndex) -> int:
        return self.state.nodes[node].last_report + 1

    def _attempt(self, *, ending: bool | None = None) -> Attempt | None:
        return self._pick(
            [a for a in self.state.attempts.rows.values() if ending is None or (a.ending is not None) == ending]
        )

    async def submit(self) -> None:
        self.jobs += 1
        job_id = JobId(f"j_{self.jobs:04}")
        spec = job_spec(
            team=TeamId(self.random.choice(TEAMS)),
            priority_class=self.random.choice(list(PriorityClass)),
            replicas=self.random.randint(1, 3),
            gpus_per_replica=self.random.randint(1, 4),
            labels={"k": self.random.choice("ab")},
            max_runtime_s=self.random.choice([60, 3600, None]),
        )
        if self.random.random() < 0.1:
            facts = {"code": "over_node", "field": "gpus_per_replica", "value": "9", "limit": "4"}
            await self._take(JobRejected(job_id=job_id, spec=spec, principal=ADA, **facts))
        else:
            made = JobSubmitted(job_id=job_id, spec=spec, principal=ADA)
            await self._take(made, queued(job_id, 1, QueueReason.SUBMITTED))

    async def grant(self) -> None:
        job = self._pick([job for job in self._live_jobs(JobState.QUEUED) if not job.held])
        if job is None:
            return
        free = {i: node.free for i, node in self.state.nodes.rows.items() if node.state is NodeState.UP}
        ranks: list[tuple[NodeIndex, GpuMask]] = []
        for _ in range(job.spec.replicas):
            room = [i for i, mask in free.items() if mask.bit_count() >= job.spec.gpus_per_replica]
            if not room:
                return
            index = self.random.choice(room)
            slots = [slot for slot in range(8) if free[index] >> slot & 1]
            mask = sum(1 << slot for slot in self.random.sample(slots, job.spec.gpus_per_replica))
            free[index] &= ~mask
            ranks.append((index, GpuMask(mask)))
        limit = None if job.max_runtime_s is None else Instant(self.story.at + job.max_runtime_s * 1000)
        await self._take(GangAllocated(job_id=job.id, attempt=job.attempt + 1, ranks=tuple(ranks), limit_at=limit))

    async def start(self) -> None:
        attempt = self._attempt()
        if attempt is None:
            return
        waiting = [rank for rank, phase in enumerate(attempt.phases) if phase == RankPhase.GRANTED]
        if not waiting:
            return
        rank = self.random.choice(waiting)
        node = attempt.ranks[rank][0]
        names: dict[str, Any] = {"job_id": attempt.job_id, "attempt": attempt.number}
        events: list[Event] = [TaskStarted(**names, rank=rank, node=node, report=self._report(node))]
        if len(waiting) == 1 and attempt.running_at is None and attempt.ending is None:
            events.append(GangRunning(**names))
        await self._take(*events)

    async def end(self) -> None:
        """A rank ends: the attempt with it where it failed, the job where nothing else is to be tried."""
        attempt = self._attempt()
        live = [rank for rank in range(len(attempt.ranks)) if attempt.live(rank)] if attempt else []
        if attempt is None or not live:
            return
        rank = self.random.choice(live)
        node = attempt.ranks[rank][0]
        code = self.random.choice([0, 0, 1, 137])
        gone = TaskEnded(
            job_id=attempt.job_id,
            attempt=attempt.number,
            rank=rank,
            node=node,
            report=self._report(node),
            end=self.random.choice(list(TaskEnd)),
            exit_code=code,
            finished=self.random.random() < 0.2,
        )
        await self._take(gone, *self._consequences(attempt, code, last=len(live) == 1))

    def _consequences(self, attempt: Attempt, code: int, *, last: bool) -> list[Event]:
        job = self.state.jobs[attempt.job_id]
        names: dict[str, Any] = {"job_id": attempt.job_id, "attempt": attempt.number}
        events: list[Event] = []
        current = job.attempt == attempt.number and job.state not in (*ENDS, JobState.QUEUED)
        if code and attempt.ending is None:
            events.append(GangEnding(**names, reason=EndReason.NONZERO_EXIT, grace_s=30))
            if current and self.random.random() < 0.5:
                reason = self.random.choice([QueueReason.RETRY, QueueReason.FAULT, QueueReason.START_FAILED])
                backoff = Instant(self.story.at + 30_000)
                events.append(
                    queued(job.id, job.attempt + 1, reason, front=self.random.random() < 0.5, not_before_at=backoff)
                )
                current = False
        if last:
            events.append(GangReleased(**names))
            if current and attempt.ending is EndReason.PREEMPTED:
                events.append(queued(job.id, job.attempt + 1, QueueReason.PREEMPTED))
            elif current:
                cancelled = attempt.ending is EndReason.CANCELLED
                state = JobState.CANCELLED if cancelled else JobState.FAILED if code else JobState.SUCCEEDED
                done = JobFinished(job_id=job.id, state=state, reason=EndReason.COMPLETED, exit_code=code)
                events.insert(self.random.randint(0, 1) * len(events), done)
        return events

    async def preempt(self) -> None:
        attempt = self._attempt(ending=False)
        job = attempt and self.state.jobs[attempt.job_id]
        if attempt and job and job.state in (JobState.STARTING, JobState.RUNNING) and job.attempt == attempt.number:
            await self._take(self._ending(attempt, EndReason.PREEMPTED))

    async def hold_nodes(self) -> None:
        """Nodes are reserved for a job that waits, then others, at another time; then freed."""
        nodes, start_at = tuple(sorted(self.state.nodes.rows)[:2]), Instant(self.story.at + self.random.randint(0, 99))
        if (held := self._pick(list(self.state.reservations.rows.values()))) is not None:
            because = self.random.choice(list(FreedBecause))
            over: Event = BlocksFreed(job_id=held.job_id, because=because)
            on: Event = BlocksMoved(job_id=held.job_id, nodes=nodes[1:], start_at=start_at)
            await self._take(self.random.choice([over, on]))
        elif (job := self._pick(self._live_jobs(JobState.QUEUED))) is not None:
            made = BlocksReserved(job_id=job.id, gpu_type=H100, pool="", nodes=nodes, start_at=start_at)
            await self._take(made)

    async def make_room(self) -> None:
        """A job is stopped for another that waits; or that is over."""
        pledge = self._pick(list(self.state.pledges.rows.values()))
        if pledge is not None and self.random.random() < 0.5:
            await self._take(PreemptionEnded(job_id=pledge.job_id, because=self.random.choice(list(PledgeEnd))))
            return
        job, attempt = self._pick(self._live_jobs(JobState.QUEUED)), self._attempt(ending=False)
        if job is None or attempt is None or job.id in self.state.pledges or self._is_pledged(attempt):
            return
        victim = self.state.jobs[attempt.job_id]
        if victim.state in (JobState.STARTING, JobState.RUNNING) and victim.attempt == attempt.number:
            rule, ranks = self.random.choice(DISPLACING), attempt.ranks[:1]
            made = PreemptionOrdered(
                job_id=job.id,
                rule=rule,
                ranks=tuple((index, GpuMask(mask)) for index, mask in ranks),
                victims=(attempt.key,),
            )
            await self._take(made, self._ending(attempt, EndReason.PREEMPTED))

    def _is_pledged(self, attempt: Attempt) -> bool:
        index, mask = attempt.ranks[0]
        return bool(self.state.nodes[index].pledged & mask)

    async def cancel(self) -> None:
        job = self._pick(self._live_jobs(JobState.QUEUED, JobState.RUNNING, JobState.STARTING))
        if job is None:
            return
        events: list[Event] = [JobCancelRequested(job_id=job.id)]
        if job.state is JobState.QUEUED:
            events.append(JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=EndReason.CANCELLED))
        elif self.state.attempts[job.id, job.attempt].ending is None:
            events.append(self._ending(self.state.attempts[job.id, job.attempt], EndReason.CANCELLED))
        await self._take(*events)

    def _ending(self, attempt: Attempt, reason: EndReason) -> GangEnding:
        return GangEnding(job_id=attempt.job_id, attempt=attempt.number, reason=reason, grace_s=60)

    async def change_job(self) -> None:
        job = self._pick([job for job in self._live_jobs() if job.state not in ENDS])
        if job is None:
            return
        choices: list[Event] = [
            JobHeld(job_id=job.id),
            JobReleased(job_id=job.id),
            JobPriorityChanged(job_id=job.id, priority_class=self.random.choice(list(PriorityClass))),
            JobLabelsChanged(job_id=job.id, labels={"k": "changed"}),
            JobExtended(job_id=job.id, max_runtime_s=(job.max_runtime_s or 0) + 600),
        ]
        await self._take(self.random.choice(choices))

    async def checkpoint(self) -> None:
        attempt = self._attempt()
        if attempt is None:
            return
        node = attempt.ranks[0][0]
        names: dict[str, Any] = {
            "job_id": attempt.job_id,
            "attempt": attempt.number,
            "node": node,
            "report": self._report(node),
        }
        last = self.state.jobs[attempt.job_id].checkpoint
        sequence = (last.sequence if last else 0) + 1
        if self.random.random() < 0.3:
            await self._take(CheckpointRefused(**names, sequence=sequence - 1, reason="old"))
        else:
            size = self.random.choice([10, 2**64 - 1])
            await self._take(CheckpointRecorded(**names, sequence=sequence, uri=f"s3://{sequence}", size_bytes=size))

    async def lease_reconciled(self) -> None:
        attempt = self._attempt(ending=True)
        live = [rank for rank in range(len(attempt.ranks)) if attempt.live(rank)] if attempt else []
        if attempt and live:
            names: dict[str, Any] = {"job_id": attempt.job_id, "attempt": attempt.number}
            gone = LeaseReleased(**names, rank=live[0], by=self.random.choice(list(ReleasedBy)))
            await self._take(gone, *self._consequences(attempt, 1, last=len(live) == 1))

    async def node_up(self) -> None:
        """A new node, a new agent of one, or a new generation."""
        index = NodeIndex(self.random.randrange(6))
        old = self.state.nodes.get(index)
        generation = 1 if old is None else old.generation + (not old.leases)
        await self._take(registered(index, 4, generation), NodesConfirmed(nodes=(index,)))

    async def node_state(self) -> None:
        node = self._node()
        if node is None:
            return
        match node.state:
            case NodeState.UP:
                await self._take(NodeSuspected(node=node.index, silent_s=30))
            case NodeState.SUSPECT if self.random.random() < 0.5:
                await self._take(NodeLost(node=node.index, silent_s=90))
            case _ if not node.leases and self.random.random() < 0.3:
                await self._take(NodeRemoved(node=node.index, reason="scrap"))
            case _:
                await self._take(NodeReturned(node=node.index))

    async def drain(self) -> None:
        if (node := self._node()) is not None:
            if node.drained is None:
                await self._take(NodeDrained(node=node.index, reason="xid 79", now=self.random.random() < 0.5))
            else:
                await self._take(NodeUndrained(node=node.index))

    async def fault(self) -> None:
        node = self._node()
        if node is None:
            return
        mask = GpuMask(self.random.randint(1, 15))
        choices: list[Event] = [
            GpuFaulted(node=node.index, mask=mask, code="xid 79"),
            GpuRepaired(node=node.index, mask=mask),
            ClaimConflictFound(node_id=node.id, gpu=2, held_by="?", quarantined=True),
            ZombieReclaimed(node=node.index, report=self._report(node.index), gpu=1, pid=4711),
            ReportDropped(node=node.index, report=self._report(node.index), reason="late"),
        ]
        await self._take(self.random.choice(choices))

    async def cluster_facts(self) -> None:
        team = TeamId(self.random.choice(TEAMS))
        version = self.state.meta.policy_version + 1
        choices: list[Event] = [
            QuotaChanged(team=team, gpu_type=H100, guaranteed=self.random.randint(0, 20), borrow_limit=4),
            QuotaChanged(team=team, gpu_type=GpuType("a100-80"), guaranteed=1, borrow_limit=0, reason="more"),
            TeamClassesChanged(team=team, classes=("research",)),
            PolicyChanged(version=version, policy={"retry_backoff_s": version}),
            MassSilence(silent=8, of=20),
            SilenceEased(silent=0, operator=self.random.random() < 0.5),
            ClockGap(gap_s=700, until_at=Instant(self.story.at + 120_000)),
        ]
        await self._take(self.random.choice(choices))

    async def leader(self) -> None:
        fold_term(self.state, await self.story.term())
        self.state.accept()
        await self._take(LeaderElected(epoch=self.story.head.epoch, holder="s"), after_s=0)

    async def noise(self) -> None:
        """Records that nobody takes, and commands that change nothing."""
        await self.story.fenced()
        job = self._pick(self._live_jobs())
        answer = self.random.choice([CommandDone(), CommandRefused(code="wrong_state", field="state")])
        made = await self.story.command(answer, type="hold_job", job_id=job.id if job else "j_unknown")
        fold_commit(self.state, made)
        self.state.accept()
