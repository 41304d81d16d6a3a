"""Small scenarios: a fleet, who shares it, and what comes; times in whole seconds from the beginning."""

from __future__ import annotations

from typing import Any

from commands.policy import Policy
from events.ids import BlockId, Instant, JobId, NodeId, TeamId
from replay.scenario import Arrival, Scenario, Silence, TeamQuota, Work
from tests.builders import H100, register, spec

T0 = 1_800_000_000_000


def at(second: int) -> Instant:
    return Instant(T0 + second * 1000)


def comes(second: int, name: str, run_s: int, *, work: dict[str, Any] | None = None, **asked: Any) -> Arrival:
    """A job that comes then, and runs for so long; `work`: what else it really does; the rest is of its spec."""
    return Arrival(
        at=at(second), job_id=JobId(name), spec=spec(**asked), work=Work(run_s=run_s, **(work or {"start_s": 0}))
    )


def share(team: str, guaranteed: int, borrow_limit: int = 10_000) -> TeamQuota:
    return TeamQuota(team=TeamId(team), gpu_type=H100, guaranteed=guaranteed, borrow_limit=borrow_limit)


def silent(node: int, from_s: int, until_s: int | None) -> Silence:
    until = None if until_s is None else at(until_s)
    return Silence(node_id=NodeId(f"n{node}"), at=at(from_s), until=until)


def scenario(
    nodes: int, arrivals: list[Arrival], *quotas: TeamQuota, in_block: int = 32, gpus: int = 8, **fields: Any
) -> Scenario:
    """`nodes` of `gpus`; quotas: the team red may borrow all, unless others are given. Fields of Policy as `policy`."""
    policy = fields.pop("policy", {})
    return Scenario(
        name="small",
        start_at=at(0),
        nodes=tuple(
            register(f"n{number}", block=BlockId(f"b{number // in_block:02}"), gpu_count=gpus)
            for number in range(nodes)
        ),
        quotas=quotas or (share("red", 0),),
        arrivals=tuple(arrivals),
        policy=Policy(**policy),
        **fields,
    )


def second(instant: Instant | None) -> int:
    assert instant is not None
    return (instant - T0) // 1000
