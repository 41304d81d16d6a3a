"""Small files in formats whose real rows may not be copied here, or of which none was seen: made up, by their rules.

Columns, their order, and oddities (-1, empty times, parts of GPUs, lists of types) are as their owners describe them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from replay.traces.fleet import parse_fleet
from replay.traces.options import Options
from replay.traces.read import read_trace
from replay.traces.rows import Faults, Trace, TraceRow

SWF = """\
; Version: 2.2
; UnixStartTime: 800000000
; MaxProcs: 128
    1        0     -1   1234  128     -1    -1   -1     -1    -1 -1   1   2  -1 -1 -1 -1 -1
    2     1500     37 3600.8   64     -1    -1  128   3500    -1  1   4   2   7  3 -1 -1 -1
    3     1510     -1     -1   16     -1    -1   16    600    -1  5   4   2   7  3 -1 -1 -1
    4     1520      0     25   16     -1    -1   16    600    -1  5   4   2   7  3 -1 -1 -1
"""
SWF_ALL_ZERO = """\
1 1600000000 50000 10800 128 -1 -1 128 10700 -1 0 -1 -1 -1 -1 -1 -1 0
2 1600001000 40000 12600 640 -1 -1 640 12800 -1 0 -1 -1 -1 -1 -1 -1 0
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,uA,vcOne,8,64,1,COMPLETED,2020-06-09 12:00:00,2020-06-09 12:00:30,2020-06-09 13:00:30,3600,30
12,uB,vcTwo,0,16,1,FAILED,2020-06-09 12:00:25,2020-06-09 12:00:25,2020-06-09 12:04:25,240,0
13,uC,vcTwo,16,1,2,CANCELLED,2020-06-09 12:00:27,2020-06-09 12:00:27,2020-06-10 12:00:27,86400,0
"""
HELIOS_QUOTAS = """\
date,vcOne,vcTwo,total
2020-06-09,64,32,96
2020-06-10,64,32,96
2020-06-11,32,64,96
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,10000,10000,1,1000,,LS,Running,0,12000000,5
pod-1,5000,10000,1,450,V100M16|V100M32,BE,Failed,400061,400961,400061
pod-2,5000,10000,0,0,,BE,Succeeded,400061,400961,400061
pod-3,5000,10000,1,1000,,BE,Pending,400062,400100,
pod-4,80000,300000,8,1000,T4,Burstable,Succeeded,400070,400970,400075
"""
OPENB_NODES = """\
sn,cpu_milli,memory_mib,gpu,model
node-0,32000,262144,0,
node-1,128000,786432,8,V100M32
node-2,128000,786432,8,V100M32
node-3,64000,262144,2,T4
"""
PAI_JOBS = """\
job-a,inst-a,user-1,Terminated,1000.0,5000.0
job-b,inst-b,user-2,Failed,1100.0,1300.0
job-c,inst-c,user-2,Running,1200.0,
"""
PAI_TASKS = """\
job-a,ps,2.0,Terminated,1010.0,5000.0,600.0,29.3,,
job-a,worker,3.0,Terminated,1020.0,4000.0,600.0,29.3,50.0,T4
job-a,evaluator,1.0,Terminated,1030.0,4500.0,600.0,29.3,200.0,T4
job-b,worker,1.0,Failed,1100.0,1300.0,600.0,29.3,100.0,MISC
job-c,worker,1.0,Running,1210.0,,600.0,29.3,100.0,MISC
job-lost,worker,1.0,Terminated,1210.0,1310.0,600.0,29.3,100.0,MISC
"""
SPOT = """\
job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
1,orgA,A10,20,1,1,0,2000000,HP
2,orgB,A100-SXM4-80GB,15,2,16,9000,40000,Spot
3,orgB,A100-SXM4-80GB,15,0.5,4,9000,100,Spot
"""
SACCT = """\
JobID|User|Account|Partition|QOS|State|Submit|Start|End|Timelimit|NNodes|ReqTRES|AllocTRES
101|ada|vision|gpu|normal|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T02:01:00|1-00:00:00|2|\
billing=16,cpu=16,gres/gpu=16,node=2|billing=16,cpu=16,gres/gpu:h100=16,gres/gpu=16,node=2
101.batch||vision|||COMPLETED|2024-01-01T00:01:00|2024-01-01T00:01:00|2024-01-01T02:01:00||1||cpu=8,gres/gpu=8
102_3|bob|speech|gpu|high|CANCELLED by 1007|2024-01-01T00:00:30|2024-01-01T00:00:40|2024-01-01T00:10:40|UNLIMITED|1|\
cpu=8,gres/gpu=4,node=1|cpu=8,gres/gpu:a100=4,node=1
103|bob|speech|gpu|high|CANCELLED|2024-01-01T00:00:31|None|2024-01-01T00:10:40|30:00|0|cpu=8,gres/gpu=4,node=1|
104|bob|speech|gpu|high|RUNNING|2024-01-01T00:00:32|2024-01-01T00:00:33|Unknown|30:00|1|cpu=8|cpu=8,gres/gpu=4
105|bob|speech|cpu|high|COMPLETED|2024-01-01T00:00:33|2024-01-01T00:00:33|2024-01-01T00:00:34|30:00|1|cpu=8|cpu=8,node=1
"""
HEADER = "job_id,team,user,submit_s,gpus,nodes,gpu_type,duration_s,end_state,priority,limit_s,recorded_wait_s,kind"
"""Of the common CSV."""


def read(folder: Path, text: str, form: str | None = None, name: str = "trace.txt") -> Trace:
    """The trace in a file that says `text`."""
    path = folder / name
    path.write_text(text)
    return read_trace(path, form)


def common(folder: Path, *lines: str) -> Trace:
    """The trace of lines in the common CSV."""
    return read(folder, "\n".join([HEADER, *lines]) + "\n", "common")


def trace(*rows: TraceRow) -> Trace:
    """A trace of rows, as if read."""
    return Trace(name="made", format="common", read=len(rows), rows=rows, faults=Faults(), notes=Counter())


def row(job_id: str = "a", **fields: object) -> TraceRow:
    """A row of 8 GPUs and a minute, where a test does not say otherwise."""
    found = {"row": 1, "submit_s": 0, "gpus": 8, "duration_s": 60, **fields}
    return TraceRow(job_id=job_id, **found)  # type: ignore[arg-type]


def options(fleet: str = "4x8:h100", **fields: object) -> Options:
    return Options(fleet=parse_fleet(fleet), **fields)  # type: ignore[arg-type]
