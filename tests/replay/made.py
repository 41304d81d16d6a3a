"""Small files in formats whose real rows may not be copied here, or of which none was seen: made up, by their rules.

Columns, their order, and oddities (-1, empty times, parts of GPUs, lists of types) are as their owners describe them.
"""

from __future__ import annotations

from pathlib import Path

from replay.traces.read import read_trace
from replay.traces.rows import Trace, TraceRow

SWF = """\
; Version: 2.2
; UnixStartTime: 749458803
; MaxProcs: 128
    1        0     -1   1451  128     -1    -1   -1     -1    -1 -1   1   2  -1 -1 -1 -1 -1
    2     1460     37 3726.8   64     -1    -1  128   3600    -1  1   4   2   7  3 -1 -1 -1
    3     1470     -1     -1   16     -1    -1   16    600    -1  5   4   2   7  3 -1 -1 -1
    4     1480      0     25   16     -1    -1   16    600    -1  5   4   2   7  3 -1 -1 -1
"""
SWF_ALL_ZERO = """\
1 1641021254 52645 10849 128 -1 -1 128 10800 -1 0 -1 -1 -1 -1 -1 -1 0
2 1641022430 40859 12696 640 -1 -1 640 12800 -1 0 -1 -1 -1 -1 -1 -1 0
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,uA,vcOne,8,64,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:31,2020-06-09 19:41:31,3600,30
12,uB,vcTwo,0,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
13,uC,vcTwo,16,1,2,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""
HELIOS_QUOTAS = """\
date,vcOne,vcTwo,total
2020-06-09,64,32,96
2020-06-10,64,32,96
2020-06-11,32,64,96
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,1000,,LS,Running,0,12537496,5
pod-1,6000,12288,1,460,V100M16|V100M32,BE,Failed,427061,427961,427061
pod-2,6000,12288,0,0,,BE,Succeeded,427061,427961,427061
pod-3,6000,12288,1,1000,,BE,Pending,427062,427100,
pod-4,88000,327680,8,1000,T4,Burstable,Succeeded,427070,427970,427075
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
239,13,A10,20,1,1,0,2764799,HP
437,57,A100-SXM4-80GB,15,2,16,9663,41060,Spot
438,57,A100-SXM4-80GB,15,0.5,4,9663,100,Spot
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
    from collections import Counter

    from replay.traces.rows import Faults

    return Trace(name="made", format="common", read=len(rows), rows=rows, faults=Faults(), notes=Counter())
