"""Which claims follow from facts (I-2). Pure."""

from collections.abc import Iterable
from functools import lru_cache

from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated, GangResized, LeaseReleased
from events.ids import JobId, LeaseId, NodeIndex, lease_id
from events.task import TaskEnded
from scheduler.ports import Claim


def claims_of(state: State, events: Iterable[Event]) -> list[Claim]:
    """What must be claimed before the events are appended."""
    claims: list[Claim] = []
    for event in events:
        if isinstance(event, GangAllocated):
            claims += _of_ranks(state, event.job_id, event.attempt, enumerate(event.ranks))
        elif isinstance(event, GangResized) and event.grown:
            claims += _of_growth(state, event)
    return claims


def _of_growth(state: State, event: GangResized) -> list[Claim]:
    """New ranks are the last ones of the attempt, in which they are already."""
    first = len(state.attempts[event.job_id, event.attempt].ranks) - len(event.grown)
    return _of_ranks(state, event.job_id, event.attempt, enumerate(event.grown, first))


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
        live = [(rank, held) for rank, held in enumerate(attempt.ranks) if attempt.live(rank)]
        claims += _of_ranks(state, *key, live)
    return claims


def _of_ranks(
    state: State, job_id: JobId, attempt: int, ranks: Iterable[tuple[int, tuple[NodeIndex, int]]]
) -> list[Claim]:
    """Every GPU of these ranks. A claim is filled as the tuple that it is: a commit may bring tens of thousands."""
    nodes, new = state.nodes.rows, tuple.__new__
    return [
        new(Claim, (node_id, gpu, lease))
        for rank, (index, mask) in ranks
        for node_id, lease in ((nodes[index].id, lease_id(job_id, attempt, rank)),)
        for gpu in _gpus_of(mask)
    ]


@lru_cache(maxsize=1 << 12)
def _gpus_of(mask: int) -> tuple[int, ...]:
    """Slots of a mask."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
