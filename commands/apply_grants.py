"""Grants, as facts, each checked against the newest state and the grants before it. The only place where allocations
come from.

Grants of a plan are many, so those that hold are folded together: until then what they take is kept here.
"""

from collections.abc import Callable, Iterable

from commands.apply_resizes import size_allowed
from commands.apply_rooms import start_pledged
from commands.decide.attempts import TOGETHER, Draft
from commands.entities import Job, Node, NodeState, Pledge
from commands.plan import Placement, Ranks
from commands.rows import maker
from commands.shape import breaks_hint, demanded, takes_whole_nodes
from events.gang import GangAllocated
from events.ids import GpuType, Instant, JobId, NodeIndex, TeamId, element_id
from events.job import JobElementMade, JobSpec, JobState

_allocated: Callable[..., GangAllocated] = maker(GangAllocated)


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


class _Grants:
    """Grants that are made, and not folded yet."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._state = draft.state
        self._jobs, self._nodes, self._pledges = draft.state.jobs.rows, draft.state.nodes.rows, draft.state.pledges.rows
        self._at = draft.state.meta.at
        self._epoch = draft.state.meta.epoch
        self._made: dict[JobId, GangAllocated] = {}
        self._left: dict[NodeIndex, int] = {}
        """Mask of the GPUs that they leave free, of each node in service that was looked at."""
        self._room: dict[tuple[TeamId, GpuType], int] = {}
        """GPUs that they leave each team of its guarantee and borrow limit."""

    def add(self, placement: Placement) -> str | None:
        """Grant it. Why that may not be, or None."""
        job_id, ranks = placement.job_id, placement.ranks
        job, pledge = self._jobs.get(job_id), self._pledges.get(job_id)
        if job is None:
            return "job_not_queued"
        if pledge is not None or job.elements is not None or job_id in self._made:
            self.fold()
            job = self._jobs[job_id]
        gpus = ranks[0][1].bit_count() if len(ranks) == 1 else sum([mask.bit_count() for _, mask in ranks])
        why = self._objection(job, ranks, pledge, gpus)
        if why is None:
            promised_n = start_pledged(self._draft, job_id) if pledge is not None else None
            self._grant(job if job.elements is None else self._next_element(job), placement, gpus, promised_n)
        if pledge is not None or len(self._made) >= TOGETHER:
            self.fold()  # what was free for a pledge's job is so for nobody else
        return why

    def fold(self) -> None:
        """Those made so far are facts."""
        self._draft.add_all(tuple(self._made.values()))
        self._made.clear()
        self._left.clear()
        self._room.clear()

    def _grant(self, job: Job, placement: Placement, gpus: int, promised_n: int | None) -> None:
        left_s, ranks, left = job.left_s, placement.ranks, self._left
        self._made[job.id] = _allocated(
            job_id=job.id,
            attempt=job.attempt + 1,
            ranks=ranks,
            limit_at=None if left_s is None else Instant(self._at + left_s * 1000),
            fallback=placement.fallback,
            promised_n=promised_n,
        )
        self._room[job.spec.team, job.spec.gpu_type] -= gpus
        for index, mask in ranks:
            left[index] &= ~mask

    def _next_element(self, array: Job) -> Job:
        """The next element of an array, which with this is a job of its own (R-7)."""
        assert array.spec.array is not None
        assert array.elements is not None
        index = array.spec.array.first + array.elements.made
        element = element_id(array.id, index)
        self._draft.add(JobElementMade(job_id=element, array=array.id, index=index))
        return self._state.jobs[element]

    # What may be

    def _objection(self, job: Job, ranks: Ranks, pledge: Pledge | None, gpus: int) -> str | None:
        """Why the job may not be placed so, or None."""
        spec = job.spec
        if not job.eligible:
            return _ineligible(job)
        if job.not_before_at is not None and self._at < job.not_before_at:
            return "job_waits_out_a_backoff"
        if not size_allowed(spec, len(ranks)):
            return "ranks_missing"
        if gpus > self._room_of((spec.team, spec.gpu_type)):
            return "over_quota"
        if pledge is not None and pledge.ranks != ranks:
            return "not_as_pledged"
        if len(ranks) == 1:
            return self._rank_objection(spec, ranks[0], pledge is not None) or self._division(spec, ranks)
        return self._ranks_objection(spec, ranks, pledge is not None)

    def _room_of(self, share: tuple[TeamId, GpuType]) -> int:
        """GPUs that the team may still be charged for: use stays within guarantee plus borrow limit (R-12)."""
        room = self._room.get(share)
        if room is None:
            quota, usage = self._state.quotas.get(share), self._state.usage.get(share)
            limit = quota.guaranteed + quota.borrow_limit if quota is not None else 0
            room = self._room[share] = limit - (usage.charged if usage is not None else 0)
        return room

    def _ranks_objection(self, spec: JobSpec, ranks: Ranks, pledged: bool) -> str | None:
        """`pledged`: its GPUs are pledged to the job itself."""
        claimed: dict[NodeIndex, int] = {}
        for rank in ranks:
            index, mask = rank
            others = claimed.get(index, 0)
            if mask & others:
                return "gpus_not_free"
            if (why := self._rank_objection(spec, rank, pledged)) is not None:
                return why
            claimed[index] = others | mask
        if (why := self._division(spec, claimed.items(), ranks=len(ranks))) is not None:
            return why
        return "hint_broken" if breaks_hint(self._state, demanded(spec), ranks) else None

    def _rank_objection(self, spec: JobSpec, rank: tuple[NodeIndex, int], pledged: bool) -> str | None:
        """Why the rank may not have these GPUs, or None."""
        index, mask = rank
        node = self._nodes.get(index)
        if node is None or node.gpu_type != spec.gpu_type:
            return "no_such_node"
        free = self._left.get(index)
        if free is None:
            if (why := self._out_of_service(node)) is not None:
                return why
            free = node.free | node.pledged & ~node.used & ~node.broken if pledged else node.free
            self._left[index] = free
        if mask & ~free:
            return "gpus_not_free"
        if mask.bit_count() < spec.gpus_per_replica:
            return "too_few_gpus"
        return "gpu_memory" if node.gpu_memory_gb < spec.gpu_memory_gb_min else None

    def _division(self, spec: JobSpec, claimed: Iterable[tuple[NodeIndex, int]], ranks: int = 1) -> str | None:
        """From a node's worth up every GPU of a node is claimed (R-32)."""
        nodes, size, whole = self._nodes, 0, None
        for index, mask in claimed:
            if len(nodes[index].gpus) != size:
                size = len(nodes[index].gpus)
                whole = (1 << size) - 1 if takes_whole_nodes(spec, size, ranks) else None
            if whole is not None and mask != whole:
                return "node_divided"
        return None

    def _out_of_service(self, node: Node) -> str | None:
        """Why nothing may be granted on the node, or None."""
        if node.state is not NodeState.UP or node.drained is not None:
            return "node_not_in_service"
        return "node_not_confirmed" if node.confirmed != self._epoch else None


def _ineligible(job: Job) -> str:
    if job.state is not JobState.QUEUED:
        return "job_not_queued"
    return "job_held" if job.held else "job_not_eligible"
