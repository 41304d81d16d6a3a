"""Brute force on small clusters: a placement exists exactly where the planner finds one, and what it finds is one."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from commands.shape import breaks_hint, takes_whole_nodes
from events.ids import NodeIndex
from events.job import JobSpec, Span, Topology
from scheduler.planning.capacity import Capacity
from scheduler.planning.fit import find
from tests.builders import spec
from tests.scenario import Scenario
from tests.unit.steps import cluster

GPUS = 4

glyphs = st.integers(0, GPUS).map(lambda used: "x" * used + "." * (GPUS - used))
block = st.lists(st.tuples(st.sampled_from(["r0", "r1"]), glyphs), min_size=1, max_size=3)
fleets = st.lists(block, min_size=1, max_size=3)
spans = st.none() | st.sampled_from(list(Span))
hints = st.builds(Topology, pack=spans, spread=spans, max_blocks=st.none() | st.integers(1, 2))


def drawn(fleet: list[list[tuple[str, str]]]) -> str:
    """The picture of a fleet: in each block first the nodes of one rack, then those of the other."""
    lines = []
    for number, nodes in enumerate(fleet):
        racks = [" ".join(f"[{used}]" for rack, used in nodes if rack == name) for name in ("r0", "r1")]
        lines.append(f"b{number}: " + " | ".join(filter(None, racks)))
    return "\n".join(lines)


def placements(scenario: Scenario, asked: JobSpec) -> Any:
    """Every way to choose nodes for the ranks, hints aside: one node index for each rank."""
    nodes = list(scenario.state.nodes.rows.values())
    if takes_whole_nodes(asked, GPUS):
        empty = [node.index for node in nodes if node.used == 0]
        per_node = GPUS // asked.gpus_per_replica
        for count in range(1, asked.replicas + 1):
            for chosen in combinations(empty, count):
                for counts in product(range(1, per_node + 1), repeat=count):
                    if sum(counts) == asked.replicas:
                        yield [index for index, ranks in zip(chosen, counts, strict=True) for _ in range(ranks)]
        return
    for places in product([node.index for node in nodes], repeat=asked.replicas):
        need = {index: places.count(index) * asked.gpus_per_replica for index in set(places)}
        if all(GPUS - scenario.state.nodes[index].used.bit_count() >= gpus for index, gpus in need.items()):
            yield list(places)


def exists(scenario: Scenario, asked: JobSpec) -> bool:
    return any(
        not breaks_hint(scenario.state, asked.topology, [(index, 1) for index in nodes])
        for nodes in placements(scenario, asked)
    )


@settings(max_examples=400, deadline=None)
@given(fleet=fleets, replicas=st.integers(1, 4), gpus=st.integers(1, GPUS), hint=hints)
def test_the_planner_finds_a_placement_exactly_where_there_is_one(
    fleet: list[list[tuple[str, str]]], replicas: int, gpus: int, hint: Topology
) -> None:
    """For whole-node and shared jobs, under every hint and every two of them at once."""
    scenario = idle(drawn(fleet))
    asked = spec(replicas=replicas, gpus_per_replica=gpus, hint=hint)
    ranks = find(scenario.state, Capacity.of(scenario.state), asked)
    assert (ranks is not None) == exists(scenario, asked)
    if ranks is not None:
        _keeps_its_promises(scenario, asked, ranks)


@settings(max_examples=100, deadline=None)
@given(fleet=fleets, replicas=st.integers(1, 4), gpus=st.integers(1, GPUS), hint=hints)
def test_a_wish_never_keeps_a_gang_from_a_place(
    fleet: list[list[tuple[str, str]]], replicas: int, gpus: int, hint: Topology
) -> None:
    """Where there is a place without the hint, there is one with it as a wish; kept where it can be kept."""
    scenario = idle(drawn(fleet))
    wish = Topology(pack=hint.pack, spread=hint.spread, max_blocks=hint.max_blocks, strict=False)
    asked = spec(replicas=replicas, gpus_per_replica=gpus, hint=wish)
    ranks = find(scenario.state, Capacity.of(scenario.state), asked)
    assert (ranks is not None) == exists(scenario, spec(replicas=replicas, gpus_per_replica=gpus))
    if ranks is not None and exists(scenario, asked):
        assert not breaks_hint(scenario.state, wish, ranks)


@settings(max_examples=150, deadline=None)
@given(fleet=fleets, replicas=st.integers(1, 5))
def test_whole_nodes_take_as_few_blocks_as_there_can_be(fleet: list[list[tuple[str, str]]], replicas: int) -> None:
    """And within what they take of a block as few racks."""
    scenario = idle(drawn(fleet))
    asked = spec(replicas=replicas, gpus_per_replica=GPUS)
    ranks = find(scenario.state, Capacity.of(scenario.state), asked)
    if ranks is None:
        return
    fewest = min(len(_blocks(scenario, nodes)) for nodes in placements(scenario, asked))
    assert len(_blocks(scenario, [index for index, _ in ranks])) == fewest


def idle(picture: str) -> Scenario:
    """The cluster, without checks of the scenario in between: many are drawn."""
    return Scenario().given(cluster(picture))


def _blocks(scenario: Scenario, nodes: list[NodeIndex]) -> set[str]:
    return {scenario.state.nodes[index].block for index in nodes}


def _keeps_its_promises(scenario: Scenario, asked: JobSpec, ranks: tuple[tuple[NodeIndex, int], ...]) -> None:
    """As many ranks as asked for, GPUs free and taken once, whole nodes whole, the strict hint kept."""
    assert len(ranks) == asked.replicas
    taken: dict[NodeIndex, int] = {}
    for index, mask in ranks:
        assert mask.bit_count() >= asked.gpus_per_replica
        assert mask & scenario.state.nodes[index].free == mask
        assert mask & taken.get(index, 0) == 0
        taken[index] = taken.get(index, 0) | mask
    if takes_whole_nodes(asked, GPUS):
        assert set(taken.values()) == {(1 << GPUS) - 1}
    else:
        assert all(mask.bit_count() == asked.gpus_per_replica for _, mask in ranks)
    assert not breaks_hint(scenario.state, asked.topology, ranks)
