"""The checks themselves: each finds the offence that it is for. No stack is started here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from events.envelope import Commit, Event, Input
from events.gang import GangAllocated
from events.ids import BlockId, ClusterId, Epoch, GpuMask, GpuType, Instant, JobId, NodeId, NodeIndex, Nonce, Principal
from events.node import GpuSlot, NodeRegistered
from events.task import TaskEnd, TaskEnded
from tests.live.checks import double_leases, ledger_faults


def commit(n: int, *events: Event) -> Commit:
    """A commit of these events."""
    return Commit(
        cluster=ClusterId("main"),
        epoch=Epoch(1),
        nonce=Nonce("x"),
        n=n,
        at=Instant(n),
        actor=Principal("scheduler"),
        input=Input(kind="cycle", id=str(n)),
        policy=0,
        prev="",
        seq=n,
        events=events,
    )


def node() -> NodeRegistered:
    """A node of two GPUs."""
    return NodeRegistered(
        node=NodeIndex(0),
        node_id=NodeId("n-0000"),
        generation=1,
        boot_id="b",
        incarnation="i",
        journal="j",
        address="a",
        block=BlockId("b0"),
        rack="r0",
        gpu_type=GpuType("h100"),
        gpu_memory_gb=80,
        gpus=(GpuSlot(uuid="u0"), GpuSlot(uuid="u1")),
    )


def granted(job: str, mask: int) -> GangAllocated:
    """One rank on that node."""
    return GangAllocated(job_id=JobId(job), attempt=1, ranks=((NodeIndex(0), GpuMask(mask)),), limit_at=None)


def ended(job: str) -> TaskEnded:
    """Its end."""
    return TaskEnded(job_id=JobId(job), attempt=1, rank=0, node=NodeIndex(0), report=1, end=TaskEnd.EXITED, exit_code=0)


def ledger(home: Path, *lines: dict[str, Any]) -> Path:
    """A fleet's ledger."""
    (home / "fleet").mkdir()
    (home / "fleet" / "ledger.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return home


def ran(job: str, at: float, until: float, gpu: str = "u0") -> list[dict[str, Any]]:
    """A task that ran."""
    return [
        {"node": "n-0000", "lease": f"{job}.1.0", "task": {"begun_at": at, "gpus": [gpu]}},
        {"node": "n-0000", "lease": f"{job}.1.0", "ended_at": until, "end": "exited", "exit_code": 0},
    ]


def test_a_gpu_in_two_live_leases_is_found() -> None:
    """One after the other is well; one before the other has ended, and one that never ends, are not."""
    assert (
        double_leases([commit(1, granted("a", 3)), commit(2, ended("a"), granted("b", 1)), commit(3, ended("b"))]) == []
    )
    twice = double_leases([commit(1, granted("a", 3)), commit(2, granted("b", 2)), commit(3, ended("a"), ended("b"))])
    assert [fault[:6] for fault in twice] == ["(0, 1)"]
    assert double_leases([commit(1, granted("a", 1))]) == ["(0, 0) is still held by a.1.0"]


def test_what_the_fleet_ran_is_held_against_the_log(tmp_path: Path) -> None:
    """Found are two leases on one GPU at once, a lease that began twice, one never granted, and one that never ran."""
    log = [commit(1, node()), *[commit(2, granted(job, 1), ended(job)) for job in ("a", "b", "c")]]
    home = ledger(tmp_path, *ran("a", 1, 3), *ran("b", 2, 4), *ran("a", 5, 6), *ran("d", 7, 8))
    faults = ledger_faults(home, list(log))
    assert any("u0: b.1.0 began 1.000 s before a.1.0 had ended" in fault for fault in faults)
    assert {"a.1.0 began 2 times", "d.1.0 ran and was never granted"} <= set(faults)
    assert "c.1.0 is done by the log, and did not run" in faults
    assert len(faults) == 4
