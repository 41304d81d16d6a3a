"""The search for a place against all the places there are, on small fleets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from commands.changed import by_table
from commands.entities import Node, NodeState
from commands.plan import Ranks
from commands.shape import ANYWHERE, charged_gpus, type_facts
from commands.state import State
from events.ids import NodeIndex
from events.job import JobSpec, Span, Topology
from scheduler.planning.capacity import Capacity, schedulable
from scheduler.planning.cover import fewest_racks
from scheduler.planning.fit import STEPS_MAX, find, find_many, find_with_fallback
from tests.fleets import changed, job, node, state_of

SPANS = st.sampled_from([None, *Span])
HINTS = st.builds(
    Topology,
    pack=SPANS,
    spread=SPANS,
    max_blocks=st.none() | st.integers(1, 3),
    strict=st.sampled_from([True, True, False]),
)
GPUS = st.sampled_from([".", ".", ".", "#", "x", "p"])


@st.composite
def nodes(draw: st.DrawFn, index: int) -> Node:
    """A node of 2 or 4 GPUs, somewhere, in some state."""
    size = draw(st.sampled_from([2, 4, 4]))
    gpus = draw(st.lists(GPUS, min_size=size, max_size=size) | st.just(["."] * size))
    islands = ["".join(gpus[: size // 2]), "".join(gpus[size // 2 :])]
    memory_gb = draw(st.sampled_from([40, 80, 80]))
    return node(index, draw(st.sampled_from("aab")), draw(st.sampled_from("rs")), islands, memory_gb=memory_gb)


@st.composite
def fleets(draw: st.DrawFn) -> State:
    """Up to six nodes; now and then one that is not to be used."""
    state = state_of(draw(nodes(index)) for index in range(draw(st.integers(1, 6))))
    for index in draw(st.lists(st.sampled_from(sorted(state.nodes)), max_size=1)):
        changed(state, index, **draw(st.sampled_from(OUT_OF_USE)))
    state.accept()
    return state


OUT_OF_USE: list[dict[str, Any]] = [{"drained": "repair"}, {"state": NodeState.SUSPECT}, {"confirmed": 7}]
SPECS = st.builds(
    lambda replicas, each, hint, floor: job(replicas, each, hint=hint, gpu_memory_gb_min=floor),
    st.integers(1, 5),
    st.integers(1, 4),
    HINTS,
    st.sampled_from([0, 0, 80]),
)
AMONG = st.none() | st.integers(0, 63)


@settings(max_examples=600, deadline=None)
@given(fleets(), SPECS, AMONG)
def test_a_place_is_found_if_and_only_if_there_is_one(state: State, spec: JobSpec, among: int | None) -> None:
    """What is found is legal, and of the fewest GPUs charged, small nodes, little memory, few blocks, few racks."""
    capacity = Capacity.of(state)
    before = capacity.picture()
    found = find_with_fallback(state, capacity, spec, among=among)
    best = min(_places(state, spec, among), default=None)
    assert (found is None) == (best is None)
    if found is not None:
        assert not found.fallback
        _check(state, spec, found.ranks, among)
        if spec.topology.strict:
            assert best is not None
            assert _score(state, spec, found.ranks) == best
        assert all(not capacity.free[index] & mask for index, mask in found.ranks)
    capacity.undo()
    assert capacity.picture() == before


@settings(max_examples=300, deadline=None)
@given(fleets(), SPECS, AMONG)
def test_first_fit_finds_a_place_where_there_is_one(state: State, spec: JobSpec, among: int | None) -> None:
    """Plain first fit keeps strict hints, and misses nothing."""
    searched = find_with_fallback(state, Capacity.of(state), spec, among=among)
    plain = find_with_fallback(state, Capacity.of(state), spec, among=among, steps_max=0)
    assert (plain is None) == (searched is None)
    if plain is not None:
        assert plain.fallback or spec.replicas == 1
        _check(state, spec, plain.ranks, among)


@settings(max_examples=200, deadline=None)
@given(fleets(), SPECS, AMONG, st.integers(1, 9))
def test_many_at_once_are_placed_as_one_after_the_other(
    state: State, spec: JobSpec, among: int | None, count: int
) -> None:
    """A run of equal jobs has the placements that each would have had in turn."""
    together, singly = Capacity.of(state), Capacity.of(state)
    expected = []
    for _ in range(count):
        if (ranks := find(state, singly, spec, among=among)) is None:
            break
        expected.append(ranks)
    assert find_many(state, together, spec, count, among=among) == expected
    assert together.picture() == singly.picture()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_index_in_step_is_the_index_built_anew(data: st.DataObject) -> None:
    """After any changes of nodes, and with a trial in between that was undone."""
    state = data.draw(fleets())
    capacity = Capacity.of(state)
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.integers(0, 7))
        if NodeIndex(index) in state.nodes and data.draw(st.booleans()):
            fields = data.draw(st.sampled_from([*OUT_OF_USE, *BACK_IN_USE]))
            changed(state, index, **fields)
        else:
            state.nodes.put(NodeIndex(index), data.draw(nodes(index)))
        freed = dict(capacity.freed)
        before = dict(capacity.free)
        capacity.follow(state, by_table(state.accept()))
        fresh = Capacity.of(state)
        assert capacity.picture() == fresh.picture()
        assert capacity.free == fresh.free
        for gpu_type, gpus in capacity.total_schedulable.items():
            assert gpus == fresh.total_schedulable.get(gpu_type, 0)
        if any(mask & ~before.get(index, 0) for index, mask in capacity.free.items()):
            assert capacity.freed != freed
        find(state, capacity, data.draw(SPECS))
        capacity.undo()
        assert capacity.picture() == fresh.picture()


@settings(max_examples=400, deadline=None)
@given(fleets(), SPECS)
def test_what_is_admitted_fits_on_the_empty_fleet(state: State, spec: JobSpec) -> None:
    """Admission refuses exactly what could not run even if everything was free and in service (R-11)."""
    for index in sorted(state.nodes):
        changed(state, index, used=0, broken=0, pledged=0, drained=None, state=NodeState.UP, confirmed=0)
    facts = type_facts(state, spec, spec.gpu_memory_gb_min)
    admitted = facts is not None and bool(facts.holding(spec, spec.topology if spec.topology.strict else ANYWHERE))
    assert admitted == (find(state, Capacity.of(state), spec) is not None)


BACK_IN_USE: list[dict[str, Any]] = [
    {"drained": None, "state": NodeState.UP, "confirmed": 0},
    {"used": 0},
    {"used": 1},
    {"used": 3},
    {"broken": 0},
    {"pledged": 2},
    {"block": "c"},
    {"rack": "t"},
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=5), st.integers(1, 30))
def test_the_fewest_racks_are_found(rooms: list[list[int]], wanted: int) -> None:
    """Of at most so many blocks the choice with the fewest racks, as trying all of them shows."""
    blocks = [sorted(racks, reverse=True) for racks in rooms]
    most = next((n for n in range(1, 6) if sum(sorted(map(sum, blocks))[-n:]) >= wanted), None)
    if most is None:
        return
    choices = [
        sum(numbers)
        for numbers in product(*(range(len(racks) + 1) for racks in blocks))
        if sum(map(bool, numbers)) <= most
        and sum(sum(racks[:number]) for racks, number in zip(blocks, numbers, strict=True)) >= wanted
    ]
    found = fewest_racks(blocks, wanted, most, 16, STEPS_MAX)
    assert found is not None
    assert sum(number for _, number in found) == min(choices)
    assert len({block for block, _ in found}) == len(found) <= most
    assert sum(sum(blocks[block][:number]) for block, number in found) >= wanted


# The oracle


def _check(state: State, spec: JobSpec, ranks: Ranks, among: int | None) -> None:
    """Every rank has its GPUs, all free, on nodes that may be used; whole nodes are whole; a strict hint holds."""
    assert len(ranks) == spec.replicas
    sizes = {len(state.nodes[index].gpus) for index, _ in ranks}
    assert len(sizes) == 1
    claimed: dict[int, int] = {}
    for index, mask in ranks:
        one = state.nodes[index]
        assert schedulable(one, 0)
        assert among is None or among >> index & 1
        assert mask & ~one.free == 0
        assert one.gpu_memory_gb >= spec.gpu_memory_gb_min
        assert not claimed.get(index, 0) & mask
        claimed[index] = claimed.get(index, 0) | mask
        assert mask.bit_count() >= spec.gpus_per_replica
    if spec.gpus >= max(sizes):
        assert all(mask == state.nodes[NodeIndex(index)].all_gpus for index, mask in claimed.items())
    elif spec.gpus < max(sizes):
        assert all(mask.bit_count() == spec.gpus_per_replica for _, mask in ranks)
    if spec.topology.strict:
        assert _holds(spec.topology, [(state.nodes[index].block, state.nodes[index].rack, index) for index, _ in ranks])
        assert sum(mask.bit_count() for _, mask in ranks) == charged_gpus(spec, max(sizes))


def _holds(hint: Topology, where: list[tuple[str, str, int]]) -> bool:
    """Does a strict hint hold for ranks at these (block, rack, node)?"""
    blocks, racks, places = {one[0] for one in where}, {one[:2] for one in where}, set(where)
    within = {
        None: True,
        Span.NODE: len(places) == 1,
        Span.RACK: len(racks) == 1,
        Span.BLOCK: len(blocks) <= (hint.max_blocks or 1),
    }
    apart = {None: len(where), Span.NODE: len(places), Span.RACK: len(racks), Span.BLOCK: len(blocks)}
    few = hint.max_blocks is None or len(blocks) <= hint.max_blocks
    return within[hint.pack] and few and apart[hint.spread] == len(where)


Score = tuple[int, int, int, int, int]
"""(GPUs charged, size of the nodes, most memory of one, blocks, racks)."""


def _score(state: State, spec: JobSpec, ranks: Ranks) -> Score:
    used = [state.nodes[index] for index, _ in ranks]
    return (
        sum(mask.bit_count() for _, mask in ranks),
        len(used[0].gpus),
        max(one.gpu_memory_gb for one in used),
        len({one.block for one in used}),
        len({(one.block, one.rack) for one in used}),
    )


def _places(state: State, spec: JobSpec, among: int | None) -> Iterator[Score]:
    """Every way to lay the ranks, on nodes of one size, by what it costs. Where the hint is a wish: without it."""
    hint = spec.topology if spec.topology.strict else Topology()
    for size in (2, 4):
        usable = [
            one
            for one in state.nodes.rows.values()
            if len(one.gpus) == size and schedulable(one, 0) and one.gpu_memory_gb >= spec.gpu_memory_gb_min
            if among is None or among >> one.index & 1
        ]
        whole = spec.gpus >= size
        rooms = [
            (one.free == one.all_gpus) * (size // spec.gpus_per_replica)
            if whole
            else one.free.bit_count() // spec.gpus_per_replica
            for one in usable
        ]
        for numbers in product(*(range(min(room, spec.replicas) + 1) for room in rooms)):
            if sum(numbers) != spec.replicas:
                continue
            used = [one for one, number in zip(usable, numbers, strict=True) for _ in range(number)]
            if not _holds(hint, [(one.block, one.rack, one.index) for one in used]):
                continue
            nodes_used = len({one.index for one in used})
            yield (
                nodes_used * size if whole else spec.gpus,
                size,
                max(one.gpu_memory_gb for one in used),
                len({one.block for one in used}),
                len({(one.block, one.rack) for one in used}),
            )
