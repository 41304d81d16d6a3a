"""What a day comes to: waits, use, shares, preemptions, and the work that was kept.

Told of every accepted commit; use and demand are sampled each minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from commands.entities import AttemptKey, NodeState
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangRunning
from events.ids import Instant, JobId, TeamId
from events.job import PriorityClass
from events.preemption import PledgeEnd, PreemptionEnded, PreemptionOrdered, PreemptionRule
from events.reservation import BlocksMoved, BlocksReserved
from tests.days.world import World

SAMPLE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job's first start. `at_s`: when; `wait_s`: since it was submitted."""

    job_id: JobId
    team: TeamId
    priority_class: PriorityClass
    gpus: int
    at_s: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """One order: who, by which rule, on whose behalf. `evicted`, `asked`: GPUs."""

    at: Instant
    preemptor: JobId
    rule: PreemptionRule
    victims: tuple[JobId, ...]
    evicted: int
    asked: int


class Ledger:
    """The figures of one world, from when it is made."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.starts: list[Start] = []
        self.preemptions: list[Preemption] = []
        self.reclaims_s: list[float] = []
        """From an order to the start that it was for."""
        self.pledges_lost: list[PledgeEnd] = []
        self.estimates: dict[JobId, list[tuple[Instant, Instant]]] = {}
        """Reserved job -> (when, expected start) each time it was reserved or moved."""
        self.allocated: list[tuple[int, int]] = []
        """(GPUs charged, healthy GPUs) of each sample."""
        self.stopped: dict[AttemptKey, int] = {}
        """Attempts that were told to stop while they ran -> ms of the job's work that were done."""
        self.resumed: dict[AttemptKey, int] = {}
        """Attempts that ran -> ms of work that were done before."""
        self.lost_gpu_s = 0
        """Work that was done, and is done again."""
        self._reached: dict[JobId, int] = {}
        self.delivered: dict[TeamId, int] = {}
        self.entitled: dict[TeamId, int] = {}
        """GPU-minutes by team."""
        self._ordered: dict[JobId, Instant] = {}
        self._sampled = world.core.now
        world.core.watchers.append(self.see)
        world.each_step.append(self.sample)

    def see(self, events: tuple[Event, ...]) -> None:
        now = self.world.core.now
        for event in events:
            if isinstance(event, GangAllocated):
                self._started(event)
            elif isinstance(event, GangRunning):
                self._runs((event.job_id, event.attempt))
            elif isinstance(event, GangEnding):
                self._stops((event.job_id, event.attempt))
            elif isinstance(event, PreemptionOrdered):
                self._preempted(event)
            elif isinstance(event, PreemptionEnded):
                ordered = self._ordered.pop(event.job_id)
                if event.because is PledgeEnd.STARTED:
                    self.reclaims_s.append((now - ordered) / 1000)
                else:
                    self.pledges_lost.append(event.because)
            elif isinstance(event, BlocksReserved | BlocksMoved):
                self.estimates.setdefault(event.job_id, []).append((now, event.start_at))

    def _started(self, event: GangAllocated) -> None:
        if event.attempt != 1:
            return
        job, now = self.world.state.jobs[event.job_id], self.world.core.now
        self.starts.append(
            Start(
                job_id=job.id,
                team=job.spec.team,
                priority_class=job.priority_class,
                gpus=job.spec.gpus,
                at_s=self.world.second,
                wait_s=(now - job.submitted_at) / 1000,
            )
        )

    def _runs(self, key: AttemptKey) -> None:
        run = self.world.agents.runs.get(key)
        if run is not None:
            self.resumed[key] = run.done_ms
            again_ms = max(0, self._reached.pop(key[0], 0) - run.done_ms)
            self.lost_gpu_s += again_ms * self.world.state.jobs[key[0]].spec.gpus // 1000

    def _stops(self, key: AttemptKey) -> None:
        run = self.world.agents.runs.get(key)
        if run is not None and run.running_at is not None:
            self.stopped[key] = self._reached[key[0]] = run.done(self.world.core.now)

    def _preempted(self, event: PreemptionOrdered) -> None:
        attempts, now = self.world.state.attempts, self.world.core.now
        self._ordered[event.job_id] = now
        self.preemptions.append(
            Preemption(
                at=now,
                preemptor=event.job_id,
                rule=event.rule,
                victims=tuple(job_id for job_id, _ in event.victims),
                evicted=sum(attempts[key].charged for key in event.victims),
                asked=sum(mask.bit_count() for _, mask in event.ranks),
            )
        )

    def sample(self) -> None:
        """Use and demand, for each whole minute that is over."""
        world = self.world
        minutes = (world.core.now - self._sampled) // SAMPLE_MS
        if not minutes:
            return
        self._sampled = Instant(self._sampled + minutes * SAMPLE_MS)
        state = world.state
        healthy = sum(
            (node.all_gpus & ~node.broken).bit_count()
            for node in state.nodes.rows.values()
            if node.state is NodeState.UP and node.drained is None
        )
        used = sum(usage.charged for usage in state.usage.rows.values())
        self.allocated += [(used, healthy)] * minutes
        wanted = self._queued()
        for key, quota in state.quotas.rows.items():
            usage = state.usage.get(key)
            use = usage.charged if usage is not None else 0
            demand = use + wanted.get(key[0], 0)
            self.delivered[key[0]] = self.delivered.get(key[0], 0) + use * minutes
            entitled = min(demand, quota.guaranteed) * minutes
            self.entitled[key[0]] = self.entitled.get(key[0], 0) + entitled

    def _queued(self) -> dict[TeamId, int]:
        wanted: dict[TeamId, int] = {}
        for line in self.world.core.planner.queue.lines.values():
            gpus = self.world.state.jobs[line.entries[0][1]].spec.gpus * len(line.entries)
            wanted[line.team] = wanted.get(line.team, 0) + gpus
        return wanted

    # Figures

    def wait_s(self, percent: float, wanted: Callable[[Start], bool] = lambda _: True) -> float:
        """So many percent of the first starts that are wanted waited no longer."""
        return quantile([start.wait_s for start in self.starts if wanted(start)], percent)

    def allocated_share(self, from_minute: int = 0) -> float:
        """Part of the healthy GPUs that was allocated."""
        samples = self.allocated[from_minute:]
        return sum(used for used, _ in samples) / sum(healthy for _, healthy in samples)

    def evicted_ratio(self) -> float:
        """Of the orders that stopped somebody."""
        return evicted_ratio(one for one in self.preemptions if one.victims)

    def kept_share(self) -> float:
        """Part of the allocated GPU-time that went to work that was kept: not done twice."""
        return 1 - self.lost_gpu_s / max(1, 60 * sum(used for used, _ in self.allocated))


def quantile(values: Iterable[float], percent: float) -> float:
    """The smallest value that so many percent are not above."""
    ordered = sorted(values)
    assert ordered, "nothing was measured"
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def evicted_ratio(orders: Iterable[Preemption]) -> float:
    """GPUs stopped for each one that was asked for (C-12)."""
    listed = list(orders)
    return sum(one.evicted for one in listed) / max(1, sum(one.asked for one in listed))
