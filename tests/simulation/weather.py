"""Faults of the world outside the programs, drawn at random: power, cables, clocks, and whoever kills processes."""

import random
from collections.abc import Callable

from tests.simulation.schedulers import BROKER, DATABASE
from tests.simulation.waiting import pause
from tests.simulation.world import World

NODES_SHARE = 0.85
"""Faults of nodes among all: each new leader waits anew before it calls a node lost (P-20)."""


class Weather:
    """Bad weather over one world, until its end."""

    def __init__(self, world: World, chance: random.Random, pace_s: float = 12.0) -> None:
        self._world = world
        self._chance = chance
        self._pace_s = pace_s
        self._of_nodes: list[Callable[[], None]] = [
            self.agent_dies,
            self.agent_freezes,
            self.node_cut_off,
            self.power_fails,
        ]
        self._of_schedulers: list[Callable[[], None]] = [
            self.scheduler_dies,
            self.scheduler_freezes,
            lambda: self.scheduler_cut_off(DATABASE, 12.0),
            lambda: self.scheduler_cut_off(BROKER, 20.0),
            self.scheduler_without_agents,
            self.clock_jumps,
        ]

    async def blow(self, until_s: float) -> None:
        """One fault after another."""
        while self._world.loop.now < until_s:
            await pause(self._chance.random() * self._pace_s)
            of_nodes = self._chance.random() < NODES_SHARE
            self._chance.choice(self._of_nodes if of_nodes else self._of_schedulers)()

    def _node(self) -> str:
        return self._chance.choice(list(self._world.machines))

    def agent_dies(self) -> None:
        """kill -9 of one agent."""
        self._world.machines[self._node()].kill_agent()

    def agent_freezes(self) -> None:
        """One agent stands still, for up to 200 s."""
        process = self._world.machines[self._node()].process
        if process is not None:
            process.freeze(self._chance.choice((5.0, 12.0, 40.0, 100.0, 200.0)))

    def node_cut_off(self) -> None:
        """One node reaches no scheduler."""
        cut_off(self._world, [self._node()], self._chance.choice((5.0, 20.0, 60.0, 120.0)))

    def power_fails(self) -> None:
        """One machine goes out."""
        self._world.machines[self._node()].power_off(self._chance.choice((3.0, 20.0, 130.0)))

    def scheduler_dies(self) -> None:
        """kill -9 of a scheduler, mostly of the leader."""
        host = self._world.leader() or self._chance.choice(self._world.hosts)
        if host.process is not None:
            host.process.end("killed")

    def scheduler_freezes(self) -> None:
        """A scheduler stands still."""
        process = self._chance.choice(self._world.hosts).process
        if process is not None:
            process.freeze(self._chance.choice((1.0, 4.0, 6.0, 9.0, 30.0)))

    def scheduler_cut_off(self, server: str, longest_s: float) -> None:
        """A scheduler does not reach a server."""
        host = self._chance.choice(self._world.hosts)
        block(self._world, host.name, server, self._chance.random() * longest_s)

    def scheduler_without_agents(self) -> None:
        """A scheduler reaches no agent, or half of them."""
        host = self._chance.choice(self._world.hosts)
        nodes = list(self._world.machines)
        for node in nodes if self._chance.random() < 0.5 else nodes[::2]:
            block(self._world, node, host.name, 5.0 + self._chance.random() * 50.0)

    def clock_jumps(self) -> None:
        """The database's clock is set."""
        self._world.database_off_ms = self._chance.choice((-3_600_000, -2_000, 0, 2_000, 6 * 3_600_000))


def block(world: World, one: str, other: str, for_s: float) -> None:
    """Cut a path for a while."""
    world.trace(f"{one} and {other} are cut off for {for_s:.1f} s")
    world.network.block(one, other)
    world.loop.call_outside(for_s, world.network.open, one, other)


def cut_off(world: World, nodes: list[str], for_s: float) -> None:
    """Cut nodes off from all schedulers for a while."""
    for node in nodes:
        for host in world.hosts:
            block(world, node, host.name, for_s)
