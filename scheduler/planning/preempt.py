"""Preemption and reclaim: the smallest set that makes room for a job (R-40 to R-45). The way in.

Who of its own team stops for its quota's sake is found by preempt_own; where to look and whom to stop there by
preempt_nodes (whole nodes), preempt_shared (one node) and preempt_other (all else), on the index of victims. A solution
becomes a Room in preempt_room. All of it or nothing: nobody is stopped for a job that then does not start.
"""

from collections.abc import Iterable

from commands.displace import may_displace
from commands.entities import AttemptKey, Job
from commands.plan import Room
from commands.shape import charged_gpus
from events.job import Span
from scheduler.planning import reserve
from scheduler.planning.forecast import Forecast
from scheduler.planning.preempt_ask import Ask, Found, Step, least
from scheduler.planning.preempt_ground import Entry, is_borrowed, own_levels
from scheduler.planning.preempt_nodes import emptied, wanted_nodes
from scheduler.planning.preempt_other import anyhow
from scheduler.planning.preempt_own import Own, give_way, standing_of, with_stopped
from scheduler.planning.preempt_room import take
from scheduler.planning.preempt_shared import on_one_node
from scheduler.planning.preempt_swaps import Swaps, is_swap
from scheduler.planning.queue import hint_key
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex


def make_room(
    trial: Trial, forecast: Forecast, job: Job, covered: bool, victims: VictimIndex | None = None
) -> Room | None:
    """Victims and the placement that their end makes possible; None where no legal set is, or nobody is in the way.

    What it takes is taken in `trial` and `victims`: the free GPUs of the placement, the victims, the team's share.
    Without an index one is made for this one question: at most one room a cycle is found so. In a cycle in which a team
    reclaims it gets no room to borrow: of pledges of one commit the walk might put that one first (C-11).
    """
    if job.spec.gpu_type in trial.unpledged:
        return None
    if not covered and (job.spec.team, job.spec.gpu_type) in trial.reclaims:
        trial.put_off = True
        return None
    if victims is None:
        if trial.stopping:
            return None
        victims = VictimIndex(trial.state, trial.shares)
    victims.compare(trial.now)
    own = give_way(trial, victims, job, trial.charge(job))
    if own is None:
        return None
    if own.keys:
        room = _room_within(trial, victims, job, covered, own)
        trial.by_loss |= room is None
        return room
    among = reserve.usable(trial, job)
    shape = (_shape(job), covered, among)
    if not victims.mark() and victims.failed.get((shape, own), trial.now) > trial.now:
        return None
    asks = _asks(trial, victims, job, covered, among, shape)
    best = _search(trial, victims, asks, own)
    if best is None:
        if not (trial.taken or trial.stopping or trial.by_loss):
            victims.failed[shape, own] = victims.next_change_at()
        return None
    return _taken(trial, victims, covered, asks, take(trial, victims, job, *best))


def make_another(trial: Trial, victims: VictimIndex, job: Job, covered: bool, own: Own) -> Room | None:
    """Room for a job right after room was made for one that is alike, of no reserved nodes: the same search goes on.
    None where something came between, or there is no room more: then it is asked for as for any other. `own`: what its
    quota gives with nobody stopped, which suffices."""
    swaps: Swaps | None
    mark, was_covered, asks, swaps = victims.latest
    if mark != victims.mark() or was_covered != covered or not _holds(asks, covered, own.covered_room):
        return None
    if swaps is not None and (swap := swaps.another(job, own)) is not None:
        victims.latest = (victims.mark(), covered, asks, swaps)
        return swap
    for ask in asks:
        ask.job = job
    best = _search(trial, victims, asks, own)
    return None if best is None else _taken(trial, victims, covered, asks, take(trial, victims, job, *best))


def _taken(trial: Trial, victims: VictimIndex, covered: bool, asks: list[Ask], room: Room) -> Room:
    """Room that is made; the next of the line may go on from there."""
    alone = asks[0] if len(asks) == 1 and not asks[0].whole else None
    swaps = Swaps(trial, victims, alone) if alone is not None and is_swap(trial.state, room) else None
    victims.latest = (victims.mark(), covered, asks, swaps)
    return room


def _room_within(trial: Trial, victims: VictimIndex, job: Job, covered: bool, own: Own) -> Room | None:
    """The same, where some of the job's own team stop for its quota's sake in any case. Those of them that turn out not
    to be needed, as others of the team stop where the job is to lie, are left alone after all."""
    before = (trial.stopping.copy(), victims.mark())
    entries = {key: victims.entries[key] for key in own.keys}
    now, kept = standing_of(trial, job), own.keys
    while True:
        victims.stop(kept)
        victims.settle()
        trial.stopping.update(kept)
        asks = _asks(trial, victims, job, covered, reserve.usable(trial, job), None)
        best = _search(trial, victims, asks, with_stopped(now, map(entries.__getitem__, kept)))
        idle = [] if best is None else _not_needed(victims, job, now, [entries[key] for key in kept], *best)
        if best is not None and not idle:
            return take(trial, victims, job, *best, kept)
        trial.stopping = before[0].copy()
        victims.undo(before[1])
        victims.refresh(trial.now)
        if best is None:
            return None
        kept = tuple(key for key in kept if key not in idle)


def _not_needed(
    victims: VictimIndex, job: Job, now: Own, kept: list[Entry], ask: Ask, found: Found
) -> list[AttemptKey]:
    """One of those kept for stopping that could run on: the quota suffices without it, and it is not in the way."""
    theirs = [victims.entries[rank.key] for rank in found.victims if rank.team == job.spec.team]
    nodes = set(found.nodes)
    for entry in sorted(kept, key=lambda entry: (entry.level, entry.rank), reverse=True):
        others = [other for other in kept if other is not entry]
        if nodes.isdisjoint(entry.nodes) and with_stopped(now, [*others, *theirs]).suffices(ask.gpus):
            return [entry.rank.key]
    return []


def _shape(job: Job) -> tuple[object, ...]:
    """Jobs that are alike here."""
    spec = job.spec
    return (
        spec.team,
        job.priority_class,
        spec.checkpoint.preemptible,
        spec.gpu_type,
        spec.replicas,
        spec.gpus_per_replica,
        spec.gpu_memory_gb_min,
        hint_key(spec.topology),
        spec.elastic and spec.elastic.min_replicas,
    )


def _asks(
    trial: Trial, victims: VictimIndex, job: Job, covered: bool, among: int | None, shape: tuple[object, ...] | None
) -> list[Ask]:
    """The search on each size of nodes that the job can use. Jobs of a shape, if it has one, share it while one cycle
    tries them."""
    spec = least(job.spec)
    room = trial.shares.standing((spec.team, spec.gpu_type)).covered_room
    known: list[Ask] | None = victims.asks.get(shape) if shape is not None else None
    if known is not None and _holds(known, covered, room):
        for ask in known:
            ask.job = job
        return known
    asks: list[Ask] = []
    for key in sorted(victims.grounds):
        if key[0] == spec.gpu_type and key[1] >= spec.gpus_per_replica:
            ground = victims.grounds[key]
            usable = ground.with_memory(spec.gpu_memory_gb_min)
            within = covered and charged_gpus(spec, key[1]) <= room
            asks.append(Ask(trial, victims, job, within, ground, usable if among is None else usable & among))
    if shape is not None:
        victims.asks[shape] = asks
    return asks


def _holds(asks: Iterable[Ask], covered: bool, covered_room: int) -> bool:
    """Would they be covered, or not, as they were?"""
    return all(ask.covered == (covered and ask.gpus <= covered_room) for ask in asks)


def _search(trial: Trial, victims: VictimIndex, asks: list[Ask], own: Own) -> tuple[Ask, Found] | None:
    """The best solution over all sizes of nodes for which the team's quota suffices: on some a gang costs more.
    Placements of this cycle that the index does not know of yet are reckoned in as they are met. `own`: what the quota
    gives once the team's own have stopped."""
    while True:
        best: tuple[Ask, Found] | None = None
        for ask in asks:
            found = _solve(ask)
            if found is None or (best is not None and found[:2] >= best[1][:2]):
                continue
            if _within_quota(victims, ask, found, own):
                best = (ask, found)
            else:
                trial.by_loss |= _own_may_go(victims, ask.job)
        if best is None:
            return None
        stale = [index for index in best[1].nodes if victims.taken(index, trial.capacity.free[index])]
        if not stale:
            if not _worth_it(victims, best[1], own):
                return None
            return None if _comes_back(trial, victims, *best) else best


def _worth_it(victims: VictimIndex, found: Found, own: Own) -> bool:
    """Where the job fits as it is, nobody has to make room (C-12)."""
    places = victims.places
    return bool(found.victims or own.keys) or any(places[index].awaited or places[index].lent for index in found.nodes)


def _comes_back(trial: Trial, victims: VictimIndex, ask: Ask, found: Found) -> bool:
    """Would a victim that borrows be covered, as this cycle stops what its team is covered by, and so take back at once
    what was taken from it (C-11)? The next cycle knows who borrows then, and decides."""
    if not trial.uncovers:
        return False
    going = trial.stopping | {rank.key for rank in found.victims}
    for rank in found.victims:
        attempt = trial.state.attempts[rank.key]
        key = (attempt.team, attempt.gpu_type)
        victim = trial.state.jobs[attempt.job_id]
        if key not in trial.uncovers or not is_borrowed(victims.entries[rank.key].level):
            continue
        if may_displace(trial.policy, trial.now, ask.job, ask.covered, victim, attempt, borrowed=False):
            continue
        if trial.shares.covered_without(key, going) + attempt.charged <= trial.shares.standing(key).guaranteed:
            return True
    return False


def _solve(ask: Ask) -> Found | None:
    """The first step in which there is a solution. Where there was none for a job before this one there is none now,
    unless more came free than was made room for: rooms only take."""
    wide = ask.hint.spread in (Span.RACK, Span.BLOCK)
    if ask.spec.gpu_type in ask.trial.left_over:
        ask.begin = 0
    for number in range(ask.begin, len(ask.steps)):
        step = ask.steps[number]
        if not ask.whole:
            found = _less_than_a_node(ask, number, step)
        elif wide:
            found = anyhow(ask, number, step)
        else:
            found = emptied(ask, number, step, wanted_nodes(ask))
        if found is not None:
            return found
        ask.begin = number + 1
    return None


def _less_than_a_node(ask: Ask, number: int, step: Step) -> Found | None:
    """On one node, where the hint lets it; apart, where that takes fewer victims."""
    found = None
    if ask.hint.spread is None or ask.spec.replicas == 1:
        found = on_one_node(ask, number, step)
    if ask.spec.replicas == 1 or ask.hint.pack is Span.NODE or (found is not None and not found.cost.jobs):
        return found
    apart = anyhow(ask, number, step)
    return apart if found is None or (apart is not None and apart[:2] < found[:2]) else found


def _own_may_go(victims: VictimIndex, job: Job) -> bool:
    """Has its team anybody whose end would leave it more of its quota?"""
    return any(victims.held_by.get((job.spec.team, level)) for level in own_levels(job.priority_class))


def _within_quota(victims: VictimIndex, ask: Ask, found: Found, own: Own) -> bool:
    """Once the victims of its own team are gone; covered, where the job starts only so (R-12, R-40)."""
    theirs = [victims.entries[rank.key] for rank in found.victims if rank.team == ask.spec.team]
    return (with_stopped(own, theirs) if theirs else own).suffices(ask.gpus)
