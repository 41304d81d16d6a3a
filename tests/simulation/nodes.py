"""Stories of nodes (PROTOCOL 5 to 9): what agents are told and when, partitions, slow starts, agents that die."""

from commands.entities import NodeState
from commands.messages import WipeNode
from events.ids import JobId, parse_lease_id
from events.job import CheckpointPlan, EndReason, Overlap
from scheduler.link import StartTask
from tests.simulation.audit import Found
from tests.simulation.faults import Chaos
from tests.simulation.run import Story, draw
from tests.simulation.waiting import pause, until
from tests.simulation.weather import cut_off
from tests.simulation.work import busy, takeover
from tests.simulation.world import World

AGENT_GATES = ("journal.before", "journal.after", "exec.before", "exec.after")

# 5, 6: what agents are told, and when


def hostile(any_session: bool) -> Story:
    """StartTask and StopTask come twice, late, and in any order; agents soon forget what has ended."""

    async def story(world: World) -> None:
        await world.people.settle_in()
        world.hostile.double = world.hostile.late = 0.5
        world.hostile.any_session = any_session
        for _ in range(3):
            await busy(world, 20.0)
            cut_off(world, list(world.machines)[:3], 14.0)
            await busy(world, 20.0)
            await takeover(world)

    return story


async def frozen_agents(world: World) -> None:
    """Agents stop with a StartTask in their socket, some for longer than it takes to be declared lost."""
    chance = draw(world.seed, "frozen agents")

    def heard(node: str, message: object) -> None:
        process = world.machines[node].process
        if isinstance(message, StartTask) and process is not None and chance.random() < 0.25:
            for_s = chance.choice((8.0, 25.0, 40.0, 95.0, 200.0))
            world.trace(f"{node} freezes with a StartTask in its socket for {for_s:.0f} s")
            process.freeze(for_s)

    await world.people.settle_in()
    world.when_heard.append(heard)
    await busy(world, 120.0)
    world.when_heard.clear()
    await pause(200.0)


# 7: partitions


def partition(for_s: float, *, agent_dies: bool = False, overlap: Overlap = Overlap.ALLOWED) -> Story:
    """Two nodes reach nobody for a while; one rank of a gang and whole jobs run there."""

    async def story(world: World) -> None:
        world.people.only_submit = True
        await world.people.settle_in()
        jobs = [await long_job(world, replicas, for_s + 300.0, overlap) for replicas in (1, 1, 2, 3)]
        await until(lambda: len(running_nodes(world, jobs)) >= 2, 60.0)
        nodes = running_nodes(world, jobs)[:2]
        cut_off(world, nodes, for_s)
        if agent_dies:
            for node in nodes:
                world.machines[node].serviced = False
                world.machines[node].kill_agent()
        await busy(world, min(for_s, 60.0))
        await pause(max(0.0, for_s - 60.0))
        for node in nodes:
            world.machines[node].serviced = True
            world.machines[node].start()
        await pause(120.0)
        if for_s <= 60.0:
            _nothing_lost(world, jobs)

    return story


async def long_job(world: World, replicas: int, duration_s: float, overlap: Overlap = Overlap.ALLOWED) -> JobId:
    """A job that outlasts the faults of its story, and ends well."""
    env = {"SIGNALBOX_SIM_DURATION_S": str(int(duration_s)), "SIGNALBOX_SIM_CHECKPOINT_S": "10"}
    return await world.people.submit(
        replicas=replicas,
        gpus_per_replica=3,
        max_runtime_s=86_400,
        env=env,
        checkpoint=CheckpointPlan(grace_s=5, uri="s3://long"),
        overlap=overlap,
    )


def running_nodes(world: World, jobs: list[JobId]) -> list[str]:
    """Nodes on which something of these jobs runs."""
    ours = set(jobs)
    return [
        node
        for node, machine in world.machines.items()
        if any(lease.rsplit(".", 2)[0] in ours for lease in machine.running())
    ]


def _nothing_lost(world: World, jobs: list[JobId]) -> None:
    """C-40: a partition of less than 90 s kills nothing and reruns nothing; what others displaced is no loss."""
    if lost := world.auditor.events_seen.get("NodeLost"):
        raise Found("C-40", f"{lost} nodes count as lost after a short partition")
    stopped = {key for key, why in world.auditor.stopped_for.items() if why is EndReason.PREEMPTED}
    again = [
        lease
        for lease in world.auditor.granted
        for job_id, attempt, _ in [parse_lease_id(lease)]
        if job_id in jobs and attempt > 1 and (job_id, attempt - 1) not in stopped
    ]
    if again:
        raise Found("C-40", f"{again} were granted after a short partition")


# 8: starts that take long


async def slow_starts(world: World) -> None:
    """Images that take 3 and 11 minutes to come, whole gangs behind them, and people who lose patience."""
    await world.people.settle_in()
    for start_s in (180, 660, 180, 660):
        env = {"SIGNALBOX_SIM_START_S": str(start_s), "SIGNALBOX_SIM_DURATION_S": "20"}
        await world.people.submit(env=env, replicas=2, gpus_per_replica=2, max_runtime_s=7_200)
    await busy(world, 60.0)
    await takeover(world)
    await pause(700.0)


# 9: agents that die


def dying_agents(gate: str) -> Story:
    """Agents die at a gate, again and again, and leaders with them."""

    async def story(world: World) -> None:
        chance = draw(world.seed, gate)
        await world.people.settle_in()
        for _ in range(8):
            world.faults.kill_at(gate, chance.randint(1, 6), lambda process: process.name in world.machines)
            await busy(world, 8.0)
            if chance.random() < 0.4:
                await takeover(world)
        world.faults.chaos = Chaos(agent_kill=0.05)
        await busy(world, 30.0)

    return story


async def power_cuts(world: World) -> None:
    """Machines lose power, and with it their tasks; some stay away for longer than it takes to be lost."""
    chance = draw(world.seed, "power")
    await world.people.settle_in()
    for _ in range(8):
        node = chance.choice(list(world.machines))
        if world.machines[node].powered:
            world.machines[node].power_off(chance.choice((1.0, 15.0, 50.0, 120.0)))
        await busy(world, 12.0, longest_s=60)
        if chance.random() < 0.3:
            await takeover(world)


async def lost_journals(world: World) -> None:
    """Agents come back without their memory, at any time, and leaders change."""
    chance = draw(world.seed, "journals")
    await world.people.settle_in()
    for _ in range(6):
        await busy(world, 10.0, longest_s=30)
        world.machines[chance.choice(list(world.machines))].lose_journal()
        if chance.random() < 0.4:
            await takeover(world)
    await busy(world, 20.0)


# 15: GPUs that change places


async def renumbered(world: World) -> None:
    """GPUs of a node are found in another order when its agent comes back, while leases live on it."""
    chance = draw(world.seed, "renumbered")
    await world.people.settle_in()
    for _ in range(4):
        await busy(world, 10.0, longest_s=30)
        machine = world.machines[chance.choice(list(world.machines))]
        machine.cards.rotation += 1
        machine.kill_agent()
        await pause(5.0)
    await busy(world, 20.0)
    await pause(200.0)
    await wipe_lost(world)


async def wipe_lost(world: World) -> None:
    """An operator looks at each lost node, finds nothing on it, and says so."""
    for node in world.auditor.state.nodes.rows.values():
        if node.state is NodeState.LOST:
            await until(lambda node=node: not world.machines[node.id].running(), 600.0)  # type: ignore[misc]
            await world.people.command(WipeNode(node_id=node.id, reason="looked at it: nothing runs there"))
