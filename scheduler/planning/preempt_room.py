"""A solution becomes a Room: the exact coming placement, with who is stopped for it and who is awaited.

All of it is taken for trial. Nothing is chosen here: who goes and on which nodes is known (scheduler.planning.preempt).
"""

from collections.abc import Iterable

from commands.entities import AttemptKey, Job
from commands.plan import Ranks, Room
from commands.rows import maker
from events.ids import NodeIndex
from events.preemption import PreemptionRule
from scheduler.planning.preempt_ask import Ask, Found
from scheduler.planning.preempt_ground import AWAITED, is_borrowed
from scheduler.planning.quota import ShareKey
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex


def take(
    trial: Trial, victims: VictimIndex, job: Job, ask: Ask, found: Found, own: tuple[AttemptKey, ...] = ()
) -> Room:
    """`own`: those of its team that are stopped for its quota's sake, already."""
    there = [rank.key for rank in found.victims]
    borrowed = [is_borrowed(victims.entries[key].level) for key in there]
    stopped = tuple(sorted((*own, *there)))
    freed = victims.stop(there)
    trial.stopping.update(stopped)
    if own or not all(borrowed):
        trial.uncovers.update(_uncovered(trial, stopped))
    ranks = _lay(trial, victims, ask, found.nodes)
    by_node = _by_node(ranks)
    awaited: set[AttemptKey] = set()
    shrinks: dict[AttemptKey, list[int]] = {}
    for index, mask in by_node.items():
        free = mask & trial.capacity.free[index]
        if free:
            trial.capacity.take(index, free)
        if victims.places[index].lent & mask:
            for key, lent in _lent_on(trial, victims, index, mask).items():
                shrinks.setdefault(key, []).extend(lent)
                victims.shrink(key, lent)
        if mask & ~free & ~freed.get(index, 0):
            awaited.update(_holders(trial, victims, index, mask))
        victims.pledge(index, mask)
    if job.spec.gpu_type not in trial.left_over and _leaves_over(trial, by_node, stopped, shrinks):
        trial.left_over.add(job.spec.gpu_type)
    victims.settle()
    trial.shares.grant((job.spec.team, job.spec.gpu_type), ask.gpus, ask.covered)
    rule = _rule(stopped, ask.covered and any(borrowed))
    if rule is PreemptionRule.RECLAIM:
        trial.reclaims.add((job.spec.team, job.spec.gpu_type))
    return _room(
        job_id=job.id,
        ranks=ranks,
        victims=stopped,
        awaited=tuple(sorted(awaited.difference(stopped))) if awaited else (),
        rule=rule,
        shrinks=tuple([(key, tuple(sorted(shrinks[key]))) for key in sorted(shrinks)]),
    )


_room = maker(Room)


def _leaves_over(
    trial: Trial, room: dict[NodeIndex, int], stopped: Iterable[AttemptKey], shrinks: dict[AttemptKey, list[int]]
) -> bool:
    """Does more come free by it than the room takes? Then it is there for others to wait for."""
    attempts = trial.state.attempts.rows
    for attempt in map(attempts.__getitem__, stopped):
        for rank, (index, mask) in enumerate(attempt.ranks):
            if mask & ~room.get(index, 0) and attempt.live(rank):
                return True
    return any(
        attempts[key].live(rank) and mask & ~room.get(index, 0)
        for key, ranks in shrinks.items()
        for rank, (index, mask) in enumerate(attempts[key].ranks)
        if rank in ranks
    )


def _uncovered(trial: Trial, stopped: Iterable[AttemptKey]) -> Iterable[ShareKey]:
    """Teams and types that use less of their guarantee once these have stopped."""
    for key in stopped:
        attempt = trial.state.attempts[key]
        share = (attempt.team, attempt.gpu_type)
        if key not in trial.shares.borrowed(share):
            yield share


def _rule(stopped: tuple[AttemptKey, ...], reclaims: bool) -> PreemptionRule:
    if not stopped:
        return PreemptionRule.NOBODY
    return PreemptionRule.RECLAIM if reclaims else PreemptionRule.PRIORITY


def _by_node(ranks: Ranks) -> dict[NodeIndex, int]:
    masks: dict[NodeIndex, int] = {}
    for index, mask in ranks:
        masks[index] = masks.get(index, 0) | mask
    return masks


def _holders(trial: Trial, victims: VictimIndex, index: NodeIndex, mask: int) -> Iterable[AttemptKey]:
    """Attempts about to end that hold some of these GPUs."""
    for job_id, number, rank in trial.state.nodes[index].leases:
        key = (job_id, number)
        if victims.entries[key].level == AWAITED and trial.state.attempts[key].ranks[rank][1] & mask:
            yield key


def _lent_on(trial: Trial, victims: VictimIndex, index: NodeIndex, mask: int) -> dict[AttemptKey, list[int]]:
    """Lent ranks that hold some of these GPUs of a node."""
    found: dict[AttemptKey, list[int]] = {}
    for job_id, number, rank in trial.state.nodes[index].leases:
        entry = victims.entries[job_id, number]
        held = trial.state.attempts[job_id, number].ranks[rank][1]
        if rank in entry.lent and entry.level != AWAITED and held & mask:
            found.setdefault((job_id, number), []).append(rank)
    return found


def _lay(trial: Trial, victims: VictimIndex, ask: Ask, nodes: list[NodeIndex]) -> Ranks:
    """Ranks on what the nodes give now that the victims are about to end (R-32)."""
    spec = ask.spec
    if ask.whole:
        return _lay_whole(ask, nodes)
    ranks: list[tuple[NodeIndex, int]] = []
    most = 1 if ask.hint.spread is not None else spec.replicas
    for index in nodes:
        place = victims.places[index]
        kept = place.base & ~place.lent
        enough = kept.bit_count() >= min(most, spec.replicas - len(ranks)) * spec.gpus_per_replica
        base = kept if enough else place.base
        here = min(most, base.bit_count() // spec.gpus_per_replica, spec.replicas - len(ranks))
        for _ in range(here):
            mask = trial.capacity.at[index][3].pick(base, spec.gpus_per_replica)
            ranks.append((index, mask))
            base &= ~mask
    assert len(ranks) == spec.replicas, "the nodes do not hold the gang"
    return tuple(ranks)


def _lay_whole(ask: Ask, nodes: list[NodeIndex]) -> Ranks:
    """Ranks in order over the nodes; the last rank of each node claims what is left of it."""
    each, size = ask.spec.gpus_per_replica, ask.ground.node_gpus
    per_node = 1 if ask.hint.spread is not None else max(1, size // each)
    places = ask.index.places
    ranks: list[tuple[NodeIndex, int]] = []
    left = ask.spec.replicas
    for index in sorted(nodes, key=lambda index: (*places[index].rack, index)):
        whole, here = (1 << size) - 1, min(per_node, left)
        left -= here
        for rank in range(here):
            mask = ((1 << each) - 1) << rank * each if rank < here - 1 else whole
            ranks.append((index, mask))
            whole &= ~mask
    return tuple(ranks)
