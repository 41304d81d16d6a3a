"""A node registers: who it is, what it holds, what it runs (P-15, P-16, P-19, P-21).

The agent lists every lease on its disk. One that it does not list, although all its reports are taken, is gone; one
that was only granted is still on its way, unless its disk is another one.
"""

from commands.decide.attempts import Draft, settle
from commands.decide.elastic import lose_ranks
from commands.entities import Node, NodeState, RankPhase
from commands.reports import Phase, Register
from commands.state import State
from events.gang import LeaseReleased, ReleasedBy
from events.ids import NodeIndex, lease_id
from events.job import EndReason
from events.node import NodeRegistered, NodeReturned


def register(draft: Draft, said: Register, other_live: bool) -> str | None:
    """Facts of a registration; or why it is refused: nothing is changed then."""
    state = draft.state
    old = state.node_by_id(said.node_id)
    if old is not None and other_live and old.incarnation != said.incarnation:
        return f"another agent is live as {said.node_id}"
    if old is not None and _reports_missing(old, said):
        return f"reports up to {old.last_report} are in the log, the agent has written {said.last_report}"
    changed = old is None or old.state is NodeState.REMOVED or _inventory(old) != _inventory(said)
    if changed and old is not None and old.leases:
        return f"the inventory of {said.node_id} changed while {len(old.leases)} leases live"
    if changed and (taken := _uuid_taken(state, said)) is not None:
        return taken
    if changed or old is None or _agent(old) != _agent(said):
        draft.add(_registered(state, said, old, changed))
    node = state.node_by_id(said.node_id)
    assert node is not None
    if node.state in (NodeState.SUSPECT, NodeState.LOST):
        draft.add(NodeReturned(node=node.index))
    _reconcile(draft, said, node, same_disk=old is not None and old.journal == said.journal)
    return None


def all_owned(state: State, node: Node, said: Register) -> bool:
    """Does a live lease cover all that runs there?"""
    leases = {lease_id(job_id, number, rank) for job_id, number, rank in state.nodes[node.index].leases}
    return all(running.lease_id in leases or running.phase is Phase.ENDED for running in said.running)


def _reports_missing(old: Node, said: Register) -> bool:
    """The same journal cannot have written less than what the log took from it."""
    return old.journal == said.journal and said.last_report < old.last_report


def _inventory(of: Node | Register) -> tuple[object, ...]:
    """What makes a generation."""
    return (of.block, of.rack, of.gpu_type, of.gpu_memory_gb, of.gpus)


def _agent(of: Node | Register) -> tuple[object, ...]:
    return (of.boot_id, of.incarnation, of.journal, of.address)


def _uuid_taken(state: State, said: Register) -> str | None:
    """A live UUID is unique in its cluster (P-21)."""
    if len({gpu.uuid for gpu in said.gpus}) != len(said.gpus):
        return f"{said.node_id} names a gpu uuid twice"
    for gpu in said.gpus:
        index = state.uuids.get(gpu.uuid)
        if index is not None and state.nodes[index].id != said.node_id:
            return f"gpu {gpu.uuid} is registered by node {state.nodes[index].id}"
    return None


def _registered(state: State, said: Register, old: Node | None, changed: bool) -> NodeRegistered:
    return NodeRegistered(
        node=old.index if old is not None else NodeIndex(len(state.nodes)),
        node_id=said.node_id,
        generation=(old.generation if old is not None else 0) + changed,
        boot_id=said.boot_id,
        incarnation=said.incarnation,
        journal=said.journal,
        address=said.address,
        block=said.block,
        rack=said.rack,
        gpu_type=said.gpu_type,
        gpu_memory_gb=said.gpu_memory_gb,
        gpus=said.gpus,
    )


def _reconcile(draft: Draft, said: Register, node: Node, same_disk: bool) -> None:
    """Leases that the node does not have any more end here; absence counts only once its reports are taken (P-19)."""
    if same_disk and said.last_report > node.last_report:
        return
    listed = {running.lease_id for running in said.running}
    for job_id, number, rank in node.leases:
        if lease_id(job_id, number, rank) in listed:
            continue
        attempt = draft.state.attempts[job_id, number]
        on_its_way = attempt.phases[rank] == RankPhase.GRANTED and attempt.ending is None
        if on_its_way and same_disk:
            continue
        lose_ranks(draft, attempt.key, [rank], EndReason.LEASE_MISSING)
        draft.add(LeaseReleased(job_id=job_id, attempt=number, rank=rank, by=ReleasedBy.RECONCILED))
        settle(draft, attempt.key)
