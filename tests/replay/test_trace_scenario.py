"""A trace under options: who comes when, how large, for how long; and what became of each row."""

from __future__ import annotations

import csv
import gzip
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from commands.policy import DEFAULT, Policy
from commands.shape import charged_gpus
from events.ids import GpuType, Instant, TeamId
from events.job import CheckpointPlan, JobSpec, PriorityClass
from replay.scenario import Arrival, Work
from replay.traces.options import AT_ONCE, Estimate, Guess, parse_classes
from replay.traces.quotas import Quotas, Share
from replay.traces.read import read_trace
from replay.traces.rows import BadOption, Ended, Fault, Note, TraceRow, Why
from replay.traces.scenario import gang, scenario
from replay.traces.summary import summary
from tests.replay import made
from tests.replay.made import options, row

DATA = Path(__file__).parents[1] / "data"
T0 = Instant(946_684_800_000)
JOB_ID = re.compile(r"j_[0-9A-Za-z]{1,40}")


def test_one_job() -> None:
    """All that is submitted, and what its work takes: the limit has room for its grace and for starts."""
    made_of = row("app_1", submit_s=100, gpus=12, team="red", user="ada", end_state=Ended.FAILED)
    found, report = scenario(made.trace(made_of), options())
    assert found.arrivals == (
        Arrival(
            at=Instant(T0 + 100_000),
            job_id=found.arrivals[0].job_id,
            spec=JobSpec(
                team=TeamId("red"),
                command=("replayed",),
                gpu_type=GpuType("h100"),
                max_runtime_s=60 + 60 + 20 + 3 * 40,
                replicas=2,
                gpus_per_replica=6,
                checkpoint=CheckpointPlan(),
                name="app_1",
            ),
            work=Work(run_s=60, start_s=20, save_s=20, exit_code=1),
            user="ada",
        ),
    )
    assert found.arrivals[0].job_id == "j_app1"
    assert (found.start_at, found.gpus, report.used, report.gpu_s) == (T0, 32, 1, 720)


def test_ends() -> None:
    """What was cancelled is cancelled after as long; what failed or ran out of time fails; the rest succeeds."""
    states = [Ended.COMPLETED, Ended.UNKNOWN, Ended.FAILED, Ended.TIMED_OUT, Ended.CANCELLED]
    rows = [row(str(number), end_state=state) for number, state in enumerate(states)]
    found, _ = scenario(made.trace(*rows), options())
    assert [(each.work.exit_code, each.work.cancelled) for each in found.arrivals] == [
        (0, False),
        (0, False),
        (1, False),
        (1, False),
        (0, True),
    ]


def test_kalos_at_a_quarter_of_its_time() -> None:
    """All 319 jobs come in the second in which the reference has them, with exactly their run times as limits."""
    trace = read_trace(DATA / "acme-kalos-completed.csv.gz")
    found, report = scenario(trace, options("128x8:h100", scale=Fraction("0.25"), running=AT_ONCE))
    with gzip.open(DATA / "kalos-x4-1024gpus-starts.csv.gz", "rt") as file:
        reference = {line["job_id"]: int(line["submit_s_x4"]) for line in csv.DictReader(file)}
    assert {each.spec.name: (each.at - T0) // 1000 for each in found.arrivals} == reference
    assert [each.spec.max_runtime_s for each in found.arrivals] == [each.duration_s for each in trace.rows]
    assert [each.spec.gpus for each in found.arrivals] == [each.gpus for each in trace.rows]
    assert (report.used, report.outside, report.fleet_gpus, report.notes) == (319, 0, 1024, {Note.OTHER_TYPE: 319})


def test_a_window() -> None:
    """From the first second of it on, up to and without the last; time begins with it."""
    rows = [row(str(number), submit_s=number) for number in range(10)]
    found, report = scenario(made.trace(*rows), options(from_s=3, to_s=7))
    assert [(each.spec.name, each.at - T0) for each in found.arrivals] == [
        ("3", 0),
        ("4", 1000),
        ("5", 2000),
        ("6", 3000),
    ]
    assert (report.used, report.outside) == (4, 6)


def test_time_begins_when_it_did(tmp_path: Path) -> None:
    """Where the source has dates, the beginning is that of the window; an option may say otherwise."""
    trace = made.read(tmp_path, made.HELIOS)
    found, _ = scenario(trace, options(from_s=20))
    assert found.start_at == (1591704000 + 20) * 1000
    assert found.arrivals[0].at == (1591704000 + 27) * 1000
    assert scenario(trace, options(start_at=T0))[0].start_at == T0


class TestShape:
    """How the GPUs of a job become replicas."""

    @pytest.mark.parametrize(
        ("gpus", "node", "shape"),
        [
            (1, 8, (1, 1)),
            (7, 8, (1, 7)),
            (8, 8, (1, 8)),
            (12, 8, (2, 6)),
            (13, 8, (13, 1)),
            (20, 8, (5, 4)),
            (504, 8, (63, 8)),
            (6, 4, (2, 3)),
            (3, 1, (3, 1)),
        ],
    )
    def test_by_table(self, gpus: int, node: int, shape: tuple[int, int]) -> None:
        """Below a node's worth one replica; else even ones on the fewest nodes."""
        assert gang(gpus, node) == shape

    @given(gpus=st.integers(1, 3000), node=st.integers(1, 16))
    def test_no_gpu_more_or_less(self, gpus: int, node: int) -> None:
        """The gang asks for exactly the GPUs of the trace, and the core charges the fewest nodes that hold them."""
        replicas, each = gang(gpus, node)
        spec = JobSpec(
            team=TeamId("t"),
            command=("x",),
            gpu_type=GpuType("g"),
            max_runtime_s=1,
            replicas=replicas,
            gpus_per_replica=each,
        )
        assert spec.gpus == gpus
        assert charged_gpus(spec, node) == (gpus if gpus < node else -(-gpus // node) * node)

    def test_nodes_of_several_sizes(self) -> None:
        """The largest nodes of the type that hold it."""
        rows = [row("small", gpus=4), row("wide", gpus=12), row("wider", gpus=17)]
        found, report = scenario(made.trace(*rows), options("1x8:h100,4x4:h100"))
        assert [(each.spec.replicas, each.spec.gpus_per_replica) for each in found.arrivals] == [(1, 4), (3, 4)]
        assert report.faults.counts == {Fault(Why.OVER_FLEET, "gpus"): 1}


class TestTypes:
    """Which GPUs a job asks for."""

    def test_a_fleet_of_one_type(self) -> None:
        """Takes all jobs; those of another name are noted."""
        found, report = scenario(made.trace(row("a", gpu_type="T4"), row("b"), row("c", gpu_type="H100")), options())
        assert {each.spec.gpu_type for each in found.arrivals} == {"h100"}
        assert report.notes == {Note.OTHER_TYPE: 1}

    def test_a_fleet_of_several(self) -> None:
        """A job that names types gets the one with the most GPUs of those; without a name, of all; or is counted."""
        rows = [row("a", gpu_type="T4"), row("b", gpu_type="v100|t4"), row("c"), row("d", gpu_type="P100")]
        found, report = scenario(made.trace(*rows), options("1x8:t4,2x8:v100,3x8:h100"))
        assert [each.spec.gpu_type for each in found.arrivals] == ["t4", "v100", "h100"]
        assert report.notes == {}
        assert report.faults.counts == {Fault(Why.NO_SUCH_TYPE, "gpu_type"): 1}
        assert [each.value for each in report.faults.examples[Fault(Why.NO_SUCH_TYPE, "gpu_type")]] == ["P100"]


def test_classes_by_priority() -> None:
    """The trace's priority becomes a class."""
    rule = parse_classes("priority:HP=prod-batch,Spot=preemptible")
    found, _ = scenario(made.trace(row("a", priority="HP"), row("b", priority="Spot")), options(classes=rule))
    assert [each.spec.priority_class for each in found.arrivals] == [
        PriorityClass.PROD_BATCH,
        PriorityClass.PREEMPTIBLE,
    ]


def test_limits_that_were_passed_are_raised() -> None:
    """What ran past its limit is not killed in a replay, and is counted; as is what had none, or ran for no second."""
    rows = [row("a", limit_s=30), row("b", limit_s=90), row("c"), row("d", duration_s=0, limit_s=9)]
    found, report = scenario(made.trace(*rows), options(estimate=Estimate(by=Guess.LIMIT), running=AT_ONCE))
    assert [(each.work.run_s, each.spec.max_runtime_s) for each in found.arrivals] == [
        (60, 60),
        (60, 90),
        (60, 60),
        (1, 9),
    ]
    assert report.notes == {Note.LIMIT_RAISED: 1, Note.NO_LIMIT: 1, Note.UNDER_A_SECOND: 1}


def test_the_policy_is_made_as_wide_as_the_trace() -> None:
    """Limits over 30 days and long queues are let in, and reported; beyond what any policy may say a row is counted."""
    rows = [row("a", duration_s=366 * 86400), row("b")]
    found, report = scenario(made.trace(*rows), options(running=AT_ONCE, policy=Policy(queued_jobs_max=1)))
    assert found.policy == DEFAULT.model_copy(update={"max_runtime_max_s": 366 * 86400, "queued_jobs_max": 2})
    assert report.widened == (("max_runtime_max_s", 366 * 86400), ("queued_jobs_max", 2))
    assert Policy.model_validate(found.policy.model_dump()) == found.policy
    assert report.faults.counts == {}
    _, report = scenario(made.trace(*rows), options())
    assert report.faults.counts == {Fault(Why.OVER_RUNTIME, "duration_s"): 1}


def test_nothing_is_left() -> None:
    """The error says what became of the rows."""
    with pytest.raises(BadOption, match="no job of made is left: 1 rows are outside the window; 1 rows: more GPUs"):
        scenario(made.trace(row("a", gpus=64), row("b", submit_s=9)), options(to_s=5))


def test_ids() -> None:
    """Letters and digits of the trace's id; where two would be the same, or none is left, the row's number helps."""
    names = ["job-1", "job_1", "job1", "äö", "x" * 60, "x" * 61]
    rows = [row(name, row=number) for number, name in enumerate(names, 1)]
    found, _ = scenario(made.trace(*rows), options())
    assert [each.job_id for each in found.arrivals] == [
        "j_job1",
        "j_job1r2",
        "j_job1r3",
        "j_r4",
        "j_" + "x" * 40,
        "j_" + "x" * 23 + "r6",
    ]


def test_the_summary_for_people(tmp_path: Path) -> None:
    """Every row is in it, by reason, with examples; and what is replayed, by team."""
    trace = made.read(tmp_path, made.OPENB, name="pods.csv")
    _, report = scenario(trace, options("4x8:T4", from_s=400065))
    assert (
        summary(report)
        == """\
pods.csv (openb): 5 rows
          1 used
          2 outside the window
          2 cannot be used
          1   never ran (scheduled_time/deletion_time) (row 4: '')
          1   asks for no GPUs (num_gpu) (row 3: '0')
          1 asked for a part of a GPU, and get whole ones
0.0 days, 2 GPU-hours on 32 GPUs: load 0.00
columns: job_id, submit_s, gpus, duration_s, gpu_type, end_state, priority, recorded_wait_s
team                      jobs    GPU-hours  share guaranteed
all                          1            2 100.0%         32
"""
    )


rows = st.lists(
    st.builds(
        TraceRow,
        row=st.integers(1, 50),
        job_id=st.text("ab-_1", min_size=1, max_size=3),
        submit_s=st.integers(0, 1000),
        gpus=st.integers(1, 40),
        duration_s=st.integers(0, 400 * 86400),
        team=st.sampled_from(["", "red", "blue"]),
        gpu_type=st.sampled_from(["", "t4", "h100", "t4|h100", "none"]),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda each: each.job_id,
)


@settings(deadline=None)
@given(
    found=rows,
    fleet=st.sampled_from(["4x8:t4", "2x8:t4,3x4:h100", "1x8:t4,6x2:t4,1x16:h100"]),
    window=st.tuples(st.integers(0, 500), st.none() | st.integers(501, 1000)),
    share=st.sampled_from([Share.USE, Share.EQUAL, Share.ONE]),
    scale=st.fractions(min_value="1/9", max_value=3, max_denominator=9),
)
def test_no_row_vanishes_and_nothing_is_promised_twice(
    found: list[TraceRow], fleet: str, window: tuple[int, int | None], share: Share, scale: Fraction
) -> None:
    """Each row is used, outside the window, or counted; ids are good and unique; arrivals are in order and not before
    the beginning; guarantees never exceed the fleet; all that is used can be charged to its team."""
    trace = made.trace(*sorted(found, key=lambda each: each.submit_s))
    chosen = options(fleet, from_s=window[0], to_s=window[1], quotas=Quotas(share=share), scale=scale)
    try:
        result, report = scenario(trace, chosen)
    except BadOption:
        reject()
    assert report.read == report.used + report.outside + report.faults.total
    assert len({each.job_id for each in result.arrivals}) == report.used
    assert all(JOB_ID.fullmatch(each.job_id) for each in result.arrivals)
    times = [each.at for each in result.arrivals]
    assert times == sorted(times)
    assert times[0] >= result.start_at
    types = chosen.fleet.types()
    for gpu_type, gpus in types.items():
        assert sum(each.guaranteed for each in result.quotas if each.gpu_type == gpu_type) in (0, gpus)
    may = {(each.team, each.gpu_type): each.guaranteed + each.borrow_limit for each in result.quotas}
    assert all(may[each.spec.team, each.spec.gpu_type] == types[each.spec.gpu_type] for each in result.arrivals)
    assert scenario(trace, chosen)[0] == result


DIGEST = """
import hashlib, sys
from replay.traces.options import parse_options
from replay.traces.read import read_trace
from replay.traces.scenario import scenario
from replay.traces.summary import summary
made, report = scenario(read_trace(sys.argv[1]), parse_options(fleet="4x8:a,4x8:b,8x4:b", scale="1/3"))
print(hashlib.sha256((repr(made) + summary(report)).encode()).hexdigest())
"""


def test_the_same_bytes_in_every_process() -> None:
    """Whatever the seed of the process's hashes is."""
    trace = DATA / "traces" / "philly.csv"
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, trace],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=DATA.parents[1],
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 65
