"""Exact integrals of what the fleet and its teams have, over time: GPU-ms, from the changes of accepted commits.

Between two commits nothing changes, so each line is its rate times the time since it last changed. Taken at intervals
as whole GPU-seconds, the rest carried on: they add up.
"""

from commands.changed import News
from commands.entities import Attempt, Job, Node, NodeState
from commands.shape import least_charge
from commands.state import Change, State
from events.ids import GpuType, Instant, JobId, NodeIndex, TeamId

ShareKey = tuple[TeamId, GpuType]


class Line:
    """One rate in GPUs, and its integral."""

    __slots__ = ("gpu_ms", "rate", "since")

    def __init__(self, now: Instant) -> None:
        self.rate = 0
        self.gpu_ms = 0
        self.since = now

    def add(self, now: Instant, gpus: int) -> None:
        """So many more from now on."""
        self.gpu_ms += self.rate * (now - self.since)
        self.since = now
        self.rate += gpus

    def take(self, now: Instant) -> int:
        """Whole GPU-seconds since they were last taken."""
        self.add(now, 0)
        seconds, self.gpu_ms = divmod(self.gpu_ms, 1000)
        return seconds


class OfType:
    """The fleet's lines of one type, and how many jobs wait for it."""

    __slots__ = ("allocated", "healthy", "held", "jobs", "waiting")

    def __init__(self, now: Instant) -> None:
        self.healthy, self.allocated, self.held, self.waiting = Line(now), Line(now), Line(now), Line(now)
        self.jobs = 0


class OfTeam:
    """A team's lines on one type. `entitled`: the smaller of demand and guarantee."""

    __slots__ = ("delivered", "demand", "entitled", "guaranteed")

    def __init__(self, now: Instant) -> None:
        self.delivered, self.demand, self.entitled = Line(now), Line(now), Line(now)
        self.guaranteed = 0

    def want(self, now: Instant, gpus: int, guaranteed: int = 0) -> None:
        """So much more demand, or guarantee, from now on."""
        self.guaranteed += guaranteed
        self.demand.add(now, gpus)
        self.entitled.add(now, min(self.demand.rate, self.guaranteed) - self.entitled.rate)


class Meters:
    """All lines of one state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.types: dict[GpuType, OfType] = {}
        self.teams: dict[ShareKey, OfTeam] = {}
        self._nodes: dict[NodeIndex, tuple[GpuType, int, int]] = {}
        self._waiting: dict[JobId, tuple[ShareKey, int, int]] = {}
        self._reserved: dict[NodeIndex, int] = {}

    def follow(self, now: Instant, news: News) -> None:
        """The changes of a commit that was accepted now."""
        for _, _, old, new in news.get("attempts", ()):
            self._attempt(now, old, new)
        for _, job_id, _, job in news.get("jobs", ()):
            self._job(now, job_id, job)
        for _, key, old, new in news.get("quotas", ()):
            before = old.guaranteed if old is not None else 0
            after = new.guaranteed if new is not None else 0
            self.of_team(now, key).want(now, 0, after - before)
        touched = {change.key: None for change in news.get("nodes", ())}
        for change in news.get("reservations", ()):
            self._reservation(change, touched)
        for index in touched:
            self._node(now, self._state.nodes[index])

    def of_type(self, now: Instant, gpu_type: GpuType) -> OfType:
        found = self.types.get(gpu_type)
        if found is None:
            found = self.types[gpu_type] = OfType(now)
        return found

    def of_team(self, now: Instant, key: ShareKey) -> OfTeam:
        found = self.teams.get(key)
        if found is None:
            found = self.teams[key] = OfTeam(now)
        return found

    def _attempt(self, now: Instant, old: Attempt | None, new: Attempt | None) -> None:
        row = new if new is not None else old
        assert row is not None, "a change of nothing"
        gpus = (new.charged if new is not None else 0) - (old.charged if old is not None else 0)
        if gpus:
            self.of_type(now, row.gpu_type).allocated.add(now, gpus)
            team = self.of_team(now, (row.team, row.gpu_type))
            team.delivered.add(now, gpus)
            team.want(now, gpus)

    def _job(self, now: Instant, job_id: JobId, job: Job | None) -> None:
        before = self._waiting.get(job_id)
        waits = job is not None and job.eligible
        if not waits and before is None:
            return
        if waits and before is not None and job is not None and before[2] == job.grants_max:
            return
        if before is not None:
            del self._waiting[job_id]
            self._wait(now, before[0], -before[1], -before[2])
        if waits and job is not None:
            key, count = (job.spec.team, job.spec.gpu_type), job.grants_max
            gpus = count * least_charge(self._state, job.spec)
            self._waiting[job_id] = (key, gpus, count)
            self._wait(now, key, gpus, count)

    def _wait(self, now: Instant, key: ShareKey, gpus: int, jobs: int) -> None:
        of_type = self.of_type(now, key[1])
        of_type.waiting.add(now, gpus)
        of_type.jobs += jobs
        self.of_team(now, key).want(now, gpus)

    def _reservation(self, change: Change, touched: dict[NodeIndex, None]) -> None:
        """Most of what is held stays so when it moves."""
        before, after = [set(row.nodes) if row is not None else set() for row in (change.old, change.new)]
        for left, by in ((before - after, -1), (after - before, 1)):
            for index in left:
                self._reserved[index] = self._reserved.get(index, 0) + by
                touched[index] = None

    def _node(self, now: Instant, node: Node) -> None:
        """What of a node is in service, and what of it idles under a pledge or a reservation."""
        whole = node.all_gpus & ~node.broken if node.state in (NodeState.UP, NodeState.SUSPECT) else 0
        if node.drained is not None:
            whole &= node.used
        idle = whole & ~node.used
        held = idle if self._reserved.get(node.index) else idle & node.pledged
        new = (node.gpu_type, whole.bit_count(), held.bit_count())
        old = self._nodes.get(node.index)
        if old == new:
            return
        self._nodes[node.index] = new
        for gpu_type, healthy_gpus, held_gpus, by in ((*old, -1) if old else (*new, 0), (*new, 1)):
            line = self.of_type(now, gpu_type)
            line.healthy.add(now, by * healthy_gpus)
            line.held.add(now, by * held_gpus)
