"""Random histories of arrays and dependencies: in the end everything has ended, and as its elements and its chain say.

The scenario checks every invariant after every event: counts of arrays against their elements, who waits for whom, the
ledger, and that a snapshot gives it all back.
"""

from __future__ import annotations

from random import Random

import pytest

from commands.reports import Tick
from events.job import ENDS, Dependency, DependsWhen, JobState
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import all_started, array, cancel, cluster, ended, hold, release, stopped, submit

STEPS = 120


class History:
    """One cluster, and a submission, an end, or a change of mind at each step."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scenario = Scenario().given(cluster("b0: [4] [4]"), quota("red", 8, 0))
        self.names: list[str] = []
        self.asked: dict[str, tuple[Dependency, ...]] = {}

    def live(self, *states: JobState) -> list[str]:
        """Names of jobs in these states, elements too, that are no arrays."""
        rows = self.scenario.state.jobs.rows.values()
        return sorted(job.id.removeprefix("j_") for job in rows if job.state in states and job.elements is None)

    def submit(self) -> None:
        name = f"r{len(self.names)}"
        known = [other for other in self.names if self.random.random() < 0.2][:3]
        self.asked[name] = tuple(
            Dependency(job=job_id(other), when=self.random.choice(list(DependsWhen))) for other in known
        )
        size = self.random.choice([None, array(0, 2), array(5, 9, 2), array(1, 30, 4)])
        self.names.append(name)
        gpus = self.random.choice([1, 2, 4])
        self.scenario.take(submit(name, depends_on=self.asked[name], array=size, gpus_per_replica=gpus))

    def end(self) -> None:
        """One that runs ends, well or badly; one that is being stopped is gone."""
        names = [name for name in self.live(*set(JobState) - ENDS) if self._attempt(name)]
        if not names:
            return
        name = self.random.choice(names)
        attempt = self.scenario.attempt(name)
        if attempt.ending is not None:
            self.scenario.given(stopped(name))
            return
        if attempt.running_at is None:
            self.scenario.given(all_started(name))
        self.scenario.given(ended(name, exit_code=self.random.choice([0, 0, 0, 1])))

    def _attempt(self, name: str) -> bool:
        return (job_id(name), self.scenario.job(name).attempt) in self.scenario.state.attempts

    def change_mind(self) -> None:
        alive = [name for name in self.names if job_id(name) in self.scenario.state.jobs]
        if alive:
            self.scenario.take(self.random.choice([cancel, hold, release, release])(self.random.choice(alive)))

    def step(self) -> None:
        what = self.random.choices([self.submit, self.end, self.change_mind, self.tick], [3, 6, 1, 1])[0]
        what()
        self.scenario.plan()
        self.check()

    def tick(self) -> None:
        self.scenario.take(Tick())

    def check(self) -> None:
        """Nothing runs before what it waits for; the throttle is kept."""
        for job in self.scenario.state.jobs.rows.values():
            if job.waits_on:
                assert job.attempt == 0
                assert job.elements is None or job.elements.made == 0
            limit = job.spec.array.throttle if job.spec.array is not None else None
            assert job.elements is None or limit is None or job.elements.open <= limit

    def drain(self) -> None:
        """Nothing more is submitted, and every hold ends."""
        for name in self.names:
            if job_id(name) in self.scenario.state.jobs:
                self.scenario.take(release(name))
        for _ in range(2_000):
            if not self.scenario.state.jobs.rows:
                return
            self.end()
            self.scenario.plan()
            self.check()
        raise AssertionError(f"still there: {sorted(self.scenario.state.jobs.rows)}")


@pytest.mark.parametrize("seed", range(5))
def test_everything_ends_as_it_has_to(seed: int) -> None:
    """A dependent never succeeds where one it depended on did not; an array succeeds if all its elements did."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.drain()
    state = history.scenario.state
    assert not state.dependents.rows
    assert not state.follow_ups.rows
    assert all(usage.charged == 0 for usage in state.usage.rows.values())
    assert all(team.queued == 0 for team in state.teams.rows.values())
    for name, asked in history.asked.items():
        ends = {each: state.ended[each.job].state for each in asked if each.when is DependsWhen.AFTER_OK}
        if any(end is not JobState.SUCCEEDED for end in ends.values()):
            assert history.scenario.job_state(name) in ("CANCELLED", "REJECTED"), name
    for job in state.ended.rows.values():
        elements = [row.state for row in state.ended.rows.values() if row.id.startswith(f"{job.id}_")]
        if job.state is JobState.SUCCEEDED:
            assert set(elements) <= {JobState.SUCCEEDED}, job.id
