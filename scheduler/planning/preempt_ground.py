"""What nodes could give, and the order in which attempts are displaced: the ground on which victims are sought.

Levels are that order (R-40, R-42); a *view* is a set of levels that some job may displace, so that "which nodes could
be emptied for it" is one look into a bitset. Which views a job has, and in which order, is in `chain_of`; that it
agrees with commands.displace.may_displace is shown by test.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from commands.entities import AttemptKey, Job, Node
from commands.rows import filler
from commands.shape import ranks_per_node, replicas_min, takes_whole_nodes
from events.ids import BlockId, GpuType, Instant, JobId, NodeIndex, TeamId
from events.job import CLASS_RANK, PriorityClass

BORROWED, COVERED, SHIELDED, AWAITED, NEVER = 0, 3, 6, 7, 8
"""Levels: BORROWED + 0, 1, 2 and COVERED + 0, 1, 2 for preemptible, research, prod-batch; borrowed and shielded (R-42);
about to end by itself; not to be had."""
LEVELS = 7
VIEWS: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (0, 1),
    (0, 1, 2),
    (0, 1, 2, 3),
    (0, 1, 2, 3, 4),
    (0, 1, 2, 6),
    (0, 1, 2, 3, 6),
    (0, 1, 2, 3, 4, 6),
)
"""Levels of each view. View 0: what is free, or about to be."""
_VIEWS_OF = tuple(tuple(view for view, levels in enumerate(VIEWS) if level in levels) for level in range(LEVELS))
"""The views in which a level is, by level."""

_COVERED_CHAINS = {
    PriorityClass.PROD_SERVING: (0, 1, 2, 3, 6),
    PriorityClass.PROD_BATCH: (0, 1, 2, 3, 4, 5, 8),
    PriorityClass.RESEARCH: (0, 1, 2, 3, 4, 7),
    PriorityClass.PREEMPTIBLE: (0, 1, 2, 3, 6),
}
_BORROWING_CHAINS = {
    PriorityClass.PROD_SERVING: (0,),
    PriorityClass.PROD_BATCH: (0, 1, 2),
    PriorityClass.RESEARCH: (0, 1),
    PriorityClass.PREEMPTIBLE: (0,),
}


@cache
def levels_of(priority_class: PriorityClass, covered: bool) -> int:
    """Bitset of every level of which a job may displace some, of other teams or of its own."""
    levels = {*VIEWS[chain_of(priority_class, covered)[-1]], *own_levels(priority_class)}
    return sum([1 << level for level in levels])


@cache
def own_levels(priority_class: PriorityClass) -> tuple[int, ...]:
    """Levels of which a job may displace leases of its own team: those of lower classes."""
    lower = range(CLASS_RANK[PriorityClass.PREEMPTIBLE] - CLASS_RANK[priority_class])
    return tuple(kind + level for kind in (BORROWED, COVERED) for level in lower)


def chain_of(priority_class: PriorityClass, covered: bool) -> tuple[int, ...]:
    """Views of a job on the leases of other teams, each with more in it than the one before (R-40)."""
    return (_COVERED_CHAINS if covered else _BORROWING_CHAINS)[priority_class]


def is_borrowed(level: int) -> bool:
    """Is it a level of leases that are borrowed?"""
    return level < COVERED or level == SHIELDED


class Rank(NamedTuple):
    """A victim's place among those of its level, best first: few GPUs, little work lost, then by team, late start."""

    gpus: int
    minus_saved_at: int
    team: TeamId
    minus_granted_at: int
    job_id: JobId
    number: int

    @property
    def key(self) -> AttemptKey:
        return (self.job_id, self.number)


class Item(NamedTuple):
    """What one attempt holds on one node."""

    level: int
    rank: Rank
    mask: int


class Entry(NamedTuple):
    """An attempt as a victim. `lent`: ranks that it gives back when a queued job can use them (R-44); `going`: those
    that it goes on without, and that will soon be gone."""

    level: int
    gpu_type: GpuType
    rank: Rank
    nodes: tuple[NodeIndex, ...]
    lent: frozenset[int] = frozenset()
    going: frozenset[int] = frozenset()

    @property
    def gives(self) -> object:
        """What it could give, and to whom."""
        return (self.level, self.lent, self.going)

    def differs_in_rank(self, other: "Entry") -> bool:
        """Is it the same but for its rank?"""
        return self[:2] == other[:2] and self[3:] == other[3:]

    def saved(self, at: Instant) -> "Entry":
        """The same, with all saved that was done by then."""
        return entry_of((*self[:2], rank_of((self.rank[0], -at, *self.rank[2:])), *self[3:]))

    def awaited(self) -> "Entry":
        """The same, about to end."""
        return entry_of((AWAITED, *self[1:]))


rank_of, item_of, entry_of = filler(Rank), filler(Item), filler(Entry)


class Ranking:
    """(rank, node) of attempts, best first."""

    __slots__ = ("_there",)

    def __init__(self) -> None:
        self._there: list[tuple[Rank, NodeIndex]] = []

    def __len__(self) -> int:
        return len(self._there)

    def __iter__(self) -> Iterator[tuple[Rank, NodeIndex]]:
        return iter(self._there)

    def add(self, rank: Rank, index: NodeIndex) -> None:
        insort(self._there, (rank, index))

    def discard(self, rank: Rank, index: NodeIndex) -> None:
        """It is there."""
        at = bisect_left(self._there, (rank, index))
        assert self._there[at] == (rank, index), "it is not ranked"
        del self._there[at]

    def first(self, nodes: int) -> tuple[Rank, NodeIndex] | None:
        """The best that lies on one of the nodes."""
        for one in self._there:
            if nodes >> one[1] & 1:
                return one
        return None


class Place:
    """What a node could give. `base`: its GPUs that are free, lent, or about to be free; `counts`: with the victims of
    each view."""

    __slots__ = ("awaited", "bit", "block", "counts", "free", "ground", "index", "items", "lent", "memory_gb", "rack")

    def __init__(self, ground: "Ground", node: Node) -> None:
        """So far it gives nothing."""
        self.ground = ground
        self.index = node.index
        self.bit = 1 << node.index
        self.block = node.block
        self.rack = (node.block, node.rack)
        self.memory_gb = node.gpu_memory_gb
        self.free = 0
        self.lent = 0
        self.awaited = 0
        self.items: tuple[Item, ...] = ()
        self.counts = _NOTHING

    def is_of(self, node: Node) -> bool:
        """Is it where the node is, and as large?"""
        rack, key = (node.block, node.rack), (node.gpu_type, len(node.gpus))
        return (self.rack, self.ground.key, self.memory_gb) == (rack, key, node.gpu_memory_gb)

    @property
    def base(self) -> int:
        return self.free | self.lent | self.awaited

    def count(self) -> tuple[int, ...]:
        """GPUs that it could give, by view."""
        if not self.items:
            return (self.base.bit_count(),) * len(VIEWS)
        sums = [0] * LEVELS
        for item in self.items:
            sums[item.level] += item.mask.bit_count()
        view0 = self.base.bit_count()
        view1 = view0 + sums[0]
        view2 = view1 + sums[1]
        view3 = view2 + sums[2]
        view4 = view3 + sums[3]
        view5 = view4 + sums[4]
        shielded = sums[SHIELDED]
        return (view0, view1, view2, view3, view4, view5, view3 + shielded, view4 + shielded, view5 + shielded)

    def rerank(self, old: Rank, new: Rank) -> None:
        """An attempt that may be a victim has another rank, and that is all."""
        for at, item in enumerate(self.items):
            if item.rank == old:
                self.items = (*self.items[:at], Item(item.level, new, item.mask), *self.items[at + 1 :])
                ranking = self.ground.ranking(item)
                ranking.discard(old, self.index)
                ranking.add(new, self.index)
                return

    def drop(self, ranks: Sequence[Rank]) -> list[Item]:
        """These are victims no more, and what they hold is to be counted anew. Returns it."""
        gone = [item for item in self.items if item.rank in ranks]
        self.items = tuple([item for item in self.items if item not in gone])
        for item in gone:
            self.ground.rank_out(item, self.index)
        return gone

    def holds(self, team: TeamId, level: int) -> bool:
        """Has the team leases of that level here?"""
        return any(item.level == level and item.rank.team == team for item in self.items)

    def lose(self, level: int, gpus: int) -> None:
        """Of what it could give, victims of a level, so much is gone: count anew."""
        counts, bit = list(self.counts), self.bit
        for view in _VIEWS_OF[level]:
            nodes, before = self.ground.views[view], counts[view]
            counts[view] = after = before - gpus
            nodes[before] ^= bit
            nodes[after] |= bit
        self.counts = tuple(counts)

    def recount(self) -> None:
        """It changed: count anew."""
        before, self.counts = self.counts, self.count()
        self.ground.note(self)
        self.ground.move(self.bit, before, self.counts)


_NOTHING = (0,) * len(VIEWS)
GroundKey = tuple[GpuType, int]
"""(type, GPUs of a node)."""


class Ground:
    """Nodes of one type and size. `views[v][count]`: bitset of those that could give so many GPUs in view v.
    `ranked[level, size][team]`: the attempts that hold `size` GPUs of a node."""

    def __init__(self, key: GroundKey) -> None:
        self.key = key
        self.node_gpus = key[1]
        self.all = 0
        self.loose = 0
        """Bitset of the nodes that have something lent, or about to be free."""
        self.views = [[0] * (self.node_gpus + 1) for _ in VIEWS]
        self.blocks: dict[BlockId, int] = {}
        self.racks: dict[tuple[BlockId, str], int] = {}
        self.memory: dict[int, int] = {}
        self.ranked: dict[tuple[int, int], dict[TeamId, Ranking]] = {}
        self._number = [0] * LEVELS
        """How many leases there are of each level."""
        self._present = 0
        """Bitset of the levels of which there are any."""

    def enter(self, place: Place) -> None:
        """A node came in."""
        bit = place.bit
        self.all |= bit
        self.blocks[place.block] = self.blocks.get(place.block, 0) | bit
        self.racks[place.rack] = self.racks.get(place.rack, 0) | bit
        self.memory[place.memory_gb] = self.memory.get(place.memory_gb, 0) | bit
        for view, count in enumerate(place.counts):
            self.views[view][count] |= bit

    def leave(self, place: Place) -> None:
        """A node takes no work any more, or is another."""
        bit = place.bit
        self.all ^= bit
        self.loose &= ~bit
        self.blocks[place.block] ^= bit
        self.racks[place.rack] ^= bit
        self.memory[place.memory_gb] ^= bit
        for view, count in enumerate(place.counts):
            self.views[view][count] ^= bit

    def note(self, place: Place) -> None:
        """Has the node something that comes free without victims?"""
        if place.awaited or place.lent:
            self.loose |= place.bit
        else:
            self.loose &= ~place.bit

    def gives(self, levels: int) -> bool:
        """Is there anything beside what is free: something loose, or leases of these levels (a bitset)?"""
        return bool(self.loose or self._present & levels)

    def move(self, bit: int, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """A node could give other numbers of GPUs now."""
        if old != new:
            for nodes, before, after in zip(self.views, old, new, strict=True):
                if before != after:
                    nodes[before] ^= bit
                    nodes[after] |= bit

    def ranking(self, item: Item) -> Ranking:
        """Where such an item is ranked."""
        by_team = self.ranked.setdefault((item.level, item.mask.bit_count()), {})
        ranking = by_team.get(item.rank.team)
        if ranking is None:
            ranking = by_team[item.rank.team] = Ranking()
        return ranking

    def rank_in(self, item: Item, index: NodeIndex) -> None:
        """An attempt holds GPUs of the node."""
        self._number[item.level] += 1
        self._present |= 1 << item.level
        self.ranking(item).add(item.rank, index)

    def rank_out(self, item: Item, index: NodeIndex) -> None:
        """It does so no more, or otherwise."""
        self._number[item.level] -= 1
        if not self._number[item.level]:
            self._present ^= 1 << item.level
        by_team = self.ranked[item.level, item.mask.bit_count()]
        ranking = by_team[item.rank.team]
        ranking.discard(item.rank, index)
        if not ranking:
            del by_team[item.rank.team]

    def with_memory(self, memory_gb_min: int) -> int:
        """Bitset of the nodes that have so much."""
        bits = 0
        for memory_gb, nodes in self.memory.items():
            if memory_gb >= memory_gb_min:
                bits |= nodes
        return bits

    def at_least(self, view: int, count: int) -> int:
        """Bitset of the nodes that could give `count` GPUs or more."""
        if count <= 0:
            return self.all
        bits = 0
        for nodes in self.views[view][count:]:
            if nodes:
                bits |= nodes
        return bits


def could_give(grounds: Mapping[GroundKey, Ground], gpu_type: GpuType, levels: int) -> bool:
    """Is there anything on a type beside what is free: something loose, or leases of these levels (a bitset)? Costs
    next to nothing."""
    return any(ground.gives(levels) for key, ground in grounds.items() if key[0] == gpu_type)


def could_empty(
    grounds: Mapping[GroundKey, Ground],
    held_by: Mapping[tuple[TeamId, int], int],
    job: Job,
    covered: bool,
    among: int | None = None,
) -> bool:
    """Could enough nodes of `among` (None: of all) give what the job asks of each, if all went whom it may displace?
    `held_by`: nodes of the leases of each team and level. Costs little; False is certain."""
    spec, replicas, view = job.spec, replicas_min(job.spec), chain_of(job.priority_class, covered)[-1]
    for (gpu_type, size), ground in grounds.items():
        if gpu_type != spec.gpu_type or size < spec.gpus_per_replica:
            continue
        whole = takes_whole_nodes(spec, size, replicas)
        wanted = -(-replicas // ranks_per_node(spec, size)) if whole else 1
        nodes = ground.at_least(view, size if whole else spec.gpus_per_replica)
        if among is not None:
            nodes &= among
        if nodes.bit_count() >= wanted:
            return True
        for level in own_levels(job.priority_class):
            nodes |= held_by.get((spec.team, level), 0) & ground.all
        if (nodes if among is None else nodes & among).bit_count() >= wanted:
            return True
    return False


def room_of(node: Node) -> tuple[object, ...]:
    """What of a node matters here."""
    return (
        node.used,
        node.broken,
        node.pledged,
        node.state,
        node.drained,
        node.confirmed,
        node.leases,
        node.generation,
        node.block,
    )
