"""Every scenario by its name: the stories of PROTOCOL's list, and everything at once.

Each brings a world to work, makes its faults happen, and returns; that the world then comes to rest, and that nothing
else was found meanwhile, is checked by whoever runs it.
"""

from dataclasses import replace

from events.job import Overlap
from events.memory import Mode, Topic
from tests.simulation import leaders, nodes, outages
from tests.simulation.faults import Chaos
from tests.simulation.run import Scenario, Story, draw
from tests.simulation.weather import Weather
from tests.simulation.work import SMALL, busy
from tests.simulation.world import Shape, World


async def quiet(world: World) -> None:
    """Nothing goes wrong."""
    await world.people.settle_in()
    await busy(world, 60.0, longest_s=40)


async def storm(world: World) -> None:
    """Anything may go wrong at any time."""
    await world.people.settle_in()
    world.faults.chaos = Chaos(freeze=0.004, kill=0.001, agent_kill=0.01, hold=0.01, lose=0.004, double=0.01)
    world.hostile.double = world.hostile.late = 0.1
    await busy(world, 120.0, longest_s=40)


async def bad_weather(world: World) -> None:
    """Power, cables, clocks and processes fail for three minutes."""
    await world.people.settle_in()
    world.faults.chaos = Chaos(freeze=0.0005, agent_kill=0.002, hold=0.002, double=0.005, hold_max_s=4.0)
    weather = Weather(world, draw(world.seed, "weather"), pace_s=8.0)
    blows = world.loop.task_outside(weather.blow(world.loop.now + 170.0))
    await busy(world, 180.0, longest_s=60)
    await blows


WIDE = Shape(schedulers=3)
FORGETFUL = replace(SMALL, settled_max=2)
POSTGRES = replace(SMALL, mode=Mode.POSTGRES)

STORIES: list[tuple[str, Story, Shape]] = [
    ("quiet", quiet, Shape()),
    ("storm", storm, WIDE),
    ("storm-postgres", storm, replace(WIDE, mode=Mode.POSTGRES)),
    ("weather", bad_weather, WIDE),
    *((f"frozen-{gate}", leaders.frozen(gate), SMALL) for gate in leaders.LEADER_GATES),
    *((f"takeover-{gate}", leaders.frozen_taking_over(gate), SMALL) for gate in leaders.TAKEOVER_GATES),
    ("late-appends", leaders.late_appends, SMALL),
    ("late-appends-postgres", leaders.late_appends, POSTGRES),
    ("early-successors", leaders.early_successors, SMALL),
    ("terms", leaders.unruly_terms, replace(SMALL, schedulers=3)),
    ("terms-postgres", leaders.unruly_terms, replace(POSTGRES, schedulers=3)),
    ("late-statements", leaders.late_statements, SMALL),
    ("hostile", nodes.hostile(False), FORGETFUL),
    ("hostile-any-session", nodes.hostile(True), FORGETFUL),
    ("frozen-agents", nodes.frozen_agents, SMALL),
    ("partition-60s", nodes.partition(60.0), SMALL),
    ("partition-60s-agent-dies", nodes.partition(60.0, agent_dies=True), SMALL),
    ("partition-300s", nodes.partition(300.0), SMALL),
    ("partition-300s-agent-dies", nodes.partition(300.0, agent_dies=True), SMALL),
    ("partition-1200s", nodes.partition(1200.0), SMALL),
    ("partition-overlap-never", nodes.partition(300.0, overlap=Overlap.NEVER), SMALL),
    ("slow-starts", nodes.slow_starts, SMALL),
    *((f"agent-dies-{gate}", nodes.dying_agents(gate), SMALL) for gate in nodes.AGENT_GATES),
    ("power-cuts", nodes.power_cuts, SMALL),
    ("lost-journals", nodes.lost_journals, SMALL),
    ("renumbered", nodes.renumbered, SMALL),
    ("truncated-events", outages.truncated(Topic.EVENTS), SMALL),
    ("truncated-commands", outages.truncated(Topic.COMMANDS), SMALL),
    ("poison", outages.poison(False), SMALL),
    ("poison-crash", outages.poison(True), SMALL),
    ("unplanned", outages.unplanned(20.0), SMALL),
    ("clocks", outages.clocks, SMALL),
    ("long-outage", outages.long_outage, replace(SMALL, nodes=4)),
    *((f"cut-off-{what}", outages.leader_cut_off(what), Shape()) for what in ("agents", "half", "database", "log")),
]
SCENARIOS = {name: Scenario(name, story, shape) for name, story, shape in STORIES}
