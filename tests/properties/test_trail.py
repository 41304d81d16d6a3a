"""A walk over a team's leases that goes on from where it was the same before (commands.coverage.Trail)."""

from __future__ import annotations

from random import Random

import pytest

from commands import coverage
from commands.coverage import borrowed_now
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


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_walk_that_goes_on_ends_as_one_from_the_beginning(
    seed: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came, ended, was pledged or is to go since: with marks so close that they matter on a small fleet."""
    monkeypatch.setattr(coverage, "STRIDE", stride)
    history = Walked(Random(seed))
    for _ in range(100):
        history.step()
    assert history.cycles == 300


def test_a_pledge_of_a_higher_class_stands_before_leases_that_were_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it comes somebody borrows who did not, and as it goes he does so no more."""
    monkeypatch.setattr(coverage, "STRIDE", 1)
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
