"""Room for gangs that lie in some special way: several replicas of less than a node in all that no one node holds,
and replicas spread over racks or blocks.

Here the placement rules themselves are asked (fit.find), on a small fleet as it would be without the victims.
"""

from dataclasses import replace

from commands.state import State
from events.ids import NodeIndex
from events.job import Topology
from scheduler.planning.capacity import Capacity, indexes_of
from scheduler.planning.fit import find
from scheduler.planning.preempt_ask import Ask, Found, Step
from scheduler.planning.preempt_exact import CANDIDATES_MAX, candidates, cheaper
from scheduler.planning.preempt_ground import Rank

SETS_MAX = 400
"""Sets of victims that are tried, in the search for the best."""
NODES_MAX = 64
"""So many nodes are all looked at."""


def anyhow(ask: Ask, number: int, step: Step) -> Found | None:
    """Victims that let the gang in, without those that can be spared one by one; None: no set does."""
    nodes = _relevant(ask, step, ask.nodes_with(step, ask.spec.gpus_per_replica))
    ranks = _all_on(ask, step, nodes)
    if _fits(ask, nodes, ranks) is None:
        return None
    kept = _without_needless(ask, step, nodes, ranks)
    there = _fits(ask, nodes, kept)
    assert there is not None
    found = ask.found(number, there, kept)
    few = candidates(ask, step, nodes)
    if found.cost.jobs and len(few) <= CANDIDATES_MAX:
        return cheaper(ask, number, few, found, lambda chosen: _fits(ask, nodes, chosen), SETS_MAX)
    return found


def _relevant(ask: Ask, step: Step, nodes: int) -> int:
    """Nodes that suffice to tell whether there is a place, and to find a cheap one: of each rack (of all, where nothing
    is said about racks and blocks) as many as there are replicas, of those that give most, and of the emptiest."""
    if nodes.bit_count() <= NODES_MAX or ask.whole:
        return nodes
    groups = [nodes] if ask.hint == Topology() else ask.racks(nodes)
    chosen = 0
    for group in groups:
        for view in (step.view, 0):
            chosen |= _first_of(group, ask.ground.views[view], ask.spec.replicas)
        chosen |= _first_of(group & step.disputed, ask.ground.views[0], ask.spec.replicas)
    return chosen


def _first_of(group: int, by_count: list[int], wanted: int) -> int:
    chosen = 0
    for nodes in reversed(by_count):
        for index in indexes_of(nodes & group):
            if chosen.bit_count() == wanted:
                return chosen
            chosen |= 1 << index
    return chosen


def _all_on(ask: Ask, step: Step, nodes: int) -> frozenset[Rank]:
    return frozenset(item.rank for index in indexes_of(nodes) for item in ask.items(step, ask.index.places[index]))


def _without_needless(ask: Ask, step: Step, nodes: int, ranks: frozenset[Rank]) -> frozenset[Rank]:
    """First only what lies where the gang would go; then the dearest first are spared, as long as it fits."""
    there = _fits(ask, nodes, ranks)
    assert there is not None
    used = 0
    for index in there:
        used |= 1 << index
    kept = _all_on(ask, step, used)
    for rank in sorted(kept, key=lambda rank: (-rank.gpus, rank)):
        if _fits(ask, used, kept - {rank}) is not None:
            kept = kept - {rank}
    return kept


def _fits(ask: Ask, nodes: int, stopped: frozenset[Rank]) -> list[NodeIndex] | None:
    """Where the gang would go if these were stopped."""
    small = State(ask.trial.state.cluster)
    small.meta_table.rows[""] = ask.trial.state.meta
    for index in indexes_of(nodes):
        place, node = ask.index.places[index], ask.trial.state.nodes[index]
        free = place.base
        for item in place.items:
            if item.rank in stopped:
                free |= item.mask
        small.nodes.rows[index] = replace(node, used=node.all_gpus & ~free, pledged=0, broken=0, leases=())
    capacity = Capacity.of(small)
    spec = replace(ask.spec, topology=ask.hint)
    ranks = find(small, capacity, spec)
    return None if ranks is None else sorted({index for index, _ in ranks})
