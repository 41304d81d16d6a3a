"""The leader's end of all agent streams, over grpc.aio.

One server for the life of the process: while this scheduler does not lead, each stream is told who does, and ended.
Nothing is decided here; which incarnation of a node is heard is the core's word (Registered, RegisterRefused).
"""

import asyncio
import hmac
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import structlog

from agent import wire
from agent.grpc_options import SERVER, SERVICE
from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from events.ids import Epoch, LeaseId, NodeId
from scheduler.link import (
    FromAgent,
    HeartbeatAck,
    NotLeader,
    Register,
    Registered,
    RegisterRefused,
    ReportAck,
    TailLog,
    ToAgent,
)

_log = structlog.get_logger(__name__)
ANSWER_S = 30.0
"""A Register that the core has not answered by then no longer holds up the node's next session."""
_QUEUE_MAX = 4096
_BATCH_MAX = 64

Context = grpc.aio.ServicerContext[pb.AgentMessage, pb.SchedulerMessage]


class _Session:
    """One stream. Its writer is a task only while something is queued: what is queued meanwhile goes out together."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.register: Register | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._out: deque[ToAgent] = deque()
        self._writer: asyncio.Task[None] | None = None

    def push(self, message: ToAgent) -> bool:
        """Queue it. A newer acknowledgement takes the place of one that still waits."""
        if self.over.done():
            return False
        if self._out and isinstance(message, HeartbeatAck | ReportAck) and type(self._out[-1]) is type(message):
            self._out.pop()
        self._out.append(message)
        if len(self._out) > _QUEUE_MAX:
            self._out.clear()
            self.end()
            return False
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())
        return True

    def end(self) -> None:
        """End the stream, once what is queued has gone out."""
        if not self.over.done():
            self.over.set_result(None)

    async def _write(self) -> None:
        try:
            while self._out:
                batch = [self._out.popleft() for _ in range(min(_BATCH_MAX, len(self._out)))]
                await self.context.write(wire.scheduler_message(batch))
        except Exception as broken:
            # The stream is gone: grpc says so in several ways.
            _log.debug("gateway.write_failed", reason=str(broken))
            self._out.clear()
            self.end()
        finally:
            self._writer = None

    async def drained(self) -> None:
        """Until everything queued has been written, for a while."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=1.0)


@dataclass(slots=True)
class _Node:
    """The sessions of one node id. `asking`: its Register is with the core, whose answer belongs to it; those in
    `waiting` come after, so that no answer can reach the wrong one."""

    live: _Session | None = None
    asking: _Session | None = None
    waiting: deque[_Session] = field(default_factory=deque)
    patience: asyncio.TimerHandle | None = None


class GrpcGateway:
    """scheduler.link.Gateway. `leader`: address of the leader, as far as this standby knows. `token`: what agents and
    apis must bring; None: anybody may come."""

    def __init__(
        self,
        *,
        leader: Callable[[], str | None],
        token: str | None = None,
    ) -> None:
        self._leader = leader
        self._token = token
        self._epoch = Epoch(0)
        self._deliver: Callable[[NodeId, FromAgent], None] | None = None
        self._nodes: dict[NodeId, _Node] = {}
        self._sessions: set[_Session] = set()
        self._server: grpc.aio.Server | None = None

    # The server

    async def start(self, address: str) -> int:
        """Bind `host:port` (port 0: any) and answer, as a standby until `open`. Returns the port."""
        self._server = grpc.aio.server(options=SERVER)
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Session": grpc.stream_stream_rpc_method_handler(
                self._session,
                request_deserializer=pb.AgentMessage.FromString,
                response_serializer=pb.SchedulerMessage.SerializeToString,
            ),
            "Tail": grpc.unary_unary_rpc_method_handler(
                self._tail,
                request_deserializer=pb.TailRequest.FromString,
                response_serializer=pb.TailReply.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def shutdown(self) -> None:
        """End all sessions and the server."""
        await self.close()
        if self._server is not None:
            await self._server.stop(grace=1.0)
            self._server = None

    # The port

    async def open(self, epoch: Epoch, deliver: Callable[[NodeId, FromAgent], None]) -> None:
        """See link.Gateway. `deliver` is called on this loop, from here on until `close`."""
        self._epoch, self._deliver = epoch, deliver

    def send(self, node: NodeId, message: ToAgent) -> bool:
        """See link.Gateway. Each Register delivered is to be answered once, by Registered or RegisterRefused."""
        entry = self._nodes.get(node)
        if entry is None:
            return False
        if isinstance(message, Registered | RegisterRefused):
            return self._answer(node, entry, message)
        if entry.live is None:
            return False
        pushed = entry.live.push(message)
        if isinstance(message, NotLeader):
            entry.live.end()
        return pushed

    def live(self, node: NodeId) -> bool:
        """See link.Gateway."""
        entry = self._nodes.get(node)
        return entry is not None and entry.live is not None and not entry.live.over.done()

    def drop(self, node: NodeId) -> None:
        """See link.Gateway."""
        entry = self._nodes.get(node)
        if entry is not None and entry.live is not None:
            entry.live.end()
            entry.live = None

    async def close(self) -> None:
        """See link.Gateway. Every agent is told who leads, as far as that is known."""
        self._deliver = None
        for entry in self._nodes.values():
            if entry.patience is not None:
                entry.patience.cancel()
        self._nodes.clear()
        for session in list(self._sessions):
            session.push(NotLeader(address=self._leader()))
            session.end()

    def session_count(self) -> int:
        """Streams that are open now, registered or not."""
        return len(self._sessions)

    # Which session of a node is heard

    def _answer(self, node: NodeId, entry: _Node, message: Registered | RegisterRefused) -> bool:
        session, entry.asking = entry.asking, None
        if entry.patience is not None:
            entry.patience.cancel()
            entry.patience = None
        if entry.waiting:
            # Not now: the core is in the middle of its answer.
            asyncio.get_running_loop().call_soon(self._ask_next, node)
        if isinstance(message, Registered):
            if session is None:
                return False
            if entry.live is not None:
                entry.live.end()
            entry.live = None if session.over.done() else session
            return session.push(message)
        session = session or entry.live
        if session is None:
            return False
        if entry.live is session:
            entry.live = None
        pushed = session.push(message)
        session.end()
        return pushed

    def _ask_next(self, node: NodeId) -> None:
        entry = self._nodes.get(node)
        if entry is None or entry.asking is not None or self._deliver is None:
            return
        while entry.waiting:
            session = entry.waiting.popleft()
            if not session.over.done():
                assert session.register is not None
                entry.asking = session
                loop = asyncio.get_running_loop()
                entry.patience = loop.call_later(ANSWER_S, self._give_up, node, session)
                self._deliver(node, session.register)
                return

    def _give_up(self, node: NodeId, session: _Session) -> None:
        entry = self._nodes.get(node)
        if entry is not None and entry.asking is session:
            _log.warning("gateway.register_unanswered", node=node)
            entry.asking = entry.patience = None
            session.end()
            self._ask_next(node)

    # Streams

    async def _session(self, _: object, context: Context) -> None:
        await self._authenticate(context)
        if self._deliver is None:
            await context.write(wire.scheduler_message([NotLeader(address=self._leader())]))
            return
        session = _Session(context)
        self._sessions.add(session)
        reader = asyncio.get_running_loop().create_task(self._read(session))
        try:
            await session.over
            await session.drained()
        finally:
            session.end()
            reader.cancel()
            self._sessions.discard(session)
            self._forget(session)

    async def _read(self, session: _Session) -> None:
        """Take what the agent says until its stream, or the session, ends."""
        try:
            while not session.over.done():
                read: object = await session.context.read()
                if not isinstance(read, pb.AgentMessage):
                    break
                for message in wire.from_agent(read):
                    self._take(session, message)
        except wire.Unreadable as unreadable:
            _log.error("gateway.unreadable", reason=str(unreadable))
        except grpc.RpcError as broken:
            _log.debug("gateway.stream_ended", reason=str(broken))
        finally:
            session.end()

    def _take(self, session: _Session, message: FromAgent) -> None:
        if self._deliver is None or session.over.done():
            return
        if session.register is None:
            if not isinstance(message, Register):
                session.end()
                return
            session.register = message
            self._nodes.setdefault(message.node_id, _Node()).waiting.append(session)
            self._ask_next(message.node_id)
            return
        node = session.register.node_id
        entry = self._nodes.get(node)
        if entry is not None and entry.live is session and not isinstance(message, Register):
            self._deliver(node, message)

    def _forget(self, session: _Session) -> None:
        """Its stream is over. A question that is open stays open: its answer must not reach the next session."""
        if session.register is None:
            return
        node = session.register.node_id
        entry = self._nodes.get(node)
        if entry is None:
            return
        if entry.live is session:
            entry.live = None
        if entry.live is None and entry.asking is None and not entry.waiting:
            del self._nodes[node]

    # Apis

    async def _tail(
        self, request: pb.TailRequest, context: grpc.aio.ServicerContext[pb.TailRequest, pb.TailReply]
    ) -> pb.TailReply:
        await self._authenticate(context)
        if self._deliver is None:
            return pb.TailReply(outcome=pb.TailReply.OUTCOME_NOT_LEADER, leader=self._leader())
        if not request.node_id:
            return pb.TailReply(outcome=pb.TailReply.OUTCOME_UNKNOWN_LEASE)
        command = TailLog(
            epoch=self._epoch,
            lease_id=LeaseId(request.lease_id),
            url=request.url,
            token=request.token,
            follow=request.follow,
            from_byte=request.from_byte,
        )
        asked = self.send(NodeId(request.node_id), command)
        return pb.TailReply(outcome=pb.TailReply.OUTCOME_ASKED if asked else pb.TailReply.OUTCOME_NO_SESSION)

    async def _authenticate(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Abort the call of one who does not bring the token."""
        if self._token is None:
            return
        brought = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not hmac.compare_digest(str(brought).encode(), f"Bearer {self._token}".encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid agent token is needed")
