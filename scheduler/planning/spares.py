"""Hot spares: whole nodes kept near large gangs while they run, for restarts after faults (R-34).

For each gang of 512 GPUs or more 1% of its nodes, rounded up. They follow from what the state says alone: in the blocks
of the gang, then in the blocks after those, the lowest nodes that are idle or that run class preemptible only, to which
they are lent. So a spare that is lent stays one, and no further node is held in its stead.
"""

from dataclasses import dataclass

from commands.changed import News
from commands.entities import Attempt, AttemptKey, Job, Node
from commands.plan import Ranks
from commands.state import State
from events.ids import BlockId, GpuType, NodeIndex
from events.job import PriorityClass
from scheduler.planning.capacity import schedulable
from scheduler.planning.islands import lowest

_Kind = tuple[GpuType, int]
"""(type, GPUs of a node)."""


@dataclass(frozen=True, slots=True)
class _Gang:
    kind: _Kind
    ranks: Ranks
    """As it was counted: an elastic gang may grow."""
    blocks: tuple[BlockId, ...]
    spares: int


class Spares:
    """The spares of the gangs that run, kept in step with accepted commits."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._gangs: dict[AttemptKey, _Gang] = {}
        self._open: dict[tuple[_Kind, BlockId], int] = {}
        """Bitset of the nodes of a block that could be spares."""
        self._is_open: dict[NodeIndex, tuple[_Kind, BlockId]] = {}
        self._held: dict[GpuType, int] | None = None
        for node in state.nodes.rows.values():
            self._look_at_node(node)
        for attempt in state.attempts.rows.values():
            self._look_at_gang(attempt.key, attempt)

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        for _, _, old, new in news.get("nodes", ()):
            if new is not None:
                self._look_at_node(new)
                if old is not None and _place(old) != _place(new):
                    self._look_at_gangs_on(new)
        for _, key, _, attempt in news.get("attempts", ()):
            self._look_at_gang(key, attempt)
        for _, _, old, new in news.get("jobs", ()):
            if old is not None and new is not None:
                self._look_at_job(old, new)
        if "policies" in news:
            self._gangs.clear()
            self._forget()
            for attempt in self._state.attempts.rows.values():
                self._look_at_gang(attempt.key, attempt)
        if "meta" in news:
            for node in self._state.nodes.rows.values():
                self._look_at_node(node)

    @property
    def any(self) -> bool:
        """Does any gang have spares?"""
        return bool(self._gangs)

    def held(self, gpu_type: GpuType) -> int:
        """Bitset of the spare nodes of a type."""
        if not self._gangs:
            return 0
        if self._held is None:
            self._held = self._choose()
        return self._held.get(gpu_type, 0)

    def _forget(self) -> None:
        self._held = None

    def _choose(self) -> dict[GpuType, int]:
        held: dict[GpuType, int] = {}
        names = sorted({block for _, block in self._open})
        for key in sorted(self._gangs):
            gang = self._gangs[key]
            missing, chosen = gang.spares, held.get(gang.kind[0], 0)
            last = gang.blocks[-1]
            near = (*gang.blocks, *(name for name in names if name > last), *(name for name in names if name < last))
            for block in near:
                found = lowest(self._open.get((gang.kind, block), 0) & ~chosen, missing)
                chosen |= found
                missing -= found.bit_count()
                if not missing:
                    break
            held[gang.kind[0]] = chosen
        return held

    def _look_at_gang(self, key: AttemptKey, attempt: Attempt | None) -> None:
        if attempt is None or attempt.ending is not None:
            if self._gangs.pop(key, None) is not None:
                self._forget()
            return
        policy = self._state.policy
        known = self._gangs.get(key)
        if known is not None and known.ranks == attempt.ranks:
            return
        if sum(mask.bit_count() for _, mask in attempt.ranks) < policy.spare_gang_gpus_min:
            return
        nodes = [self._state.nodes[index] for index in sorted({index for index, _ in attempt.ranks})]
        self._gangs[key] = _Gang(
            kind=(attempt.gpu_type, len(nodes[0].gpus)),
            ranks=attempt.ranks,
            blocks=tuple(sorted({node.block for node in nodes})),
            spares=-(-len(nodes) * policy.spare_nodes_percent // 100),
        )
        self._forget()

    def _look_at_gangs_on(self, node: Node) -> None:
        """The node is in another block, or of another size: so are parts of the gangs on it."""
        for key, gang in list(self._gangs.items()):
            if any(index == node.index for index, _ in gang.ranks):
                del self._gangs[key]
                self._forget()
                self._look_at_gang(key, self._state.attempts.get(key))

    def _look_at_job(self, old: Job, new: Job) -> None:
        """A job that waits again may be of another class while leases of its last attempt still end."""
        if old.priority_class is new.priority_class:
            return
        for number in new.open_attempts:
            attempt = self._state.attempts.get((new.id, number))
            for index in {index for index, _ in attempt.ranks} if attempt is not None else ():
                self._look_at_node(self._state.nodes[index])

    def _look_at_node(self, node: Node) -> None:
        where = ((node.gpu_type, len(node.gpus)), node.block) if self._may_be_spare(node) else None
        was = self._is_open.get(node.index)
        if where == was:
            return
        self._forget()
        if was is not None:
            self._open[was] &= ~(1 << node.index)
            del self._is_open[node.index]
        if where is not None:
            self._open[where] = self._open.get(where, 0) | 1 << node.index
            self._is_open[node.index] = where

    def _may_be_spare(self, node: Node) -> bool:
        if node.broken or node.pledged or not schedulable(node, self._state.meta.epoch):
            return False
        jobs = self._state.jobs
        return all(jobs[job].priority_class is PriorityClass.PREEMPTIBLE for job, _, _ in node.leases)


def _place(node: Node) -> tuple[BlockId, int]:
    """What of a node's place and size matters to the gangs on it."""
    return (node.block, len(node.gpus))
