"""Elastic jobs: the size at which to start, and growing onto idle GPUs (R-44).

They give back first what they grew by, and what they borrow, whenever room is made for a queued job: that is found
where room is sought (victims.py), before anybody is awaited or preempted (R-43).
"""

from collections.abc import Callable, Iterable

from commands.decide.elastic import staying
from commands.displace import borrows_too_long, starts_only_covered
from commands.entities import Attempt, AttemptKey, Job
from commands.plan import Ranks, Resize
from commands.shape import block_limit, demanded, takes_whole_nodes
from commands.state import State
from events.ids import BlockId, NodeIndex
from events.job import CLASS_RANK, Span
from scheduler.planning import reserve
from scheduler.planning.fit import find as find_place
from scheduler.planning.trial import Trial

# Starting


def find(trial: Trial, job: Job, among: int | None) -> Ranks | None:
    """The largest size in range that fits and that the quota allows, taken for trial; None where not even the
    smallest does. What would start covered at its smallest does not borrow for being larger."""
    elastic = job.spec.elastic
    assert elastic is not None, f"{job.id} is not elastic"
    standing = trial.shares.standing((job.spec.team, job.spec.gpu_type))
    smallest = _place(trial, job, among, elastic.min_replicas, standing.room)
    if smallest is None:
        return None
    covered = _gpus(smallest) <= standing.covered_room
    if not covered and starts_only_covered(trial.policy, job):
        return None
    most = min(standing.room, standing.covered_room) if covered else standing.room

    def fits(replicas: int) -> bool:
        return _place(trial, job, among, replicas, most) is not None

    size = _largest(fits, elastic.min_replicas, elastic.max_replicas)
    return find_place(trial.state, trial.capacity, job.spec, among=among, replicas=size)


def _place(trial: Trial, job: Job, among: int | None, replicas: int, gpus_max: int) -> Ranks | None:
    """Where the gang would lie at that size. Nothing is kept."""
    mark = trial.capacity.mark()
    ranks = find_place(trial.state, trial.capacity, job.spec, among=among, replicas=replicas)
    trial.capacity.undo(mark)
    return ranks if ranks is not None and _gpus(ranks) <= gpus_max else None


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest size that fits, where `low` does: what fits at one size fits at each below it."""
    if low < high and fits(high):
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _gpus(ranks: Ranks) -> int:
    return sum(mask.bit_count() for _, mask in ranks)


# Giving back


def lent_ranks(state: State, job: Job, attempt: Attempt, borrowed: bool) -> frozenset[int]:
    """Ranks that the attempt has only as long as no queued job can use them: down to its minimum what it grew by, and
    where it borrows, all. The last ones first; never rank 0, at whose address the others meet."""
    elastic = job.spec.elastic
    if elastic is None or attempt.ending is not None or attempt.running_at is None:
        return frozenset()
    stay = sorted(staying(state, attempt))
    first = 1 if borrowed else attempt.first_size
    spare = [rank for rank in reversed(stay) if rank >= first]
    return frozenset(spare[: max(0, len(stay) - elastic.min_replicas)])


# Growing


def grow(trial: Trial, attempts: Iterable[AttemptKey] | None = None) -> list[Resize]:
    """Growth onto what no queued job could use. `attempts`: those of elastic jobs, where they are known."""
    if not any(trial.capacity.free.values()):
        return []
    state = trial.state
    rows = state.attempts.rows.values() if attempts is None else [state.attempts[key] for key in attempts]
    growing = [row for row in rows if _may_grow(trial, row)]
    growing.sort(key=lambda row: (CLASS_RANK[state.jobs[row.job_id].priority_class], row.granted_at, row.job_id))
    return [resize for attempt in growing if (resize := _grown(trial, attempt)) is not None]


def _may_grow(trial: Trial, attempt: Attempt) -> bool:
    elastic = trial.state.jobs[attempt.job_id].spec.elastic
    if elastic is None or attempt.ending is not None or attempt.running_at is None or attempt.stopping_at == trial.now:
        return False
    held = any(attempt.live(rank) for rank in attempt.stopping)
    return not held and attempt.key not in trial.stopping and len(staying(trial.state, attempt)) < elastic.max_replicas


def _grown(trial: Trial, attempt: Attempt) -> Resize | None:
    """As many replicas more as fit beside those that it has."""
    state, job = trial.state, trial.state.jobs[attempt.job_id]
    nodes = [attempt.ranks[rank][0] for rank in sorted(staying(state, attempt))]
    if not nodes:
        return None
    among = _beside(trial, job, nodes)
    room, covered = _room_to_grow(trial, attempt)
    unit, least, most = _units(len(state.nodes[nodes[0]].gpus), job, len(nodes))

    def fits(units: int) -> bool:
        return _place(trial, job, among, units * unit, room) is not None

    if not among or most < least or not fits(least):
        return None
    size = unit * _largest(fits, least, most)
    ranks = find_place(state, trial.capacity, job.spec, among=among, replicas=size)
    assert ranks is not None, "what fits for trial fits"
    trial.shares.grant((attempt.team, attempt.gpu_type), _gpus(ranks), covered)
    return Resize(key=attempt.key, grown=ranks)


def _room_to_grow(trial: Trial, attempt: Attempt) -> tuple[int, bool]:
    """GPUs by which it may grow, and whether they have to be inside the guarantee: what it grows by is borrowed from
    now on, where it borrows already or the guarantee is used up, and that only if it ends soon enough."""
    standing = trial.shares.standing((attempt.team, attempt.gpu_type))
    left_s = None if attempt.limit_at is None else max(0, attempt.limit_at - trial.now) // 1000
    if not borrows_too_long(trial.policy, left_s):
        return standing.room, False
    if attempt.key in trial.shares.borrowed((attempt.team, attempt.gpu_type)):
        return 0, True
    return min(standing.room, standing.covered_room), True


def _units(node_gpus: int, job: Job, replicas: int) -> tuple[int, int, int]:
    """(replicas that are added at a time, how often at least, how often at most). A gang that shares nodes stays one
    that does; one that takes whole nodes grows by what fills nodes (R-32)."""
    elastic, each = job.spec.elastic, job.spec.gpus_per_replica
    assert elastic is not None
    left = elastic.max_replicas - replicas
    if not takes_whole_nodes(job.spec, node_gpus, replicas):
        return 1, 1, min(left, (node_gpus - 1) // each - replicas)
    unit = 1 if demanded(job.spec).spread is not None else max(1, node_gpus // each)
    return unit, -(-node_gpus // (unit * each)), left // unit


def _beside(trial: Trial, job: Job, nodes: list[NodeIndex]) -> int:
    """Bitset of the nodes of the same size on which the hint holds for old and new together (C-30)."""
    state, hint = trial.state, demanded(job.spec)
    size = len(state.nodes[nodes[0]].gpus)
    usable = reserve.usable(trial, job)
    used = [state.nodes[index] for index in nodes]
    blocks, racks = {node.block for node in used}, {(node.block, node.rack) for node in used}
    limit = block_limit(hint)
    found: dict[BlockId, int] = {}
    for index, free in trial.capacity.free.items():
        node = state.nodes[index]
        if len(node.gpus) != size or not free or (usable is not None and not usable >> index & 1):
            continue
        at = {Span.NODE: index in nodes, Span.RACK: (node.block, node.rack) in racks, Span.BLOCK: node.block in blocks}
        if hint.pack in (Span.NODE, Span.RACK) and not at[hint.pack]:
            continue
        if hint.spread is None or not at[hint.spread]:
            found[node.block] = found.get(node.block, 0) | 1 << index
    if limit is not None:
        others = sorted(found.keys() - blocks, key=lambda block: (-found[block].bit_count(), block))
        blocks.update(others[: max(0, limit - len(blocks))])
        found = {block: bits for block, bits in found.items() if block in blocks}
    return sum(found.values())
