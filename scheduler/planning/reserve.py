"""Reservations and backfill (R-23). The one place for that rule.

Per GPU type and pool the first blocked job of a node or more has the nodes held that it will use. Inside them runs only
what is sure to end before the expected start. A reservation stands while its job waits: it moves earlier when nodes
come free sooner, later only when a node is lost, drained, or its work extended; never through anything that we start.
It is overtaken only by a job of a higher group (covered before borrowing) or class, not by a mere turn in fairness: two
teams that take turns would otherwise push each other's start away for ever.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable

from commands.entities import Job, Reservation
from commands.plan import Hold
from commands.shape import takes_whole_nodes
from events.ids import BlockId, Instant, JobId, NodeIndex
from events.job import CLASS_RANK, Span, Topology
from events.reservation import FreedBecause
from scheduler.planning.forecast import UNLIMITED, Forecast, SizeKey
from scheduler.planning.queue import limit_class_s
from scheduler.planning.trial import Trial

Group = list[tuple[int, NodeIndex]]
"""Nodes of one block or rack with the time from which each is free, earliest first."""
Tier = tuple[bool, int]
"""(borrowing, class rank): what may overtake a reservation is lower."""


def keep(trial: Trial) -> list[tuple[JobId, FreedBecause]]:
    """Begin the cycle: those that stand go into `trial.reservations`; the others are over."""
    over: list[tuple[JobId, FreedBecause]] = []
    for key in sorted(trial.state.reservations.rows):
        reservation = trial.state.reservations[key]
        job = trial.state.jobs.get(reservation.job_id)
        if job is None or not job.eligible:
            over.append((reservation.job_id, FreedBecause.GONE))
        elif job.id in trial.state.pledges:
            over.append((job.id, FreedBecause.PREEMPTS))
        else:
            trial.reservations[key] = reservation
    return over


def usable(trial: Trial, job: Job) -> int | None:
    """Bitset of the nodes that the job may start on now: not those held for another, unless it is sure to end before
    that start. None: all."""
    hidden = 0
    for reservation in trial.reservations.values():
        if reservation.gpu_type != job.spec.gpu_type or reservation.job_id == job.id:
            continue
        if not _ends_before(trial, job, reservation.start_at):
            hidden |= trial.bits_of(reservation)
    return ~hidden if hidden else None


def _ends_before(trial: Trial, job: Job, start_at: Instant) -> bool:
    """Its limit, rounded up as shapes are, is over by then. A job without a limit is never backfilled (R-5)."""
    limit_s = limit_class_s(job.max_runtime_s)
    return limit_s > 0 and trial.now + limit_s * 1000 <= start_at


def overtaken(trial: Trial, job: Job, covered: bool) -> list[JobId]:
    """Holders of a lower tier whose held nodes this job, which is blocked, may take: they lose their reservation."""
    tier = (not covered, CLASS_RANK[job.priority_class])
    return [
        reservation.job_id
        for key, reservation in sorted(trial.reservations.items())
        if reservation.gpu_type == job.spec.gpu_type
        and reservation.job_id != job.id
        and tier < _tier(trial, reservation)
    ]


def drop(trial: Trial, job_id: JobId) -> None:
    """The reservation of a job is over, for this cycle and then in the log."""
    for key in [key for key, held in trial.reservations.items() if held.job_id == job_id]:
        del trial.reservations[key]


def _tier(trial: Trial, reservation: Reservation) -> Tier:
    holder = trial.state.jobs[reservation.job_id]
    standing = trial.shares.standing((holder.spec.team, holder.spec.gpu_type))
    return (holder.spec.gpus > standing.covered_room, CLASS_RANK[holder.priority_class])


def reserve(trial: Trial, forecast: Forecast, job: Job) -> Hold | None:
    """The reservation of a blocked job, where it is the first of its type and pool, new or moved; None where it is
    not, or where it keeps what it has."""
    key = (job.spec.gpu_type, trial.pool_of(job))
    held = trial.reservations.get(key)
    if held is not None and held.job_id != job.id:
        return None
    found = earliest(trial, forecast, job)
    if found is None or (held is not None and not _worth_moving(trial, held, found)):
        return None
    start_at, nodes = found
    hold = Hold(job_id=job.id, key=key, nodes=tuple(sorted(nodes)), start_at=start_at)
    trial.reservations[key] = Reservation(
        job_id=job.id, gpu_type=key[0], pool=key[1], nodes=hold.nodes, start_at=start_at
    )
    return hold


def _worth_moving(trial: Trial, held: Reservation, found: tuple[Instant, list[NodeIndex]]) -> bool:
    """Earlier than before; or the nodes that are held will not be free in time."""
    return found[0] < held.start_at or trial.now > held.start_at or not trial.in_service(held.nodes)


# The earliest start


def earliest(trial: Trial, forecast: Forecast, job: Job) -> tuple[Instant, list[NodeIndex]] | None:
    """When and where the gang can start at the earliest, if all that runs takes its whole time. None: never, as the
    fleet is now; or it needs less than a node."""
    best: tuple[Instant, list[NodeIndex]] | None = None
    for size in forecast.sizes(job.spec.gpu_type, job.spec.gpu_memory_gb_min):
        if size[1] < job.spec.gpus_per_replica or not takes_whole_nodes(job.spec, size[1]):
            continue
        found = _earliest_on(trial, forecast, job, size)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best


def _earliest_on(trial: Trial, forecast: Forecast, job: Job, size: SizeKey) -> tuple[Instant, list[NodeIndex]] | None:
    hint = job.spec.topology if job.spec.topology.strict else Topology()
    per_node = 1 if hint.spread is not None else max(1, size[1] // job.spec.gpus_per_replica)
    wanted = -(-job.spec.replicas // per_node)
    groups = _groups(trial, forecast, size, hint)
    most = _groups_max(hint, len(groups))
    each = 1 if hint.spread in (Span.BLOCK, Span.RACK) else wanted
    if hint.pack is Span.NODE and wanted > 1:
        return None
    start = _first_time(groups, lambda time: _most(groups, time, most, each) >= wanted)
    if start is None:
        return None
    horizon = trial.now + trial.policy.unlimited_horizon_s * 1000
    start_at = Instant(horizon if start >= UNLIMITED else max(trial.now, start))
    return start_at, _choose(groups, start, wanted, each)


def _groups(trial: Trial, forecast: Forecast, size: SizeKey, hint: Topology) -> list[Group]:
    """Blocks, or racks where the hint is about racks, with what this cycle has started reckoned in."""
    blocks = forecast.blocks(size)
    if hint.pack is not Span.RACK and hint.spread is not Span.RACK:
        return [trial.reckoned(nodes) for nodes in blocks.values()]
    racks: dict[tuple[BlockId, str], Group] = {}
    for block, nodes in blocks.items():
        for end, index in trial.reckoned(nodes):
            racks.setdefault((block, trial.state.nodes[index].rack), []).append((end, index))
    return [racks[key] for key in sorted(racks)]


def _groups_max(hint: Topology, count: int) -> int:
    """How many blocks or racks the gang may use."""
    if hint.pack is Span.RACK:
        return 1
    if hint.max_blocks is not None and hint.spread is not Span.RACK:
        return hint.max_blocks
    return 1 if hint.pack is Span.BLOCK else count


def _first_time(groups: Iterable[Group], enough: Callable[[int], bool]) -> int | None:
    """The first of the times at which a node comes free when there is enough."""
    times = sorted({end for group in groups for end, _ in group})
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if enough(times[middle]):
            high = middle
        else:
            low = middle + 1
    return times[low] if low < len(times) else None


def _most(groups: Iterable[Group], time: int, most: int, each: int) -> int:
    """Nodes free by `time` in the best `most` groups, at most `each` of one."""
    counts = sorted((min(each, _free_by(group, time)) for group in groups), reverse=True)
    return sum(counts[:most])


def _free_by(group: Group, time: int) -> int:
    return bisect_right(group, (time, NodeIndex(1 << 60)))


def _choose(groups: Iterable[Group], time: int, wanted: int, each: int) -> list[NodeIndex]:
    """The nodes: of the fullest groups first, until one holds the rest: then of the smallest that does."""
    free = [group[: min(each, _free_by(group, time))] for group in groups]
    left = sorted((group for group in free if group), key=lambda group: (-len(group), group[0][1]))
    chosen: list[NodeIndex] = []
    while len(chosen) < wanted and left:
        rest = wanted - len(chosen)
        holding = [group for group in left if len(group) >= rest]
        group = min(holding, key=lambda found: (len(found), found[0][1])) if holding and each > 1 else left[0]
        left.remove(group)
        chosen += [index for _, index in group[:rest]]
    return chosen
