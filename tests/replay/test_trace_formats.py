"""Each format: what becomes of its rows, value by value."""

from __future__ import annotations

import gzip
from pathlib import Path

from replay.traces.read import read_trace
from replay.traces.rows import Ended, Fault, Note, Trace, TraceRow, Why
from tests.replay import made

DATA = Path(__file__).parents[1] / "data"
REAL = DATA / "traces"


def counted(trace: Trace) -> dict[tuple[Why, str], int]:
    """Rows that cannot be used, by reason and columns."""
    return {(fault.why, fault.columns): count for fault, count in trace.faults.counts.items()}


def test_the_common_csv_in_gzip() -> None:
    """All 319 jobs of Kalos come out; an empty cell is nothing, and gzip is found out by what is in the file."""
    trace = read_trace(DATA / "acme-kalos-completed.csv.gz")
    assert (trace.format, trace.read, len(trace.rows), trace.faults.total) == ("common", 319, 319, 0)
    assert trace.rows[3] == TraceRow(
        row=4,
        job_id="kalos-0003",
        submit_s=58324,
        gpus=128,
        nodes=16,
        gpu_type="A100-80GB",
        duration_s=68,
        end_state=Ended.COMPLETED,
        kind="pretrain",
    )
    assert trace.filled() == ("job_id", "submit_s", "gpus", "duration_s", "nodes", "gpu_type", "end_state", "kind")


def test_a_slice_of_the_common_csv_keeps_its_times() -> None:
    """submit_s is what the file says, also where it does not begin with 0: windows stay the same."""
    trace = read_trace(REAL / "philly.csv")
    assert (len(trace.rows), trace.rows[0].submit_s, trace.rows[0].team) == (40, 2295004, "6214e9")
    assert trace.first_at_s is None


def test_swf(tmp_path: Path) -> None:
    """-1 is nothing; processors asked for, else allocated, are GPUs; fractions are cut off; the group is the team; what
    was cancelled before it began never ran. The header says when time 0 was."""
    trace = made.read(tmp_path, made.SWF)
    assert (trace.format, trace.first_at_s, counted(trace)) == (
        "swf",
        800000000,
        {(Why.NEVER_RAN, "run/wait/status"): 1},
    )
    assert trace.rows == (
        TraceRow(row=1, job_id="1", submit_s=0, gpus=128, duration_s=1234, team="2", user="1"),
        TraceRow(
            row=2,
            job_id="2",
            submit_s=1500,
            gpus=128,
            duration_s=3600,
            team="2",
            user="4",
            end_state=Ended.COMPLETED,
            limit_s=3500,
            recorded_wait_s=37,
            kind="3",
        ),
        TraceRow(
            row=4,
            job_id="4",
            submit_s=1520,
            gpus=16,
            duration_s=25,
            team="2",
            user="4",
            end_state=Ended.CANCELLED,
            limit_s=600,
            recorded_wait_s=0,
            kind="3",
        ),
    )


def test_swf_whose_status_says_nothing(tmp_path: Path) -> None:
    """Absolute times are counted from the first; where every job failed, by its status, how they ended is not known."""
    trace = made.read(tmp_path, made.SWF_ALL_ZERO)
    assert [(row.submit_s, row.end_state, row.limit_s) for row in trace.rows] == [(0, "", 10700), (1000, "", 12800)]
    assert trace.notes == {Note.END_STATE_UNKNOWN: 2}
    assert trace.first_at_s is None


def test_acme_kalos() -> None:
    """Times are stamps, and the run time is from start to end: `duration` (18 s) includes queueing there."""
    trace = read_trace(REAL / "acme_kalos.csv")
    assert (trace.format, trace.first_at_s) == ("acme", 1684321258)
    assert trace.rows == (
        TraceRow(
            row=1,
            job_id="dlctk696s0jbvitv",
            submit_s=0,
            gpus=64,
            duration_s=8,
            user="uf794",
            nodes=8,
            end_state=Ended.FAILED,
            recorded_wait_s=10,
            kind="Other",
        ),
        TraceRow(
            row=2,
            job_id="dlc1t2ypl09b8qtp",
            submit_s=1664,
            gpus=64,
            duration_s=70,
            user="uf794",
            nodes=8,
            end_state=Ended.CANCELLED,
            recorded_wait_s=12,
            kind="Other",
        ),
    )


def test_acme_seren() -> None:
    """The same columns but for some of memory; its stamps have another zone."""
    trace = read_trace(REAL / "acme_seren.csv")
    assert (trace.format, trace.first_at_s) == ("acme", 1677601102)
    assert [(row.submit_s, row.duration_s, row.recorded_wait_s) for row in trace.rows] == [
        (0, 117, 32),
        (336, 2693, 13),
    ]


def test_acme_as_converted_to_iterations_is_the_common_csv() -> None:
    """Iterations times their time is the run time: the same jobs as in the common CSV."""
    converted, common = read_trace(REAL / "acme_kalos_converted.csv"), read_trace(DATA / "acme-kalos-completed.csv.gz")
    assert (converted.format, len(converted.rows)) == ("acme-iterations", 24)
    for ours, theirs in zip(converted.rows, common.rows, strict=False):
        assert (ours.submit_s, ours.gpus, ours.nodes, ours.duration_s) == (
            theirs.submit_s,
            theirs.gpus,
            theirs.nodes,
            theirs.duration_s,
        )


def test_philly_json() -> None:
    """All attempts together are the run time; the GPUs are those of the attempt with the most."""
    trace = read_trace(REAL / "philly_cluster_job_log.json")
    assert (trace.format, trace.first_at_s, trace.notes) == ("philly-json", 1507338699, {})
    assert trace.rows == (
        TraceRow(
            row=1,
            job_id="application_1506638472019_14199",
            submit_s=0,
            gpus=8,
            duration_s=74 + 193182,
            team="ee9e8c",
            user="ce2f4c",
            nodes=1,
            end_state=Ended.COMPLETED,
            recorded_wait_s=30,
        ),
    )


def test_philly_csv() -> None:
    """Rows come in any order, and have no ids: they are sorted, and known by their number."""
    trace = read_trace(REAL / "philly_sia.csv")
    assert (trace.format, len(trace.rows), trace.first_at_s) == ("philly-csv", 24, 1506671912)
    assert trace.rows[0] == TraceRow(row=3, job_id="3", submit_s=0, gpus=1, duration_s=860662, team="6c71a0")
    assert [row.submit_s for row in trace.rows] == sorted(row.submit_s for row in trace.rows)


def test_helios(tmp_path: Path) -> None:
    """The virtual cluster is the team; times without a zone are UTC; jobs without GPUs are counted."""
    trace = made.read(tmp_path, made.HELIOS)
    assert (trace.format, trace.first_at_s, counted(trace)) == ("helios", 1591704000, {(Why.NO_GPUS, "gpu_num"): 1})
    assert trace.rows[0] == TraceRow(
        row=1,
        job_id="11",
        submit_s=0,
        gpus=8,
        duration_s=3600,
        team="vcOne",
        user="uA",
        nodes=1,
        end_state=Ended.COMPLETED,
        recorded_wait_s=30,
    )


def test_openb(tmp_path: Path) -> None:
    """Pods that were never scheduled, or ask for no GPU, are counted; a part of a GPU is a whole one, with a note."""
    trace = made.read(tmp_path, made.OPENB)
    assert counted(trace) == {(Why.NO_GPUS, "num_gpu"): 1, (Why.NEVER_RAN, "scheduled_time/deletion_time"): 1}
    assert (trace.format, trace.notes) == ("openb", {Note.SHARED_GPU: 1})
    assert trace.rows[1] == TraceRow(
        row=2,
        job_id="pod-1",
        submit_s=400061,
        gpus=1,
        duration_s=900,
        gpu_type="V100M16|V100M32",
        end_state=Ended.FAILED,
        priority="BE",
        recorded_wait_s=0,
    )


def test_pai(tmp_path: Path) -> None:
    """Tasks are joined to their jobs: instances get whole GPUs, tasks without GPUs do not count, and tasks of no job
    are counted as jobs that were never submitted."""
    (tmp_path / "pai_job_table.csv").write_text(made.PAI_JOBS)
    (tmp_path / "pai_task_table.csv").write_text(made.PAI_TASKS)
    trace = read_trace(tmp_path)
    assert counted(trace) == {(Why.NOT_ENDED, "tasks"): 1, (Why.EMPTY, "start_time"): 1}
    assert (trace.format, trace.read, trace.notes) == ("pai", 4, {Note.SHARED_GPU: 1})
    assert trace.rows[0] == TraceRow(
        row=1,
        job_id="job-a",
        submit_s=0,
        gpus=3 + 2,
        duration_s=4500 - 1020,
        user="user-1",
        gpu_type="T4",
        end_state=Ended.COMPLETED,
        recorded_wait_s=20,
    )


def test_pai_with_the_line_of_names(tmp_path: Path) -> None:
    """The tables are published without a header; one that has been put there is no row."""
    names = "job_name,inst_id,user,status,start_time,end_time\n"
    (tmp_path / "pai_job_table.csv").write_text(names + made.PAI_JOBS)
    (tmp_path / "pai_task_table.csv").write_text(made.PAI_TASKS)
    assert read_trace(tmp_path, "pai").read == 4


def test_spot(tmp_path: Path) -> None:
    """Workers times their GPUs is the gang; the organization is the team, the type of job the priority."""
    trace = made.read(tmp_path, made.SPOT)
    assert (trace.format, trace.notes) == ("spot", {Note.SHARED_GPU: 1})
    assert trace.rows[1] == TraceRow(
        row=2,
        job_id="2",
        submit_s=9000,
        gpus=32,
        duration_s=40000,
        team="orgB",
        gpu_type="A100-SXM4-80GB",
        priority="Spot",
    )
    assert trace.rows[2].gpus == 4


def test_sacct(tmp_path: Path) -> None:
    """Steps are no jobs; GPUs and their type are read out of the lists of resources; limits are clocks."""
    trace = made.read(tmp_path, made.SACCT)
    assert (trace.format, trace.read) == ("sacct", 6)
    assert counted(trace) == {
        (Why.NOT_A_JOB, "JobID"): 1,
        (Why.NEVER_RAN, "Start/End"): 1,
        (Why.NOT_ENDED, "Start/End"): 1,
        (Why.NO_GPUS, "AllocTRES/ReqTRES"): 1,
    }
    assert trace.rows == (
        TraceRow(
            row=1,
            job_id="101",
            submit_s=0,
            gpus=16,
            duration_s=7200,
            team="vision",
            user="ada",
            nodes=2,
            gpu_type="h100",
            end_state=Ended.COMPLETED,
            priority="normal",
            limit_s=86400,
            recorded_wait_s=60,
            kind="gpu",
        ),
        TraceRow(
            row=3,
            job_id="102_3",
            submit_s=30,
            gpus=4,
            duration_s=600,
            team="speech",
            user="bob",
            nodes=1,
            gpu_type="a100",
            end_state=Ended.CANCELLED,
            priority="high",
            limit_s=None,
            recorded_wait_s=10,
            kind="gpu",
        ),
    )


def test_sacct_with_seconds_and_a_bar_at_the_end(tmp_path: Path) -> None:
    """--parsable, SLURM_TIME_FORMAT=%s, TimelimitRaw in minutes and one list of resources do as well."""
    names = "JobID|State|Submit|Start|End|TimelimitRaw|ReqTRES|\n"
    line = "9|TIMEOUT|1700000000|1700000060|1700003660|60|gres/gpu=2|\n"
    assert made.read(tmp_path, names + line).rows == (
        TraceRow(
            row=1,
            job_id="9",
            submit_s=0,
            gpus=2,
            duration_s=3600,
            end_state=Ended.TIMED_OUT,
            limit_s=3600,
            recorded_wait_s=60,
        ),
    )


def test_a_file_from_windows(tmp_path: Path) -> None:
    """A byte order mark, CRLF, spaces after commas and an empty line at the end are no reason to fail."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfjob_id, submit_s, gpus, duration_s\r\na, 0, 8, 60\r\n\r\n")
    assert read_trace(path).rows == (TraceRow(row=1, job_id="a", submit_s=0, gpus=8, duration_s=60),)


def test_a_packed_file_under_another_name(tmp_path: Path) -> None:
    """Gzip is known by its first bytes."""
    path = tmp_path / "t.csv"
    path.write_bytes(gzip.compress(b"job_id,submit_s,gpus,duration_s\na,0,8,60\n"))
    assert [row.job_id for row in read_trace(path).rows] == ["a"]


def test_faults_can_be_sorted_and_counted() -> None:
    """A reason is a value: the code, and the columns."""
    assert sorted([Fault(Why.TORN), Fault(Why.EMPTY, "gpus")]) == [Fault(Why.EMPTY, "gpus"), Fault(Why.TORN)]
