"""Stories of leaders (PROTOCOL 1 to 4): stopped at every await, with appends, terms and statements that come late."""

from dataclasses import replace

from scheduler.memory import Row
from tests.simulation.audit import Found
from tests.simulation.faults import Fate
from tests.simulation.loop import Process
from tests.simulation.run import Story, draw
from tests.simulation.waiting import until
from tests.simulation.work import busy, takeover
from tests.simulation.world import CLUSTER, World

LEADER_GATES = (
    "claim.before",
    "claim.sent",
    "claim.acked",
    "commit.before",
    "commit.sent",
    "commit.acked",
    "release.before",
    "release.sent",
    "release.acked",
    "send.start",
    "send.stop",
    "send.ack",
    "send.other",
    "mark_taking.before",
    "mark_taking.sent",
    "mark_taking.acked",
    "keeper.renew.before",
    "keeper.renew.sent",
    "keeper.renew.acked",
    "commands.read",
    "save.before",
    "save.acked",
)
"""Every await of a leader at work."""
TAKEOVER_GATES = (
    "observe.acked",
    "acquire.before",
    "acquire.sent",
    "acquire.acked",
    "log.end",
    "log.read",
    "term.before",
    "term.sent",
    "term.acked",
    "reconcile.before",
    "reconcile.sent",
    "reconcile.acked",
    "gateway.open",
)
"""Every await on the way into office."""

# 1: the leader frozen at each await


def frozen(gate: str) -> Story:
    """The leader stops at a gate, three times in a run, for long enough that a successor acts, or nearly."""

    async def story(world: World) -> None:
        chance = draw(world.seed, gate)
        await world.people.settle_in()
        fired = 0
        for _ in range(3):
            for_s = chance.choice((4.8, 5.5, 7.0, 9.0, 14.0, 30.0))
            rule = world.faults.freeze_at(gate, for_s, chance.randint(1, 5), world.is_leader)
            end = world.loop.now + 25.0
            await world.people.live(lambda end=end, rule=rule: rule.fired or world.loop.now > end, pace_s=1.0)  # type: ignore[misc]
            fired += rule.fired
            await busy(world, 12.0)
        if not fired:
            raise Found("vacuous", f"no leader came to {gate}")

    return story


def frozen_taking_over(gate: str) -> Story:
    """Whoever takes over stops at a gate, and another comes to it meanwhile."""

    async def story(world: World) -> None:
        chance = draw(world.seed, gate)
        await world.people.settle_in()
        rules = []
        for _ in range(2):
            rules.append(world.faults.freeze_at(gate, chance.choice((5.5, 8.0, 14.0)), chance.randint(1, 2)))
            await takeover(world)
            await busy(world, 20.0)
        if not any(rule.fired for rule in rules):
            raise Found("vacuous", f"nobody came to {gate}")

    return story


# 2: appends that come late


def late_append(world: World, hold_s: float, freeze_s: float, nth: int) -> None:
    """The n-th commit of a leader is under way for long, while the leader stands still."""

    def also(process: Process) -> None:
        process.freeze(freeze_s)

    world.faults.doom("commit", Fate(hold_s=hold_s), nth, world.is_leader, also)


def early_successor(world: World, hold_s: float, nth: int) -> None:
    """The n-th commit of a leader is under way when the database's clock jumps on: another takes over at once, while
    by its own clock the leader has been renewed just now."""

    def also(process: Process) -> None:
        world.trace(f"the database's clock jumps on, {process.name} has a commit under way")
        world.database_off_ms += 6_000

    world.faults.doom("commit", Fate(hold_s=hold_s), nth, world.is_leader, also)


async def early_successors(world: World) -> None:
    """A commit lands after the term of a successor whom its leader does not expect."""
    chance = draw(world.seed, "early")
    await world.people.settle_in()
    for _ in range(6):
        early_successor(world, chance.choice((0.4, 0.6, 0.8, 1.0, 1.3)), chance.randint(1, 10))
        await busy(world, 9.0)


async def late_appends(world: World) -> None:
    """Commits land before and after the term, the first commit and the second term of successors."""
    chance = draw(world.seed, "late")
    await world.people.settle_in()
    for _ in range(4):
        hold_s = chance.choice((3.0, 5.2, 5.6, 6.0, 6.5, 7.0, 7.5, 8.0, 12.0, 25.0))
        late_append(world, hold_s, hold_s + chance.choice((-2.0, 0.01, 0.1, 0.5, 10.0)), chance.randint(1, 8))
        await busy(world, 12.0)
        if chance.random() < 0.4:
            await takeover(world)


# 3: terms


async def unruly_terms(world: World) -> None:
    """Terms come late and twice, and the database forgets the newest epoch, so that two hold the same."""
    chance = draw(world.seed, "terms")
    await world.people.settle_in()
    for _ in range(4):
        fate = chance.choice((Fate(hold_s=7.0), Fate(hold_s=14.0), Fate(again_s=0.0), Fate(again_s=9.0), Fate()))
        freeze_s = chance.choice((0.0, 6.0, 12.0))

        def also(process: Process, freeze_s: float = freeze_s) -> None:
            if freeze_s:
                process.freeze(freeze_s)

        row = replace(world.control.rows[CLUSTER])
        world.faults.doom("term", fate, also=also)
        forgets = world.loop.task_outside(_forget(world, row, chance.random() < 0.6))
        await takeover(world)
        await busy(world, 12.0)
        await forgets


async def _forget(world: World, row: Row, really: bool) -> None:
    """The database loses the epoch that it has just given, as a failover to a replica behind it does."""
    taken = await until(lambda: world.control.rows[CLUSTER].epoch > row.epoch, 20.0, 0.01)
    if really and taken:
        world.trace("the database forgets the newest epoch")
        world.control.rows[CLUSTER] = row


# 4: statements that come late


async def late_statements(world: World) -> None:
    """Claims, releases and reconciliations of deposed leaders come after a successor's."""
    chance = draw(world.seed, "statements")
    await world.people.settle_in()
    for _ in range(4):
        name = chance.choice(("claim", "release", "reconcile", "reconcile", "mark_taking", "keeper.renew"))
        world.faults.doom(name, Fate(hold_s=chance.choice((5.5, 7.0, 10.0, 20.0))), chance.randint(1, 3))
        if chance.random() < 0.6:
            await takeover(world)
        await busy(world, 15.0)
