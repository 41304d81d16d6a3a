"""Which claims follow from facts (I-2). Pure."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated, GangResized, LeaseReleased
from events.ids import JobId, LeaseId, NodeIndex, lease_id
from events.task import TaskEnded
from scheduler.ports import Claim

Grant = tuple[JobId, int, int, Sequence[tuple[NodeIndex, int]]]
"""(job, attempt, number of the first rank, ranks)."""


def claims_of(state: State, events: Iterable[Event]) -> list[Claim]:
    """What must be claimed before the events are appended."""
    grants: list[Grant] = []
    for event in events:
        if isinstance(event, GangAllocated):
            grants.append((event.job_id, event.attempt, 0, event.ranks))
        elif isinstance(event, GangResized) and event.grown:
            ranks = len(state.attempts[event.job_id, event.attempt].ranks)  # those that are new are the last of them
            grants.append((event.job_id, event.attempt, ranks - len(event.grown), event.grown))
    return _every_gpu(state, grants)


def releases_of(events: Iterable[Event]) -> list[LeaseId]:
    """What may be released once the events are accepted (P-15)."""
    return [
        lease_id(event.job_id, event.attempt, event.rank)
        for event in events
        if isinstance(event, TaskEnded | LeaseReleased)
    ]


def all_claims(state: State) -> list[Claim]:
    """Claims of every live lease, those of lost nodes included: what the table must hold."""
    grants: list[Grant] = []
    for key in sorted(state.attempts.rows):
        attempt = state.attempts[key]
        grants += [(*key, rank, (held,)) for rank, held in enumerate(attempt.ranks) if attempt.live(rank)]
    return _every_gpu(state, grants)


def _every_gpu(state: State, grants: Iterable[Grant]) -> list[Claim]:
    nodes = state.nodes.rows
    return [
        (node_id, gpu, lease)
        for job_id, attempt, first, ranks in grants
        for rank, (index, mask) in enumerate(ranks, first)
        for node_id, lease in ((nodes[index].id, lease_id(job_id, attempt, rank)),)
        for gpu in _gpus_of(mask)
    ]


@lru_cache(maxsize=1 << 12)
def _gpus_of(mask: int) -> tuple[int, ...]:
    """Slots of a mask."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
