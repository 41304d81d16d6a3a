"""The index of victims that follows the log is, at each step of random histories, one made from the state (C-70)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from events.ids import Instant
from scheduler.planning.preempt_ground import LEVELS, Ground, Place
from scheduler.planning.quota import Shares
from scheduler.planning.victims import VictimIndex
from tests.properties.test_follows import Wild


def some(bitsets: dict[Any, int]) -> dict[Any, int]:
    return {name: nodes for name, nodes in bitsets.items() if nodes}


def ground_shown(ground: Ground) -> object:
    """All that is looked up in it; an order of teams, or of sizes, is nobody's business."""
    ranked = {
        (size, team, victim)
        for size, by_team in ground.ranked.items()
        for team, ranking in by_team.items()
        for victim in ranking
    }
    levels = tuple(ground.gives(1 << level) for level in range(LEVELS))
    groups = [some(group) for group in (ground.blocks, ground.racks, ground.memory)]
    return ground.views, ground.all, groups, ground.loose, levels, ranked


def place_shown(place: Place) -> object:
    return place.free, place.lent, place.awaited, set(place.items), place.counts, place.rack, place.ground.key


def shown(index: VictimIndex) -> list[object]:
    """What it knows, and nobody else."""
    places = {node: place_shown(place) for node, place in index.places.items()}
    grounds = {key: ground_shown(ground) for key, ground in index.grounds.items() if ground.all}
    return [index.entries, some(index.held_by), places, grounds]


class Indexed(Wild):
    """A wild history in which both indexes are compared at every other cycle: the plan of the others finds the index
    as commits left it."""

    def cycle(self) -> None:
        if self.cycles % 2:
            Wild.cycle(self)
            return
        now, victims = Instant(self.crowd.at + 1000), self.planner.victims
        fresh = VictimIndex(self.crowd.state, Shares(self.crowd.state))
        for index in (victims, fresh):
            index.compare(now)
        for followed, made in zip(shown(victims), shown(fresh), strict=True):
            assert followed == made, f"cycle {self.cycles}"
        Wild.cycle(self)


@pytest.mark.parametrize("seed", range(8))
def test_an_index_that_follows_is_one_that_is_made_now(seed: int) -> None:
    """Whatever happens, and whatever was on trial in the cycles before."""
    history = Indexed(Random(seed))
    history.live()
