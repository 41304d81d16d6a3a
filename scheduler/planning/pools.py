"""Which nodes a job may use at all: declared pools and hot spares, as bitsets (R-34, R-37).

What a pool is and whom it is open to is said in commands.pools, which spares are held in scheduler.planning.spares.
Kept in step by the changes of each accepted commit.
"""

from commands.changed import News
from commands.entities import Job
from commands.plan import Ranks
from commands.pools import PoolRule, pool_of
from commands.state import Change, State
from events.job import PriorityClass, QueueReason
from scheduler.planning.spares import Spares


class Pools:
    """Masks of the pools, and of the spares of gangs that run."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._masks: list[tuple[PoolRule, int]] = []
        self._spares = Spares(state)
        self.declared = 0
        """Rises whenever other nodes may be in a pool."""
        self._declare()

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        self._spares.follow(news)
        if "policies" in news or any(map(_redraws, news.get("nodes", ()))):
            self._declare()

    @property
    def sets_apart(self) -> bool:
        """Is any node not for everybody?"""
        return bool(self._masks) or self._spares.any

    def eligible(self, job: Job) -> int | None:
        """Bitset of the nodes that the job may use (with every bit that stands for no node); None: all."""
        shut = 0
        for rule, mask in self._masks:
            if not rule.open_to(job.spec, job.priority_class):
                shut |= mask
        if job.priority_class is not PriorityClass.PREEMPTIBLE and job.queue_reason is not QueueReason.FAULT:
            shut |= self._spares.held(job.spec.gpu_type)
        return ~shut if shut else None

    def moves_spares(self, given: list[Job], places: list[Ranks]) -> bool:
        """Might other nodes be spares, with these starts or rooms there? By a gang that has some, or on one of them."""
        if any(job.spec.gpus >= self._state.policy.spare_gang_gpus_min for job in given):
            return True
        if not self._spares.any:
            return False
        held = [self._spares.held(job.spec.gpu_type) for job in given]
        return any(spares >> index & 1 for spares, ranks in zip(held, places, strict=True) for index, _ in ranks)

    def home(self, job: Job) -> tuple[str, int]:
        """(name, bitset) of the pools that are there for the job, to be tried before the rest of the fleet; ("", 0):
        none. The name is that of the first."""
        name, bits = "", 0
        for rule, mask in self._masks:
            if mask and rule.is_for(job.spec, job.priority_class):
                name, bits = name or rule.name, bits | mask
        return name, bits

    def _declare(self) -> None:
        self.declared += 1
        masks = {rule.name: 0 for rule in self._state.policy.pools}
        if masks:
            for node in self._state.nodes.rows.values():
                rule = pool_of(self._state.policy.pools, node)
                if rule is not None:
                    masks[rule.name] |= 1 << node.index
        self._masks = [(rule, masks[rule.name]) for rule in self._state.policy.pools]


def _redraws(change: Change) -> bool:
    """Could the change of a node move it into a pool, or out of one?"""
    return change.old is None or change.new is None or change.old.block != change.new.block
