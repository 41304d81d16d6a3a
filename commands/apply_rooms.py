"""Room for a job, as facts: what is pledged to it and who is stopped for it, all in one commit or not at all (R-45).

Every rule is checked against the newest state: a victim that may not be displaced any more, or GPUs that are somebody
else's by now, and nobody is stopped.
"""

from typing import cast

from commands.apply_resizes import shrink, shrink_objection, size_allowed
from commands.coverage import borrowed_now
from commands.decide.attempts import Draft, end_attempt
from commands.displace import may_displace
from commands.entities import AttemptKey, Job, Node, NodeState
from commands.plan import Room
from commands.rows import maker
from commands.shape import breaks_hint, demanded, takes_whole_nodes
from commands.state import State
from events.ids import GpuMask, GpuType, JobId, NodeIndex, TeamId
from events.job import EndReason
from events.preemption import PledgeEnd, PreemptionEnded, PreemptionOrdered, PreemptionRule

_ordered = maker(PreemptionOrdered)


def end_pledges(draft: Draft, over: tuple[tuple[JobId, PledgeEnd], ...]) -> None:
    """Pledges that end, but for those whose jobs start: these hold until the very grant."""
    for job_id, because in over:
        if job_id in draft.state.pledges and because is not PledgeEnd.STARTED:
            draft.add(PreemptionEnded(job_id=job_id, because=because))


def start_pledged(draft: Draft, job_id: JobId) -> int | None:
    """The job's grant is next: what is pledged to it becomes free, for it. The commit that pledged it; None: none."""
    pledge = draft.state.pledges.get(job_id)
    if pledge is None:
        return None
    draft.add(PreemptionEnded(job_id=job_id, because=PledgeEnd.STARTED))
    return pledge.ordered_n


def make_rooms(draft: Draft, rooms: tuple[Room, ...], planned_at_n: int) -> list[tuple[JobId, str]]:
    """Orders for the rooms that may be made; the others with why not."""
    stale: list[tuple[JobId, str]] = []
    standing = _Standing(draft.state, as_planned=planned_at_n == draft.state.meta.n - 1)
    for room in rooms:
        why = _objection(draft.state, room, standing)
        if why is not None:
            stale.append((room.job_id, why))
            continue
        draft.add(
            _ordered(
                job_id=room.job_id,
                rule=room.rule,
                ranks=cast("tuple[tuple[NodeIndex, GpuMask], ...]", room.ranks),
                victims=room.victims,
                awaited=room.awaited,
            )
        )
        for key, stopped in room.shrinks:
            shrink(draft, key, stopped, on_behalf_of=room.job_id)
        for key in room.victims:
            end_attempt(draft, key, EndReason.PREEMPTED)
    return stale


class _Standing:
    """Who borrows. Where nothing came between plan and commit the planner's word stands, as long as the team uses more
    than its guarantee at all; else its leases are walked anew."""

    def __init__(self, state: State, as_planned: bool) -> None:
        self._state = state
        self._as_planned = as_planned
        self._known: dict[tuple[TeamId, GpuType], tuple[int, frozenset[AttemptKey]]] = {}
        self._uses_more: dict[tuple[TeamId, GpuType], bool] = {}

    def may_displace(self, room: Room, job: Job, key: AttemptKey) -> bool:
        state = self._state
        attempt = state.attempts[key]
        victim = state.jobs[attempt.job_id]
        share = (attempt.team, attempt.gpu_type)
        covered = room.rule is PreemptionRule.RECLAIM or self._covered(job, room)
        borrows = self._over(share) if self._as_planned else key in self._walk(share)[1]
        now, policy = state.meta.at, state.policy
        if may_displace(policy, now, job, covered, victim, attempt, borrows):
            return True
        return self._as_planned and borrows and may_displace(policy, now, job, covered, victim, attempt, False)

    def covered_still(self, room: Room, job: Job) -> bool:
        """Who reclaims has to be covered."""
        return room.rule is not PreemptionRule.RECLAIM or self._covered(job, room)

    def _covered(self, job: Job, room: Room) -> bool:
        if self._as_planned:
            return True
        gpus = sum(mask.bit_count() for _, mask in room.ranks)
        return gpus <= self._walk((job.spec.team, job.spec.gpu_type))[0]

    def _over(self, share: tuple[TeamId, GpuType]) -> bool:
        """Does the team use more than its guarantee, what is pledged to it included?"""
        known = self._uses_more.get(share)
        if known is None:
            state = self._state
            quota, usage = state.quotas.get(share), state.usage.get(share)
            pledged = sum(row.gpus for row in state.pledges.rows.values() if (row.team, row.gpu_type) == share)
            use = (usage.charged if usage is not None else 0) + pledged
            known = self._uses_more[share] = use > (quota.guaranteed if quota is not None else 0)
        return known

    def _walk(self, share: tuple[TeamId, GpuType]) -> tuple[int, frozenset[AttemptKey]]:
        if share not in self._known:
            self._known[share] = borrowed_now(self._state, *share)
        return self._known[share]


def _objection(state: State, room: Room, standing: _Standing) -> str | None:
    job = state.jobs.get(room.job_id)
    if job is None or not job.eligible:
        return "job_not_queued"
    if job.id in state.pledges:
        return "pledged_already"
    if not size_allowed(job.spec, len(room.ranks)):
        return "ranks_missing"
    if bool(room.victims) is (room.rule is PreemptionRule.NOBODY):
        return "rule_wrong"
    if not standing.covered_still(room, job):
        return "not_covered"
    for key in room.victims:
        attempt = state.attempts.get(key)
        if attempt is None or attempt.ending is not None:
            return "victim_ends_already"
        if not standing.may_displace(room, job, key):
            return "victim_not_eligible"
    for key, stopped in room.shrinks:
        if (why := shrink_objection(state, key, stopped)) is not None:
            return why
    if breaks_hint(state, demanded(job.spec), room.ranks):
        return "hint_broken"
    return _ranks_objection(state, job, room)


def _ranks_objection(state: State, job: Job, room: Room) -> str | None:
    """Every GPU is free, or held by one that is to end."""
    masks: dict[NodeIndex, int] = {}
    for index, mask in room.ranks:
        if mask & masks.get(index, 0) or mask.bit_count() < job.spec.gpus_per_replica:
            return "ranks_wrong"
        masks[index] = masks.get(index, 0) | mask
    going = _going(state, room)
    for index, mask in masks.items():
        node = state.nodes.get(index)
        if node is None or (why := _node_objection(state, job, node)) is not None:
            return why if node is not None else "no_such_node"
        if mask & (node.pledged | node.broken):
            return "gpus_not_free"
        stays = node.used & ~going.get(index, 0)
        alone = takes_whole_nodes(job.spec, len(node.gpus), len(room.ranks))
        if stays and (alone or mask & stays):
            stays &= ~_stopping(state, node)
        if mask & stays:
            return "gpus_not_free"
        if stays and alone:
            return "node_shared"
    return None


def _going(state: State, room: Room) -> dict[NodeIndex, int]:
    """GPUs by node of those that are stopped, awaited or given back for the room."""
    found: dict[NodeIndex, int] = {}
    for key in (*room.victims, *room.awaited):
        attempt = state.attempts.get(key)
        for index, mask in attempt.held if attempt is not None else ():
            found[index] = found.get(index, 0) | mask
    for key, stopped in room.shrinks:
        for rank in stopped:
            index, mask = state.attempts[key].ranks[rank]
            found[index] = found.get(index, 0) | mask
    return found


def _stopping(state: State, node: Node) -> int:
    """GPUs of ranks that elastic attempts go on without already."""
    mask = 0
    for job_id, number, rank in node.leases:
        attempt = state.attempts[job_id, number]
        if rank in attempt.stopping:
            mask |= attempt.ranks[rank][1]
    return mask


def _node_objection(state: State, job: Job, node: Node) -> str | None:
    if node.gpu_type != job.spec.gpu_type or node.gpu_memory_gb < job.spec.gpu_memory_gb_min:
        return "no_such_node"
    if node.state is not NodeState.UP or node.drained is not None or node.confirmed != state.meta.epoch:
        return "node_not_in_service"
    return None
