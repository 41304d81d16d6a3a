"""Pledges: room that was made for a job is its own until it starts (R-45). The one place where a pledge ends.

Most pledges stand for many cycles. One that was looked at is known to stand until it is given up, unless a commit
touches what that rests on: its job, its nodes, those that are to go, its team's quota and usage, the policy. (A new
epoch ends none: its nodes have to be confirmed first.)
"""

from collections.abc import Iterator
from typing import Any

from commands.changed import News
from commands.entities import Attempt, AttemptKey, NodeState, Pledge, Usage
from commands.plan import Placement
from commands.state import State
from events.ids import Instant, JobId, NodeIndex
from events.job import JobState
from events.preemption import PledgeEnd
from scheduler.planning.quota import ShareKey
from scheduler.planning.trial import Trial

RowKey = tuple[str, Any]
"""(table, key)."""


class Pledges:
    """The pledges of one state, in step with accepted commits."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._standing: dict[JobId, int] = {}
        """Those that stand, as nothing touched them since they were looked at; and until when, if nothing does."""
        self._resting: dict[RowKey, dict[JobId, Pledge]] = {}
        """Those that rest on a row."""
        for pledge in state.pledges.rows.values():
            self._enter(pledge)

    def follow(self, news: News) -> None:
        """What is news of an accepted commit."""
        for _, _, old, new in news.get("pledges", ()):
            if old is not None:
                self._leave(old)
            if new is not None:
                self._enter(new)
        if "policies" in news:
            self._standing.clear()
        if not self._standing:
            return
        resting = self._resting
        for name in _RESTED_ON:
            for table, key, old, new in news.get(name, ()):
                if (table, key) in resting and not (table == "usage" and _eases(old, new)):
                    self._touch(table, key)
        for _, _, old, new in news.get("attempts", ()):
            if _gives_back(old, new):
                for index, _ in new.ranks:
                    self._touch("nodes", index)

    def _touch(self, table: str, key: Any) -> None:
        """Something changed that pledges rest on. What their team has or may have is no matter below its limit."""
        for pledge in self._resting.get((table, key), {}).values():
            if table not in _LIMITS or _over_limit(self._state, pledge, 0):
                self._standing.pop(pledge.job_id, None)

    def _enter(self, pledge: Pledge) -> None:
        for row in _rests_on(pledge):
            self._resting.setdefault(row, {})[pledge.job_id] = pledge

    def _leave(self, pledge: Pledge) -> None:
        self._standing.pop(pledge.job_id, None)
        for row in _rests_on(pledge):
            del self._resting[row][pledge.job_id]
            if not self._resting[row]:
                del self._resting[row]

    def settle(self, trial: Trial) -> tuple[list[Placement], list[tuple[JobId, PledgeEnd]]]:
        """Starts of the jobs whose pledged GPUs are all free now, and the pledges that are over."""
        state = self._state
        placements: list[Placement] = []
        over: list[tuple[JobId, PledgeEnd]] = []
        starting: dict[ShareKey, int] = {}
        for job_id in self._to_look_at(trial.now, starting):
            pledge = state.pledges[job_id]
            key = (pledge.team, pledge.gpu_type)
            end = _end(state, pledge, starting.get(key, 0))
            if end is None:
                until = self._standing[job_id] = given_up_at(state, pledge)
                if trial.now <= until:
                    continue
                end = PledgeEnd.TOO_LATE
            over.append((job_id, end))
            if end is PledgeEnd.STARTED:
                placements.append(Placement(job_id=job_id, ranks=pledge.ranks))
                starting[key] = starting.get(key, 0) + pledge.gpus
            else:
                trial.unpledged.add(pledge.gpu_type)
        return placements, over

    def _to_look_at(self, now: Instant, starting: dict[ShareKey, int]) -> Iterator[JobId]:
        """In order; of those that stand the ones that are given up by now, or over the limit by what starts before:
        the caller notes that in `starting` as it goes."""
        standing, rows = self._standing, self._state.pledges.rows
        if len(standing) == len(rows) and now <= min(standing.values(), default=now):
            return
        for job_id in sorted(rows):
            before = starting.get((rows[job_id].team, rows[job_id].gpu_type), 0) if starting else 0
            if now > standing.get(job_id, -1) or (before and _over_limit(self._state, rows[job_id], before)):
                yield job_id

    def given_up(self) -> Iterator[int]:
        """When each is given up, if nothing happens."""
        for job_id, pledge in self._state.pledges.rows.items():
            until = self._standing.get(job_id)
            yield given_up_at(self._state, pledge) if until is None else until


_LIMITS = {"quotas", "usage"}
_RESTED_ON = ("nodes", "attempts", "jobs", *sorted(_LIMITS))
"""Tables whose rows pledges rest on."""


def _rests_on(pledge: Pledge) -> Iterator[RowKey]:
    share = (pledge.team, pledge.gpu_type)
    yield from (("jobs", pledge.job_id), ("quotas", share), ("usage", share))
    yield from (("nodes", index) for index in {index for index, _ in pledge.ranks})
    yield from (("attempts", key) for key in {*pledge.victims, *pledge.awaited})


def _eases(old: Usage | None, new: Usage | None) -> bool:
    """Has the team no more in use than before?"""
    return new is None or (old is not None and new.charged <= old.charged)


def _gives_back(old: Attempt | None, new: Attempt | None) -> bool:
    """Does it go on without some of its ranks? Then those leave their nodes."""
    if old is None or new is None:
        return False
    return (old.stopping, old.stopping_at) != (new.stopping, new.stopping_at)


def _end(state: State, pledge: Pledge, starting: int) -> PledgeEnd | None:
    """Why the pledge ends with this cycle; None where it stands, unless it is too late: somebody who was to go is still
    there when his grace is long over. `starting`: GPUs of its team that start before it.

    It is broken where its placement cannot come about any more, as its quota was lowered, say. In both cases the job is
    planned anew.
    """
    job = state.jobs.get(pledge.job_id)
    if job is None or job.state is not JobState.QUEUED or job.held:
        return PledgeEnd.GONE
    free = _free(state, pledge)
    if free is None or _over_limit(state, pledge, starting):
        return PledgeEnd.BROKEN
    return PledgeEnd.STARTED if free else None


def _over_limit(state: State, pledge: Pledge, starting: int) -> bool:
    """Would its start be over guarantee plus borrow limit, as they are now (R-12)?"""
    key = (pledge.team, pledge.gpu_type)
    quota, usage = state.quotas.get(key), state.usage.get(key)
    limit = quota.guaranteed + quota.borrow_limit if quota is not None else 0
    return (usage.charged if usage is not None else 0) + starting + pledge.gpus > limit


def _free(state: State, pledge: Pledge) -> bool | None:
    """Could it start on its nodes now? None: not any more, as a node is out of service, or another than it was, a GPU
    faulty, or in the hands of somebody who is not to go."""
    free, going = True, {*pledge.victims, *pledge.awaited}
    for index, mask in pledge.ranks:
        node = state.nodes[index]
        answers = node.state is NodeState.UP
        if not (answers or node.state is NodeState.SUSPECT) or node.drained is not None or node.broken & mask:
            return None
        if mask & ~node.pledged:
            return None  # it registered with another inventory: nothing of that was pledged
        if node.used & mask and _stays(state, index, mask, going):
            return None
        free = free and answers and not node.used & mask and node.confirmed == state.meta.epoch
    return free


def _stays(state: State, index: NodeIndex, mask: int, going: set[AttemptKey]) -> bool:
    for job_id, number, rank in state.nodes[index].leases:
        key = (job_id, number)
        if key not in going:
            attempt = state.attempts[key]
            if rank not in attempt.stopping and attempt.ranks[rank][1] & mask:
                return True
    return False


def given_up_at(state: State, pledge: Pledge) -> int:
    """When the last of those that are still there should have been gone, and a margin; not before others' ends that are
    awaited."""
    policy, margin_ms = state.policy, state.policy.pledge_margin_s * 1000
    ends = [pledge.at + policy.await_ends_s * 1000, *_ends_of_shrinking(state, pledge)]
    for key in (*pledge.victims, *pledge.awaited):
        attempt = state.attempts.get(key)
        if attempt is not None and attempt.ending_at is not None:
            ends.append(attempt.ending_at + attempt.grace_s * 1000)
    return max(ends) + margin_ms


def _ends_of_shrinking(state: State, pledge: Pledge) -> list[int]:
    """When ranks that elastic attempts go on without should be gone from the pledged nodes."""
    ends: list[int] = []
    for index, _ in pledge.ranks:
        for job_id, number, rank in state.nodes[index].leases:
            attempt = state.attempts[job_id, number]
            if attempt.stopping_at is not None and rank in attempt.stopping:
                grace_s = min(state.jobs[job_id].spec.checkpoint.grace_s, state.policy.grace_s_max)
                ends.append(attempt.stopping_at + grace_s * 1000)
    return ends
