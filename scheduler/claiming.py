"""Which claims follow from facts (I-2). Pure."""

from collections.abc import Iterable
from functools import lru_cache

from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated, GangResized, LeaseReleased
from events.ids import LeaseId, NodeIndex, lease_id
from events.task import TaskEnded
from scheduler.ports import Claim


def claims_of(state: State, events: Iterable[Event]) -> list[Claim]:
    """What must be claimed before the events are appended."""
    claims: list[Claim] = []
    for event in events:
        if isinstance(event, GangAllocated):
            for rank, (index, mask) in enumerate(event.ranks):
                claims += _of_mask(state, index, mask, lease_id(event.job_id, event.attempt, rank))
        elif isinstance(event, GangResized) and event.grown:
            claims += _of_growth(state, event)
    return claims


def _of_growth(state: State, event: GangResized) -> Iterable[Claim]:
    """New ranks are the last ones of the attempt, in which they are already."""
    first = len(state.attempts[event.job_id, event.attempt].ranks) - len(event.grown)
    for rank, (index, mask) in enumerate(event.grown, first):
        yield from _of_mask(state, index, mask, lease_id(event.job_id, event.attempt, rank))


def releases_of(events: Iterable[Event]) -> list[LeaseId]:
    """What may be released once the events are accepted (P-15)."""
    return [
        lease_id(event.job_id, event.attempt, event.rank)
        for event in events
        if isinstance(event, TaskEnded | LeaseReleased)
    ]


def all_claims(state: State) -> list[Claim]:
    """Claims of every live lease, those of lost nodes included: what the table must hold."""
    claims: list[Claim] = []
    for key in sorted(state.attempts.rows):
        attempt = state.attempts[key]
        for rank, (index, mask) in enumerate(attempt.ranks):
            if attempt.live(rank):
                claims += _of_mask(state, index, mask, lease_id(*key, rank))
    return claims


def _of_mask(state: State, index: NodeIndex, mask: int, lease: LeaseId) -> list[Claim]:
    node_id = state.nodes.rows[index].id
    return [Claim(node_id, gpu, lease) for gpu in _gpus_of(mask)]


@lru_cache(maxsize=1 << 12)
def _gpus_of(mask: int) -> tuple[int, ...]:
    """Slots of a mask."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
