"""A leader for the api's tests: the real core over the logs in memory, one commit for each command."""

from collections.abc import Sequence

from commands.decide.attempts import Draft
from commands.decide.commands import decide_command
from commands.evolve import begin, evolve, finish
from commands.messages import NoCommand, decode_command
from commands.state import State
from events import codec
from events.chain import START, Accepted, Head, admit
from events.envelope import Commit, Event, Input, Term
from events.gang import GangAllocated, GangRunning
from events.ids import BlockId, Epoch, GpuMask, GpuType, Instant, JobId, NodeId, NodeIndex, Nonce, Principal, TeamId
from events.leadership import CommandUnreadable, LeaderElected
from events.log import CommandLog, EventLog
from events.node import GpuSlot, NodeRegistered, NodesConfirmed
from events.quota import QuotaChanged
from events.task import TaskStarted

AT = Instant(1_790_000_000_000)
NODES = 4
GPUS = 8


class Leader:
    """Leads as soon as `lead` was called; takes commands while `run` runs."""

    def __init__(self, events: EventLog, commands: CommandLog) -> None:
        self._events = events
        self._commands = commands
        self.state = State(events.cluster)
        self.head: Head = START
        self._taken = 0

    async def lead(self) -> None:
        """Write a term, and a small fleet with a quota for two teams."""
        for raw in await self._events.read(-1, 10):
            self.head = admit(self.head, raw.offset, raw.value).head
        term = Term(
            cluster=self._events.cluster,
            epoch=Epoch(1),
            nonce=Nonce("x"),
            n=self.head.n + 1,
            prev=self.head.hash,
            at=AT,
            rules=1,
            holder="test",
        )
        await self._append(codec.encode(term))
        begin(self.state, term.epoch, term.n, term.at)
        await self.commit([LeaderElected(epoch=Epoch(1), holder="test"), *(_node(index) for index in range(NODES))])
        await self.commit([NodesConfirmed(nodes=tuple(NodeIndex(index) for index in range(NODES)))])
        await self.commit([_quota("pretrain"), _quota("vision")])

    async def run(self) -> None:
        """Answer every command, in order."""
        async for batch in self._commands.follow(self._taken):
            for raw in batch:
                self._taken = raw.offset
                await self.answer(raw.offset, raw.value)

    async def answer(self, position: int, value: bytes) -> None:
        """The commit for one record of the commands log."""
        try:
            record = decode_command(value)
        except NoCommand as error:
            made_by = Input(kind="command", id=f"unreadable-{position}", position=position, log_id=self.head.log_id)
            await self.commit([CommandUnreadable(why=str(error))], made_by)
            return
        body = {"key": record.key, "body": record.body, "command": {"job_id": getattr(record.command, "job_id", "")}}
        made_by = Input(kind="command", id=record.id, body=body, position=position, log_id=self.head.log_id)
        at = Instant(self.head.at + 1)
        begin(self.state, self.head.epoch, self.head.n + 1, at)
        draft = Draft(self.state)
        decide_command(draft, record)
        events = tuple(draft.events)
        finish(self.state, made_by, events)
        await self._store(events, made_by, record.principal, at)

    async def commit(self, events: Sequence[Event], made_by: Input | None = None) -> None:
        """A commit of these facts."""
        at = Instant(self.head.at + 1)
        made_by = made_by or Input(kind="tick", id=f"t{self.head.n}")
        begin(self.state, self.head.epoch, self.head.n + 1, at)
        for event in events:
            evolve(self.state, event)
        finish(self.state, made_by, tuple(events))
        await self._store(tuple(events), made_by, Principal("scheduler"), at)

    async def start(self, job_id: str, node: int = 0) -> None:
        """Grant the job's first attempt, of one rank, all GPUs of a node; and have it run."""
        job = JobId(job_id)
        ranks = ((NodeIndex(node), GpuMask(255)),)
        await self.commit([GangAllocated(job_id=job, attempt=1, ranks=ranks, limit_at=None)])
        started = TaskStarted(job_id=job, attempt=1, rank=0, node=NodeIndex(node), report=1)
        await self.commit([started, GangRunning(job_id=job, attempt=1)])

    async def _store(self, events: tuple[Event, ...], made_by: Input, actor: Principal, at: Instant) -> None:
        commit = Commit(
            cluster=self._events.cluster,
            epoch=self.head.epoch,
            nonce=self.head.nonce,
            n=self.head.n + 1,
            at=at,
            actor=actor,
            input=made_by,
            policy=0,
            prev=self.head.hash,
            seq=self.head.seq + 1,
            events=events,
        )
        await self._append(codec.encode(commit))

    async def _append(self, value: bytes) -> None:
        offset = await self._events.append(value, self.head.offset + 1)
        outcome = admit(self.head, offset, value)
        assert isinstance(outcome, Accepted)
        self.head = outcome.head


def _node(index: int) -> NodeRegistered:
    return NodeRegistered(
        node=NodeIndex(index),
        node_id=NodeId(f"n-{index}"),
        generation=1,
        boot_id="b",
        incarnation="i",
        journal="j",
        address="127.0.0.1",
        block=BlockId(f"b{index // 2}"),
        rack="r",
        gpu_type=GpuType("h100"),
        gpu_memory_gb=80,
        gpus=tuple(GpuSlot(uuid=f"GPU-{index}-{slot}") for slot in range(GPUS)),
    )


def _quota(team: str) -> QuotaChanged:
    return QuotaChanged(team=TeamId(team), gpu_type=GpuType("h100"), guaranteed=8, borrow_limit=24)
