"""What one job asks for when room is to be made for it: which leases it may displace, in which order, and what that
costs (R-40, R-43, C-12).

The search goes by steps. Each step lets in one more level of victims; the first step in which there is a solution is
the one that does least harm: borrowed before covered, low classes before higher ones, shielded ones last.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from commands.entities import Job
from commands.shape import charged_gpus, demanded, takes_whole_nodes
from events.ids import NodeIndex, TeamId
from events.job import CLASS_RANK, JobSpec, PriorityClass, Span
from scheduler.planning.capacity import indexes_of
from scheduler.planning.preempt_ground import COVERED, SHIELDED, VIEWS, Ground, Item, Place, Rank, chain_of
from scheduler.planning.trial import Trial
from scheduler.planning.victims import VictimIndex

_LOWEST = CLASS_RANK[PriorityClass.PREEMPTIBLE]


class Step(NamedTuple):
    """A view, and the levels of the job's own team that it may displace as well, or may not."""

    view: int
    own: frozenset[int]
    disputed: int
    """Bitset of the nodes on which the view alone says nothing: leases of the job's own team are there."""


class Cost(NamedTuple):
    """Of a set of victims; lower is better. `wasteful`: far more GPUs than asked for (C-12)."""

    wasteful: bool
    jobs: int
    gpus: int
    lost_gpu_ms: int


class Found(NamedTuple):
    """A solution: GPUs of these nodes, once the victims are gone. `step`: its number, lower is better."""

    step: int
    cost: Cost
    nodes: list[NodeIndex]
    victims: list[Rank]


def least(spec: JobSpec) -> JobSpec:
    """The smallest gang that will do: for more than that nobody has to go (R-44)."""
    return spec if spec.elastic is None else replace(spec, replicas=spec.elastic.min_replicas)


class Ask:
    """The search for jobs of one shape on the nodes of one kind: `job`, and those that are alike. `need`: GPUs that one
    asks for; `gpus`: that it would be charged there. `among`: bitset of the nodes that they may use. `hint`: what has
    to hold. `steps`: numbered, the least harm first; `begin`: those before it have no solution."""

    def __init__(self, trial: Trial, index: VictimIndex, job: Job, covered: bool, ground: Ground, among: int) -> None:
        self.trial = trial
        self.index = index
        self.job = job
        self.spec = spec = least(job.spec)
        self.covered = covered
        self.ground = ground
        self.need = spec.gpus
        self.gpus = charged_gpus(spec, ground.node_gpus)
        self.whole = takes_whole_nodes(spec, ground.node_gpus)
        self.among = among
        self.hint = demanded(spec)
        self.gpus_max = self.gpus * trial.policy.evicted_percent_max // 100
        self.steps = self._steps()
        self.begin = 0

    # Who may be displaced

    def _steps(self) -> list[Step]:
        steps = [self._step(view, frozenset(VIEWS[view])) for view in chain_of(self.job.priority_class, self.covered)]
        view = steps[-1].view
        for own_levels in (range(COVERED), range(SHIELDED)):  # borrowed before covered
            own = self._step(view, frozenset((*VIEWS[view], *own_levels)))
            if own.disputed and own.own != steps[-1].own:
                steps.append(own)
        return steps

    def _step(self, view: int, levels: frozenset[int]) -> Step:
        """Of its own team a job displaces lower classes alone, borrowed or covered, and none that is shielded."""
        rank = CLASS_RANK[self.job.priority_class]
        own = frozenset(level for level in levels if level != SHIELDED and _LOWEST - level % COVERED > rank)
        disputed = 0
        for level in own.symmetric_difference(VIEWS[view]):
            disputed |= self.index.held_by.get((self.spec.team, level), 0)
        return Step(view, own, disputed & self.among)

    def may(self, step: Step, level: int, team: TeamId) -> bool:
        """May leases of this level and team be displaced in this step?"""
        return level in (step.own if team == self.spec.team else VIEWS[step.view])

    def nodes_with(self, step: Step, count: int) -> int:
        """Bitset of the nodes that could give `count` GPUs."""
        bits = self.ground.at_least(step.view, count) & self.among
        if not step.disputed:
            return bits
        bits &= ~step.disputed
        for index in indexes_of(step.disputed & self.ground.all):
            if self.obtainable(step, self.index.places[index]) >= count:
                bits |= 1 << index
        return bits

    def obtainable(self, step: Step, place: Place) -> int:
        """GPUs that the node could give."""
        if not step.disputed & place.bit:
            return place.counts[step.view]
        return place.counts[0] + sum(item.mask.bit_count() for item in self.items(step, place))

    def items(self, step: Step, place: Place) -> list[Item]:
        """What may be displaced on the node, and nothing else."""
        own, view, team = step.own, VIEWS[step.view], self.spec.team
        return [item for item in place.items if item.level in (own if item.rank.team == team else view)]

    # What it costs

    def cost(self, victims: Iterable[Rank]) -> Cost:
        """Of stopping these."""
        now, jobs, gpus, lost = self.trial.now, 0, 0, 0
        for rank in victims:
            jobs += 1
            gpus += rank.gpus
            lost += rank.gpus * (now + rank.minus_saved_at)
        return Cost(gpus > self.gpus_max, jobs, gpus, lost)

    def found(self, number: int, nodes: list[NodeIndex], victims: Iterable[Rank]) -> Found:
        chosen = sorted(victims)
        return Found(number, self.cost(chosen), nodes, chosen)

    # Where it may lie

    def blocks_max(self) -> int | None:
        """`pack: block` without max_blocks means one (R-33)."""
        if self.hint.max_blocks is not None:
            return self.hint.max_blocks
        return 1 if self.hint.pack is Span.BLOCK else None

    def blocks(self, bits: int) -> list[int]:
        """Bitsets of the blocks that have some of these nodes, by name."""
        return [
            bits & self.ground.blocks[name] for name in sorted(self.ground.blocks) if bits & self.ground.blocks[name]
        ]

    def racks(self, bits: int) -> list[int]:
        """The same of racks."""
        return [bits & self.ground.racks[name] for name in sorted(self.ground.racks) if bits & self.ground.racks[name]]
