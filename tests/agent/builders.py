"""Messages and parts of an agent with everything but the point of the test filled in."""

from typing import Any

from agent.ports import Identity, TaskStart
from events.ids import BlockId, Epoch, JobId, LeaseId, NodeId, lease_id
from scheduler.link import Grant, StartTask, StopTask

JOB = JobId("j_1")
LEASE = lease_id(JOB, 1, 0)
GPU = "GPU-n-1-0"


def start_task(*command: str, **changes: Any) -> StartTask:
    """A start of LEASE on GPU; any field may be changed."""
    fields: dict[str, Any] = {
        "epoch": Epoch(1),
        "grant": (1, 10),
        "last_heartbeat": 0,
        "lease_id": LEASE,
        "job_id": JOB,
        "attempt": 1,
        "rank": 0,
        "replicas": 1,
        "gpus_per_replica": 1,
        "command": command or ("true",),
        "gpu_uuids": (GPU,),
        "master_addr": "n-1",
        "master_port": 29500,
        "limit_s": None,
        "grace_s": 5,
    }
    return StartTask(**fields | changes)


def stop_task(lease: LeaseId = LEASE, *, epoch: int = 1, grant: Grant = (1, 10), grace_s: int = 5) -> StopTask:
    """A stop of LEASE."""
    return StopTask(epoch=Epoch(epoch), grant=grant, lease_id=lease, grace_s=grace_s, reason="preempted")


def task(*command: str, exec_before: float = float("inf"), limit_at: float | None = None, **changes: Any) -> TaskStart:
    """What a runtime gets for `start_task`."""
    # JSON knows no infinity: far enough is enough.
    return TaskStart(message=start_task(*command, **changes), exec_before=min(exec_before, 1e12), limit_at=limit_at)


def shim_spec(*command: str) -> dict[str, object]:
    """What a shim gets for a task without limits."""
    return {
        "command": [*command],
        "workdir": None,
        "exec_before": 1e12,
        "limit_at": None,
        "grace_s": 5,
        "margin_s": 0,
        "isolation_s": None,
        "unkillable_s": 10,
        "renewed": "",
        "cgroup": None,
        "log_bytes_max": 1000,
    }


def identity(node: str = "n-1", incarnation: str = "i-1") -> Identity:
    """An agent's."""
    return Identity(
        node_id=NodeId(node),
        boot_id="boot-1",
        incarnation=incarnation,
        block=BlockId("b0"),
        rack="r0",
        address=node,
    )
