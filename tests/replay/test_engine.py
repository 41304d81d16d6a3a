"""What a replay's rows say: work that is kept and lost, times, amounts that add up; and that nothing else decides."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from commands.messages import CancelJob, DrainNode
from events.ids import Instant, JobId, NodeId
from events.job import CheckpointPlan, Elastic, EndReason, JobState, PriorityClass
from replay.engine import Models, Progress, run
from replay.generated import Fleet, day
from replay.outcome import JobOutcome, Outcome
from replay.scenario import Arrival, Scenario, Silence, Timed
from tests.builders import spread
from tests.replay.fleets import at, comes, scenario, second, share, silent

HOUR_S = 3600


def of(outcome: Outcome, name: str) -> JobOutcome:
    return next(job for job in outcome.jobs if job.job_id == name)


class TestWork:
    """One node of eight GPUs, of which one job at a time has all."""

    def test_a_job_alone(self) -> None:
        """It starts as it comes, runs after its start, and all of its work is kept."""
        what = scenario(1, [comes(5, "a", 600, work={"start_s": 20}, gpus_per_replica=8)])
        outcome = run(what)
        job, (stretch,) = of(outcome, "a"), outcome.stretches
        assert (second(job.submitted_at), second(job.first_start_at), second(job.ended_at)) == (5, 5, 625)
        assert (job.state, job.reason, job.waited_s, job.charged) == (JobState.SUCCEEDED, EndReason.COMPLETED, 0, 8)
        assert (job.kept_gpu_s, job.lost_gpu_s) == (8 * 600, 0)
        assert outcome.cycles == 3, (
            "nobody is there, it starts, and it is over: no cycle just sees that nothing is left"
        )
        assert (second(stretch.running_at), second(stretch.released_at), stretch.gpu_ms) == (25, 625, 8 * 620_000)

    def preempted(self, **work: Any) -> Outcome:
        """`low` has the node for 2,000 s when `high` wants it; `low` needs an hour, and saves every 900 s."""
        low = comes(
            0,
            "low",
            HOUR_S,
            work={"start_s": 10, **work},
            gpus_per_replica=8,
            priority_class=PriorityClass.PREEMPTIBLE,
            checkpoint=CheckpointPlan(interval_s=900),
            max_runtime_s=2 * HOUR_S,
        )
        high = comes(2010, "high", 100, gpus_per_replica=8, priority_class=PriorityClass.PROD_BATCH)
        return run(scenario(1, [low, high], share("red", 8)))

    def test_preempted_and_saved(self) -> None:
        """All that was done until SIGTERM is kept; the time in which it saved is lost; it goes on where it was."""
        outcome = self.preempted(save_s=30)
        low, (victim,) = of(outcome, "low"), outcome.displacements
        assert (low.preemptions, low.state) == (1, JobState.SUCCEEDED)
        assert (low.kept_gpu_s, low.lost_gpu_s) == (8 * HOUR_S, 8 * 30)
        times = [second(when) for when in (victim.ordered_at, victim.freed_at, victim.started_at)]
        assert (times, victim.lost_gpu_s, victim.gpus) == ([2010, 2040, 2040], 8 * 30, 8)
        assert second(low.ended_at) == 2040 + 100 + 10 + (HOUR_S - 2000)

    def test_preempted_and_too_slow_to_save(self) -> None:
        """It is killed when its grace is over, and goes on from its last checkpoint: what came after that is lost."""
        outcome = self.preempted(save_s=600)
        low = of(outcome, "low")
        assert (low.kept_gpu_s, low.lost_gpu_s) == (8 * HOUR_S, 8 * (200 + 60))
        assert second(low.ended_at) == 2070 + 100 + 10 + (HOUR_S - 1800)

    def test_a_fault_takes_what_was_not_saved(self) -> None:
        """Of a gang one node falls silent: after 90 s the gang ends unsaved, and starts again on nodes that answer."""
        gang = comes(
            0,
            "gang",
            HOUR_S,
            work={"start_s": 0},
            replicas=2,
            gpus_per_replica=8,
            checkpoint=CheckpointPlan(interval_s=600),
            max_runtime_s=2 * HOUR_S,
        )
        outcome = run(scenario(3, [gang], silences=(silent(0, 1000, None),)))
        job, (first, again) = of(outcome, "gang"), outcome.stretches
        assert (first.reason, first.attempt, again.attempt, job.faults) == (EndReason.NODE_LOST, 1, 2, 1)
        assert (second(again.granted_at), second(job.ended_at)) == (1090, 1090 + HOUR_S - 600)
        assert job.kept_gpu_s == 16 * HOUR_S
        assert job.lost_gpu_s == 16 * (1090 - 600)
        assert first.released_at is None

    @pytest.mark.parametrize(("later_s", "commits"), [(20, 1), (100, 2)])
    def test_saves_that_are_taken_together(self, later_s: int, commits: int) -> None:
        """What two jobs save within a minute comes in one commit; what a fault takes of the first counts from its own
        save all the same."""

        def replayed(interval_s: int) -> Outcome:
            whole: dict[str, Any] = {
                "gpus_per_replica": 8,
                "checkpoint": CheckpointPlan(interval_s=interval_s),
                "work": {"start_s": 0},
            }
            come = [comes(0, "a", 1000, **whole), comes(later_s, "b", 1000, **whole)]
            return run(scenario(3, come, silences=(silent(0, 800, None),)))

        outcome, never_saved = replayed(interval_s=600), replayed(interval_s=2000)
        assert of(outcome, "a").lost_gpu_s == 8 * (890 - 600)
        assert of(never_saved, "a").lost_gpu_s == 8 * 890
        assert outcome.commits == never_saved.commits + commits

    def test_a_cancel_by_its_user(self) -> None:
        """Work that its user cancels has run for its time, and is no loss of the scheduler's."""
        outcome = run(scenario(1, [comes(0, "a", 500, work={"start_s": 0, "save_s": 0, "cancelled": True})]))
        job = of(outcome, "a")
        assert (job.state, second(job.ended_at), job.kept_gpu_s, job.lost_gpu_s) == (JobState.CANCELLED, 500, 500, 0)

    def test_a_limit_that_is_too_short(self) -> None:
        """It is stopped before its limit with its grace, as in production."""
        outcome = run(scenario(1, [comes(0, "a", 5000, max_runtime_s=3600, grace_s=60)]))
        job = of(outcome, "a")
        assert job.state is JobState.TIMED_OUT
        assert 3540 <= second(job.ended_at) <= 3600

    def test_commands_of_people(self) -> None:
        """A cancel and a drain come at their times; what waits longest has waited until the end of the replay."""
        jobs = [comes(0, "a", 5000, gpus_per_replica=8), comes(1, "b", 50, gpus_per_replica=8)]
        jobs += [comes(2, "c", 50, gpus_per_replica=8)]
        commands = (
            Timed(at=at(100), command=CancelJob(job_id=JobId("b"))),
            Timed(at=at(200), command=DrainNode(node_id=NodeId("n0"), reason="x", now=True)),
        )
        outcome = run(scenario(1, jobs, commands=commands, end_at=at(1000)))
        a, b, c = (of(outcome, name) for name in "abc")
        assert (b.state, b.waited_s, b.first_wait_s, b.charged) == (JobState.CANCELLED, 99, 99, 0)
        assert (a.state, a.waited_s, c.state, c.waited_s) == (None, 780, None, 998)
        assert [row.reason for row in outcome.stretches] == [EndReason.DRAINED]

    def test_what_is_refused_is_a_row_too(self) -> None:
        """A job that can never run, and one beyond its team's queue, with the code of the refusal."""
        jobs = [comes(0, "huge", 10, replicas=9, gpus_per_replica=8)]
        jobs += [comes(1, name, 500, gpus_per_replica=8) for name in ("a", "b", "c")]
        outcome = run(scenario(1, jobs, policy={"queued_jobs_max": 2}))
        assert {job.job_id: job.refused for job in outcome.jobs if job.refused} == {
            "huge": "over_cluster",
            "c": "queue_full",
        }

    def test_what_cannot_be_set_up(self) -> None:
        """Guarantees beyond the fleet, and a silence of a node that is not there, are said by name."""
        with pytest.raises(ValueError, match=r"quota of red: .*over_inventory"):
            run(scenario(1, [], share("red", 9)))
        with pytest.raises(ValueError, match="silences: there is no node n7"):
            run(scenario(1, [], silences=(silent(7, 0, 1),)))


class TestModels:
    """What size and place do to the speed of work, where that is stated."""

    def elastic(self, models: Models) -> int:
        """When a job of four replicas is done that gets two of them."""
        asked: dict[str, Any] = {
            "replicas": 4,
            "gpus_per_replica": 8,
            "elastic": Elastic(min_replicas=2, max_replicas=4),
        }
        return second(of(run(scenario(2, [comes(0, "a", 1000, **asked)]), models=models), "a").ended_at)

    def test_size(self) -> None:
        """By default it makes no difference; with all of the work parallel half the size takes twice the time."""
        assert self.elastic(Models()) == 1000
        assert self.elastic(Models(parallel_percent=100)) == 2000
        assert self.elastic(Models(parallel_percent=50)) == pytest.approx(1500, abs=1)

    def test_growth_in_the_middle(self) -> None:
        """Half done at half the size, then the other half at full size, once the new ranks run."""
        asked: dict[str, Any] = {
            "replicas": 4,
            "gpus_per_replica": 8,
            "elastic": Elastic(min_replicas=2, max_replicas=4),
        }
        jobs = [comes(0, "b", 1000, replicas=2, gpus_per_replica=8), comes(1, "a", 1000, **asked)]
        outcome = run(scenario(4, jobs), models=Models(parallel_percent=100))
        assert second(of(outcome, "a").ended_at) == pytest.approx(1000 + 500, abs=2)

    def test_place(self) -> None:
        """A gang in two blocks that one could hold takes a quarter longer; one that needs two blocks does not."""
        apart = comes(0, "apart", 1000, replicas=2, gpus_per_replica=8, hint=spread("block"))
        large = comes(0, "large", 1000, replicas=3, gpus_per_replica=8)
        for gang, ended_s in ((apart, 1250), (large, 1000)):
            outcome = run(scenario(4, [gang], in_block=2), models=Models(spread_percent=25))
            assert outcome.stretches[0].blocks == 2
            assert second(outcome.jobs[0].ended_at) == ended_s

    def test_bounds(self) -> None:
        """Figures that mean nothing are refused by name."""
        with pytest.raises(ValueError, match="parallel_percent: 101"):
            Models(parallel_percent=101)
        with pytest.raises(ValueError, match="spread_percent: -1"):
            Models(spread_percent=-1)


def mixed(seed: int) -> Scenario:
    """Some hours of everything: classes, gangs, elastic jobs, cancels, faults."""
    what = day(seed, Fleet(nodes=24, nodes_in_block=8), jobs=300, giants=4, teams=4, length_s=6 * HOUR_S, load=1.2)
    draw = Random(seed)
    arrivals = [_elastic(arrival) if draw.random() < 0.15 else arrival for arrival in what.arrivals]
    silences = tuple(silent_node(draw, what) for _ in range(6))
    return replace(what, arrivals=tuple(arrivals), silences=tuple(sorted(silences, key=lambda one: one.at)))


def _elastic(arrival: Arrival) -> Arrival:
    spec = arrival.spec
    if spec.replicas < 2:
        return arrival
    return replace(arrival, spec=replace(spec, elastic=Elastic(min_replicas=1, max_replicas=spec.replicas)))


def silent_node(draw: Random, what: Scenario) -> Silence:
    from_at = Instant(what.start_at + draw.randrange(6 * HOUR_S) * 1000)
    until = Instant(from_at + draw.choice((20, 50, 500, 4000)) * 1000)
    return Silence(node_id=draw.choice(what.nodes).node_id, at=from_at, until=until)


@pytest.mark.parametrize("seed", range(3))
def test_amounts_add_up(seed: int) -> None:
    """GPU-time of the stretches, of the samples and of the teams is the same; work that is kept and lost is time that
    ran; and a job that succeeded has kept what it needed."""
    outcome = run(mixed(seed))
    held = sum(row.gpu_ms for row in outcome.stretches)
    assert held // 1000 == sum(row.allocated_gpu_s for row in outcome.samples)
    assert held // 1000 == pytest.approx(sum(row.delivered_gpu_s for row in outcome.team_samples), abs=4)
    assert all(row.allocated_gpu_s + row.held_gpu_s <= row.healthy_gpu_s for row in outcome.samples)
    assert all(row.entitled_gpu_s <= min(row.demand_gpu_s, row.guaranteed * 900) for row in outcome.team_samples)
    assert sum(job.kept_gpu_s + job.lost_gpu_s for job in outcome.jobs) * 1000 <= held
    assert all(job.state is not None for job in outcome.jobs)
    elastic = {arrival.job_id for arrival in mixed(seed).arrivals if arrival.spec.elastic is not None}
    for job in outcome.jobs:
        if job.state is JobState.SUCCEEDED and job.job_id not in elastic:
            assert job.kept_gpu_s == job.charged * job.run_s, job
    assert any(job.preemptions for job in outcome.jobs)
    assert any(job.faults for job in outcome.jobs)


@pytest.mark.parametrize("seed", range(2))
def test_quiet_seconds_may_be_skipped(seed: int) -> None:
    """With a cycle in every second, as in production, the same is decided as with cycles only where something happened
    or time alone could change something."""
    what = mixed(seed)
    skipped, each = run(what), run(what, look_s=1)
    assert each.cycles > 10 * skipped.cycles
    assert replace(each, cycles=0, commits=0, team_samples=(), samples=()) == replace(
        skipped, cycles=0, commits=0, team_samples=(), samples=()
    )


def digest() -> str:
    return hashlib.sha256(repr(run(mixed(1))).encode()).hexdigest()


def test_the_same_in_any_process() -> None:
    """Two processes with different seeds of hashing come to the same rows."""
    ask = "from tests.replay.test_engine import digest; print(digest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", ask], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_progress_is_told() -> None:
    """In order, up to the last submission."""
    told: list[Progress] = []
    run(scenario(1, [comes(number, f"j{number}", 5) for number in range(20)]), progress=told.append)
    parts = [one.part for one in told]
    assert parts == sorted(parts)
    assert parts[-1] == 1000
