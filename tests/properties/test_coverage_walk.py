"""A walk over a team's leases that is taken anew only where something changed (commands.coverage.Walk)."""

from __future__ import annotations

from random import Random

import pytest

from commands.coverage import Walk, borrowed_now, turn_of
from commands.entities import Attempt, AttemptKey
from events.ids import JobId, TeamId
from events.preemption import PledgeEnd, PreemptionEnded
from tests.crowds import BATCH, H100, RESEARCH, Crowd
from tests.properties.test_follows import Wild


class Walked(Wild):
    """A wild history in which it is looked at each cycle who is covered."""

    def cycle(self) -> None:
        shares, state = self.planner.shares, self.crowd.state
        for key in sorted(state.quotas):
            assert (shares.covered_left(key), shares.borrowed(key)) == borrowed_now(state, *key), key
        Wild.cycle(self)


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_that_goes_on_ends_as_one_from_the_beginning(seed: int) -> None:
    """Whatever came, ended, was pledged or is to go since."""
    history = Walked(Random(seed))
    history.live()


class Seen(dict[AttemptKey, Attempt]):
    """Rows that know which of them somebody looked at."""

    def __init__(self, rows: dict[AttemptKey, Attempt]) -> None:
        super().__init__(rows)
        self.at: list[str] = []

    def __getitem__(self, key: AttemptKey) -> Attempt:
        self.at.append(key[0])
        return super().__getitem__(key)


def keys(*numbers: int) -> frozenset[AttemptKey]:
    return frozenset([(JobId(f"r{number}"), 1) for number in numbers])


def test_a_walk_ends_where_it_comes_by_as_before() -> None:
    """Once one that borrowed has what one that ended had, nobody further on is looked at."""
    made = Crowd()
    made.nodes(12)
    for number in range(6):
        made.run(f"r{number}", (0, 3 << 2 * number), team="red", cls=RESEARCH)
    state, rows = made.state, Seen(made.state.attempts.rows)
    walk = Walk({key: turn_of(state.jobs[key[0]], row) for key, row in rows.items()})
    walk.guarantee(6)
    assert walk.found(rows) == (6, keys(3, 4, 5))
    assert rows.at == ["r0", "r1", "r2", "r3", "r4", "r5"]
    rows.at.clear()
    walk.leave((JobId("r1"), 1))
    assert walk.found(rows) == (6, keys(4, 5))
    assert rows.at == ["r2", "r3"]
    rows.at.clear()
    assert walk.found(rows) == (6, keys(4, 5))
    assert rows.at == []


def test_a_pledge_of_a_higher_class_stands_before_leases_that_were_walked() -> None:
    """As it comes somebody borrows who did not, and as it goes he does so no more."""
    made = Crowd()
    made.nodes(12)
    made.quota("red", 8, 4)
    for number in range(3):
        made.run(f"r{number}", (0, 0xF << 4 * number), team="red", cls=RESEARCH)
    share = (TeamId("red"), H100)
    assert made.shares.borrowed(share) == {(JobId("r2"), 1)}
    made.queue("batch", 1, 4, team="red", cls=BATCH)
    made.order("batch")
    assert made.shares.borrowed(share) == {(JobId("r1"), 1), (JobId("r2"), 1)}
    made.commit(PreemptionEnded(job_id=JobId("batch"), because=PledgeEnd.GONE))
    assert made.shares.borrowed(share) == {(JobId("r2"), 1)}
