"""The leader: after which plan it plans again at once, and after which it waits for news."""

from __future__ import annotations

from typing import Any, NoReturn

from agent.gateway import GrpcGateway
from commands.decide.attempts import Draft
from commands.plan import Plan
from events.envelope import Event, Input
from events.ids import ClusterId, Epoch, Instant, JobId, NodeIndex, TeamId
from events.job import JobHeld
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore
from events.node import NodesConfirmed
from events.quota import QuotaChanged
from scheduler.leader import Leader, World
from scheduler.memory import MemoryClaims, MemoryControl, MemoryLeadership, MemorySnapshots
from scheduler.planning.plan import Planner
from scheduler.replica import restore
from scheduler.takeover import SCHEDULER, take_over
from tests.crowds import H100, queued, registered

EU = ClusterId("eu")


def leave(why: str) -> NoReturn:
    """Nothing here is a reason to go."""
    raise AssertionError(why)


async def elected() -> Leader:
    """In office, over logs and tables in memory; no time passes for it."""
    store, control = MemoryStore(), MemoryControl(clock=lambda: Instant(0))
    log, commands = MemoryEventLog(store, EU), MemoryCommandLog(store, EU)
    await log.open(create=True)
    command_log_id = await commands.open(create=True)
    leadership, snapshots = MemoryLeadership(control, EU), MemorySnapshots(control, EU)
    tenure = await leadership.acquire("a", "a:1", Epoch(0))
    assert tenure is not None
    ports: dict[str, Any] = {
        "cluster": EU,
        "commands": commands,
        "command_log_id": command_log_id,
        "monotonic": lambda: 0.0,
        "leave": leave,
    }
    replica, claims = await restore(EU, log, snapshots), MemoryClaims(control, EU)
    writer = await take_over(replica=replica, tenure=tenure, log=log, claims=claims, **ports)
    gateway = GrpcGateway(leader=lambda: None)
    world = World(leadership=leadership, snapshots=snapshots, gateway=gateway, expired=lambda: False, **ports)
    return Leader(writer, world)


async def told(leader: Leader, *events: Event) -> None:
    """These facts, in a commit."""

    def decide(draft: Draft) -> None:
        for event in events:
            draft.add(event)

    await leader.make(Input(kind="tick", id="given"), SCHEDULER, decide)


async def crowded() -> Leader:
    """Of a node with 8 GPUs, and three jobs of 4 that wait for it, in the order of their names."""
    leader = await elected()
    line: dict[str, Any] = {"gpu_type": H100, "guaranteed": 8, "borrow_limit": 8}
    await told(leader, registered(0, 8), QuotaChanged(team=TeamId("red"), reason="", **line))
    await told(leader, NodesConfirmed(nodes=(NodeIndex(0),)))
    for name in "abc":
        await told(leader, *queued(name, 1, 4))
    return leader


def granted(leader: Leader) -> list[str]:
    """Jobs with an attempt."""
    return sorted(job_id for job_id, _ in leader.state.attempts.rows)


def cycles(leader: Leader) -> float | None:
    """How often it has planned."""
    return leader._world.measures.registry.get_sample_value("signalbox_cycle_seconds_count")


class Behind(Planner):
    """A planner whose next plan was made before the newest facts."""

    made_before: Plan | None = None

    def plan(self, now: Instant, ranks_max: int = 4_000) -> Plan:
        """As Planner.plan."""
        plan, self.made_before = self.made_before, None
        return plan or super().plan(now, ranks_max)


async def test_after_a_plan_that_was_the_last_it_waits_for_news() -> None:
    """All of it came about, and it says that no other finds anything: none is made."""
    leader = await crowded()
    await leader._plan()
    assert granted(leader) == ["a", "b"]
    assert cycles(leader) == 1


async def test_a_plan_that_is_the_last_but_stale_is_not_the_last() -> None:
    """One of its two jobs was held meanwhile: what that leaves is given to the next at once, not with the next tick."""
    leader = await crowded()
    behind = leader.planner = Behind(leader.state)
    plan = behind.plan(Instant(0))
    assert plan.last
    await told(leader, JobHeld(job_id=JobId("b")))
    behind.made_before = plan
    await leader._plan()
    assert granted(leader) == ["a", "c"]
    assert cycles(leader) == 2


async def test_after_a_plan_that_was_cut_short_it_plans_again() -> None:
    """Only so much goes into one plan: the rest comes with the next, at once."""
    leader = await crowded()
    behind = leader.planner = Behind(leader.state)
    behind.made_before = behind.plan(Instant(0), ranks_max=1)
    assert [step.job_id for step in behind.made_before.placements] == ["a"]
    await leader._plan()
    assert granted(leader) == ["a", "b"]
    assert cycles(leader) == 2
