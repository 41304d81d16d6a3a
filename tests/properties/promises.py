"""What a reservation promises, checked cycle by cycle (R-23, C-4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commands.entities import NodeState, Reservation, ReservationKey
from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated
from events.ids import Instant, NodeIndex
from events.reservation import BlocksFreed


def check_promises(
    state: State, before: Mapping[ReservationKey, Reservation], events: Iterable[Event], now: Instant
) -> None:
    """After a cycle at `now`: what it started on nodes that are held is over by then; and a start is later than it was
    only where nobody started it: it is overdue, or a node is out of service. `before`: reservations before it."""
    grants = [event for event in events if isinstance(event, GangAllocated)]
    freed = {event.job_id for event in events if isinstance(event, BlocksFreed)}
    for key, held in state.reservations.rows.items():
        for grant in grants:
            if {index for index, _ in grant.ranks} & set(held.nodes):
                assert grant.limit_at is not None, f"{grant.job_id} has no limit, and {held.job_id} waits"
                assert grant.limit_at <= held.start_at, f"{grant.job_id} is in the way of {held.job_id}"
        old = before.get(key)
        if old is None or old.job_id != held.job_id or held.job_id in freed or held.start_at <= old.start_at:
            continue
        in_service = all(_in_service(state, index) for index in old.nodes)
        assert now > old.start_at or not in_service, f"{held.job_id} starts later"


def _in_service(state: State, index: NodeIndex) -> bool:
    node = state.nodes[index]
    return node.drained is None and not node.broken and node.state in (NodeState.UP, NodeState.SUSPECT)
