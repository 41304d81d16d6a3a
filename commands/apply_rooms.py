"""Room for a job, as facts: what is pledged to it and who is stopped for it, all in one commit or not at all (R-45).

Every rule is checked against the newest state: a victim that may not be displaced any more, or GPUs that are somebody
else's by now, and nobody is stopped.
"""

from collections.abc import Callable
from typing import cast

from commands.apply_resizes import shrink, shrink_objection, size_allowed
from commands.coverage import borrowed_now
from commands.decide.attempts import TOGETHER, Draft, ending_of
from commands.displace import may_displace
from commands.entities import Attempt, AttemptKey, Job, Node, NodeState
from commands.plan import Room
from commands.rows import maker
from commands.shape import breaks_hint, demanded, takes_whole_nodes
from commands.state import State
from events.envelope import Event
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
    made = _Rooms(draft, as_planned=planned_at_n == draft.state.meta.n - 1)
    stale: list[tuple[JobId, str]] = []
    for room in rooms:
        why = made.add(room)
        if why is not None:
            stale.append((room.job_id, why))
    made.fold()
    return stale


class _Rooms:
    """Rooms that are made. Those of which nobody gives back a part are folded together: until then what they pledge and
    whom they stop is kept here."""

    def __init__(self, draft: Draft, *, as_planned: bool) -> None:
        self._draft = draft
        self._state = draft.state
        self._standing = _Standing(draft.state, as_planned, self.fold)
        self._facts: list[Event] = []
        self._ordered: set[JobId] = set()
        self._stopped: set[AttemptKey] = set()
        self._pledged: dict[NodeIndex, int] = {}

    def add(self, room: Room) -> str | None:
        """Make it. Why that may not be, or None."""
        if room.shrinks:
            self.fold()
        why = self._objection(room)
        if why is not None:
            return why
        ranks = cast("tuple[tuple[NodeIndex, GpuMask], ...]", room.ranks)
        self._ordered.add(room.job_id)
        for index, mask in ranks:
            self._pledged[index] = self._pledged.get(index, 0) | mask
        self._facts.append(
            _ordered(job_id=room.job_id, rule=room.rule, ranks=ranks, victims=room.victims, awaited=room.awaited)
        )
        if room.shrinks:
            self.fold()
            for key, stopped in room.shrinks:
                shrink(self._draft, key, stopped, on_behalf_of=room.job_id)
        for key in room.victims:
            if key not in self._stopped:
                self._stopped.add(key)
                self._facts.append(ending_of(self._state, self._state.attempts.rows[key], EndReason.PREEMPTED))
        if len(self._ordered) >= TOGETHER:
            self.fold()
        return None

    def fold(self) -> None:
        """Those made so far are facts."""
        self._draft.add_all(self._facts)
        self._facts = []
        self._ordered.clear()
        self._stopped.clear()
        self._pledged.clear()

    # What may be

    def _objection(self, room: Room) -> str | None:
        """Why the room may not be made, or None."""
        state, standing = self._state, self._standing
        job = state.jobs.rows.get(room.job_id)
        if job is None or not job.eligible:
            return "job_not_queued"
        if job.id in self._ordered or job.id in state.pledges.rows:
            return "pledged_already"
        if not size_allowed(job.spec, len(room.ranks)):
            return "ranks_missing"
        if bool(room.victims) is (room.rule is PreemptionRule.NOBODY):
            return "rule_wrong"
        if not standing.covered_still(room, job):
            return "not_covered"
        for key in room.victims:
            attempt = state.attempts.rows.get(key)
            if attempt is None or attempt.ending is not None or key in self._stopped:
                return "victim_ends_already"
            if not standing.may_displace(room, job, attempt):
                return "victim_not_eligible"
        for key, stopped in room.shrinks:
            if (why := shrink_objection(state, key, stopped)) is not None:
                return why
        if breaks_hint(state, demanded(job.spec), room.ranks):
            return "hint_broken"
        return self._ranks_objection(job, room)

    def _ranks_objection(self, job: Job, room: Room) -> str | None:
        """Every GPU is free, or held by one that is to end."""
        state, each = self._state, job.spec.gpus_per_replica
        masks: dict[NodeIndex, int] = {}
        for index, mask in room.ranks:
            if mask & masks.get(index, 0) or mask.bit_count() < each:
                return "ranks_wrong"
            masks[index] = masks.get(index, 0) | mask
        going = _going(state, room)
        for index, mask in masks.items():
            node = state.nodes.rows.get(index)
            if node is None or (why := _node_objection(state, job, node)) is not None:
                return why if node is not None else "no_such_node"
            if mask & (node.pledged | node.broken | self._pledged.get(index, 0)):
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


class _Standing:
    """Who borrows. Where nothing came between plan and commit the planner's word stands, as long as the team uses more
    than its guarantee at all; else its leases are walked anew."""

    def __init__(self, state: State, as_planned: bool, fold: Callable[[], None]) -> None:
        """`fold`: makes facts of the rooms so far; a team is looked at with them."""
        self._state = state
        self._as_planned = as_planned
        self._fold = fold
        self._known: dict[tuple[TeamId, GpuType], tuple[int, frozenset[AttemptKey]]] = {}
        self._uses_more: dict[tuple[TeamId, GpuType], bool] = {}

    def may_displace(self, room: Room, job: Job, attempt: Attempt) -> bool:
        state = self._state
        victim = state.jobs.rows[attempt.job_id]
        share = (attempt.team, attempt.gpu_type)
        covered = room.rule is PreemptionRule.RECLAIM or self._covered(job, room)
        borrows = self._over(share) if self._as_planned else attempt.key in self._walk(share)[1]
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
            self._fold()
            state = self._state
            quota, usage = state.quotas.get(share), state.usage.get(share)
            pledged = sum(row.gpus for row in state.pledges.rows.values() if (row.team, row.gpu_type) == share)
            use = (usage.charged if usage is not None else 0) + pledged
            known = self._uses_more[share] = use > (quota.guaranteed if quota is not None else 0)
        return known

    def _walk(self, share: tuple[TeamId, GpuType]) -> tuple[int, frozenset[AttemptKey]]:
        if share not in self._known:
            self._fold()
            self._known[share] = borrowed_now(self._state, *share)
        return self._known[share]


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
