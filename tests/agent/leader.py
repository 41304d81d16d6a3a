"""A leader that accepts everything, for tests of agents over real gRPC."""

from collections import defaultdict

from agent.gateway import GrpcGateway
from events.ids import Epoch, LeaseId, NodeId
from scheduler.link import (
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Phase,
    Register,
    Registered,
    ReportAck,
    StartTask,
    TaskEndedReport,
)
from tests.servers.waiting import WITHIN_S, until_async


class Leader:
    """Registers every node and acknowledges all that it hears. `beats`: newest heartbeat per node."""

    def __init__(self, *, heartbeat_s: float = 0.2, epoch: int = 1) -> None:
        self.gateway = GrpcGateway(leader=lambda: None)
        self.epoch = Epoch(epoch)
        self.heartbeat_s = heartbeat_s
        self.registers: dict[NodeId, list[Register]] = defaultdict(list)
        self.beats: dict[NodeId, Heartbeat] = {}
        self.reports: list[tuple[NodeId, FromAgent]] = []

    async def start(self, address: str = "127.0.0.1:0") -> int:
        port = await self.gateway.start(address)
        await self.gateway.open(self.epoch, self._hear)
        return port

    def _hear(self, node: NodeId, message: FromAgent) -> None:
        if isinstance(message, Register):
            self.registers[node].append(message)
            self.beats.pop(node, None)
            self.gateway.send(node, Registered(epoch=self.epoch, heartbeat_s=self.heartbeat_s))
        elif isinstance(message, Heartbeat):
            self.beats[node] = message
            self.gateway.send(node, HeartbeatAck(epoch=self.epoch, number=message.number))
        else:
            self.reports.append((node, message))
            self.gateway.send(node, ReportAck(epoch=self.epoch, number=message.number))

    def start_task(self, node: NodeId, message: StartTask) -> None:
        assert self.gateway.send(node, message)

    def ends(self, lease: LeaseId) -> list[TaskEndedReport]:
        return [
            message for _, message in self.reports if isinstance(message, TaskEndedReport) and message.lease_id == lease
        ]

    async def until_registered(self, node: NodeId, times: int) -> None:
        """So often in all. What an agent said that is gone by then may still be on its way before that, not after."""

        async def there() -> bool:
            return len(self.registers[node]) >= times

        await until_async(there, what=f"{node} registered {times} times")

    async def until_beats(self, *nodes: NodeId, within_s: float = WITHIN_S) -> None:
        async def all_beat() -> bool:
            return all(node in self.beats for node in nodes)

        await until_async(all_beat, within_s=within_s, what=f"heartbeats of {nodes[:3]}")

    async def until_phase(self, node: NodeId, lease: LeaseId, phase: Phase) -> None:
        async def there() -> bool:
            beat = self.beats.get(node)
            return beat is not None and any(r.lease_id == lease and r.phase is phase for r in beat.running)

        await until_async(there, what=f"{lease} {phase}")

    async def until_ended(self, lease: LeaseId) -> TaskEndedReport:
        async def there() -> list[TaskEndedReport]:
            return self.ends(lease)

        return (await until_async(there, what=f"the end of {lease}"))[0]
