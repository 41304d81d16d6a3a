"""Run one scenario under one seed: anything may die, then nothing more goes wrong, then the last checks."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent import fence
from agent.simulated import overlaps
from commands.entities import NodeState
from events.chain import START, Head
from events.log import accepted
from events.memory import Topic
from scheduler import leader
from tests.simulation.audit import Found
from tests.simulation.waiting import until
from tests.simulation.world import CLUSTER, PLAIN, Shape, World

CONVERGE_S = 2_400.0
"""Longer than any time-out and back-off: after it nothing may be left to do."""
READERS = 4

Story = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story and the world that it is told of."""

    name: str
    story: Story
    shape: Shape = PLAIN


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to, for comparing runs. `log`: the events log; `noted`: the head in the epoch row (P-5)."""

    head: Head
    virtual_s: float
    passed: dict[str, int]
    events: dict[str, int]
    terms: int
    dropped: int
    log: tuple[bytes, ...] = field(repr=False)
    noted: tuple[str, int, int, str] | None


def run(scenario: Scenario, seed: int) -> Outcome:
    """Run it. Raises what was found, with the last lines of what happened and how to repeat it."""
    world = World(seed, scenario.shape)
    snapshot_every = swapped(leader, "SNAPSHOT_EVERY", scenario.shape.snapshot_every)
    settled_max = swapped(fence, "SETTLED_MAX", scenario.shape.settled_max)
    with _logged(world), snapshot_every, settled_max:
        try:
            world.loop.run_until_complete(_tell(world, scenario.story))
        except BaseException as error:
            world.finding = world.finding or error
        finally:
            _tear_down(world)
    if world.finding is not None:
        world.finding.add_note("\n".join(world.lines))
        world.finding.add_note(
            f"repeat: .venv/bin/python -m tests.simulation --scenario {scenario.name} --seeds {seed}"
        )
        raise world.finding
    row = world.control.rows.get(CLUSTER)
    return Outcome(
        head=world.auditor.head,
        virtual_s=world.loop.now,
        passed=dict(world.faults.passed),
        events=dict(world.auditor.events_seen),
        terms=world.auditor.state.meta.epoch,
        dropped=world.auditor.dropped,
        log=tuple(world.store.partition(Topic.EVENTS, CLUSTER).records),
        noted=row.head if row is not None else None,
    )


async def _tell(world: World, story: Story) -> None:
    await world.build()
    told = asyncio.ensure_future(_whole(world, story))
    found = asyncio.ensure_future(world.finished())
    await asyncio.wait({told, found}, return_when=asyncio.FIRST_COMPLETED)
    if world.finding is None:
        await told


async def _whole(world: World, story: Story) -> None:
    await story(world)
    await converge(world)
    await check_readers(world)
    if failed := world.failed_cycles():
        raise Found("C-46", f"{failed} planning cycles failed")


async def converge(world: World) -> None:
    """Faults stop: everything must come to rest, with every job ended and every command answered."""
    world.trace("faults stop")
    world.faults.calm()
    world.network.open_all()
    world.hostile.double = world.hostile.late = 0.0
    for machine in world.machines.values():
        machine.serviced = True
        machine.power_on()
    for host in world.hosts:
        host.stopped = False
        host.start()
    await world.people.undo()
    if not await until(lambda: not unrest(world), CONVERGE_S):
        raise Found("liveness", f"{CONVERGE_S:.0f} s after the last fault: {unrest(world)}")
    world.check_machines()
    for machine in world.machines.values():
        for overlap in overlaps(machine.ledger.lines):
            raise Found("P-15", f"by the ledger of {machine.node}: {overlap}")
    if lost := world.auditor.lost_jobs():
        raise Found("I-7", f"accepted and lost: {lost}")


def unrest(world: World) -> str:
    """What is still to be done; empty: nothing."""
    auditor, state = world.auditor, world.auditor.state
    left = {
        "unanswered": auditor.unanswered(),
        "jobs": {job.id: str(job.state) for job in state.jobs.rows.values()},
        "attempts": list(state.attempts.rows),
        "claims": dict(world.control.claims_of(CLUSTER)),
        "nodes": [node.id for node in state.nodes.rows.values() if node.state is not NodeState.UP],
        "unconfirmed": [node.id for node in state.nodes.rows.values() if node.confirmed != state.meta.epoch],
        "running": {node: dict(one.running()) for node, one in world.machines.items() if one.running()},
    }
    if world.leader() is None:
        return "nobody leads"
    return "; ".join(f"{name}: {what}" for name, what in left.items() if what)


async def check_readers(world: World) -> None:
    """A reader from the start and readers resumed anywhere accept the same records (P-3, P-4)."""
    auditor = world.auditor
    heads = [START, *(world.chance.choice(auditor.heads) for _ in range(READERS))]
    for head in heads:
        read = [(one.head.n, one.head.hash) async for one in accepted(world.events, head)]
        if read != [known for known in auditor.accepted if known[0] > head.n]:
            raise Found("P-4", f"a reader resumed at {head.offset} accepts other records")
    if [n for n, _ in auditor.accepted] != list(range(len(auditor.accepted))):
        raise Found("P-3", "n is not gapless")


def _tear_down(world: World) -> None:
    """End all that runs, without a trace of it in the next run."""
    world.faults.calm()
    for process in [*(host.process for host in world.hosts), *(machine.process for machine in world.machines.values())]:
        if process is not None:
            process.end("the run is over")
    loop = world.loop
    while left := [task for task in asyncio.all_tasks(loop) if not task.done()]:
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@contextmanager
def _logged(world: World) -> Iterator[None]:
    """What the programs log goes into the trace of the run."""

    def into_trace(_: Any, level: str, said: Any) -> Any:
        figures = " ".join(f"{name}={what}" for name, what in said.items() if name != "event")
        world.trace(f"[{level}] {said.get('event')} {figures}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[into_trace], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def swapped(module: Any, name: str, value: Any) -> Iterator[None]:
    """A name of a module stands for something else: a constant small enough for a short run to meet it, or a fault."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def seeds(how_many: int, first: int = 1) -> list[int]:
    """The seeds to run: SIGNALBOX_SEED (one, or A..B) in place of the fixed ones."""
    asked = os.environ.get("SIGNALBOX_SEED", "")
    if not asked:
        return list(range(first, first + how_many))
    low, _, high = asked.partition("..")
    return list(range(int(low), int(high or low) + 1))


def draw(seed: int, name: str) -> random.Random:
    """Draws of a story that do not depend on those of its world."""
    return random.Random(f"{name}/{seed}")
