"""A cluster in virtual time whose days tests make up as they go: the core and the model agents of replay.engine.

Unlike a replay, which is given all of its day, this one is asked and told in between. A step is what a leader's round
is: commands, what agents say, the tick, cycles until nothing is left to do. Time goes from one thing that happens to
the next, in steps of `step_s`; while jobs wait it is looked at each `idle_s` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from commands.messages import Command, QuotaLine, SetPolicy, SetQuota, SubmitJob
from commands.reports import Tick
from events.ids import Instant, JobId, NodeIndex, TeamId
from events.job import JobSpec
from replay.engine.agents import Agents
from replay.generated import H100, MIDNIGHT, Fleet, nodes
from replay.scenario import Scenario, Work
from tests.builders import ALL_CLASSES
from tests.days.core import Core

MESSAGES_A_COMMIT = 256


class World:
    """One cluster. Times that are given are seconds since its beginning."""

    def __init__(self, fleet: Fleet, *, step_s: int = 1, idle_s: int = 10, audit_every: int = 499) -> None:
        self.fleet = fleet
        self.core = Core(audit_every=audit_every)
        self.state = self.core.state
        self.agents = Agents(self.state, lambda: self.core.now, self._at)
        self.core.watchers.append(self.agents.see)
        self.each_step: list[Callable[[], None]] = []
        """Looked at after each step."""
        self._step_ms, self._idle_ms = step_s * 1000, idle_s * 1000
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._jobs = 0
        self._commands: list[Command] = []
        self._boot()

    @property
    def second(self) -> int:
        """Seconds since the beginning."""
        return (self.core.now - MIDNIGHT) // 1000

    # What is to happen

    def at(self, second: int, action: Callable[[], None]) -> None:
        """Do this then."""
        self._at(Instant(MIDNIGHT + second * 1000), action)

    def command(self, command: Command) -> None:
        """Said now: taken with this step."""
        self._commands.append(command)

    def quota(self, team: str, guaranteed: int, borrow_limit: int | None = None) -> None:
        """A team's share, every class allowed; it may borrow the whole fleet unless a limit is given."""
        limit = self.fleet.gpus if borrow_limit is None else borrow_limit
        line = QuotaLine(gpu_type=H100, guaranteed=guaranteed, borrow_limit=limit)
        self.command(SetQuota(team=TeamId(team), lines=(line,), classes=ALL_CLASSES))

    def policy(self, **fields: Any) -> None:
        """Another policy from now on."""
        self.command(SetPolicy(policy=self.state.policy.model_dump(mode="json") | fields))

    def submit(self, second: int, spec: JobSpec, work: Work) -> JobId:
        """A job that is submitted then."""
        self._jobs += 1
        job_id = JobId(f"j_{self._jobs:07}")
        self.agents.work[job_id] = work
        self.at(second, lambda: self.command(SubmitJob(job_id=job_id, spec=spec)))
        return job_id

    def play(self, scenario: Scenario) -> None:
        """The quotas of a scenario now, its submissions in their time."""
        for line in scenario.quotas:
            self.quota(line.team, line.guaranteed, line.borrow_limit)
        for arrival in scenario.arrivals:
            self.submit((arrival.at - MIDNIGHT) // 1000, arrival.spec, arrival.work)

    def lose(self, index: int, at_s: int, until_s: int) -> None:
        """A node is silent between these times."""
        node = NodeIndex(index)
        self.at(at_s, lambda: self.agents.fall_silent(node))
        for after in (31, 61, 91, 121):
            self.at(at_s + after, lambda: None)
        self.at(until_s, lambda: self.agents.come_back(node))

    # Time goes on

    def run(self, until_s: int) -> None:
        """All that happens up to then."""
        end = MIDNIGHT + until_s * 1000
        while (at := self._next()) <= end:
            self.core.now = Instant(at)
            self.agents.save_until(self.core.now)
            while self._agenda and self._agenda[0][0] <= at:
                heappop(self._agenda)[2]()
            self.step()
        self.core.now = Instant(end)

    def run_while(self, wanted: Callable[[], bool], most_s: int) -> None:
        """Until it is no longer so; fails if it still is after `most_s` more."""
        end = self.second + most_s
        while wanted():
            assert self.second < end, f"still so after {most_s} s"
            self.run(max(self.second + 1, min(end, (self._next() - MIDNIGHT) // 1000)))

    def step(self) -> None:
        """One round of the leader, now."""
        core = self.core
        commands, self._commands = self._commands, []
        for command in commands:
            core.command(command)
        said = self.agents.said
        for first in range(0, len(said), MESSAGES_A_COMMIT):
            core.hear(said[first : first + MESSAGES_A_COMMIT])
        said.clear()
        while self.agents.orders:
            core.command(self.agents.orders.pop(0))
        core.tick(self._tick())
        core.plan()
        for look in self.each_step:
            look()

    def _tick(self) -> Tick:
        silent = self.agents.silent
        since = tuple((index, (self.core.now - silent[index]) // 1000) for index in sorted(silent))
        return Tick(silent=since, due=tuple(self.core.timers.due(self.core.now)))

    def _at(self, at: Instant, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._agenda, (at, self._count, action))

    def _next(self) -> int:
        """When something happens next: on the raster of steps, after now."""
        step = self._step_ms
        at = self._agenda[0][0] if self._agenda else MIDNIGHT + (1 << 50)
        if len(self.core.planner.queue) or self.state.pledges.rows or self.state.attempts.rows:
            at = min(at, self.core.now + self._idle_ms)
        return max(-(-at // step) * step, self.core.now + step)

    def _boot(self) -> None:
        said = [self.agents.register(node) for node in nodes(self.fleet)]
        for first in range(0, len(said), MESSAGES_A_COMMIT):
            self.core.hear(said[first : first + MESSAGES_A_COMMIT])
