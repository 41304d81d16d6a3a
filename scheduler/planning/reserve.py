"""Reservations and backfill (R-23). The one place for that rule.

Per GPU type and pool the first blocked job of a node or more has the nodes held that it will use. Inside them runs only
what is sure to end before the expected start. A reservation stands while its job waits: it moves earlier when nodes
come free sooner, later only when a node is lost, drained, or its work extended; never through anything that we start.
It is overtaken only by a job of a higher group (covered before borrowing) or class, not by a mere turn in fairness: two
teams that take turns would otherwise push each other's start away for ever. Within a team only a class overtakes: a
large gang borrows for as long as small jobs of its own team fill the guarantee, and would wait for ever behind them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from commands.entities import Job, Reservation, ReservationKey
from commands.plan import Hold
from commands.shape import block_limit, demanded, ranks_per_node, replicas_min, takes_whole_nodes
from events.ids import BlockId, GpuType, Instant, JobId, NodeIndex, TeamId
from events.job import CLASS_RANK, Span, Topology
from events.reservation import FreedBecause
from scheduler.planning.forecast import UNLIMITED, Ends, Forecast, SizeKey
from scheduler.planning.queue import limit_class_s
from scheduler.planning.trial import Trial

Group = list[tuple[int, NodeIndex]]
"""Nodes of one block or rack with the time from which each is free, earliest first."""
LAST = NodeIndex(1 << 60)
"""After every node."""
COMMIT_MS = 1_000
"""From a plan to its commit: the limit of what it starts counts from there."""
Start = tuple[Instant, tuple[NodeIndex, ...]]
"""When, and on which nodes, in order."""
Tier = tuple[bool, int]
"""(borrowing, class rank): what may overtake a reservation is lower."""


def keep(trial: Trial) -> list[tuple[JobId, FreedBecause]]:
    """Begin the cycle: those that stand go into `trial.reservations`; the others are over. So is that of a job which is
    of another pool by now, by a change of the policy, of its class or of the pool's nodes: it may queue for one there,
    and no job has two."""
    over: list[tuple[JobId, FreedBecause]] = []
    for key in sorted(trial.state.reservations.rows):
        reservation = trial.state.reservations[key]
        job = trial.state.jobs.get(reservation.job_id)
        if job is None or not job.eligible or key != (job.spec.gpu_type, trial.pool_of(job)):
            over.append((reservation.job_id, FreedBecause.GONE))  # in its pool of today it may get another
        elif job.id in trial.state.pledges:
            over.append((job.id, FreedBecause.PREEMPTS))
        else:
            trial.reservations[key] = reservation
    return over


def usable(trial: Trial, job: Job) -> int | None:
    """Bitset of the nodes that the job may start on now: those it may use at all, but for those held for another,
    unless it is sure to end before that start. None: all."""
    hidden = 0
    for reservation in shut(trial, job):
        hidden |= trial.bits_of(reservation)
    return _but(trial.eligible(job), hidden)


def _but(eligible: int | None, hidden: int) -> int | None:
    """The eligible nodes without those of the bitset `hidden`. None: all."""
    if not hidden:
        return eligible
    return ~hidden if eligible is None else eligible & ~hidden


def shut(trial: Trial, job: Job) -> list[Reservation]:
    """Reservations of others on whose nodes the job may not start now: it might not be over by then."""
    return [
        held
        for held in trial.reservations.values()
        if held.gpu_type == job.spec.gpu_type and held.job_id != job.id and not _ends_before(trial, job, held.start_at)
    ]


class Held(NamedTuple):
    """A reservation, by what others' chances on its nodes depend on."""

    key: ReservationKey
    job_id: JobId
    bits: int
    start_at: Instant
    tier: Tier
    team: TeamId

    def yields(self, job: Job, covered: bool) -> bool:
        """Does it end for this job, which would start covered or not?"""
        class_rank = CLASS_RANK[job.priority_class]
        if job.id == self.job_id or (not covered, class_rank) >= self.tier:
            return False
        return job.spec.team != self.team or class_rank < self.tier[1]


class Outlook(NamedTuple):
    """A job's chances on the nodes of its type. `eligible`: bitset of those that it may use at all; `reach`: of those
    that it might come to start on, which are the usable ones, and those held for somebody whom it overtakes; None: all.
    `held`: the reservations. `might`: may nodes be held for it, or others than are? Where they are held for another,
    only if it overtakes."""

    eligible: int | None
    reach: int | None
    held: tuple[Held, ...]
    might: bool


def outlook(trial: Trial, job: Job, covered: bool) -> Outlook:
    """As things are in this cycle, for a job that would start covered or not."""
    eligible, held_for = trial.eligible(job), held_on(trial, job.spec.gpu_type)
    if not held_for:
        return Outlook(eligible, eligible, held_for, True)
    key, might, hidden = (job.spec.gpu_type, trial.pool_of(job)), True, 0
    for held in held_for:
        takes = held.job_id == job.id or held.yields(job, covered)
        if held.key == key:
            might = takes
        if not (takes or _ends_before(trial, job, held.start_at)):
            hidden |= held.bits
    return Outlook(eligible, _but(eligible, hidden), held_for, might)


def held_on(trial: Trial, gpu_type: GpuType) -> tuple[Held, ...]:
    """The reservations of a type. Reckoned anew when one of them, or somebody's standing, has changed."""
    if not trial.reservations:
        return ()
    rests_on = (trial.shares.version, *trial.reservations.values())
    known = trial.held_on.get(gpu_type)
    if known is not None and known[0] == rests_on:
        found: tuple[Held, ...] = known[1]
        return found
    found = tuple(
        Held(
            key,
            held.job_id,
            trial.bits_of(held),
            held.start_at,
            _tier(trial, held),
            trial.state.jobs[held.job_id].spec.team,
        )
        for key, held in sorted(trial.reservations.items())
        if key[0] == gpu_type
    )
    trial.held_on[gpu_type] = (rests_on, found)
    return found


def _ends_before(trial: Trial, job: Job, start_at: Instant) -> bool:
    """Its limit, rounded up as shapes are, is over by then, also if it is granted somewhat later than now. A job
    without a limit is never backfilled (R-5)."""
    limit_s = limit_class_s(job.max_runtime_s)
    return limit_s > 0 and trial.now + limit_s * 1000 + COMMIT_MS <= start_at


def overtaken(trial: Trial, job: Job, covered: bool) -> list[JobId]:
    """Holders of a lower tier whose held nodes this job, which is blocked, may take: they lose their reservation."""
    return [held.job_id for held in held_on(trial, job.spec.gpu_type) if held.yields(job, covered)]


def drop(trial: Trial, job_id: JobId) -> None:
    """The reservation of a job is over, for this cycle and then in the log."""
    for key in [key for key, held in trial.reservations.items() if held.job_id == job_id]:
        del trial.reservations[key]


def _tier(trial: Trial, reservation: Reservation) -> Tier:
    holder = trial.state.jobs[reservation.job_id]
    standing = trial.shares.standing((holder.spec.team, holder.spec.gpu_type))
    return (trial.charge(holder) > standing.covered_room, CLASS_RANK[holder.priority_class])


def reserve(trial: Trial, forecast: Forecast, job: Job) -> Hold | None:
    """The reservation of a blocked job, where it is the first of its type and pool, new or moved; None where it is
    not, or where it keeps what it has."""
    key = (job.spec.gpu_type, trial.pool_of(job))
    held = trial.reservations.get(key)
    if held is not None and held.job_id != job.id:
        return None
    standing = held is not None and stands(trial, forecast, held)
    found = earliest(trial, forecast, job, before=held.start_at if held is not None and standing else None)
    if found is None or (held is not None and not _worth_moving(trial, held, found, standing)):
        return None
    hold = Hold(job_id=job.id, key=key, nodes=found[1], start_at=found[0])
    trial.reservations[key] = Reservation(
        job_id=job.id, gpu_type=key[0], pool=key[1], nodes=hold.nodes, start_at=hold.start_at
    )
    return hold


def stands(trial: Trial, forecast: Forecast, held: Reservation) -> bool:
    """May it still start where and when it was told? Else any other place that is as good is better."""
    return trial.now <= held.start_at and not trial.bits_of(held) & forecast.out()


def _worth_moving(trial: Trial, held: Reservation, found: Start, standing: bool) -> bool:
    """Earlier than before; or the nodes that are held were not free in time, or are out of service, and others, or
    another time, are better than no word: an overdue start for which the same nodes are still the best is no news."""
    start_at, nodes = found
    return start_at < held.start_at or (not standing and (nodes != held.nodes or start_at > trial.now))


# The earliest start


def earliest(trial: Trial, forecast: Forecast, job: Job, before: Instant | None = None) -> Start | None:
    """When and where the gang can start at the earliest, if all that runs takes its whole time. None: never, as the
    fleet is now, or not before `before`; or it needs less than a node. What is free is better than what should be by
    now: so the choice does not change with time alone."""
    best: Start | None = None
    sizes: dict[int, list[SizeKey]] = {}
    for size in forecast.sizes(job.spec.gpu_type, job.spec.gpu_memory_gb_min):
        sizes.setdefault(size[1], []).append(size)
    for node_gpus, alike in sizes.items():
        if node_gpus < job.spec.gpus_per_replica or not takes_whole_nodes(job.spec, node_gpus, replicas_min(job.spec)):
            continue
        found = _earliest_on(trial, forecast, job, alike, before)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    horizon = trial.now + trial.policy.unlimited_horizon_s * 1000
    return Instant(horizon if best[0] >= UNLIMITED else max(trial.now, best[0])), best[1]


def _earliest_on(
    trial: Trial, forecast: Forecast, job: Job, sizes: list[SizeKey], before: Instant | None
) -> Start | None:
    """On nodes of one number of GPUs; their memory may differ. The time is that at which the last of them should be
    free: it may be over."""
    hint = demanded(job.spec)
    wanted = -(-replicas_min(job.spec) // ranks_per_node(job.spec, sizes[0][1]))
    if before is not None and not _could(trial, forecast, job, sizes, before, wanted):
        return None
    groups = _groups(trial, _nodes_by_block(trial, forecast, job, sizes), hint)
    most = 1 if hint.pack is Span.RACK else block_limit(hint) or len(groups)
    each = 1 if hint.spread is Span.BLOCK else wanted
    if hint.pack is Span.NODE and wanted > 1:
        return None
    if before is not None and _most(groups, before - 1, most, each) < wanted:
        return None
    start = _first_time(groups, lambda time: _most(groups, time, most, each) >= wanted)
    if start is None:
        return None
    return Instant(start), tuple(sorted(_choose(groups, start, wanted, each)))


def _could(trial: Trial, forecast: Forecast, job: Job, sizes: list[SizeKey], before: Instant, wanted: int) -> bool:
    """Could enough be free before that time? A look that costs little: it never says no where there may be."""
    if len(sizes) > 1 or trial.taken:
        return True
    free = forecast.free_by(sizes[0], before - 1, _shut(trial, job))
    return sum(sorted(free.values(), reverse=True)[: block_limit(demanded(job.spec))]) >= wanted


def _shut(trial: Trial, job: Job) -> int:
    """Bitset of the nodes that the job may not have: out of its reach, or held for the first of another pool."""
    among = trial.eligible(job)
    shut = 0 if among is None else ~among
    for held in trial.reservations.values():
        if held.gpu_type == job.spec.gpu_type and held.job_id != job.id:
            shut |= trial.bits_of(held)
    return shut


def _nodes_by_block(trial: Trial, forecast: Forecast, job: Job, sizes: list[SizeKey]) -> dict[BlockId, Group]:
    """The nodes that the job may have. With what this cycle has started reckoned in."""
    blocks: dict[BlockId, Ends] = {}
    for size in sizes:
        for block, ends in forecast.blocks(size).items():
            before = blocks.get(block)
            blocks[block] = ends if before is None else (sorted((*before[0], *ends[0])), before[1] | ends[1])
    shut, found = _shut(trial, job), {}
    for block in sorted(blocks):
        nodes, bits = blocks[block]
        if bits & shut:
            nodes = [node for node in nodes if not shut >> node[1] & 1]
        found[block] = nodes
    trial.reckoned(found)
    return found


def _groups(trial: Trial, blocks: dict[BlockId, Group], hint: Topology) -> list[Group]:
    """Blocks, with what counts of each; or racks where the gang has to fit in one."""
    if hint.pack is not Span.RACK and hint.spread is not Span.RACK:
        return list(blocks.values())
    found: list[Group] = []
    for nodes in blocks.values():
        racks: dict[str, Group] = {}
        for end, index in nodes:
            racks.setdefault(trial.state.nodes[index].rack, []).append((end, index))
        if hint.spread is Span.RACK:
            racks = {rack: members[:1] for rack, members in racks.items()}
        if hint.pack is Span.RACK:
            found += [racks[rack] for rack in sorted(racks)]
        else:
            found.append(sorted(node for members in racks.values() for node in members))
    return found


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
    last = (time, LAST)
    return sum(sorted([min(each, bisect_right(group, last)) for group in groups], reverse=True)[:most])


def _choose(groups: Iterable[Group], time: int, wanted: int, each: int) -> list[NodeIndex]:
    """The nodes: of the fullest groups first, until one holds the rest: then of the smallest that does."""
    free = [group[: min(each, bisect_right(group, (time, LAST)))] for group in groups]
    left = sorted((group for group in free if group), key=lambda group: (-len(group), group[0][1]))
    chosen: list[NodeIndex] = []
    while len(chosen) < wanted and left:
        rest = wanted - len(chosen)
        holding = [group for group in left if len(group) >= rest]
        group = min(holding, key=lambda found: (len(found), found[0][1])) if holding and each > 1 else left[0]
        left.remove(group)
        chosen += [index for _, index in group[:rest]]
    return chosen
