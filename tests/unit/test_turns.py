"""Whose turn it is: classes, covered and borrowing, faults, shares eased by waiting, deadlines (R-20, R-21)."""

from __future__ import annotations

from typing import Any

import pytest

from commands.messages import SubmitJob
from events.ids import Instant, TeamId
from events.job import ArrayRange, PriorityClass
from tests.builders import BLUE, RED, pack, quota
from tests.scenario import T0, Scenario
from tests.unit.steps import after, cluster, ended, hold, lost, plan, policy, release, runs, submit

SERVING, BATCH, RESEARCH, PREEMPTIBLE = PriorityClass
DAY_S = 86_400
HOUR_S = 3_600
ROOMY = "b0: [8] [8] [8] [8]"


def order(scenario: Scenario) -> str:
    """The jobs that one cycle would start, in the order of their turns."""
    placements = scenario.planner.plan(Instant(scenario.at + 1000)).placements
    return " ".join(placement.job_id.removeprefix("j_") for placement in placements)


def teams(*guarantees: tuple[TeamId, int], picture: str = ROOMY) -> Scenario:
    """A cluster with room for all, and teams with these guarantees. It starts with an hour of the clock."""
    scenario = Scenario(at=T0 - T0 % 3_600_000)
    return scenario.given(cluster(picture), *[quota(team, guaranteed) for team, guaranteed in guarantees])


def used(scenario: Scenario, team: TeamId, gpus: int, hours: int) -> None:
    """The team has used so much."""
    name = f"past-{team}"
    scenario.given(runs(name, team=team, gpus_per_replica=gpus, max_runtime_s=30 * DAY_S))
    scenario.given(after(hours * HOUR_S), ended(name))


def jobs(*asked: tuple[str, dict[str, Any]]) -> list[SubmitJob]:
    return [submit(name, **fields) for name, fields in asked]


class TestTiers:
    """Covered before borrowing, then class."""

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ([("a", {"priority_class": PREEMPTIBLE}), ("b", {}), ("c", {"priority_class": BATCH})], "c b a"),
            ([("a", {}), ("b", {"priority_class": SERVING}), ("c", {"priority_class": BATCH})], "b c a"),
            ([("a", {"team": BLUE, "priority_class": BATCH}), ("b", {"priority_class": PREEMPTIBLE})], "b a"),
            ([("a", {"gpus_per_replica": 6}), ("b", {"gpus_per_replica": 6}), ("c", {"gpus_per_replica": 2})], "a c b"),
            ([("a", {"replicas": 3, "gpus_per_replica": 4}), ("b", {"gpus_per_replica": 8})], "b a"),
        ],
        ids=["class", "serving first", "borrowing batch after covered preemptible", "covered runs out", "as charged"],
    )
    def test_who_is_first(self, asked: list[tuple[str, dict[str, Any]]], expected: str) -> None:
        """Red is guaranteed eight GPUs, blue none. What a gang is charged counts, not what it asks for."""
        assert order(teams((RED, 8), (BLUE, 0)).given(*jobs(*asked))) == expected

    def test_a_job_hit_by_a_fault_is_first_in_its_class_and_no_further(self) -> None:
        """It came last; covered jobs and higher classes still go before it."""
        scenario = teams((RED, 8), (BLUE, 0), picture="b0: [8]").given(submit("b"), hold("b"))
        scenario.given(runs("a"), lost("n0"), cluster("b1: [8] [8]"), release("b"))
        scenario.given(submit("c", priority_class=BATCH), submit("d", team=BLUE, priority_class=BATCH))
        assert order(scenario) == "c a b d"

    def test_a_borrower_hit_by_a_fault_waits_for_those_that_are_covered(self) -> None:
        """Front of its class means: within covered or borrowing."""
        scenario = teams((RED, 8), (BLUE, 0), picture="b0: [8]")
        scenario.given(runs("a", team=BLUE), lost("n0"), cluster("b1: [8]"), submit("b"))
        assert order(scenario) == "b a"

    def test_equal_jobs_go_by_time_of_submission(self) -> None:
        """Over shapes and teams alike."""
        scenario = teams((RED, 8), (BLUE, 8))
        scenario.given(*jobs(("a", {"team": BLUE}), ("b", {"gpus_per_replica": 2}), ("c", {})))
        assert order(scenario).split()[:2] == ["a", "b"]


class TestShares:
    """The team that has used least of its guarantee, eased by 0.1 for each hour waited."""

    def test_who_has_used_less_goes_first(self) -> None:
        """Of its own guarantee: 8 of 16 is less than 6 of 8."""
        scenario = teams((RED, 8), (BLUE, 16))
        used(scenario, RED, 6, 24)
        used(scenario, BLUE, 8, 24)
        assert order(scenario.given(submit("a"), submit("b", team=BLUE))) == "b a"

    def test_a_start_counts_at_once(self) -> None:
        """So two teams with equal shares take turns."""
        scenario = teams((RED, 16), (BLUE, 16))
        scenario.given(*[submit(f"r{number}") for number in range(3)])
        scenario.given(*[submit(f"b{number}", team=BLUE) for number in range(3)])
        assert order(scenario) == "r0 b0 r1 b1 r2 b2"

    @pytest.mark.parametrize(("hours", "first"), [(0, "b"), (1, "b"), (2, "a"), (9, "a")])
    def test_waiting_eases_a_share(self, hours: int, first: str) -> None:
        """Red has used about 0.17 of its guarantee over a half-life; two hours of waiting make up for that."""
        scenario = teams((RED, 8), (BLUE, 8))
        used(scenario, RED, 8, 44)
        scenario.given(submit("a"), after(hours * HOUR_S), submit("b", team=BLUE))
        assert order(scenario).split()[0] == first

    def test_it_is_eased_by_one_at_most(self) -> None:
        """Who has used more than that waits for who has used nothing, however long he waited."""
        scenario = teams((RED, 4), (BLUE, 8))
        used(scenario, RED, 8, 20 * 24)
        scenario.given(submit("a"), after(60 * HOUR_S), submit("b", team=BLUE))
        assert order(scenario) == "b a"

    def test_time_that_a_job_is_held_is_no_waiting(self) -> None:
        """Nothing is eased by it."""
        scenario = teams((RED, 8), (BLUE, 8))
        used(scenario, RED, 8, 44)
        scenario.given(submit("a"), hold("a"), after(9 * HOUR_S), release("a"), submit("b", team=BLUE))
        assert order(scenario) == "b a"

    def test_a_team_without_a_guarantee_is_last_in_its_group(self) -> None:
        """Among borrowers, however little it has used."""
        scenario = teams((RED, 8), (BLUE, 0))
        used(scenario, RED, 8, 24)
        scenario.given(runs("full", gpus_per_replica=8), submit("a", team=BLUE), submit("b"))
        assert order(scenario) == "b a"

    def test_a_policy_that_eases_nothing(self) -> None:
        """Then only shares count, and within a team deadlines and submission."""
        scenario = teams((RED, 8), (BLUE, 8)).given(policy(ease_per_hour_percent=0))
        used(scenario, RED, 8, 44)
        scenario.given(submit("a"), after(9 * HOUR_S), submit("c", deadline_at=Instant(scenario.at + 10**8)))
        assert order(scenario.given(submit("b", team=BLUE))) == "b c a"


class TestDeadlines:
    """Inside a team, among turns that are otherwise equal."""

    def deadline(self, scenario: Scenario, hours: int) -> dict[str, Any]:
        return {"deadline_at": Instant(scenario.at + hours * 3_600_000)}

    @pytest.mark.parametrize("shape", [{}, {"gpus_per_replica": 2}, {"replicas": 2}, {"hint": pack("node")}], ids=str)
    def test_the_earliest_goes_first_across_shapes(self, shape: dict[str, Any]) -> None:
        """Whatever the jobs of the team ask for; those without one go last."""
        scenario = teams((RED, 32))
        late, soon = self.deadline(scenario, 9), self.deadline(scenario, 3)
        scenario.given(submit("a"), submit("b", **late), submit("c", **shape, **soon), submit("d", **shape))
        assert order(scenario) == "c b a d"

    def test_it_says_nothing_to_other_teams(self) -> None:
        """Their turn is that of the job that would go, by its time of submission."""
        scenario = teams((RED, 16), (BLUE, 16))
        scenario.given(submit("a"), submit("b", team=BLUE, **self.deadline(scenario, 3)))
        assert order(scenario) == "a b"

    def test_class_cover_and_waiting_come_before_it(self) -> None:
        """A deadline lets nobody pass who is ahead for another reason."""
        scenario = teams((RED, 8))
        soon = self.deadline(scenario, 200)
        scenario.given(submit("wait"), after(2 * HOUR_S), submit("a", **soon))
        scenario.given(submit("top", priority_class=BATCH), submit("big", gpus_per_replica=8, **soon))
        assert order(scenario) == "top wait a big"

    def test_a_shape_that_does_not_fit_makes_way(self) -> None:
        """The next deadline is served in the same cycle."""
        scenario = teams((RED, 16), picture="b0: [8] [8 drained]")
        scenario.given(submit("a", replicas=2, gpus_per_replica=8, **self.deadline(scenario, 1)))
        scenario.given(submit("b", max_runtime_s=60, **self.deadline(scenario, 2)), submit("c", max_runtime_s=60))
        assert order(scenario) == "b c"


def test_an_array_takes_one_turn_after_the_other() -> None:
    """Its elements have the place of their array, and other teams come between (C-9)."""
    scenario = teams((RED, 16), (BLUE, 16)).given(submit("sweep", array=ArrayRange(first=0, last=49_999)))
    scenario.given(*[submit(f"b{number}", team=BLUE) for number in range(3)])
    assert order(scenario).split()[:6] == ["sweep", "b0", "sweep", "b1", "sweep", "b2"]


def test_equal_jobs_keep_their_order_after_a_requeue() -> None:
    """Who was there first is there first again (C-7)."""
    scenario = teams((RED, 1), picture="b0: [1]").given(runs("a", retries=1), submit("b"))
    scenario.given(ended("a", exit_code=1), plan())
    assert (scenario.job_state("a"), scenario.job_state("b")) == ("STARTING", "QUEUED")
