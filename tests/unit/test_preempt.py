"""Who has to go (R-40 to R-43): worked examples, each by hand what the rule says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commands.plan import Plan
from events.gang import GangEnding
from events.ids import Instant, JobId
from events.job import EndReason, PriorityClass, Span, Topology
from events.preemption import PreemptionOrdered, PreemptionRule
from tests.crowds import BATCH, PREEMPTIBLE, RESEARCH, SERVING, Crowd, stopped

HALF, OTHER_HALF, WHOLE = 0b1111, 0b11110000, 0b11111111


def crowd(nodes: int = 2) -> Crowd:
    """So many nodes of 8; red is guaranteed all of them, blue and green nothing."""
    made = Crowd()
    made.nodes(*[8] * nodes)
    made.quota("red", 8 * nodes)
    for team in ("blue", "green"):
        made.quota(team, 0)
    return made


class TestEligible:
    """R-40: who may be displaced at all."""

    @pytest.mark.parametrize(
        ("preemptor", "covered", "victim", "borrowed", "may"),
        [
            (RESEARCH, True, PREEMPTIBLE, True, True),
            (RESEARCH, True, BATCH, True, True),
            (RESEARCH, True, SERVING, True, False),
            (RESEARCH, True, PREEMPTIBLE, False, True),
            (RESEARCH, True, RESEARCH, False, False),
            (RESEARCH, False, PREEMPTIBLE, True, True),
            (RESEARCH, False, RESEARCH, True, False),
            (RESEARCH, False, PREEMPTIBLE, False, False),
            (SERVING, True, BATCH, True, True),
            (SERVING, True, PREEMPTIBLE, False, False),
            (PREEMPTIBLE, True, BATCH, True, True),
            (PREEMPTIBLE, False, PREEMPTIBLE, True, False),
        ],
    )
    def test_of_another_team(
        self, preemptor: PriorityClass, covered: bool, victim: PriorityClass, borrowed: bool, may: bool
    ) -> None:
        """A covered job takes what is borrowed, and lower classes; a borrowing one only borrowed lower classes."""
        made = Crowd()
        made.nodes(8)
        made.quota("red", 8 if covered else 0)
        made.quota("blue", 0 if borrowed else 8)
        made.run("v", (0, WHOLE), team="blue", cls=victim)
        made.queue("w", 1, 8, team="red", cls=preemptor)
        (room,) = made.rooms("w")
        assert (room is not None) is may

    @pytest.mark.parametrize(("cls", "may"), [(BATCH, True), (RESEARCH, False), (PREEMPTIBLE, False)])
    def test_of_its_own_team(self, cls: PriorityClass, may: bool) -> None:
        """Lower classes of its own team go, covered or not; equals never."""
        made = Crowd()
        made.nodes(8)
        made.quota("red", 8)
        made.run("v", (0, WHOLE), team="red", cls=RESEARCH)
        made.queue("w", 1, 8, team="red", cls=cls)
        (room,) = made.rooms("w")
        assert (room is not None) is may

    def test_what_is_not_preemptible_stays(self) -> None:
        """Not even where it is borrowed, because its quota was lowered (C-15)."""
        made = crowd(1)
        made.run("v", (0, WHOLE), team="blue", preemptible=False)
        made.queue("w", 1, 8, team="red", cls=BATCH)
        assert made.rooms("w") == [None]

    def test_serving_makes_room_in_its_own_team_to_be_covered(self) -> None:
        """Its team's guarantee is used up by a lower class, which gives way."""
        made = Crowd()
        made.nodes(8)
        made.quota("red", 8)
        made.run("v", (0, WHOLE), team="red", cls=RESEARCH)
        made.queue("w", 1, 8, team="red", cls=SERVING)
        assert stopped(made.rooms("w")[0]) == ["v"]

    def test_a_team_gets_its_own_back_though_it_borrows_nothing_is_free(self) -> None:
        """C-13: below the guarantee, nothing free: what others borrow comes back."""
        made = crowd()
        made.run("a", (0, WHOLE), team="red")
        made.run("b", (1, WHOLE), team="blue", cls=BATCH)
        made.queue("w", 1, 8, team="red", cls=PREEMPTIBLE)
        (room,) = made.rooms("w")
        assert room is not None
        assert (stopped(room), room.rule) == (["b"], PreemptionRule.RECLAIM)


class TestOrder:
    """R-40: who goes first."""

    def test_borrowed_before_covered(self) -> None:
        """A borrowed lease of a higher class goes before a covered one of a lower class."""
        made = Crowd()
        made.nodes(8, 8)
        made.quota("red", 8)
        made.quota("blue", 8)
        made.quota("green", 0)
        made.run("covered", (0, WHOLE), team="blue", cls=PREEMPTIBLE)
        made.run("borrowed", (1, WHOLE), team="green", cls=BATCH)
        made.queue("w", 1, 8, team="red", cls=RESEARCH)
        assert stopped(made.rooms("w")[0]) == ["borrowed"]

    def test_the_lowest_class(self) -> None:
        """Among borrowed leases."""
        made = crowd()
        made.run("a", (0, WHOLE), team="blue", cls=RESEARCH)
        made.run("b", (1, WHOLE), team="blue", cls=PREEMPTIBLE)
        made.queue("w", 1, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["b"]

    def test_fewest_jobs(self) -> None:
        """One job of a node rather than two of half a node."""
        made = crowd()
        made.run("a1", (0, HALF), team="blue")
        made.run("a2", (0, OTHER_HALF), team="blue")
        made.run("b", (1, WHOLE), team="blue")
        made.queue("w", 1, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["b"]

    def test_not_far_more_gpus_than_are_asked_for(self) -> None:
        """Two jobs of half a node rather than a gang of four nodes (C-12)."""
        made = crowd(5)
        made.run("a1", (0, HALF), team="blue")
        made.run("a2", (0, OTHER_HALF), team="blue")
        made.run("gang", *[(node, WHOLE) for node in (1, 2, 3, 4)], team="blue")
        made.queue("w", 1, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["a1", "a2"]

    def test_the_least_work_lost(self) -> None:
        """The one that started last, where nothing was saved."""
        made = crowd()
        made.run("old", (1, WHOLE), team="blue")
        made.pass_time(600)
        made.run("new", (0, WHOLE), team="blue")
        made.queue("w", 1, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["new"]

    def test_the_team_furthest_over_its_share(self) -> None:
        """Of two that lose as much."""
        made = Crowd()
        made.nodes(8, 8, 8)
        made.quota("red", 8)
        made.quota("blue", 4)
        made.quota("green", 2)
        made.commit(*made.running("a", (0, WHOLE), team="blue"), *made.running("b", (1, WHOLE), team="green"))
        made.run("c", (2, WHOLE), team="red", preemptible=False)
        made.quota("red", 16)
        made.queue("w", 1, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["b"]

    def test_nobody_where_there_is_room(self) -> None:
        """None at all when an idle alternative exists (C-12)."""
        made = crowd()
        made.run("a", (0, WHOLE), team="blue")
        made.queue("w", 1, 8, team="red")
        assert made.rooms("w") == [None]


class TestProtected:
    """R-42: what suffered of late is left alone, but for a reclaim."""

    @staticmethod
    def suffered(made: Crowd, name: str, times: int) -> None:
        """It was preempted so often in the last hours."""
        key = (JobId(name), 1)
        job, attempt = made.state.jobs[key[0]], made.state.attempts[key]
        at = tuple(Instant(made.at - 3_600_000 * ago) for ago in range(times, 0, -1))
        made.state.jobs.put(key[0], replace(job, preempted_at=at))
        made.state.attempts.put(key, replace(attempt, after_preemption=True))
        made.feed(made.state.accept())

    @pytest.mark.parametrize(
        ("times", "seconds", "may"),
        [(1, 60, False), (1, 1_790, False), (1, 1_810, True), (2, 1_810, False), (2, 3_610, True), (3, 3_610, False)],
    )
    def test_from_a_higher_class(self, times: int, seconds: int, may: bool) -> None:
        """Half an hour after one preemption, an hour after two, a day after three."""
        made = Crowd()
        made.nodes(8)
        made.quota("red", 0)
        made.quota("blue", 0)
        made.run("v", (0, WHOLE), team="blue", cls=PREEMPTIBLE)
        self.suffered(made, "v", times)
        made.pass_time(seconds)
        made.queue("w", 1, 8, team="red", cls=BATCH)
        (room,) = made.rooms("w")
        assert (room is not None) is may

    def test_a_reclaim_takes_the_protected_last(self) -> None:
        """But it takes them (C-16)."""
        made = crowd()
        made.run("v", (0, WHOLE), team="blue", cls=PREEMPTIBLE)
        self.suffered(made, "v", 3)
        made.run("u", (1, WHOLE), team="blue", cls=BATCH)
        made.queue("w", 1, 8, team="red")
        made.queue("x", 2, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["u"]
        assert stopped(made.rooms("x")[0]) == ["u", "v"]


class TestWaiting:
    """R-43: what ends soon is waited for."""

    def test_for_ends_within_the_grace(self) -> None:
        """A job whose limit comes within a minute is awaited, and nobody is stopped."""
        made = crowd()
        made.run("soon", (0, WHOLE), team="blue", max_runtime_s=100)
        made.run("later", (1, WHOLE), team="blue", max_runtime_s=200)
        made.pass_time(45)
        made.queue("w", 1, 8, team="red")
        (room,) = made.rooms("w")
        assert room is not None
        assert (room.victims, [job for job, _ in room.awaited]) == ((), ["soon"])
        assert room.rule is PreemptionRule.NOBODY

    def test_for_what_a_victim_leaves_over(self) -> None:
        """Two small jobs take back what one large victim frees; no second one is stopped."""
        made = crowd()
        for node in (0, 1):
            made.run(f"v{node}", (node, WHOLE), team="blue")
        made.queue("w1", 1, 4, team="red")
        made.queue("w2", 1, 4, team="red")
        first, second = made.rooms("w1", "w2")
        assert (len(stopped(first)), stopped(second)) == (1, [])
        assert second is not None
        assert second.awaited == (first.victims if first is not None else ())


class TestPlaces:
    """C-30: the hint holds for a place that is made."""

    @pytest.mark.parametrize(
        ("hint", "nodes"),
        [
            (Topology(), {0, 2}),
            (Topology(pack=Span.BLOCK), {0, 1}),
            (Topology(pack=Span.RACK), {2, 3}),
            (Topology(spread=Span.BLOCK), {0, 2}),
        ],
    )
    def test_whole_nodes(self, hint: Topology, nodes: set[int]) -> None:
        """Two nodes of which the cheapest are in different blocks."""
        made = Crowd()
        made.nodes(8, block="b0", rack="r0")
        made.nodes(8, block="b0", rack="r1")
        made.nodes(8, 8, block="b1", rack="r0")
        made.quota("red", 32)
        made.quota("blue", 0)
        made.run("a", (0, WHOLE), team="blue", cls=PREEMPTIBLE)
        made.run("b", (1, WHOLE), team="blue", cls=RESEARCH)
        made.run("c", (2, WHOLE), team="blue", cls=PREEMPTIBLE)
        made.run("d1", (3, HALF), team="blue", cls=RESEARCH)
        made.run("d2", (3, OTHER_HALF), team="blue", cls=RESEARCH)
        made.queue("w", 2, 8, team="red", topology=hint)
        (room,) = made.rooms("w")
        assert room is not None
        assert {index for index, _ in room.ranks} == nodes

    def test_a_shared_victim_counts_once(self) -> None:
        """A gang on both nodes goes rather than two jobs on two others."""
        made = crowd(4)
        made.run("gang", (1, WHOLE), (3, WHOLE), team="blue")
        made.run("a", (0, WHOLE), team="blue")
        made.run("b", (2, WHOLE), team="blue")
        made.queue("w", 2, 8, team="red")
        assert stopped(made.rooms("w")[0]) == ["gang"]


class TestFacts:
    """What the applier makes of it."""

    def test_order_and_ends_are_one_commit(self) -> None:
        """Who, by which rule, on whose behalf (C-62); each victim with the grace it asked for."""
        made = crowd()
        made.run("a", (0, WHOLE), team="blue", grace_s=30)
        made.run("b", (1, WHOLE), team="blue", grace_s=900)
        made.queue("w", 2, 8, team="red")
        (room,) = made.rooms("w")
        assert room is not None
        order, *ends = made.apply(Plan(n=made.state.meta.n, rooms=(room,)))
        assert isinstance(order, PreemptionOrdered)
        assert (order.job_id, order.rule) == ("w", PreemptionRule.RECLAIM)
        graces = {event.job_id: (event.reason, event.grace_s) for event in ends if isinstance(event, GangEnding)}
        assert graces == {"a": (EndReason.PREEMPTED, 30), "b": (EndReason.PREEMPTED, 240)}

    def test_what_is_pledged_is_nobody_elses(self) -> None:
        """Neither free nor to be had by making room (R-45)."""
        made = crowd(1)
        made.run("a", (0, HALF), team="blue")
        made.queue("w", 1, 8, team="red")
        made.order("w")
        made.queue("x", 1, 1, team="red", cls=BATCH)
        assert made.capacity.free[0] == 0  # type: ignore[index]
        assert made.rooms("x") == [None]


class TestSizes:
    """Nodes of several sizes: a gang may be charged for more on some (R-32)."""

    @staticmethod
    def mixed(small: PriorityClass) -> Crowd:
        """Two nodes of 8 and three of 4, all of them full of blue's; red is guaranteed 12, and asks for 3 x 4."""
        made = Crowd()
        made.nodes(8, 8, 4, 4, 4)
        made.quota("red", 12, 0)
        made.quota("blue", 0)
        for node in (2, 3, 4):
            made.run(f"s{node}", (node, HALF), team="blue", cls=small)
        for node in (0, 1):
            made.run(f"v{node}", (node, WHOLE), team="blue")
        made.queue("w", 3, 4, team="red", cls=BATCH)
        return made

    def test_where_the_quota_suffices(self) -> None:
        """Two victims would do, on nodes for which it is charged 16; three on those where it is charged 12."""
        (room,) = self.mixed(RESEARCH).rooms("w")
        assert stopped(room) == ["s2", "s3", "s4"]

    def test_a_search_that_the_quota_ended_is_made_anew_with_another(self) -> None:
        """prod-serving stays where it is: for 16 GPUs red has to be guaranteed 16."""
        made = self.mixed(SERVING)
        assert made.rooms("w") == [None]
        made.quota("red", 16, 0)
        assert stopped(made.rooms("w")[0]) == ["v0", "v1"]
