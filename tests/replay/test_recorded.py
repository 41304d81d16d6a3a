"""Recorded days: what a log tells of a day is enough to have it decided again as it was."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from commands.messages import ChangeJob, DrainNode, HoldJob, ReleaseJob, SetPolicy, UndrainNode
from commands.policy import DEFAULT, Preset
from commands.reports import Tick
from events.ids import ClusterId, Instant, JobId, NodeIndex
from events.job import ArrayRange, Dependency, DependsWhen, PriorityClass
from replay.contender import Contender, under
from replay.engine import run
from replay.engine.run import CLUSTER, Replay
from replay.generated import Fleet, day
from replay.recorded import NothingRecorded, Recorded, again, read_day
from replay.scenario import Noticed, Scenario, Silence, Timed
from replay.verify import Bound, Window, read_bound
from tests.replay.fleets import at, comes, scenario, silent
from tests.replay.logs import memory_log, written
from tests.replay.scribe import Scribe
from tests.simulation import world


def read(records: Sequence[bytes], cluster: ClusterId = world.CLUSTER, window: Window | None = None) -> Recorded:
    """The day in these records."""
    return asyncio.run(read_day(memory_log(records, cluster), window or Window()))


def lived(scenario: Scenario) -> list[bytes]:
    """The log of a generated day."""
    replay = Replay(scenario, lead=Scribe)
    replay.run("default")
    assert isinstance(replay.core, Scribe)
    return replay.core.records


def small_day(seed: int, load: float) -> Scenario:
    """64 nodes, of which three fall silent for a quarter of an hour."""
    made = day(seed, fleet=Fleet(nodes=64, nodes_in_block=16), jobs=1200, load=load)
    from_at = Instant(made.start_at + 6 * 3_600_000)
    until = Instant(from_at + 900_000)
    silences = (Silence(node_id=node.node_id, at=from_at, until=until) for node in made.nodes[10:13])
    return dataclasses.replace(made, silences=tuple(silences))


@pytest.mark.parametrize(("seed", "load"), [(1, 0.9), (2, 1.2)])
def test_a_generated_day_comes_out_as_it_was_recorded(seed: int, load: float) -> None:
    """Preemptions, reservations and faults in it: every grant comes out, 99 of 100 to the millisecond on the same
    GPUs, the others within two seconds: a start on a pledge may come with the next look."""
    recorded = read(lived(small_day(seed, load)), CLUSTER)
    assert recorded.whole
    found = again(recorded)
    assert (found.recorded, found.others) == (len(recorded.granted), ())
    assert found.same + found.near == found.recorded
    assert found.near < found.recorded / 100
    assert len(recorded.granted) > 1200


LIVED = [
    ("quiet", 1),
    ("storm", 1),
    ("storm", 3),
    ("weather", 1),
    ("weather", 2),
    ("lost-journals", 1),
    ("partition-300s-agent-dies", 1),
]


@pytest.mark.parametrize(("scenario", "seed"), LIVED)
def test_what_a_real_leader_recorded_comes_out_again(scenario: str, seed: int) -> None:
    """The scheduler's own rounds, ticks, delays and pauses; leaders that die by the dozen, power cuts, wrong clocks,
    lost journals, agents that begin anew: every grant again, at its time to the millisecond, on the same GPUs."""
    recorded = read(written(scenario, seed).records)
    found = again(recorded)
    assert (found.same, found.near, found.others) == (found.recorded, 0, ())
    assert found.recorded > 40
    if scenario == "storm":
        assert len(recorded.scenario.taken_over) > 5


def test_nodes_that_came_back_with_other_gpus_are_noted() -> None:
    """They are replayed with those that they had: starts that come out otherwise are listed, none is passed over."""
    recorded = read(written("renumbered", 1).records)
    found = again(recorded)
    assert any("came back with other GPUs" in note for note in recorded.notes)
    listed = [other for other in found.others if other.then is not None]
    assert found.same + found.near + len(listed) == found.recorded > 40


def test_what_does_not_come_out_is_listed() -> None:
    """A day that went another way, for want of one job: each grant comes out the same, or near, or it is named."""
    recorded = read(written("quiet", 1).records)
    missing = recorded.granted[20].job_id
    arrivals = tuple(arrival for arrival in recorded.scenario.arrivals if arrival.job_id != missing)
    went = dataclasses.replace(recorded, scenario=dataclasses.replace(recorded.scenario, arrivals=arrivals))
    found = again(went)
    assert not found.honest
    then = {other.then.job_id for other in found.others if other.then is not None and other.now is None}
    assert missing in then
    listed = [other for other in found.others if other.then is not None]
    assert found.same + found.near + len(listed) == found.recorded
    assert found.same > 15, "what came before it is as it was"


def test_the_same_day_under_another_policy_takes_the_same_work() -> None:
    """Whoever changed the policy then does not now; every job is submitted, and needs what it needed."""
    recorded = read(lived(small_day(1, 0.9)), CLUSTER)
    fifo = under(recorded.scenario, Contender(name="fifo", policy=DEFAULT.model_copy(update={"preset": Preset.FIFO})))
    assert not any(isinstance(timed.command, SetPolicy) for timed in fifo.commands)
    assert fifo.arrivals == recorded.scenario.arrivals
    outcome = run(dataclasses.replace(fifo, end_at=None), "fifo")
    ended = {job.job_id for job in outcome.jobs if job.ended_at is not None}
    assert len(ended) == len(recorded.scenario.arrivals) == 1200
    assert not outcome.displacements


def test_how_long_work_takes_is_known_where_it_ended_by_itself() -> None:
    """Of jobs that were cancelled, or timed out, it is not, and they are named."""
    lived_day = small_day(1, 0.9)
    recorded = read(lived(lived_day), CLUSTER)
    asked = {arrival.job_id: arrival.work for arrival in lived_day.arrivals}
    unknown = set(recorded.unknown)
    assert {job_id for job_id, work in asked.items() if work.cancelled} <= unknown
    known = [arrival for arrival in recorded.scenario.arrivals if arrival.job_id not in unknown]
    once = [arrival for arrival in known if len(arrival.work.tries) == 1]
    assert len(once) > 800
    assert all(abs(arrival.work.run_s - asked[arrival.job_id].run_s) <= 1 for arrival in once)


def test_a_window_begins_with_the_cluster_as_it_then_was() -> None:
    """Nodes, quotas and policy; what ran and waited is submitted as it begins, with the work that it had left."""
    records = lived(small_day(1, 0.9))
    whole = read(records, CLUSTER)
    part = read(records, CLUSTER, Window(read_bound("n:1500"), read_bound("n:3000")))
    assert not part.whole
    assert len(part.scenario.nodes) == 64
    assert part.scenario.quotas
    assert whole.scenario.quotas == ()
    at_start = [arrival for arrival in part.scenario.arrivals if arrival.at == part.scenario.start_at]
    assert at_start
    assert all(not arrival.work.tries for arrival in at_start)
    assert run(part.scenario, "default").jobs


def test_what_was_decided_in_a_window_comes_out_of_the_log_from_its_start() -> None:
    """Each start in it, at its millisecond: what the window began with comes out, too."""
    records = written("storm", 1).records
    part = read(records, window=Window(read_bound("n:300"), read_bound("n:600")))
    whole = read(records, window=Window(last=read_bound("n:600", last=True)))
    found = again(whole, since=part.scenario.start_at)
    assert found.recorded == len(part.granted) > 20
    assert (found.same, found.others) == (found.recorded, ())


def midst() -> Scenario:
    """Four nodes. By second 1,000, when `small` comes, `first` has ended, `long` and an element of `many` run, `both`
    waits for `first` and `long`, `wide` was given a higher class, `kept` is held until 1,800; a GPU of n3 is broken,
    and n2 silent until 1,700."""
    after = [Dependency(job=JobId(name), when=DependsWhen.AFTER_OK) for name in ("first", "long")]
    arrivals = [
        comes(0, "first", 100, gpus_per_replica=8),
        comes(5, "long", 3_000, gpus_per_replica=8),
        comes(10, "many", 2_000, gpus_per_replica=8, array=ArrayRange(first=0, last=3, throttle=1)),
        comes(15, "kept", 50, depends_on=(after[0],)),
        comes(20, "both", 50, depends_on=tuple(after)),
        comes(30, "wide", 50, replicas=4, gpus_per_replica=8),
        comes(1_000, "small", 50),
        comes(1_500, "late", 50, depends_on=(after[0],)),
    ]
    told = (
        Timed(at=at(40), command=ChangeJob(job_id=JobId("wide"), priority_class=PriorityClass.PROD_BATCH)),
        Timed(at=at(51), command=HoldJob(job_id=JobId("kept"))),
        Timed(at=at(1_800), command=ReleaseJob(job_id=JobId("kept"))),
    )
    faulty = Noticed(at=at(60), tick=Tick(faults=((NodeIndex(3), 1),)))
    silence = silent(2, 200, 1_700)
    return scenario(4, arrivals, commands=told, noticed=(faulty,), silences=(silence,), end_at=at(9_000))


def test_a_window_begins_in_the_midst_of_things() -> None:
    """What is submitted then is what was left to do, as it stood by then; and nothing starts where nothing could."""
    recorded = read(lived(midst()), CLUSTER, Window(Bound("at", at(1_000))))
    start, found = recorded.scenario.start_at, {each.job_id: each for each in recorded.scenario.arrivals}
    begun = {job_id for job_id, arrival in found.items() if arrival.at == start}
    assert begun == {"long", "many_0", "many", "both", "wide", "small"}
    assert found[JobId("many")].spec.array == ArrayRange(first=1, last=3, throttle=1)
    assert [each.job for each in found[JobId("both")].spec.depends_on] == ["long"]
    assert found[JobId("late")].spec.depends_on == ()
    assert found[JobId("wide")].spec.priority_class is PriorityClass.PROD_BATCH
    assert found[JobId("kept")].at == at(1_800)
    of_n2 = [(type(timed.command), timed.at) for timed in recorded.scenario.commands if "n2" in repr(timed.command)]
    assert of_n2 == [(DrainNode, start), (UndrainNode, at(1_700))]
    assert Noticed(at=start, tick=Tick(faults=((NodeIndex(3), 1),))) in recorded.scenario.noticed
    outcome = run(recorded.scenario, "recorded")
    assert [(job.job_id, job.refused, job.faults) for job in outcome.jobs if job.refused or job.faults] == []
    assert sum(job.job_id.startswith("many_") for job in outcome.jobs) == 4


def test_a_window_without_a_commit_is_no_day() -> None:
    """It says so."""
    with pytest.raises(NothingRecorded, match="no commit lies in the window"):
        read(written("quiet", 1).records, window=Window(read_bound("n:1000000")))
