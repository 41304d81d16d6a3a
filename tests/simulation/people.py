"""The people, and the api between them and the commands log: who submits, cancels, drains, and waits for answers.

A command counts as sent once its append is acknowledged; one whose outcome is unknown is sent again under its key.
"""

import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from commands.messages import (
    CancelJob,
    Command,
    CommandRecord,
    DrainNode,
    ExtendJob,
    HoldJob,
    QuotaLine,
    ReleaseJob,
    RequeueJob,
    SetPolicy,
    SetQuota,
    SubmitJob,
    UndrainNode,
    encode_command,
)
from commands.policy import Policy
from events.ids import CommandId, Instant, JobId, NodeId, Principal, TeamId
from events.job import ArrayRange, CheckpointPlan, Elastic, JobSpec, Overlap, PriorityClass
from tests.simulation.audit import Auditor
from tests.simulation.machines import GPU_TYPE
from tests.simulation.waiting import pause, until

TEAMS = (TeamId("red"), TeamId("blue"))
CLASSES = (PriorityClass.PROD_BATCH, PriorityClass.RESEARCH, PriorityClass.PREEMPTIBLE)

Append = Callable[[bytes], Awaitable[int | None]]
"""To the commands log: the offset; None where the outcome is not known."""


@dataclass(slots=True)
class People:
    """The clients of one cluster. `only_submit`: nobody cancels, drains or requeues."""

    chance: random.Random
    append: Append
    auditor: Auditor
    nodes: tuple[str, ...]
    policy: Policy
    gpus: int
    longest_s: int = 40
    gangs: int = 4
    jobs: list[JobId] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    held: list[JobId] = field(default_factory=list)
    only_submit: bool = False
    sent: int = 0

    async def command(self, command: Command, *, key: str | None = None) -> int:
        """Send a command until its append is acknowledged. Returns its position."""
        body = hashlib.md5(repr(command).encode()).hexdigest()
        key = key if key is not None else f"{self.sent:032x}"
        while True:
            self.sent += 1
            record = CommandRecord(
                id=CommandId(f"c{self.sent}"),
                principal=Principal("user:ada"),
                key=key,
                body=body,
                sent_at=Instant(0),
                command=command,
            )
            position = await self.append(encode_command(record))
            if position is not None:
                return position

    async def answered(self, position: int, within_s: float = 120.0) -> bool:
        """Is the command at that position answered in time?"""
        return await until(lambda: self.auditor.state.meta.command_position >= position, within_s)

    async def settle_in(self) -> None:
        """Wait for the nodes, then give the teams their quotas. Raises AssertionError if nobody leads."""
        state = self.auditor.state
        assert await until(lambda: len(state.nodes) == len(self.nodes), 120.0), "the nodes have not registered"
        await self.command(SetPolicy(policy=self.policy.model_dump(mode="json")))
        for team in TEAMS:
            line = QuotaLine(gpu_type=GPU_TYPE, guaranteed=self.gpus // len(TEAMS), borrow_limit=self.gpus)
            position = await self.command(SetQuota(team=team, lines=(line,), classes=CLASSES))
        assert await self.answered(position), "the first commands are not answered"

    async def submit(self, **fields: object) -> JobId:
        """One job, drawn at random but for `fields`."""
        job_id = JobId(f"j_{len(self.jobs):020d}")
        self.jobs.append(job_id)
        await self.command(SubmitJob(job_id=job_id, spec=self._spec(fields)))
        return job_id

    def _spec(self, fields: dict[str, object]) -> JobSpec:
        chance = self.chance
        env = {
            "SIGNALBOX_SIM_DURATION_S": str(chance.randint(1, self.longest_s)),
            "SIGNALBOX_SIM_STOP_S": str(chance.choice((0, 1, 1, 3))),
            "SIGNALBOX_SIM_EXIT_CODE": str(int(chance.random() < 0.1)),
            "SIGNALBOX_SIM_CHECKPOINT_S": "5",
        }
        if chance.random() < 0.15:
            env["SIGNALBOX_SIM_IGNORES_TERM"] = "yes"
        drawn: dict[str, object] = {
            "team": chance.choice(TEAMS),
            "command": ("train",),
            "gpu_type": GPU_TYPE,
            "max_runtime_s": chance.choice((30, 600, 600, 600)),
            "replicas": chance.randint(1, self.gangs),
            "gpus_per_replica": chance.choice((1, 1, 2, 4)),
            "env": env,
            "checkpoint": CheckpointPlan(grace_s=chance.choice((2, 5, 10)), uri="s3://runs"),
            "retries": chance.choice((0, 0, 1)),
            "overlap": chance.choice((*[Overlap.ALLOWED] * 7, Overlap.NEVER)),
            "priority_class": chance.choice((*[PriorityClass.RESEARCH] * 4, *CLASSES)),
            "array": ArrayRange(first=0, last=chance.randint(1, 4), throttle=2) if chance.random() < 0.05 else None,
        }
        if chance.random() < 0.1 and "replicas" not in fields and drawn["array"] is None:
            most = chance.randint(2, self.gangs + 1)
            drawn |= {"elastic": Elastic(min_replicas=1, max_replicas=most), "replicas": chance.randint(1, most)}
        return JobSpec(**{**drawn, **fields})  # type: ignore[arg-type]

    async def live(self, until_s: Callable[[], bool], pace_s: float = 2.0) -> None:
        """Send commands of all kinds until it is time to stop."""
        while not until_s():
            await self.act()
            await pause(self.chance.random() * pace_s)

    async def act(self) -> None:
        """One thing that people do."""
        chance = self.chance
        drawn = chance.random()
        recent = chance.choice(self.jobs[-12:]) if self.jobs else None
        if recent is None or drawn < 0.6 or self.only_submit:
            await self.submit()
        elif drawn < 0.70:
            await self.command(CancelJob(job_id=recent))
        elif drawn < 0.76:
            await self.command(RequeueJob(job_id=recent))
        elif drawn < 0.80:
            await self.command(ExtendJob(job_id=recent, by_s=30))
        elif drawn < 0.84:
            self.held.append(recent)
            await self.command(HoldJob(job_id=recent))
        elif drawn < 0.88:
            node = chance.choice(self.nodes)
            self.drained.append(node)
            await self.command(DrainNode(node_id=NodeId(node), reason="maintenance", now=chance.random() < 0.5))
        elif drawn < 0.93:
            await self.undo()
        elif drawn < 0.96:
            await self.append(b"no command at all")
        else:
            key = f"again-{self.sent}"
            await self.command(CancelJob(job_id=recent), key=key)
            await self.command(CancelJob(job_id=recent), key=key)

    async def undo(self) -> None:
        """What keeps jobs from running ends."""
        while self.drained:
            await self.command(UndrainNode(node_id=NodeId(self.drained.pop())))
        while self.held:
            await self.command(ReleaseJob(job_id=self.held.pop()))
