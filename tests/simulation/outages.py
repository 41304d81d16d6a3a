"""Stories of outages (PROTOCOL 10, 12 to 14): logs that were restored, poison, clocks, and leaders who are cut off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commands.decide import decide_command
from commands.messages import CommandRecord, ExtendJob
from events.ids import JobId, parse_lease_id
from events.job import Overlap
from events.log import LogUnusable
from events.memory import Topic
from scheduler import intake
from scheduler.planning import plan
from tests.simulation.audit import Found
from tests.simulation.loop import current_process
from tests.simulation.run import Story, draw, swapped
from tests.simulation.schedulers import BROKER, DATABASE
from tests.simulation.waiting import pause, until
from tests.simulation.weather import block
from tests.simulation.work import busy, takeover
from tests.simulation.world import CLUSTER, World

TAKEOVER_S = 10.0
"""R-80: from the death of a leader to the first commit of the next, whatever any clock says."""

POISON = ExtendJob(job_id=JobId("j_poison"), by_s=666)


async def leads_within(world: World, within_s: float = TAKEOVER_S) -> None:
    """Another leads in time."""
    before = world.auditor.head.epoch
    await takeover(world)
    if not await until(lambda: world.auditor.head.epoch > before and world.leader() is not None, within_s, 0.1):
        raise Found("P-11", f"nobody leads {within_s:.0f} s after the leader died")


# 10: a log that was restored


def truncated(topic: Topic) -> Story:
    """The newest records of a log are gone: nobody may lead, and nothing may be written."""

    async def story(world: World) -> None:
        await world.people.settle_in()
        await busy(world, 15.0)
        await pause(5.0)
        world.may_die_of = (*world.may_die_of, LogUnusable)
        for host in world.hosts:
            host.stopped = True
            if host.process is not None:
                host.process.end("stopped for the restore")
        partition = world.store.partition(topic, CLUSTER)
        lost = partition.records[-3:]
        partition.truncate(partition.end - 3)
        for host in world.hosts:
            host.stopped = False
            host.start()
        before = world.auditor.head
        await pause(60.0)
        if world.auditor.head != before or world.leader() is not None:
            raise Found("P-5", "somebody leads on a log that was truncated")
        for raw in lost:
            partition.land(raw)

    return story


# 12: poison


def poison(crash: bool) -> Story:
    """A command on which deciding fails, or the whole process dies: one refusal, and the others are served."""

    async def story(world: World) -> None:
        with _poisonous(crash):
            await world.people.settle_in()
            before = world.auditor.head.epoch
            await busy(world, 5.0)
            position = await world.people.command(POISON)
            for _ in range(5):
                await world.people.submit()
            if not await world.people.answered(position + 5, 90.0):
                raise Found("P-7", "a poisonous command stops the others")
            await busy(world, 5.0)
        lost = world.auditor.head.epoch - before
        if lost > 2 * crash:
            raise Found("P-7", f"a poisonous command ended {lost} leaderships")
        if world.auditor.events_seen.get("InputRefused", 0) != 1:
            raise Found("P-7", f"{world.auditor.events_seen.get('InputRefused', 0)} inputs were refused")

    return story


@contextmanager
def _poisonous(crash: bool) -> Iterator[None]:
    real = decide_command

    def decide(draft: Any, record: CommandRecord) -> None:
        if record.command == POISON:
            process = current_process()
            if crash and process is not None:
                process.leave("poisoned")
            raise ZeroDivisionError("poison")
        real(draft, record)

    with swapped(intake, "decide_command", decide):
        yield


def unplanned(for_s: float) -> Story:
    """Planning fails for a while: nothing starts, the leader goes on, and then what waited starts."""

    async def story(world: World) -> None:
        await world.people.settle_in()
        await busy(world, 5.0)
        before = world.auditor.head.epoch
        with swapped(plan, "walk", _fails):
            waiting = [await world.people.submit() for _ in range(3)]
            await pause(for_s)
            if {parse_lease_id(lease)[0] for lease in world.auditor.granted} & {*waiting}:
                raise Found("C-46", "something starts though planning fails")
        if not world.failed_cycles():
            raise Found("C-46", "no cycle failed")
        await busy(world, 5.0)
        if world.auditor.head.epoch != before:
            raise Found("C-46", "an error in planning ended a leadership")

    return story


def _fails(*_: object) -> int:
    raise ZeroDivisionError("planning fails")


# 13: clocks


async def clocks(world: World) -> None:
    """The database's clock jumps by minutes and hours, each way, and leaders die: no mass time-out, no long vacancy."""
    chance = draw(world.seed, "clocks")
    await world.people.settle_in()
    for off_s in chance.sample((-600, 600, -3_600, 6 * 3_600, -2, 2), 4):
        world.database_off_ms += off_s * 1000
        at, began = world.auditor.state.meta.at, world.loop.now
        await busy(world, 12.0)
        if world.auditor.state.meta.at - at < (world.loop.now - began) * 1000 - 5_000:
            raise Found("P-11", f"`at` stands still after the clock went by {off_s} s")
        await leads_within(world)
        await busy(world, 5.0)
    if lost := world.auditor.events_seen.get("NodeLost"):
        raise Found("P-11", f"{lost} nodes are lost by a clock")


async def long_outage(world: World) -> None:
    """No scheduler for an hour, with jobs running: none of them fails for it (C-48)."""
    await world.people.settle_in()
    jobs = [await world.people.submit(**_steady(1_800)) for _ in range(4)]
    await pause(20.0)
    for host in world.hosts:
        host.stopped = True
        if host.process is not None:
            host.process.end("stopped by an operator")
    await pause(3_600.0)
    for host in world.hosts:
        host.stopped = False
        host.start()
    await until(lambda: all(job in world.auditor.ended for job in jobs), 300.0)
    wrong = [job for job in jobs if job not in world.auditor.ended or world.auditor.ended[job].state != "SUCCEEDED"]
    if wrong or world.auditor.events_seen.get("NodeLost"):
        raise Found("C-48", f"after an hour without schedulers: {wrong} did not succeed")


def _steady(duration_s: int) -> dict[str, object]:
    env = {"SIGNALBOX_SIM_DURATION_S": str(duration_s)}
    return {"env": env, "replicas": 1, "gpus_per_replica": 1, "max_runtime_s": 86_400, "overlap": Overlap.ALLOWED}


# 14: a leader that is cut off


def leader_cut_off(what: str) -> Story:
    """The leader does not reach all agents, half of them, the database, or the log."""

    async def story(world: World) -> None:
        world.people.only_submit = True
        await world.people.settle_in()
        jobs = [await world.people.submit(**_steady(400)) for _ in range(4)]
        await busy(world, 10.0)
        host = world.leader()
        assert host is not None
        nodes = list(world.machines)
        others = {"agents": nodes, "half": nodes[::2], "database": [DATABASE], "log": [BROKER]}[what]
        for other in others:
            block(world, other, host.name, 150.0)
        await busy(world, 200.0)
        if what == "agents" and world.auditor.events_seen.get("NodeLost"):
            raise Found("P-20", "nodes are lost because their leader is cut off")
        if what in ("database", "log") and world.leader() is None:
            raise Found("C-45", f"nobody leads though only one scheduler was cut off from the {what}")
        await until(lambda: all(job in world.auditor.ended for job in jobs), 900.0)

    return story
