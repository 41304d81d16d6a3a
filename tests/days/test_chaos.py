"""Random histories of thousands of steps: people, nodes and time do what they may, and every rule holds throughout.

The seed and the step are in the message of a failure; `Chaos(seed).run(steps)` repeats it.
"""

from __future__ import annotations

from random import Random

import pytest

from commands.invariants import check_all
from commands.messages import (
    CancelJob,
    ChangeJob,
    DrainNode,
    ExtendJob,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    UndrainNode,
)
from commands.shape import breaks_hint, demanded
from events.envelope import Event
from events.gang import GangAllocated
from events.ids import JobId, NodeId
from events.job import Elastic, JobState, PriorityClass, Span, Topology
from replay.generated import Fleet
from replay.scenario import Work
from scheduler.planning.plan import Planner
from tests.builders import spec
from tests.days.ledger import Ledger
from tests.days.referee import Referee
from tests.days.world import World
from tests.scenario import check_indices

TEAMS = ("red", "blue", "green")
HINTS = (Topology(), Topology(), Topology(max_blocks=1), Topology(pack=Span.RACK), Topology(spread=Span.NODE))


class Chaos:
    """A world, and a hand that draws what happens next."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(Fleet(nodes=18, nodes_in_block=6), step_s=1, idle_s=20, audit_every=13)
        for team in TEAMS:
            self.world.quota(team, 40)
        self.referee, self.ledger = Referee(self.world), Ledger(self.world)
        self.jobs: list[JobId] = []
        self.world.core.watchers.append(self._see)

    def _see(self, events: tuple[Event, ...]) -> None:
        """Strict hints hold with every start (R-33, C-30)."""
        for event in events:
            if isinstance(event, GangAllocated):
                job = self.world.state.jobs[event.job_id]
                assert not breaks_hint(self.world.state, demanded(job.spec), event.ranks), job

    def run(self, steps: int) -> None:
        for number in range(steps):
            for kind in self.random.choices(KINDS, WEIGHTS, k=2):
                getattr(self, kind)()
            self.world.run(self.world.second + self.random.choice((1, 5, 20, 60)))
            if number % 50 == 0:
                check_all(self.world.state)
                check_indices(self.world.core.planner, self.world.state, self.world.core.now)

    def submits(self) -> None:
        """Where the queue is long already, people look at something else."""
        draw = self.random
        if len(self.world.core.planner.queue) > BACKLOG_MAX:
            self.asks()
            return
        replicas, each = draw.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (3, 4), (6, 2)))
        cls = draw.choice((*PriorityClass, PriorityClass.RESEARCH, PriorityClass.PREEMPTIBLE))
        run_s = draw.choice((60, 300, 900, 3600))
        asked = spec(
            team=draw.choice(TEAMS),
            replicas=replicas,
            gpus_per_replica=each,
            priority_class=cls,
            hint=draw.choice(HINTS),
            elastic=Elastic(min_replicas=1, max_replicas=replicas) if draw.random() < ELASTIC else None,
            max_runtime_s=run_s * draw.choice((1, 2, 3)),
            grace_s=draw.choice((10, 60, 240)),
            retries=draw.choice((0, 1)),
        )
        work = Work(
            run_s=run_s,
            start_s=draw.choice((1, 30, 700)) if draw.random() < 0.05 else 10,
            save_s=draw.choice((5, 60)),
            exit_code=draw.choice((0, 0, 0, 1)),
        )
        self.jobs.append(self.world.submit(self.world.second + 1, asked, work))

    def asks(self) -> None:
        """Something about one of the newest jobs: often what cannot be."""
        if not self.jobs:
            return
        draw = self.random
        job_id = draw.choice(self.jobs[-30:])
        self.world.command(
            draw.choice(
                (
                    CancelJob(job_id=job_id),
                    HoldJob(job_id=job_id),
                    ReleaseJob(job_id=job_id),
                    ReleaseJob(job_id=job_id),
                    RequeueJob(job_id=job_id),
                    ExtendJob(job_id=job_id, by_s=600),
                    ChangeJob(job_id=job_id, priority_class=draw.choice(list(PriorityClass))),
                )
            )
        )

    def drains(self) -> None:
        node = NodeId(f"n{self.random.randrange(self.world.fleet.nodes):05}")
        drained = [row.id for row in self.world.state.nodes.rows.values() if row.drained is not None]
        if len(drained) > 2:
            self.world.command(UndrainNode(node_id=self.random.choice(drained)))
        else:
            self.world.command(DrainNode(node_id=node, reason="x", now=self.random.random() < 0.5))

    def loses(self) -> None:
        at_s = self.world.second + 1
        index = self.random.randrange(self.world.fleet.nodes)
        if index not in self.world.agents.silent:
            self.world.lose(index, at_s, at_s + self.random.choice((20, 60, 400)))

    def allots(self) -> None:
        self.world.quota(
            self.random.choice(TEAMS), self.random.choice((0, 20, 40, 48)), self.random.choice((0, 60, 144))
        )

    def legislates(self) -> None:
        self.world.policy(
            shield_after_preemption_s=1800,
            ease_per_hour_percent=self.random.choice((0, 10, 20)),
            failed_tries_max=self.random.choice((3, 2_000)),
        )

    def come_to_rest(self) -> None:
        """Nobody asks any more, every node is there, nothing is held: what is left runs to its end."""
        world = self.world
        world.run(world.second + 500)
        for node in world.state.nodes.rows.values():
            if node.drained is not None:
                world.command(UndrainNode(node_id=node.id))
        for team in TEAMS:
            world.quota(team, 48)
        world.step()
        for job in list(world.state.jobs.rows.values()):
            if job.held and job.state is JobState.QUEUED:
                world.command(ReleaseJob(job_id=job.id))
            elif job.state is JobState.QUEUED and job.priority_class is PriorityClass.PROD_SERVING:
                world.command(CancelJob(job_id=job.id))
        world.run_while(lambda: bool(world.state.jobs.rows), 5 * 86_400)


ELASTIC = 0.1
"""Part of the jobs that are elastic."""
BACKLOG_MAX = 120
KINDS = ("submits", "asks", "drains", "loses", "allots", "legislates")
WEIGHTS = (20, 6, 1, 1, 1, 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_every_rule_holds_and_all_comes_to_rest(seed: int) -> None:
    """2,500 steps: no GPU twice, ledgers right, hints kept, no foul seen; then everything ends, and nothing is held."""
    chaos = Chaos(seed)
    chaos.run(2_500)
    chaos.come_to_rest()
    state = chaos.world.state
    assert not state.attempts.rows
    assert not state.pledges.rows
    assert not state.reservations.rows
    assert not any(line.charged for line in state.usage.rows.values())
    assert all(job_id in state.ended for job_id in chaos.jobs if chaos.world.state.jobs.get(job_id) is None)
    assert Planner(state).plan(chaos.world.core.now).empty()
