"""Random histories of a small cluster: people, agents, time and leaders do what they may, in any order.

`python -m tests.properties.histories SEED STEPS` prints the SHA-256 of the whole log: two processes that differ in
nothing but their hash seed must print the same.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from commands import snapshot
from commands.messages import DrainNode, EaseSilence, RemoveNode, UndrainNode, WipeNode
from commands.reports import (
    CheckpointReport,
    FromNode,
    Phase,
    Report,
    Running,
    TaskEndedReport,
    TaskStartedReport,
    Tick,
    ZombieReport,
)
from commands.shape import breaks_hint, demanded
from events.envelope import Event
from events.gang import GangAllocated, LeaseReleased
from events.ids import Instant, LeaseId, NodeId, lease_id
from events.job import JobFinished, JobRejected, JobSubmitted, PriorityClass, Span, Topology
from events.task import TaskEnd, TaskEnded
from scheduler.claiming import all_claims, claims_of
from scheduler.planning.plan import Planner
from scheduler.ports import Claim
from tests.builders import ALL_CLASSES, L40S, job_id, quota
from tests.properties.promises import check_promises
from tests.scenario import Scenario
from tests.unit.steps import cancel, change, cluster, extend, hold, release, requeue, submit

FLEET = """
    b0: [8] [8] | [8]
    b1: [4] [..|..] | [8]
    b2 l40s 48: [4] [2]
"""


@dataclass(slots=True)
class Agent:
    """One node's agent. `tasks`: lease -> its process runs; `reports`: all that were written; `heard`: by a leader."""

    tasks: dict[LeaseId, bool] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    sent: int = 0
    silent_s: int = 0

    def report(self, report: Any) -> None:
        self.reports.append(replace(report, number=len(self.reports) + 1))


class History:
    """A scenario, and a hand that draws what happens next. Checked after every step."""

    def __init__(self, seed: int, *, shuffled: bool = False) -> None:
        self.random = Random(seed)
        self.shuffled = shuffled
        """Do reports come in any order? They then may be lost for good: what is safe must be safe all the same."""
        self.scenario = Scenario().given(cluster(FLEET))
        self.state = self.scenario.state
        self.agents = {NodeId(f"n{number}"): Agent() for number in range(len(self.state.nodes))}
        self.registered: set[NodeId] = set(self.agents)
        """Those that registered with the leader of now."""
        self.names: list[str] = []
        self.claims: dict[tuple[NodeId, int], LeaseId] = {}
        """Who holds which GPU, told by events alone."""
        self.finished: set[str] = set()
        for team in ("red", "blue"):
            for kind in ("h100", "l40s"):
                self.do(quota(team, gpu_type=kind, borrow_limit=24))  # type: ignore[arg-type]

    def run(self, steps: int) -> None:
        kinds = [kind for kind, weight in WEIGHTS for _ in range(weight)]
        for _ in range(steps):
            self.random.choice(kinds)(self)

    def do(self, *steps: Any) -> None:
        for step in steps:
            self.scenario.take(step)
            self.check(self.scenario.events)

    def check(self, events: tuple[Event, ...]) -> None:
        """I-1, I-2, I-3, hints and ends, told by the events that just became facts."""
        for event in events:
            if isinstance(event, GangAllocated):
                self._granted(event)
            elif isinstance(event, TaskEnded | LeaseReleased):
                ended = lease_id(event.job_id, event.attempt, event.rank)
                self.claims = {key: held for key, held in self.claims.items() if held != ended}
            elif isinstance(event, JobFinished):
                assert event.job_id not in self.finished, f"R-3: {event.job_id} ended twice"
                self.finished.add(event.job_id)
        expected = [(node, gpu, held) for (node, gpu), held in self.claims.items()]
        assert sorted(expected, key=_place) == sorted(all_claims(self.state), key=_place), "I-2"
        for name in self.names:
            known = job_id(name) in self.state.jobs or job_id(name) in self.state.ended
            assert known, f"R-3: {name} is lost"

    def _granted(self, event: GangAllocated) -> None:
        job = self.state.jobs[event.job_id]
        assert len(event.ranks) == job.spec.replicas, "I-3"
        assert not breaks_hint(self.state, demanded(job.spec), event.ranks), "R-33"
        for node_id, gpu, lease in claims_of(self.state, [event]):
            assert (node_id, gpu) not in self.claims, f"I-1: {node_id}/{gpu} for {lease}"
            self.claims[node_id, gpu] = lease

    # People

    def submits(self) -> None:
        draw, name = self.random, f"j{len(self.names)}"
        hint = Topology(
            pack=draw.choice([None, None, *Span]),
            spread=draw.choice([None, None, None, *Span]),
            max_blocks=draw.choice([None, None, 1, 2]),
            strict=draw.random() < 0.7,
        )
        self.scenario.take(
            submit(
                name,
                team=draw.choice(["red", "blue"]),
                gpu_type=draw.choice(["h100", "h100", L40S]),
                replicas=draw.choice([1, 1, 1, 2, 3, 4]),
                gpus_per_replica=draw.choice([1, 1, 2, 4, 8]),
                priority_class=draw.choice(list(PriorityClass)),
                retries=draw.choice([0, 2]),
                max_runtime_s=draw.choice([45, 600, 7200]),
                hint=hint if draw.random() < 0.5 else Topology(),
            )
        )
        if isinstance(self.scenario.events[0], JobSubmitted | JobRejected):
            self.names.append(name)
        self.check(self.scenario.events)

    def asks(self) -> None:
        """A command about some job: often one that cannot be carried out."""
        if not self.names:
            return
        name = self.random.choice(self.names[-8:])
        commands: list[Callable[[str], Any]] = [
            cancel,
            hold,
            release,
            release,
            requeue,
            lambda job: extend(job, 100),
            lambda job: change(job, priority_class=self.random.choice(ALL_CLASSES), labels={"a": "1"}),
        ]
        self.do(self.random.choice(commands)(name))

    def operates(self) -> None:
        node = self.random.choice(sorted(self.agents))
        self.do(
            self.random.choice(
                [
                    DrainNode(node_id=node, reason="x"),
                    DrainNode(node_id=node, reason="x", now=True),
                    *[UndrainNode(node_id=one) for one in sorted(self.agents) if self.scenario.node(one).drained],
                    UndrainNode(node_id=node),
                    EaseSilence(reason="x"),
                    quota("red", borrow_limit=self.random.choice([4, 16, 24])),
                ]
            )
        )

    def wipes(self) -> None:
        """Nothing of ours runs there: the agent's disk is a new one."""
        node = self.random.choice(sorted(self.agents))
        lost = self.scenario.node(node).state == "lost"
        self.do(self.random.choice([WipeNode, RemoveNode])(node_id=node, reason="x"))
        if lost:
            self.agents[node].tasks.clear()

    # The scheduler

    def plans(self) -> None:
        before, now = dict(self.state.reservations.rows), Instant(self.scenario.at + 1000)
        loaded = Planner(snapshot.load(snapshot.dump(self.state))).plan(now)
        assert loaded == self.scenario.planner.plan(now), "C-70: from a snapshot it plans otherwise"
        self.scenario.plan()
        self.check(self.scenario.events)
        check_promises(self.state, before, self.scenario.events, now)

    def waits(self) -> None:
        self.scenario.at += self.random.choice([1, 10, 60]) * 1000

    def takes_over(self) -> None:
        self.scenario.takeover(after_s=self.random.choice([1, 1, 30, 700]))
        self.registered = {name for name in self.agents if self.scenario.node(name).confirmed == self.state.meta.epoch}
        self.check(self.scenario.events)

    def ticks(self) -> None:
        """Silence grows; some time-outs come true, some are only proposed."""
        draw = self.random
        silent = []
        for name in sorted(self.agents):
            agent = self.agents[name]
            if agent.silent_s:
                agent.silent_s += 50
                silent.append((self.scenario.node(name).index, agent.silent_s))
        heard = tuple(self.scenario.node(name).index for name in sorted(self.agents) if not self.agents[name].silent_s)
        leases = [lease_id(*held) for node in self.state.nodes.rows.values() for held in node.leases]
        missing = tuple(draw.sample(leases, 1)) if leases and draw.random() < 0.1 else ()
        due = tuple(sorted(self.state.attempts.rows))
        confirmed = tuple(self.scenario.node(name).index for name in sorted(self.agents) if self._has_told_all(name))
        self.do(Tick(silent=tuple(silent), heard=heard, missing=missing, due=due, confirmed=confirmed))

    def _has_told_all(self, name: NodeId) -> bool:
        """Its agent is heard by this leader, all its reports are taken, and it runs nothing that no lease covers; what
        no lease covers it kills, being told so with its heartbeat."""
        node, agent = self.scenario.node(name), self.agents[name]
        leases = {lease_id(*held) for held in node.leases}
        if agent.silent_s or name not in self.registered:
            return False
        agent.tasks = {lease: True for lease in agent.tasks if lease in leases}
        return node.state == "up" and node.last_report >= len(agent.reports)

    # Agents

    def falls_silent(self) -> None:
        self.agents[self.random.choice(sorted(self.agents))].silent_s = 1

    def returns(self) -> None:
        """An agent registers, restarted or not, with what it has."""
        away = {name for name in self.agents if self.scenario.node(name).state != "up"}
        unheard = {name for name in self.agents if self.scenario.node(name).confirmed != self.state.meta.epoch}
        names = sorted(away | unheard) or sorted(self.agents)
        self.register(self.random.choice(names), restarted=self.random.random() < 0.3)

    def _one_of(self, wanted: Callable[[Agent], bool]) -> NodeId:
        """A node whose agent is as wanted, most of the time."""
        names = sorted(self.agents)
        fitting = [name for name in names if wanted(self.agents[name])]
        return self.random.choice(fitting if fitting and self.random.random() < 0.9 else names)

    def register(self, name: NodeId, *, restarted: bool = False) -> None:
        agent, said = self.agents[name], self.scenario.said[name]
        if restarted:
            self.scenario.said[name] = said = replace(said, incarnation=f"{said.incarnation}+")
        running = tuple(Running(lease_id=lease, grant=(0, 0), phase=Phase.RUNNING) for lease in sorted(agent.tasks))
        message = replace(said, running=running, last_report=len(agent.reports))
        self.do(FromNode(node_id=name, message=message))
        assert not self.scenario.refused, self.scenario.refused
        self.registered.add(name)
        agent.silent_s, agent.sent = 0, min(agent.sent, self.scenario.node(name).last_report)

    def works(self) -> None:
        """On some node a task starts, saves, or ends; stops are followed."""
        busy = [name for name in sorted(self.agents) if self.scenario.node(name).leases]
        if busy:
            self.work(self.random.choice(busy))

    def work(self, name: NodeId) -> None:
        agent, draw = self.agents[name], self.random
        leases = [lease_id(*held) for held in self.scenario.node(name).leases]
        held = [lease for lease in leases if lease in agent.tasks or not self._has_ended(agent, lease)]
        if not held:
            return
        lease = draw.choice(held)
        stops = self.state.attempts[self._attempt(lease)].ending is not None
        if lease not in agent.tasks:
            if stops:
                agent.report(_gone(lease, TaskEnd.NEVER_STARTED))
            elif draw.random() < 0.1:
                agent.report(_gone(lease, TaskEnd.START_FAILED))
            elif not agent.silent_s:
                agent.tasks[lease] = True
                agent.report(TaskStartedReport(number=0, lease_id=lease))
        elif stops or draw.random() < 0.3:
            del agent.tasks[lease]
            agent.report(self._some_end(lease, stops))
        else:
            sequence = draw.randrange(1, 9)
            agent.report(CheckpointReport(number=0, lease_id=lease, sequence=sequence, uri="s3://c", size_bytes=1))

    def _some_end(self, lease: LeaseId, stops: bool) -> TaskEndedReport:
        draw = self.random
        end = TaskEnd.STOPPED if stops and draw.random() < 0.7 else draw.choice([TaskEnd.EXITED] * 4 + [TaskEnd.LOST])
        return _gone(lease, end, exit_code=draw.choice([0, 0, 1]), finished=draw.random() < 0.2)

    def _has_ended(self, agent: Agent, lease: LeaseId) -> bool:
        return any(isinstance(one, TaskEndedReport) and one.lease_id == lease for one in agent.reports)

    def _attempt(self, lease: LeaseId) -> tuple[Any, int]:
        job, number, _ = lease.rsplit(".", 2)
        return (job, int(number))

    def sends(self) -> None:
        """Some agent sends some of what it has written; what was sent before may come again."""
        name = self._one_of(lambda agent: agent.sent < len(agent.reports) and not agent.silent_s)
        agent = self.agents[name]
        if agent.silent_s or not agent.reports:
            return
        first = max(0, agent.sent - self.random.choice([0, 0, 1, 3]))
        last = self.random.randint(agent.sent, len(agent.reports))
        batch = [FromNode(node_id=name, message=one) for one in agent.reports[first:last]]
        if self.shuffled:
            self.random.shuffle(batch)
        agent.sent = max(agent.sent, last)
        if batch:
            self.scenario.events = ()
            self.scenario.hear(batch)
            self.check(self.scenario.events)

    def babbles(self) -> None:
        """A report that makes no sense."""
        agent = self.agents[self.random.choice(sorted(self.agents))]
        lease = LeaseId(self.random.choice(["", "x", "j_j0.1.0", "j_j1.1.1", "j_j2.2.0", "j_j0.1.-1"]))
        agent.report(
            self.random.choice(
                [
                    ZombieReport(number=0, gpu=1, pid=1),
                    TaskStartedReport(number=0, lease_id=lease),
                    CheckpointReport(number=0, lease_id=lease, sequence=99, uri="", size_bytes=0),
                ]
            )
        )

    # The end

    def quiet(self) -> None:
        """Everybody comes back, every job is cancelled, and agents do as they are told."""
        for node in sorted(self.agents):
            if self.scenario.node(node).state == "removed":
                self.agents[node].tasks.clear()
            self.register(node)
        for name in self.names:
            if job_id(name) in self.state.jobs:
                self.do(cancel(name))
        for _ in range(40):
            for node in sorted(self.agents):
                self.work(node)
                agent = self.agents[node]
                new = [FromNode(node_id=node, message=one) for one in agent.reports[agent.sent :]]
                agent.sent = len(agent.reports)
                if new:
                    self.scenario.hear(new)
                    self.check(self.scenario.events)


def _gone(lease: LeaseId, end: TaskEnd, exit_code: int | None = None, finished: bool = False) -> TaskEndedReport:
    return TaskEndedReport(number=0, lease_id=lease, end=end, exit_code=exit_code, finished=finished)


def _place(claim: Claim) -> tuple[NodeId, int]:
    return claim[:2]


WEIGHTS: list[tuple[Callable[[History], None], int]] = [
    (History.submits, 8),
    (History.asks, 5),
    (History.operates, 2),
    (History.wipes, 1),
    (History.plans, 10),
    (History.waits, 1),
    (History.takes_over, 1),
    (History.ticks, 5),
    (History.falls_silent, 1),
    (History.returns, 4),
    (History.works, 20),
    (History.sends, 14),
    (History.babbles, 1),
]


def main() -> None:
    """Print what this process makes of the history."""
    history = History(int(sys.argv[1]))
    history.run(int(sys.argv[2]))
    print(hashlib.sha256(b"\n".join(history.scenario.log)).hexdigest())


if __name__ == "__main__":
    main()
