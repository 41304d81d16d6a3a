"""What every story does: people at work, and a change of leaders. SMALL: the world of most stories."""

from tests.simulation.waiting import until
from tests.simulation.world import Shape, World

SMALL = Shape(nodes=6)


async def busy(world: World, for_s: float, longest_s: int = 12) -> None:
    """People are at work: many short jobs."""
    world.people.longest_s = longest_s
    end = world.loop.now + for_s
    await world.people.live(lambda: world.loop.now > end, pace_s=1.5)


async def takeover(world: World) -> None:
    """kill -9 the leader, and wait for the next."""
    before = world.auditor.head.epoch
    if (host := world.leader()) is not None and host.process is not None:
        host.process.end("killed by the story")
    await until(lambda: world.auditor.head.epoch > before, 60.0)
