"""Swaps: rooms in a row, of which each gives a job the very GPUs of one that borrows them. So a team takes back what
others have filled with jobs of the same size.

After a swap the nodes could give what they could give before, less one victim. So the next search would find the best
of what is first in each ranking again (preempt_shared), and that is all that is looked at here. What is no swap is left
to the search.
"""

from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from commands.entities import Job
from commands.plan import Room
from commands.rows import filler, maker
from commands.state import State
from events.ids import JobId, NodeIndex
from events.preemption import PreemptionRule
from scheduler.planning.preempt_ask import Ask
from scheduler.planning.preempt_ground import Rank, Ranking, is_borrowed
from scheduler.planning.preempt_own import Own
from scheduler.planning.preempt_shared import rankings
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex

_room = maker(Room)


class Head(NamedTuple):
    """The first of a ranking. In order: the least harm, the team that is furthest over its share, and so on (R-40)."""

    gpus: int
    minus_saved_at: int
    minus_over: int
    began: tuple[int, JobId, int]
    node: NodeIndex
    rank: Rank
    level: int
    ranking: Ranking
    nodes: int


_head = filler(Head)


def is_swap(state: State, room: Room) -> bool:
    """Does the room lie on the very GPUs of its one victim?"""
    return len(room.ranks) == len(room.victims) == 1 and state.attempts[room.victims[0]].ranks == room.ranks


class Swaps:
    """The swaps that go on with the search for the last room, which was one."""

    def __init__(self, trial: Trial, victims: VictimIndex, ask: Ask) -> None:
        self._trial = trial
        self._victims = victims
        self._ask = ask
        self._heads: list[Head] | None = None

    def another(self, job: Job, own: Own) -> Room | None:
        """The next, for a job that is alike; None: it has to be searched for. `own`: what its quota gives."""
        trial, ask = self._trial, self._ask
        if trial.uncovers or job.spec.gpu_type in trial.left_over or not own.suffices(ask.gpus):
            return None
        head = self._first()
        if head is None or not self._swappable(head):
            return None
        key, share = head.rank.key, (job.spec.team, job.spec.gpu_type)
        ranks = trial.state.attempts[key].ranks
        self._victims.swap(key, *ranks[0])
        self._go_on(head)
        trial.stopping.add(key)
        trial.shares.grant(share, ask.gpus, ask.covered)
        if ask.covered:
            trial.reclaims.add(share)
        rule = PreemptionRule.RECLAIM if ask.covered else PreemptionRule.PRIORITY
        return _room(job_id=job.id, ranks=ranks, victims=(key,), awaited=(), rule=rule, shrinks=())

    def _first(self) -> Head | None:
        """The best of all. With each that stops its team is less over its share: that is looked up as it is met."""
        if self._heads is None:
            self._heads = self._begin()
        heads, gpu_type = self._heads, self._ask.spec.gpu_type
        while heads:
            head = heads[0]
            minus_over = -self._victims.over_share(head.rank.team, gpu_type)
            if minus_over == head.minus_over:
                return head
            heapreplace(heads, head._replace(minus_over=minus_over))
        return None

    def _begin(self) -> list[Head]:
        """Nobody, where nobody has to stop."""
        ask = self._ask
        if ask.begin == len(ask.steps):
            return []
        step = ask.steps[ask.begin]
        nodes = ask.nodes_with(step, ask.need)
        if nodes & ask.ground.at_least(0, ask.need):
            return []
        heads = [self._head(level, ranking, there) for level, ranking, there in rankings(ask, step, nodes)]
        found = [head for head in heads if head is not None]
        heapify(found)
        return found

    def _head(self, level: int, ranking: Ranking, nodes: int) -> Head | None:
        first = ranking.first(nodes)
        if first is None:
            return None
        rank, node = first
        minus_over = -self._victims.over_share(rank.team, self._ask.spec.gpu_type)
        return _head((rank.gpus, rank.minus_saved_at, minus_over, rank[3:], node, rank, level, ranking, nodes))

    def _go_on(self, head: Head) -> None:
        """The first is stopped: after it comes the next of its ranking."""
        assert self._heads is not None
        after = self._head(head.level, head.ranking, head.nodes)
        if after is not None:
            heapreplace(self._heads, after)
        else:
            heappop(self._heads)

    def _swappable(self, head: Head) -> bool:
        """Does somebody of another team, who borrows, hold there just what the job needs, and nothing else?"""
        ask, rank = self._ask, head.rank
        ranks = self._trial.state.attempts[rank.key].ranks
        if len(ranks) > 1 or ranks[0][1].bit_count() != ask.need or self._victims.places[head.node].base:
            return False
        return rank.team != ask.spec.team and is_borrowed(head.level) and rank.gpus <= ask.gpus_max
