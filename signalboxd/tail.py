"""How an api asks the leader for a rank's log: one unary call to its gateway (DESIGN 6)."""

import grpc.aio

from agent.grpc_options import CLIENT, SERVICE
from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from api.context import TailRefused
from events.ids import ClusterId, LeaseId, NodeId
from scheduler.control import PostgresLeadership

ANSWER_S = 3.0


class LeaderTail:
    """api.context.LogTail over gRPC. Asks the epoch row who leads, each time: it is cheap, and never stale for long."""

    def __init__(self, dsn: str, cluster: ClusterId, token: str | None) -> None:
        self._leadership = PostgresLeadership(dsn, cluster, "tail")
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()

    async def request(
        self, lease_id: LeaseId, node_id: NodeId, *, url: str, token: str, follow: bool, from_byte: int
    ) -> None:
        """See LogTail."""
        _, _, address = await self._leadership.observe()
        if address is None:
            raise TailRefused("no scheduler leads")
        question = pb.TailRequest(
            lease_id=lease_id, node_id=node_id, url=url, token=token, follow=follow, from_byte=from_byte
        )
        try:
            async with grpc.aio.insecure_channel(address, options=CLIENT) as channel:
                ask = channel.unary_unary(
                    f"/{SERVICE}/Tail",
                    request_serializer=pb.TailRequest.SerializeToString,
                    response_deserializer=pb.TailReply.FromString,
                )
                reply = await ask(question, timeout=ANSWER_S, metadata=self._metadata)
        except grpc.RpcError as error:
            raise TailRefused(f"the leader at {address} does not answer") from error
        if reply.outcome != pb.TailReply.OUTCOME_ASKED:
            raise TailRefused(pb.TailReply.Outcome.Name(reply.outcome).removeprefix("OUTCOME_").lower())
