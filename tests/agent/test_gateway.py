"""The leader's end of the streams, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc.aio
import pytest

from agent.gateway import GrpcGateway
from agent.grpc_options import CLIENT, SERVICE
from agent.grpc_transport import GrpcStream, GrpcTransport, bearer
from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from events.ids import BlockId, Epoch, GpuType, LeaseId, NodeId
from events.node import GpuSlot
from scheduler.link import (
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    NotLeader,
    Register,
    Registered,
    RegisterRefused,
    ReportAck,
    TailLog,
    ToAgent,
)
from tests.servers.waiting import WITHIN_S, until_async

NODE = NodeId("n-1")
REGISTERED = Registered(epoch=Epoch(3))


def register(incarnation: str = "i-1", node: NodeId = NODE) -> Register:
    """The first message of a session."""
    return Register(
        node_id=node,
        boot_id="boot",
        incarnation=incarnation,
        journal="journal",
        last_report=0,
        epoch_floor=Epoch(0),
        block=BlockId("b"),
        rack="r",
        address=node,
        gpu_type=GpuType("h100"),
        gpu_memory_gb=80,
        gpus=(GpuSlot(uuid="GPU-1"),),
    )


def heartbeat(number: int, node: NodeId = NODE) -> Heartbeat:
    """One."""
    return Heartbeat(node_id=node, number=number, running=())


class Cluster:
    """A gateway, what was delivered by it, and agents that dial it."""

    def __init__(self, token: str | None = None) -> None:
        self.leader: str | None = "leader:1"
        self.gateway = GrpcGateway(leader=lambda: self.leader, token=token)
        self.transport = GrpcTransport(token=token)
        self.delivered: list[FromAgent] = []
        self.answer: Callable[[NodeId, FromAgent], None] = lambda node, message: None
        self.port = 0

    async def lead(self) -> None:
        await self.gateway.open(Epoch(3), self._deliver)

    def _deliver(self, node: NodeId, message: FromAgent) -> None:
        self.delivered.append(message)
        self.answer(node, message)

    def dial(self) -> GrpcStream:
        return self.transport.connect(f"127.0.0.1:{self.port}")

    async def until_delivered(self, message: FromAgent) -> None:
        async def there() -> bool:
            return message in self.delivered

        await until_async(there, what=f"{message} in {self.delivered}")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A gateway that does not lead yet."""
    cluster = Cluster()
    cluster.port = await cluster.gateway.start("127.0.0.1:0")
    yield cluster
    await cluster.transport.close()
    await cluster.gateway.shutdown()


async def received(stream: GrpcStream) -> ToAgent | None:
    """The next message, before long."""
    async with asyncio.timeout(WITHIN_S):
        return await stream.receive()


async def registered(cluster: Cluster, incarnation: str = "i-1") -> GrpcStream:
    """A session that the core has accepted."""
    stream = cluster.dial()
    stream.send(register(incarnation))
    await cluster.until_delivered(register(incarnation))
    assert cluster.gateway.send(NODE, REGISTERED)
    assert await received(stream) == REGISTERED
    return stream


async def test_a_standby_names_the_leader_and_ends_the_stream(cluster: Cluster) -> None:
    """Before `open` and after `close` an agent is told whom to dial, and nothing it says is delivered."""
    for _ in range(2):
        stream = cluster.dial()
        stream.send(register())
        assert await received(stream) == NotLeader(address="leader:1")
        assert await received(stream) is None
        await cluster.lead()
        await cluster.gateway.close()
    assert cluster.delivered == []


async def test_the_end_of_a_tenure_ends_every_session(cluster: Cluster) -> None:
    """On `close` the agents are told who leads now."""
    await cluster.lead()
    stream = await registered(cluster)
    cluster.leader = "successor:2"
    await cluster.gateway.close()
    assert await received(stream) == NotLeader(address="successor:2")
    assert await received(stream) is None
    assert not cluster.gateway.send(NODE, ReportAck(epoch=Epoch(3), number=1))


async def test_messages_come_in_order_both_ways(cluster: Cluster) -> None:
    """Of a thousand messages each way none is lost and none overtakes another; only acknowledgements may be merged."""
    await cluster.lead()
    stream = await registered(cluster)
    for number in range(1, 1001):
        stream.send(heartbeat(number))
        tail = TailLog(epoch=Epoch(3), lease_id=LeaseId(str(number)), url="u", token="t", follow=False)
        assert cluster.gateway.send(NODE, tail)
    got = [await received(stream) for _ in range(1000)]
    assert [int(message.lease_id) for message in got if isinstance(message, TailLog)] == list(range(1, 1001))
    await cluster.until_delivered(heartbeat(1000))
    numbers = [message.number for message in cluster.delivered if isinstance(message, Heartbeat)]
    assert numbers == list(range(1, 1001))


async def test_acknowledgements_that_wait_are_merged(cluster: Cluster) -> None:
    """A hundred acknowledgements queued at once reach the agent as the newest of each run."""
    await cluster.lead()
    stream = await registered(cluster)
    for number in range(100):
        cluster.gateway.send(NODE, HeartbeatAck(epoch=Epoch(3), number=number))
    assert await received(stream) == HeartbeatAck(epoch=Epoch(3), number=99)


async def test_nothing_is_delivered_before_the_core_has_answered(cluster: Cluster) -> None:
    """What an agent says between its Register and the core's answer is dropped, and what comes after is not."""
    await cluster.lead()
    stream = cluster.dial()
    stream.send(register())
    stream.send(heartbeat(1))
    await cluster.until_delivered(register())
    cluster.gateway.send(NODE, REGISTERED)
    assert await received(stream) == REGISTERED
    stream.send(heartbeat(2))
    await cluster.until_delivered(heartbeat(2))
    assert cluster.delivered == [register(), heartbeat(2)]


async def test_p_21_a_second_incarnation_is_refused_and_the_first_stays(cluster: Cluster) -> None:
    """While the core refuses a newcomer, the old session goes on in both directions."""
    await cluster.lead()
    first = await registered(cluster)
    second = cluster.dial()
    second.send(register("i-2"))
    await cluster.until_delivered(register("i-2"))
    refused = RegisterRefused(epoch=Epoch(3), reason="another incarnation lives")
    assert cluster.gateway.send(NODE, refused)
    assert await received(second) == refused
    assert await received(second) is None
    first.send(heartbeat(1))
    await cluster.until_delivered(heartbeat(1))
    assert cluster.gateway.send(NODE, HeartbeatAck(epoch=Epoch(3), number=1))
    assert await received(first) == HeartbeatAck(epoch=Epoch(3), number=1)


async def test_a_newcomer_replaces_the_old_session_on_the_cores_word(cluster: Cluster) -> None:
    """Once the newcomer is registered, the old stream has ended and nothing it says is delivered."""
    await cluster.lead()
    first = await registered(cluster)
    second = await registered(cluster, "i-2")
    first.send(heartbeat(1))
    assert await received(first) is None
    second.send(heartbeat(2))
    await cluster.until_delivered(heartbeat(2))
    assert heartbeat(1) not in cluster.delivered


async def test_an_answer_reaches_the_session_that_asked(cluster: Cluster) -> None:
    """Two newcomers at once: the second is not heard before the first is answered, and each gets its own answer."""
    await cluster.lead()
    first, second = cluster.dial(), cluster.dial()
    first.send(register("i-1"))
    await cluster.until_delivered(register("i-1"))
    second.send(register("i-2"))

    async def held() -> bool:
        return len(cluster.gateway._nodes[NODE].waiting) == 1

    await until_async(held)
    assert register("i-2") not in cluster.delivered
    first.close()
    cluster.gateway.send(NODE, RegisterRefused(epoch=Epoch(3), reason="first"))
    await cluster.until_delivered(register("i-2"))
    assert cluster.gateway.send(NODE, REGISTERED)
    assert await received(second) == REGISTERED


async def test_a_dropped_node_may_register_anew(cluster: Cluster) -> None:
    """`drop` ends the session; another can follow."""
    await cluster.lead()
    stream = await registered(cluster)
    cluster.gateway.drop(NODE)
    assert await received(stream) is None
    assert not cluster.gateway.send(NODE, ReportAck(epoch=Epoch(3), number=1))
    await registered(cluster, "i-2")


async def test_a_stream_that_does_not_begin_with_register_is_ended(cluster: Cluster) -> None:
    """Whoever does not say who it is is not heard."""
    await cluster.lead()
    stream = cluster.dial()
    stream.send(heartbeat(1))
    assert await received(stream) is None
    assert cluster.delivered == []


async def test_a_wrong_token_opens_nothing() -> None:
    """Without the token of the agents neither a session nor a question for a log is taken."""
    cluster = Cluster(token="right")
    cluster.port = await cluster.gateway.start("127.0.0.1:0")
    await cluster.lead()
    for wrong in (None, "wrong"):
        transport = GrpcTransport(token=wrong)
        stream = transport.connect(f"127.0.0.1:{cluster.port}")
        stream.send(register())
        assert await received(stream) is None
        await transport.close()
    await registered(cluster)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.port}", options=CLIENT) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="a valid agent token is needed"):
            await ask_tail(channel, "wrong")
    await cluster.transport.close()
    await cluster.gateway.shutdown()


async def ask_tail(channel: grpc.aio.Channel, token: str | None = None, node: str = "") -> pb.TailReply:
    """As an api asks for the log of a lease."""
    method = channel.unary_unary(
        f"/{SERVICE}/Tail",
        request_serializer=pb.TailRequest.SerializeToString,
        response_deserializer=pb.TailReply.FromString,
    )
    request = pb.TailRequest(lease_id="j.1.0", url="http://api/1", token="t", follow=True, from_byte=7, node_id=node)
    reply: pb.TailReply = await method(request, metadata=bearer(token), timeout=WITHIN_S)
    return reply


async def test_an_api_gets_a_log_by_way_of_the_leader(cluster: Cluster) -> None:
    """The api's question becomes a TailLog on the session of the lease's node; each obstacle has its own answer."""
    lease = LeaseId("j.1.0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.port}", options=CLIENT) as channel:
        reply = await ask_tail(channel)
        assert (reply.outcome, reply.leader) == (pb.TailReply.OUTCOME_NOT_LEADER, "leader:1")
        await cluster.lead()
        assert (await ask_tail(channel)).outcome == pb.TailReply.OUTCOME_UNKNOWN_LEASE
        assert (await ask_tail(channel, node=NODE)).outcome == pb.TailReply.OUTCOME_NO_SESSION
        stream = await registered(cluster)
        assert (await ask_tail(channel, node=NODE)).outcome == pb.TailReply.OUTCOME_ASKED
    expected = TailLog(epoch=Epoch(3), lease_id=lease, url="http://api/1", token="t", follow=True, from_byte=7)
    assert await received(stream) == expected


async def test_a_reconnect_storm_loses_no_stream(cluster: Cluster) -> None:
    """Three thousand agents that dial a new leader in the same instant, over 300 connections, are all registered by
    that one dial."""
    await cluster.lead()

    def answer(node: NodeId, message: FromAgent) -> None:
        if isinstance(message, Register):
            cluster.gateway.send(node, REGISTERED)

    cluster.answer = answer
    cluster.transport.connections = 300
    streams = [cluster.dial() for _ in range(3000)]
    for number, stream in enumerate(streams):
        stream.send(register(node=NodeId(f"n-{number}")))
    async with asyncio.timeout(WITHIN_S):
        answers = await asyncio.gather(*[stream.receive() for stream in streams])
    assert answers == [REGISTERED] * 3000
    assert cluster.gateway.session_count() == 3000
