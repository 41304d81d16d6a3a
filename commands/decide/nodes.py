"""Commands about nodes, by operators."""

from commands.decide.attempts import Draft, end_attempt, settle
from commands.decide.elastic import lose_ranks
from commands.entities import Node, NodeState
from commands.messages import DrainNode, RemoveNode, UndrainNode, WipeNode
from commands.refusal import Refusal, RefusalCode
from commands.state import State
from events.gang import LeaseReleased, ReleasedBy
from events.ids import NodeId
from events.job import EndReason
from events.node import NodeDrained, NodeRemoved, NodeUndrained, NodeWiped


def find_node(state: State, node_id: NodeId) -> Node | Refusal:
    node = state.node_by_id(node_id)
    if node is None or node.state is NodeState.REMOVED:
        return Refusal(RefusalCode.UNKNOWN_NODE, "node_id", node_id, "a registered node")
    return node


def drain(draft: Draft, command: DrainNode) -> Refusal | None:
    """Nothing starts there after the drain is in the log (C-33). With `now` what runs there is stopped with grace."""
    node = find_node(draft.state, command.node_id)
    if isinstance(node, Refusal):
        return node
    if node.drained != command.reason:
        draft.add(NodeDrained(node=node.index, reason=command.reason, now=command.now))
    if command.now:
        for job_id, number, _ in node.leases:
            end_attempt(draft, (job_id, number), EndReason.DRAINED)
    return None


def undrain(draft: Draft, command: UndrainNode) -> Refusal | None:
    node = find_node(draft.state, command.node_id)
    if isinstance(node, Refusal):
        return node
    if node.drained is not None:
        draft.add(NodeUndrained(node=node.index))
    return None


def wipe(draft: Draft, command: WipeNode) -> Refusal | None:
    """Only a lost node can be said to be wiped: what answers can be asked to stop (P-15)."""
    node = find_node(draft.state, command.node_id)
    if isinstance(node, Refusal):
        return node
    if node.state is not NodeState.LOST:
        return Refusal(RefusalCode.NODE_NOT_LOST, "node_id", node.state, NodeState.LOST)
    draft.add(NodeWiped(node=node.index, reason=command.reason))
    release_all(draft, node, ReleasedBy.WIPED)
    return None


def remove(draft: Draft, command: RemoveNode) -> Refusal | None:
    """Out of the inventory: a node that is lost, or that holds nothing."""
    node = find_node(draft.state, command.node_id)
    if isinstance(node, Refusal):
        return node
    if node.leases and node.state is not NodeState.LOST:
        value = f"{len(node.leases)} leases"
        return Refusal(RefusalCode.NODE_NOT_LOST, "node_id", value, "a node that is lost or holds nothing")
    release_all(draft, node, ReleasedBy.REMOVED)
    draft.add(NodeRemoved(node=node.index, reason=command.reason))
    return None


def release_all(draft: Draft, node: Node, by: ReleasedBy) -> None:
    """Every lease of the node ends, on the word of `by`."""
    for job_id, number, rank in node.leases:
        lose_ranks(draft, (job_id, number), [rank], EndReason.NODE_LOST)
        draft.add(LeaseReleased(job_id=job_id, attempt=number, rank=rank, by=by))
        settle(draft, (job_id, number))
