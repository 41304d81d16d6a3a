"""Who could make room, and where: running attempts by node, ranked as victims (R-40, R-42, R-43). An index.

Kept in step by accepted commits: `feed` only notes what changed, `refresh` reckons it in when somebody asks. Within a
cycle room is made for trial (`stop`, `pledge`), and all is put back (`undo`).
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

from commands.changed import News, other_class
from commands.displace import saved_at
from commands.entities import Attempt, AttemptKey, Job, Node
from commands.state import State
from events.ids import GpuType, Instant, NodeIndex, TeamId
from scheduler.planning.capacity import schedulable
from scheduler.planning.preempt_entry import victim_of
from scheduler.planning.preempt_ground import (
    AWAITED,
    LEVELS,
    Entry,
    Ground,
    GroundKey,
    Item,
    Place,
    Rank,
    item_of,
    room_of,
)
from scheduler.planning.quota import ShareKey, Shares

NOTHING = (-1, False, None, None)
"""No room was made, or something came between."""
NOWHERE = NodeIndex(0)  # of a change on trial that is no single node's


class VictimIndex:
    """The index over the fleet."""

    def __init__(self, state: State, shares: Shares) -> None:
        self._state = state
        self._shares = shares
        self.grounds: dict[GroundKey, Ground] = {}
        self.places: dict[NodeIndex, Place] = {}
        self.entries: dict[AttemptKey, Entry] = {}
        self.held_by: dict[tuple[TeamId, int], int] = {}
        """(team, level) -> bitset of the nodes on which it has leases of that level."""
        self.failed: dict[object, Instant] = {}
        """Searches that found nothing, with the quota that they had -> until when that holds, if nothing changes. Only
        saves work."""
        self.asks: dict[object, Any] = {}
        """Searches of this cycle, by shape."""
        self.latest: tuple[int, bool, Any, Any] = NOTHING
        """(place in the trial after the last room that was made, for a covered job, by which search, swaps)."""
        self.turned = 0
        """Rises when somebody is a victim of another level, as by time alone, or lends or gives back other ranks."""
        self.elastic: dict[AttemptKey, None] = {}
        """Attempts of elastic jobs, in the order of their start."""
        self._borrowed: dict[ShareKey, frozenset[AttemptKey]] = {}
        self._later: list[tuple[Instant, AttemptKey]] = []
        self._dirty_attempts: set[AttemptKey] = set(state.attempts.rows)
        self._saved: set[AttemptKey] = set()
        self._dirty_nodes: set[NodeIndex] = set(state.nodes.rows)
        self._dirty_teams: set[ShareKey] = {(row.team, row.gpu_type) for row in state.attempts.rows.values()}
        for attempt in state.attempts.rows.values():
            self._note_elastic(attempt, gone=False)
        self._stopped: set[AttemptKey] = set()
        self._stopped_gpus: dict[ShareKey, int] = {}
        self._pledged: dict[NodeIndex, int] = {}
        self._taken: dict[NodeIndex, int] = {}
        self._changed: set[Place] = set()
        self._over: dict[ShareKey, int] = {}
        self._trial: list[tuple[AttemptKey | None, Entry | None, NodeIndex, int]] = []

    # Following the state

    def follow(self, news: News) -> None:
        """What is news of an accepted commit: only noted."""
        assert not self._trial, "a plan is on trial"
        assert not self._taken, "a plan is on trial"
        for _, index, old, new in news.get("nodes", ()):
            if old is None or new is None or room_of(old) != room_of(new):
                self._dirty_nodes.add(index)
        for _, key, old, new in news.get("attempts", ()):
            self._note_attempt(key, old, new)
        for _, job_id, old, new in news.get("jobs", ()):
            if new is not None:
                self._dirty_attempts.update([(job_id, number) for number in new.open_attempts])
            if other_class(old, new):
                self._dirty_teams.add((old.spec.team, old.spec.gpu_type))
        for _, _, old, new in (*news.get("pledges", ()), *news.get("quotas", ())):
            row = new if new is not None else old
            self._dirty_teams.add((row.team, row.gpu_type))
        if "policies" in news:
            self._dirty_attempts.update(self._state.attempts.rows)
            self.failed.clear()
        if "meta" in news:
            self._dirty_nodes.update(self._state.nodes.rows)

    def _note_attempt(self, key: AttemptKey, old: Attempt | None, new: Attempt | None) -> None:
        row = new if new is not None else old
        assert row is not None, "a change of nothing"
        if new is None:
            self._saved.discard(key)
        if new is None and key not in self.entries:
            self._dirty_attempts.discard(key)  # came and went while nobody asked
        else:
            self._dirty_attempts.add(key)
        self._note_elastic(row, gone=new is None)
        if old is None or new is None or (old.charged, old.ending) != (new.charged, new.ending):
            self._dirty_teams.add((row.team, row.gpu_type))

    def saved(self, job: Job) -> None:
        """Less would be lost with the job than before: that matters to nobody until victims are compared."""
        self._saved.update([(job.id, number) for number in job.open_attempts])

    def _note_elastic(self, attempt: Attempt, gone: bool) -> None:
        job = self._state.jobs.get(attempt.job_id)
        if gone or job is None or job.spec.elastic is None:
            self.elastic.pop(attempt.key, None)
        else:
            self.elastic.setdefault(attempt.key)

    @property
    def unreckoned(self) -> int:
        """Attempts that changed since somebody asked."""
        return len(self._dirty_attempts)

    def compare(self, now: Instant) -> None:
        """The same as `refresh`, and whose loss is the smallest is known too."""
        self.refresh(now)
        if not self._saved:
            return
        assert not self._trial, "a plan is on trial"
        self.failed.clear()
        self.asks.clear()
        for key in sorted(self._saved):
            old, attempt = self.entries.get(key), self._state.attempts.rows.get(key)
            if old is None or attempt is None:
                continue
            new = self.entries[key] = old.saved(saved_at(self._state.jobs.rows[attempt.job_id], attempt))
            if new != old:
                self._rerank(old, new)
        self._saved.clear()

    def refresh(self, now: Instant) -> None:
        """Reckon in what changed, and what the time has changed: who could make room, but not who first."""
        while self._later and self._later[0][0] <= now:
            self._dirty_attempts.add(heappop(self._later)[1])
        if self._dirty_teams:
            self._see_shares()
        if not self._dirty_attempts and not self._dirty_nodes:
            return
        self.failed.clear()
        self.asks.clear()
        self._over.clear()
        for attempt_key in sorted(self._dirty_attempts):
            self._enter(attempt_key, now)
        self._dirty_attempts.clear()
        while self._dirty_nodes:
            self._place(self._dirty_nodes.pop())

    def _see_shares(self) -> None:
        """Whose leases are borrowed now and were not, or the other way round?"""
        for key in self._dirty_teams:
            borrowed = self._shares.borrowed(key)
            self._dirty_attempts |= borrowed ^ self._borrowed.get(key, frozenset())
            if self.elastic:  # covered but for what it has lent? That goes by what is left of the guarantee
                self._dirty_attempts |= self.elastic.keys() & borrowed
            self._borrowed[key] = borrowed
        self._dirty_teams.clear()

    def next_change_at(self) -> Instant:
        """Up to when time alone changes nothing here."""
        while self._later and self._later[0][1] not in self.entries:
            heappop(self._later)
        return self._later[0][0] if self._later else Instant(1 << 62)

    def _enter(self, key: AttemptKey, now: Instant) -> None:
        attempt, old = self._state.attempts.rows.get(key), self.entries.pop(key, None)
        if attempt is None:
            if old is not None:
                self._dirty_nodes.update(old.nodes)
            return
        borrows = key in self._borrowed.get((attempt.team, attempt.gpu_type), ())
        entry, times = victim_of(self._state, self._shares, attempt, now=now, borrows=borrows)
        if key in self._stopped:
            entry, times = entry.awaited(), []
        for at in times:
            heappush(self._later, (at, key))
        if len(self._later) > 4 * len(self.entries) + 1_000:
            self._later = sorted({one for one in self._later if one[1] in self._state.attempts})
        self.entries[key] = entry
        if entry == old:
            return
        if old is not None and entry.differs_in_rank(old):
            self._rerank(old, entry)
            return
        self._dirty_nodes.update(entry.nodes if old is None else (*old.nodes, *entry.nodes))
        self.turned += old is None or entry.gives != old.gives

    def _rerank(self, old: Entry, new: Entry) -> None:
        """Only its rank is another: what the nodes could give is not."""
        if new.level < LEVELS:
            for index in new.nodes:
                place = self.places.get(index)
                if place is not None:
                    place.rerank(old.rank, new.rank)

    # Nodes

    def _place(self, index: NodeIndex) -> None:
        """Reckon a node anew; only what differs is moved."""
        node, place = self._state.nodes.rows[index], self.places.get(index)
        takes_work = schedulable(node, self._state.meta.epoch)
        if place is not None and not (takes_work and place.is_of(node)):
            del self.places[index]
            place.ground.leave(place)
            items, place.items = place.items, ()
            self._move_items(place, items)
            place = None
        if not takes_work:
            return
        if place is None:
            place = self.places[index] = self._new_place(node)
        items = place.items
        self._fill(place, node)
        if place.items != items:
            self._move_items(place, items)
        place.recount()

    def _new_place(self, node: Node) -> Place:
        key = (node.gpu_type, len(node.gpus))
        ground = self.grounds.setdefault(key, Ground(key))
        place = Place(ground, node)
        ground.enter(place)
        return place

    def _move_items(self, place: Place, before: tuple[Item, ...]) -> None:
        """Its items are others than before."""
        for item in before:
            if item not in place.items:
                place.ground.rank_out(item, place.index)
                self._held_no_more(place, item)
        for item in place.items:
            if item not in before:
                place.ground.rank_in(item, place.index)
                held = (item.rank.team, item.level)
                self.held_by[held] = self.held_by.get(held, 0) | place.bit

    def _held_no_more(self, place: Place, item: Item) -> None:
        """An item is gone, maybe the last of its team and level on the node."""
        if not place.holds(item.rank.team, item.level):
            self.held_by[item.rank.team, item.level] &= ~place.bit

    def _fill(self, place: Place, node: Node) -> None:
        """Reckon what the node could give."""
        pledged = self._pledged.get(node.index, 0)
        kept = ~(node.broken | node.pledged | pledged)
        place.free = node.free & ~(pledged | self._taken.get(node.index, 0))
        awaited = lent = 0
        masks: dict[AttemptKey, int] = {}
        attempts, entries = self._state.attempts.rows, self.entries
        for job_id, number, rank in node.leases:
            key = (job_id, number)
            mask, entry = attempts[key].ranks[rank][1] & kept, entries[key]
            if entry.level == AWAITED or rank in entry.going:
                awaited |= mask
            elif rank in entry.lent:
                lent |= mask
            elif entry.level < LEVELS and mask:
                masks[key] = masks.get(key, 0) | mask
        place.awaited, place.lent = awaited, lent
        place.items = tuple([item_of((entries[key].level, entries[key].rank, mask)) for key, mask in masks.items()])

    # For trial

    def stop(self, keys: Iterable[AttemptKey]) -> dict[NodeIndex, int]:
        """Attempts are to be stopped: their GPUs are about to come free, by node. `settle` has to follow."""
        touched: dict[NodeIndex, list[Rank]] = {}
        for key in keys:
            entry = self._stop(key)
            for index in entry.nodes:
                touched.setdefault(index, []).append(entry.rank)
        places = [place for index in touched if (place := self.places.get(index)) is not None]
        freed = {place.index: self._free_of(place, touched[place.index]) for place in places}
        for place in places:
            place.awaited |= freed[place.index]
        self._changed.update(places)
        return freed

    def _stop(self, key: AttemptKey) -> Entry:
        entry = self.entries[key]
        self._trial.append((key, entry, NOWHERE, 0))
        self._stopped.add(key)
        self._count_stopped(entry, 1)
        self.entries[key] = entry.awaited()
        return entry

    def _free_of(self, place: Place, ranks: list[Rank]) -> int:
        """Mask of what they hold on the node, and are victims with no more."""
        freed = 0
        for item in place.drop(ranks):
            freed |= item.mask
            self._held_no_more(place, item)
        return freed

    def swap(self, key: AttemptKey, index: NodeIndex, mask: int) -> None:
        """An attempt that holds these GPUs of a node, and nothing else, is to be stopped, and they are pledged."""
        place, entry = self.places[index], self._stop(key)
        self._free_of(place, [entry.rank])
        self._pledged[index] = self._pledged.get(index, 0) | mask
        self._trial.append((None, None, index, mask))
        place.lose(entry.level, mask.bit_count())

    def shrink(self, key: AttemptKey, ranks: Iterable[int]) -> None:
        """An attempt gives ranks back: their GPUs are about to come free. `settle` has to follow."""
        entry, attempt = self.entries[key], self._state.attempts[key]
        gone = frozenset(ranks)
        self._trial.append((key, entry, NOWHERE, 0))
        self.entries[key] = entry._replace(lent=entry.lent - gone, going=entry.going | gone)
        for rank in gone:
            index, mask = attempt.ranks[rank]
            place = self.places.get(index)
            if place is not None:
                moved = place.lent & mask
                place.lent ^= moved
                place.awaited |= moved
                self._changed.add(place)

    def pledge(self, index: NodeIndex, mask: int) -> None:
        """GPUs, free or about to be, are pledged: they are nobody else's any more. `settle` has to follow."""
        self._pledged[index] = self._pledged.get(index, 0) | mask
        self._trial.append((None, None, index, mask))
        place = self.places[index]
        place.free &= ~mask
        place.awaited &= ~mask
        place.lent &= ~mask
        self._changed.add(place)

    def settle(self) -> None:
        """Count anew what the nodes could give."""
        for place in self._changed:
            place.recount()
        self._changed.clear()

    def taken(self, index: NodeIndex, free: int) -> bool:
        """Is less free on the node than is known here, because the cycle has taken it? Then that is reckoned in."""
        place = self.places[index]
        gone = place.free & ~free
        if gone:
            self._taken[index] = self._taken.get(index, 0) | gone
            place.free &= free
            place.recount()
        return bool(gone)

    def mark(self) -> int:
        """A place in the trial to come back to."""
        return len(self._trial)

    def undo(self, mark: int = 0) -> None:
        """Put back what was stopped and pledged since `mark`; from the start, also what the cycle had taken."""
        while len(self._trial) > mark:
            key, entry, index, mask = self._trial.pop()
            if key is None or entry is None:
                self._pledged[index] &= ~mask
                self._dirty_nodes.add(index)
            else:
                if key in self._stopped and self.entries[key].level == AWAITED != entry.level:
                    self._stopped.discard(key)
                    self._count_stopped(entry, -1)
                self.entries[key] = entry
                self._dirty_nodes.update(entry.nodes)
        if not mark:
            self._dirty_nodes.update(self._taken)
            self._taken.clear()
            self._pledged.clear()
            self.asks.clear()
        self.latest = NOTHING
        self._changed.clear()
        self._over.clear()

    def _count_stopped(self, entry: Entry, sign: int) -> None:
        share = (entry.rank.team, entry.gpu_type)
        self._stopped_gpus[share] = self._stopped_gpus.get(share, 0) + sign * entry.rank.gpus
        self._over.pop(share, None)

    # Questions

    def over_share(self, team: TeamId, gpu_type: GpuType) -> int:
        """How far a team's use is over its guarantee, in thousandths of it; what is being stopped counts no more."""
        key = (team, gpu_type)
        if (known := self._over.get(key)) is not None:
            return known
        quota, usage = self._state.quotas.get(key), self._state.usage.get(key)
        guaranteed = quota.guaranteed if quota is not None else 0
        use = (usage.charged if usage is not None else 0) - self._stopped_gpus.get(key, 0)
        known = self._over[key] = (use - guaranteed) * 1000 // max(1, guaranteed)
        return known
