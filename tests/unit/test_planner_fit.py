"""Placement by pictures (R-30 to R-33, R-35 to R-38): a fleet, a job, and where its ranks are laid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commands.changed import by_table
from commands.plan import Ranks
from commands.shape import charged_gpus
from commands.state import State
from events.ids import NodeIndex
from events.job import JobSpec, Span, Topology
from scheduler.planning.capacity import Capacity
from scheduler.planning.cover import StepsSpent, fewest_racks
from scheduler.planning.fit import find, find_many, find_with_fallback
from scheduler.planning.fragmentation import stranded
from scheduler.planning.islands import Islands
from tests.fleets import H100, changed, drawn, fleet, job, nodes_of, same, state_of


def placed(picture: str, spec: JobSpec, **how: Any) -> str:
    """The picture with the job in it."""
    state = fleet(picture)
    return drawn(state, find(state, Capacity.of(state), spec, **how))


def pack(span: Span, max_blocks: int | None = None) -> Topology:
    """A strict hint."""
    return Topology(pack=span, max_blocks=max_blocks)


def spread(span: Span) -> Topology:
    """A strict hint."""
    return Topology(spread=span)


WHOLE = [
    (
        "an eight goes to a whole node of the block with the fewest free GPUs",
        job(1, 8),
        "a r ........ ........\nb r ........ ####....",
        "a r ........ ........\nb r 00000000 ####....",
    ),
    (
        "three fours take two nodes of eight, and the last rank of a node claims the rest",
        job(3, 4),
        "a r ........ ........",
        "a r 00001111 22222222",
    ),
    (
        "a node that has a broken or a pledged GPU is not whole",
        job(2, 8),
        "a r .......x ........\na s .......p ........",
        "a r .......x 00000000\na s .......p 11111111",
    ),
    (
        "one block is better than two, although two would use up what is left of them",
        job(2, 8),
        "a r ........ ########\nb r ........ ########\nc r ........ ........ ........",
        "a r ........ ########\nb r ........ ########\nc r 00000000 11111111 ........",
    ),
    (
        "of blocks that hold it the one with the fewest free GPUs",
        job(2, 8),
        "a r ........ ........ ........\nb r ........ ........ ########",
        "a r ........ ........ ........\nb r 00000000 11111111 ########",
    ),
    (
        "the fewest racks come before the fewest free GPUs",
        job(2, 8),
        "a r ........ ########\na s ........ ########\nb r ........ ........\nb s ........ ........",
        "a r ........ ########\na s ........ ########\nb r 00000000 11111111\nb s ........ ........",
    ),
    (
        "over several blocks the largest are filled whole, and the rest goes where it fits best",
        job(4, 8),
        "a r ........ ........\nb r ........ ........ ........\nc r ........ ########",
        "a r ........ ........\nb r 00000000 11111111 22222222\nc r 33333333 ########",
    ),
    (
        "of as many blocks those with fewer racks",
        job(4, 8),
        "a r ........\na s ........\na t ........\nb r ........ ........\nc r ........ ........",
        "a r ........\na s ........\na t ........\nb r 00000000 11111111\nc r 22222222 33333333",
    ),
]
SMALL = [
    (
        "a one goes to the node that it fits best",
        job(1, 1),
        "a r ........ ######.. #######.",
        "a r ........ ######.. #######0",
    ),
    (
        "a whole node is broken into only where no other is left, in the block with the fewest free GPUs",
        job(1, 2),
        "a r ........ ........\nb r ........ #######.",
        "a r ........ ........\nb r 00...... #######.",
    ),
    (
        "of nodes that fit alike the one in the block with the fewest free GPUs",
        job(1, 2),
        "a r ######.. ........\nb r ######.. ########",
        "a r ######.. ........\nb r ######00 ########",
    ),
    (
        "an island that is partly used comes first",
        job(1, 2),
        "a r ....|##..",
        "a r ....|##00",
    ),
    (
        "a rank keeps to one island where one holds it",
        job(1, 3),
        "a r ##..|.... ########",
        "a r ##..|000. ########",
    ),
    (
        "ranks of a small gang share a node that holds them all",
        job(3, 2),
        "a r ##...... ........\nb r ....#### ########",
        "a r ##001122 ........\nb r ....#### ########",
    ),
    (
        "a small gang that no node holds goes to one block, one rack and few nodes",
        job(4, 1),
        "a r #######. ######..\na s #####... #######.\nb r ######.. #######.",
        "a r #######. ######..\na s #####012 #######3\nb r ######.. #######.",
    ),
    (
        "no rank is divided over nodes",
        job(1, 3),
        "a r ######.. ######..",
        "no place",
    ),
]
HINTS = [
    ("pack: node", job(4, 2, hint=pack(Span.NODE)), "a r ####.... ........", "a r ####.... 00112233"),
    ("pack: node waits for a node", job(3, 2, hint=pack(Span.NODE)), "a r ####.... ###.....", "no place"),
    ("pack: node, more than a node", job(2, 8, hint=pack(Span.NODE)), "a r ........ ........", "no place"),
    (
        "pack: rack takes the rack that it fills most",
        job(2, 8, hint=pack(Span.RACK)),
        "a r ........ ........ ........\na s ........ ........",
        "a r ........ ........ ........\na s 00000000 11111111",
    ),
    ("pack: rack waits for a rack", job(2, 8, hint=pack(Span.RACK)), "a r ........\na s ........", "no place"),
    ("pack: block is one block", job(3, 8, hint=pack(Span.BLOCK)), "a r ........ ........\nb r ........", "no place"),
    (
        "pack: block with max_blocks is as many",
        job(3, 8, hint=pack(Span.BLOCK, 2)),
        "a r ........ ........\nb r ........",
        "a r 00000000 11111111\nb r 22222222",
    ),
    (
        "max_blocks alone is a limit too",
        job(3, 8, hint=Topology(max_blocks=2)),
        "a r ........\nb r ........\nc r ........",
        "no place",
    ),
    (
        "spread: node claims a node for each replica of a large job",
        job(2, 4, hint=spread(Span.NODE)),
        "a r ........ ........",
        "a r 00000000 11111111",
    ),
    (
        "spread: node keeps small replicas apart, on nodes that are partly used",
        job(2, 1, hint=spread(Span.NODE)),
        "a r ........ ######.. #####...",
        "a r ........ ######0. #####1..",
    ),
    (
        "spread: rack",
        job(2, 1, hint=spread(Span.RACK)),
        "a r ######.. ........\na s ........",
        "a r ######1. ........\na s 0.......",
    ),
    ("spread: rack waits", job(2, 1, hint=spread(Span.RACK)), "a r ......#. ........\na s ########", "no place"),
    (
        "spread: block starts with the blocks that have the fewest free GPUs",
        job(2, 8, hint=spread(Span.BLOCK)),
        "a r ........ ........\nb r ........ ....####\nc r ........",
        "a r ........ ........\nb r 11111111 ....####\nc r 00000000",
    ),
    ("spread: block waits", job(2, 8, hint=spread(Span.BLOCK)), "a r ........ ........", "no place"),
    (
        "apart on nodes of one rack",
        job(2, 2, hint=Topology(pack=Span.RACK, spread=Span.NODE)),
        "a r ....####\na s ##...... ##......",
        "a r ....####\na s ##00.... ##11....",
    ),
    (
        "apart on racks of one block",
        job(2, 2, hint=Topology(pack=Span.BLOCK, spread=Span.RACK)),
        "a r ....####\nb r ##...... ##......\nb s ########",
        "no place",
    ),
    (
        "what is only a wish gives way",
        job(3, 8, hint=Topology(pack=Span.RACK, strict=False)),
        "a r ........ ........\na s ........",
        "a r 00000000 11111111\na s 22222222",
    ),
    (
        "a wish to be spread gives way step by step",
        job(2, 1, hint=Topology(spread=Span.BLOCK, strict=False)),
        "a r ######..\na s #######.",
        "a r ######0.\na s #######1",
    ),
]


@pytest.mark.parametrize(
    ("why", "spec", "before", "after"), [*WHOLE, *SMALL, *HINTS], ids=lambda value: str(value)[:60]
)
def test_where_a_job_goes(why: str, spec: JobSpec, before: str, after: str) -> None:
    """As the picture shows."""
    assert placed(before, spec) == same(after), why


def test_only_nodes_that_may_be_used_are_used() -> None:
    """Those of the mask; drained, suspect and unconfirmed ones never."""
    picture = "a r ........ ........ ........"
    assert placed(picture, job(1, 1), among=0b100) == same("a r ........ ........ 0.......")
    assert placed(picture, job(2, 8), among=0b101) == same("a r 00000000 ........ 11111111")
    assert placed(picture, job(2, 8), among=0b1000) == "no place"
    assert placed(picture, job(2, 8), among=~0b1) == same("a r ........ 00000000 11111111")
    state = fleet(picture)
    changed(state, 0, drained="repair")
    changed(state, 1, confirmed=7)
    assert drawn(state, find(state, Capacity.of(state), job(1, 8))) == same("a r ........ ........ 00000000")


def test_preferred_nodes_decide_between_equal_ones() -> None:
    """A node that has the image goes first, but not before a better fit (R-38)."""
    picture = "a r ........ ........ ######.."
    assert placed(picture, job(1, 8), prefer=0b10) == same("a r ........ 00000000 ######..")
    assert placed(picture, job(1, 1), prefer=0b10) == same("a r ........ ........ ######0.")
    assert placed("a r ........ ........ ........", job(2, 8), prefer=0b110) == same("a r ........ 00000000 11111111")


def test_memory_is_a_floor_and_little_memory_goes_first() -> None:
    """The floor only filters; a gang may be on nodes of several memories above it, the least of them first."""
    state = state_of(
        [*nodes_of("a r ....", memory_gb=80), *nodes_of("a r .... ....", first=1, memory_gb=40)],
    )
    assert drawn(state, find(state, Capacity.of(state), job(1, 4))) == same("a r .... 0000 ....")
    assert drawn(state, find(state, Capacity.of(state), job(3, 4))) == same("a r 0000 1111 2222")
    assert drawn(state, find(state, Capacity.of(state), job(1, 4, gpu_memory_gb_min=41))) == same("a r 0000 .... ....")
    assert find(state, Capacity.of(state), job(2, 4, gpu_memory_gb_min=41)) is None


def test_a_gang_is_on_nodes_of_one_size_the_one_that_charges_least() -> None:
    """3 x 4 is twelve GPUs on nodes of four or sixteen, and sixteen on nodes of eight."""
    assert placed("a r ........ ........\nb r .... .... ....", job(3, 4)) == same(
        "a r ........ ........\nb r 0000 1111 2222"
    )
    assert placed("a r ........ ........\nb r .... ....", job(3, 4)) == same("a r 00001111 22222222\nb r .... ....")
    assert placed("a r ........\nb r ....", job(3, 4)) == "no place"


@pytest.mark.parametrize(
    ("spec", "node_gpus", "charged"),
    [
        (job(3, 4), 8, 16),
        (job(3, 4), 4, 12),
        (job(3, 4), 16, 12),
        (job(8, 1), 8, 8),
        (job(7, 1), 8, 7),
        (job(3, 5), 8, 24),
        (job(4, 2, hint=spread(Span.NODE)), 8, 32),
        (job(2, 2, hint=spread(Span.NODE)), 8, 4),
        (job(4, 2, hint=Topology(spread=Span.NODE, strict=False)), 8, 8),
    ],
)
def test_what_is_charged(spec: JobSpec, node_gpus: int, charged: int) -> None:
    """Whole nodes from a node's worth up, and what is found claims just that (R-32)."""
    assert charged_gpus(spec, node_gpus) == charged
    state = fleet("\n".join(f"{block} r " + " ".join(["." * node_gpus] * 2) for block in "abcd"))
    wish = replace(spec, topology=replace(spec.topology, spread=None)) if not spec.topology.strict else spec
    assert gpus(find(state, Capacity.of(state), wish)) == charged


def test_another_number_of_replicas_is_asked_for() -> None:
    """An elastic job is tried at several sizes; a node's worth is judged by the size that is tried."""
    assert placed("a r ........ ........", job(2, 4), replicas=1) == same("a r 0000.... ........")
    assert placed("a r ........ ........", job(1, 4), replicas=3) == same("a r 00001111 22222222")


def test_first_fit_takes_over_and_says_so() -> None:
    """Where the search would take too many steps a plain first fit finds a place, within the hint (R-35)."""
    picture = "a r . .\na s . .\na t . .\nb r . . .\nb s . . .\nc r . . . ."
    state = fleet(picture)
    searched = find_with_fallback(state, Capacity.of(state), job(11, 1))
    assert searched is not None
    assert not searched.fallback
    plain = find_with_fallback(state, Capacity.of(state), job(11, 1), steps_max=10)
    assert plain is not None
    assert plain.fallback
    assert drawn(state, plain.ranks) == same("a r 0 1\na s 2 3\na t 4 5\nb r 6 7 8\nb s 9 a .\nc r . . . .")
    one_block = job(11, 1, hint=pack(Span.BLOCK))
    assert find_with_fallback(state, Capacity.of(state), one_block, steps_max=0) is None


def test_a_search_says_when_it_is_out_of_steps() -> None:
    """Before it has taken them."""
    with pytest.raises(StepsSpent):
        fewest_racks([[2, 2, 2], [3, 3], [4]], 11, 2, 5, 10)


def test_a_trial_leaves_no_trace() -> None:
    """Marks nest; what was not free before is not free after."""
    state = fleet("a r ........ ####....")
    capacity = Capacity.of(state)
    before = capacity.picture()
    capacity.take(NodeIndex(1), 0xFF)
    mark = capacity.mark()
    assert find(state, capacity, job(1, 8)) is not None
    assert find(state, capacity, job(1, 1)) is None
    capacity.undo(mark)
    assert find(state, capacity, job(1, 8)) is not None
    capacity.undo()
    assert capacity.picture() == before
    assert capacity.free == {0: 0xFF, 1: 0xF0}


def test_many_equal_jobs_fill_node_by_node() -> None:
    """As one after the other would."""
    state = fleet("a r ........ ######..")
    found = find_many(state, Capacity.of(state), job(1, 1), 4)
    assert drawn(state, tuple(rank for ranks in found for rank in ranks)) == same("a r 23...... ######01")
    assert len(find_many(state, Capacity.of(state), job(1, 1), 99)) == 10


def test_what_frees_gpus_is_counted() -> None:
    """`freed` rises when GPUs come free or a node comes in, and only then; the total is of whole GPUs in service."""
    state = fleet("a r ##.. ....")
    capacity = Capacity.of(state)
    assert capacity.total_schedulable == {H100: 8}
    steps: list[tuple[dict[str, Any], bool, int]] = [
        ({"used": 7}, False, 8),
        ({"used": 1}, True, 8),
        ({"used": 2}, True, 8),
        ({"broken": 8}, False, 7),
        ({"drained": "repair"}, False, 4),
        ({"drained": None, "broken": 0}, True, 8),
        ({"used": 0}, True, 8),
    ]
    for fields, rises, total in steps:
        before = capacity.freed[H100]
        changed(state, 0, **fields)
        capacity.follow(state, by_table(state.accept()))
        assert (capacity.freed[H100] > before) == rises, fields
        assert capacity.total_schedulable == {H100: total}


def test_islands_share_out_what_no_single_one_holds() -> None:
    """The largest first, then the smallest that holds the rest."""
    islands = Islands(fleet("a r ....|..|..").nodes[NodeIndex(0)].gpus)
    assert islands.pick(0b11111111, 6) == 0b00111111
    assert islands.pick(0b11101110, 4) == 0b00101110
    assert islands.pick_many(0b11110000, 2, 2) == (0b00110000, 0b11000000)


def test_stranded_gpus() -> None:
    """Six free GPUs on two nodes and a whole node: nothing is lost to ones, two to twos, six to whole nodes."""
    state = fleet("a r #######. ###..... ........\nb r ........ ########")
    lost = {one.size: one.stranded for one in stranded(Capacity.of(state))}
    assert lost == {1: 0, 2: 2, 4: 2, 8: 6, 16: 22}
    assert {one.free for one in stranded(Capacity.of(state))} == {22}


def gpus(ranks: Ranks | None) -> int:
    """GPUs that a placement claims."""
    return sum(mask.bit_count() for _, mask in ranks or ())


def test_equal_states_give_equal_placements() -> None:
    """In whatever order the nodes are in the tables."""

    def placements(state: State) -> list[Ranks | None]:
        capacity = Capacity.of(state)
        return [find(state, capacity, spec) for spec in (job(1, 1), job(2, 8), job(2, 1), job(1, 3), job(3, 8))]

    nodes = nodes_of("b r ........ ##......\na s ........ ........\na r #####... ........\nc r ........ ........")
    assert placements(state_of(nodes)) == placements(state_of(reversed(nodes)))
