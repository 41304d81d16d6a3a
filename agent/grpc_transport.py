"""The agent's end of the gRPC stream."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import grpc.aio
import structlog

from agent import wire
from agent.grpc_options import CLIENT, SERVICE
from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from scheduler.link import FromAgent, ToAgent

_log = structlog.get_logger(__name__)
_BATCH_MAX = 64

Call = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.SchedulerMessage]


class GrpcStream:
    """One session. Writes happen in a task that lives only while there is something to write, so that whatever is
    said meanwhile goes out as one message, and an idle session costs no task."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._out: deque[FromAgent] = deque()
        self._in: deque[ToAgent] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._over = False

    def send(self, message: FromAgent) -> None:
        """See Stream."""
        if self._over:
            return
        self._out.append(message)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._out and not self._over:
                batch = [self._out.popleft() for _ in range(min(_BATCH_MAX, len(self._out)))]
                await self._call.write(wire.agent_message(batch))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            self._out.clear()
        finally:
            self._writer = None

    async def receive(self) -> ToAgent | None:
        """See Stream."""
        while not self._ended():
            if self._in:
                return self._in.popleft()
            try:
                read: object = await self._call.read()
                if not isinstance(read, pb.SchedulerMessage):
                    self.close()
                else:
                    self._in.extend(wire.to_agent(read))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as ended:
                _log.debug("agent.stream_ended", reason=str(ended))
                self.close()
            except wire.Unreadable as unreadable:
                _log.error("agent.unreadable", reason=str(unreadable))
                self.close()
            except asyncio.CancelledError:
                # A read of a call that was closed here is cancelled too, although nobody cancelled this task.
                task = asyncio.current_task()
                if not self._ended() or (task is not None and task.cancelling()):
                    self.close()
                    raise
        return None

    def _ended(self) -> bool:
        return self._over

    def close(self) -> None:
        """See Stream."""
        if not self._over:
            self._over = True
            self._in.clear()
            self._out.clear()
            self._call.cancel()


def _serialize(message: pb.AgentMessage) -> bytes:
    return message.SerializeToString()


@dataclass(slots=True)
class GrpcTransport:
    """Streams to any scheduler address, over at most `connections` connections to each.

    A real agent has one; the agents of a fleet share a few, which saves memory and says nothing else.
    """

    token: str | None = None
    connections: int = 1
    _channels: dict[tuple[str, int], grpc.aio.Channel] = field(default_factory=dict)
    _dialed: int = 0

    def connect(self, address: str) -> GrpcStream:
        """See Transport."""
        self._dialed += 1
        method: grpc.aio.StreamStreamMultiCallable[pb.AgentMessage, pb.SchedulerMessage] = self._channel(
            address, self._dialed % self.connections
        ).stream_stream(
            f"/{SERVICE}/Session",
            request_serializer=_serialize,
            response_deserializer=pb.SchedulerMessage.FromString,
        )
        call: Call = method(metadata=bearer(self.token))
        return GrpcStream(call)

    def _channel(self, address: str, number: int) -> grpc.aio.Channel:
        key = (address, number)
        if key not in self._channels:
            self._channels[key] = grpc.aio.insecure_channel(address, options=CLIENT)
        return self._channels[key]

    async def close(self) -> None:
        """Drop all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that carries the token of the agents."""
    return () if token is None else (("authorization", f"Bearer {token}"),)
