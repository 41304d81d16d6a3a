"""The formats, each a table. What was seen of each, and so what is claimed, is in docs/traces.md."""

from replay.traces import cells
from replay.traces.columns import Column, Format, Remark, any_of, may, need
from replay.traces.jobs import (
    attempts_left_out,
    machines_of,
    most_gpus,
    philly_ran,
    philly_waited,
    shared_tasks,
    tasks_gpus,
    tasks_ran,
    tasks_type,
    tasks_waited,
)
from replay.traces.rows import Ended, Note, Why

_SWF_STATES = {"0": "FAILED", "1": "COMPLETED", "5": "CANCELLED"}


def _swf_known(cell: str) -> str:
    return "" if cell == "-1" else cell


def _swf_ran(run: str, wait: str, status: str) -> int:
    """A job that was cancelled before it started has no run time."""
    if run == "-1":
        raise cells.Unfit(Why.NEVER_RAN if status == "5" else Why.EMPTY, run)
    return cells.seconds(run)


def _swf_gpus(requested: str, allocated: str) -> int:
    """What was asked for, or where that is unknown what was allocated: one processor is one GPU."""
    return cells.gpus(allocated if requested == "-1" else requested)


def _shared(count: str, milli: str) -> bool:
    return count == "1" and milli not in ("", "1000")


_CENTRE: tuple[Column, ...] = (
    need("job_id", "job_id"),
    need("submit_s", "submit_time", by=cells.stamp),
    need("gpus", "gpu_num", by=cells.gpus),
    need("duration_s", "start_time", "end_time", by=cells.ran),
    may("nodes", "node_num", by=cells.whole_or_none),
    may("user", "user"),
    need("end_state", "state", by=cells.ended),
    may("recorded_wait_s", "submit_time", "start_time", by=cells.waited),
)
"""What the Acme and Helios logs have in common. `duration` is not read: in the Kalos log it includes queueing."""

COMMON = Format(
    name="common",
    title="one line a job with the header of docs/traces.md",
    own_zero=True,
    columns=(
        need("job_id", "job_id"),
        need("submit_s", "submit_s", by=cells.seconds),
        need("gpus", "gpus", by=cells.gpus),
        need("duration_s", "duration_s", by=cells.seconds),
        may("team", "team"),
        may("user", "user"),
        may("nodes", "nodes", by=cells.whole_or_none),
        may("gpu_type", "gpu_type"),
        may("end_state", "end_state", by=cells.ended),
        may("priority", "priority"),
        may("limit_s", "limit_s", by=cells.seconds_or_none),
        may("recorded_wait_s", "recorded_wait_s", by=cells.seconds_or_none),
        may("kind", "kind"),
    ),
)
SWF = Format(
    name="swf",
    title="Standard Workload Format of the Parallel Workloads Archive; a processor is a GPU",
    shape="swf",
    sole_state=Ended.FAILED,
    columns=(
        need("job_id", "job"),
        need("submit_s", "submit", by=cells.seconds),
        need("gpus", "requested_procs", "allocated_procs", by=_swf_gpus),
        need("duration_s", "run", "wait", "status", by=_swf_ran),
        may("team", "group", by=_swf_known),
        may("user", "user", by=_swf_known),
        may("end_state", "status", by=lambda cell: cells.ended(_SWF_STATES.get(cell, ""))),
        may("limit_s", "requested_time", by=cells.seconds_or_none),
        may("recorded_wait_s", "wait", by=cells.seconds_or_none),
        may("kind", "queue", by=_swf_known),
    ),
)
ACME = Format(
    name="acme",
    title="AcmeTrace job logs of Kalos and Seren (Shanghai AI Laboratory)",
    dated=True,
    columns=(*_CENTRE, need("kind", "type", by=cells.text)),
)
ACME_ITERATIONS = Format(
    name="acme-iterations",
    title="Kalos as a public conversion has it: iterations, and the time of each",
    columns=(
        need("job_id", "job_id"),
        need("submit_s", "arrival_time", by=cells.seconds),
        need("gpus", "gpu_workers", "gpu_per_worker", by=cells.times),
        need("duration_s", "num_iteration", "iteration_computing_time", by=cells.iterations),
        may("nodes", "gpu_workers", by=cells.whole_or_none),
    ),
)
PHILLY_JSON = Format(
    name="philly-json",
    title="philly-traces' cluster_job_log (Microsoft)",
    shape="philly",
    dated=True,
    columns=(
        need("job_id", "jobid"),
        need("submit_s", "submitted_time", by=cells.stamp),
        need("gpus", "attempts", by=most_gpus),
        need("duration_s", "attempts", by=philly_ran),
        may("nodes", "attempts", by=machines_of),
        may("team", "vc"),
        may("user", "user"),
        may("end_state", "status", by=cells.ended),
        may("recorded_wait_s", "submitted_time", "attempts", by=philly_waited),
    ),
    remarks=(Remark(Note.ATTEMPTS_LEFT_OUT, ("attempts",), attempts_left_out),),
)
PHILLY_CSV = Format(
    name="philly-csv",
    title="Philly as the authors of Pollux and Sia published it",
    dated=True,
    columns=(
        need("submit_s", "timestamp", by=cells.stamp),
        need("gpus", "num_gpus", by=cells.gpus),
        need("duration_s", "duration", by=cells.seconds),
        need("team", "cluster", by=cells.text),
    ),
)
HELIOS = Format(
    name="helios",
    title="HeliosData's cluster_log (SenseTime)",
    dated=True,
    columns=(*_CENTRE, need("team", "vc", by=cells.text)),
)
OPENB = Format(
    name="openb",
    title="Alibaba cluster-trace-gpu-v2023, lists of pods",
    columns=(
        need("job_id", "name"),
        need("submit_s", "creation_time", by=cells.seconds),
        need("gpus", "num_gpu", by=cells.gpus),
        need("duration_s", "scheduled_time", "deletion_time", by=cells.ran),
        may("gpu_type", "gpu_spec"),
        may("end_state", "pod_phase", by=cells.ended),
        may("priority", "qos"),
        may("recorded_wait_s", "creation_time", "scheduled_time", by=cells.waited),
    ),
    remarks=(Remark(Note.SHARED_GPU, ("num_gpu", "gpu_milli"), _shared),),
)
PAI = Format(
    name="pai",
    title="Alibaba cluster-trace-gpu-v2020: a folder with pai_job_table.csv and pai_task_table.csv",
    shape="pai",
    columns=(
        need("job_id", "job_name"),
        need("submit_s", "start_time", by=cells.seconds),
        need("gpus", "tasks", by=tasks_gpus),
        need("duration_s", "tasks", by=tasks_ran),
        may("user", "user"),
        may("gpu_type", "tasks", by=tasks_type),
        may("end_state", "status", by=cells.ended),
        may("recorded_wait_s", "start_time", "tasks", by=tasks_waited),
    ),
    remarks=(Remark(Note.SHARED_GPU, ("tasks",), shared_tasks),),
)
SPOT = Format(
    name="spot",
    title="Alibaba cluster-trace-v2026-spot-gpu, job_info_df",
    columns=(
        need("job_id", "job_name"),
        need("submit_s", "submit_time", by=cells.seconds),
        need("gpus", "worker_num", "gpu_request", by=cells.times),
        need("duration_s", "duration", by=cells.seconds),
        need("team", "organization", by=cells.text),
        may("gpu_type", "gpu_model"),
        need("priority", "job_type", by=cells.text),
    ),
    remarks=(Remark(Note.SHARED_GPU, ("gpu_request",), cells.has_fraction),),
)
SACCT = Format(
    name="sacct",
    title="Slurm: sacct --parsable2 --allocations",
    shape="bars",
    dated=True,
    columns=(
        need("job_id", "JobID", by=cells.slurm_job),
        need("submit_s", "Submit", by=cells.stamp),
        any_of("gpus", "AllocTRES", "ReqTRES", by=cells.tres_gpus),
        need("duration_s", "Start", "End", by=cells.ran),
        may("gpu_type", "AllocTRES", "ReqTRES", by=cells.tres_type),
        need("end_state", "State", by=cells.ended),
        may("team", "Account"),
        may("user", "User"),
        may("nodes", "NNodes", by=cells.whole_or_none),
        may("limit_s", "Timelimit", "TimelimitRaw", by=cells.slurm_limit),
        may("recorded_wait_s", "Submit", "Start", by=cells.waited),
        may("priority", "QOS"),
        may("kind", "Partition"),
    ),
)

FORMATS = {
    form.name: form
    for form in (
        COMMON,
        SWF,
        ACME,
        ACME_ITERATIONS,
        PHILLY_JSON,
        PHILLY_CSV,
        HELIOS,
        OPENB,
        PAI,
        SPOT,
        SACCT,
    )
}
"""By name."""
