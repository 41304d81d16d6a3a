"""Grants, as facts, each checked against the newest state and the grants before it. The only place where allocations
come from.

Grants of a plan are many, so those that hold are folded together: until then what they take is kept here.
"""

from collections.abc import Iterable
from typing import cast

from commands.apply_resizes import size_allowed
from commands.apply_rooms import start_pledged
from commands.decide.attempts import Draft
from commands.entities import Job, Node, NodeState, Pledge
from commands.plan import Placement
from commands.rows import maker
from commands.shape import breaks_hint, demanded, takes_whole_nodes
from events.gang import GangAllocated
from events.ids import GpuMask, GpuType, Instant, JobId, NodeIndex, TeamId, element_id
from events.job import JobElementMade, JobSpec, JobState

_allocated = maker(GangAllocated)


def make_grants(draft: Draft, placements: Iterable[Placement]) -> list[tuple[JobId, str]]:
    """Grants that may be made; the others with why not."""
    grants = _Grants(draft)
    stale: list[tuple[JobId, str]] = []
    for placement in placements:
        why = grants.add(placement)
        if why is not None:
            stale.append((placement.job_id, why))
    grants.fold()
    return stale


class _Ground:
    """A node as the grants so far leave it. `left`: mask of its free GPUs; `out`: why nothing may be granted on it."""

    __slots__ = ("left", "node", "out")

    def __init__(self, node: Node, left: int, out: str | None) -> None:
        self.node = node
        self.left = left
        self.out = out


class _Grants:
    """Grants that are made, and not folded yet."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._state = draft.state
        self._at = draft.state.meta.at
        self._epoch = draft.state.meta.epoch
        self._made: dict[JobId, GangAllocated] = {}
        self._grounds: dict[NodeIndex, _Ground] = {}
        """The nodes that were looked at."""
        self._room: dict[tuple[TeamId, GpuType], int] = {}
        """GPUs that they leave each team of its guarantee and borrow limit."""

    def add(self, placement: Placement) -> str | None:
        """Grant it. Why that may not be, or None."""
        job = self._state.jobs.rows.get(placement.job_id)
        if job is None:
            return "job_not_queued"
        pledge = self._state.pledges.rows.get(job.id)
        if pledge is not None or job.elements is not None or job.id in self._made:
            self.fold()
            job = self._state.jobs[job.id]
        ranks = placement.ranks
        gpus = ranks[0][1].bit_count() if len(ranks) == 1 else sum([mask.bit_count() for _, mask in ranks])
        why = self._objection(job, placement, pledge, gpus)
        if why is None:
            promised_n = start_pledged(self._draft, job.id) if pledge is not None else None
            self._grant(self._job_to_grant(job), placement, gpus, promised_n)
        if pledge is not None:
            self.fold()  # what was free for this job is so for nobody else
        return why

    def fold(self) -> None:
        """Those made so far are facts."""
        self._draft.add_all(tuple(self._made.values()))
        self._made.clear()
        self._grounds.clear()
        self._room.clear()

    def _grant(self, job: Job, placement: Placement, gpus: int, promised_n: int | None) -> None:
        left_s = job.left_s
        self._made[job.id] = _allocated(
            job_id=job.id,
            attempt=job.attempt + 1,
            ranks=cast("tuple[tuple[NodeIndex, GpuMask], ...]", placement.ranks),
            limit_at=None if left_s is None else Instant(self._at + left_s * 1000),
            fallback=placement.fallback,
            promised_n=promised_n,
        )
        self._room[job.spec.team, job.spec.gpu_type] -= gpus
        for index, mask in placement.ranks:
            self._grounds[index].left &= ~mask

    def _job_to_grant(self, job: Job) -> Job:
        """The job itself; of an array its next element, which with this is a job of its own (R-7)."""
        if job.spec.array is None or job.elements is None:
            return job
        index = job.spec.array.first + job.elements.made
        element = element_id(job.id, index)
        self._draft.add(JobElementMade(job_id=element, array=job.id, index=index))
        return self._state.jobs[element]

    # What may be

    def _objection(self, job: Job, placement: Placement, pledge: Pledge | None, gpus: int) -> str | None:
        """Why the placement may not be made, or None."""
        if not job.eligible:
            return _ineligible(job)
        if job.not_before_at is not None and self._at < job.not_before_at:
            return "job_waits_out_a_backoff"
        if not size_allowed(job.spec, len(placement.ranks)):
            return "ranks_missing"
        if gpus > self._room_of(job):
            return "over_quota"
        if pledge is not None and pledge.ranks != placement.ranks:
            return "not_as_pledged"
        return self._ranks_objection(job, placement, pledge is not None)

    def _room_of(self, job: Job) -> int:
        """GPUs that the team may still be charged for: use stays within guarantee plus borrow limit (R-12)."""
        key = (job.spec.team, job.spec.gpu_type)
        room = self._room.get(key)
        if room is None:
            quota, usage = self._state.quotas.get(key), self._state.usage.get(key)
            limit = quota.guaranteed + quota.borrow_limit if quota is not None else 0
            room = self._room[key] = limit - (usage.charged if usage is not None else 0)
        return room

    def _ranks_objection(self, job: Job, placement: Placement, pledged: bool) -> str | None:
        """`pledged`: its GPUs are pledged to the job itself."""
        spec, ranks, looked_at = job.spec, placement.ranks, self._grounds
        each, gpu_type, memory_gb_min = spec.gpus_per_replica, spec.gpu_type, spec.gpu_memory_gb_min
        claimed: dict[NodeIndex, int] = {}
        for index, mask in ranks:
            ground = looked_at.get(index) or self._look_at(index, pledged)
            if ground is None or ground.node.gpu_type != gpu_type:
                return "no_such_node"
            if ground.out is not None:
                return ground.out
            others = claimed.get(index, 0)
            if mask & ~ground.left or mask & others:
                return "gpus_not_free"
            if mask.bit_count() < each:
                return "too_few_gpus"
            if ground.node.gpu_memory_gb < memory_gb_min:
                return "gpu_memory"
            claimed[index] = others | mask
        if self._divides_a_node(spec, claimed, len(ranks)):
            return "node_divided"
        return "hint_broken" if breaks_hint(self._state, demanded(spec), ranks) else None

    def _look_at(self, index: NodeIndex, pledged: bool) -> "_Ground | None":
        """The node, if there is such a one. `pledged`: what is pledged on it is for the job itself."""
        node = self._state.nodes.rows.get(index)
        if node is None:
            return None
        free = node.free | node.pledged & ~node.used & ~node.broken if pledged else node.free
        ground = self._grounds[index] = _Ground(node, free, self._out(node))
        return ground

    def _out(self, node: Node) -> str | None:
        """Why nothing may be granted on the node, or None."""
        if node.state is not NodeState.UP or node.drained is not None:
            return "node_not_in_service"
        return "node_not_confirmed" if node.confirmed != self._epoch else None

    def _divides_a_node(self, spec: JobSpec, claimed: dict[NodeIndex, int], ranks: int) -> bool:
        """From a node's worth up every GPU of a node is claimed (R-32)."""
        whole: dict[int, bool] = {}
        """Whether nodes of so many GPUs are its alone."""
        for index, mask in claimed.items():
            node = self._grounds[index].node
            size = len(node.gpus)
            if size not in whole:
                whole[size] = takes_whole_nodes(spec, size, ranks)
            if whole[size] and mask != node.all_gpus:
                return True
        return False


def _ineligible(job: Job) -> str:
    if job.state is not JobState.QUEUED:
        return "job_not_queued"
    return "job_held" if job.held else "job_not_eligible"
