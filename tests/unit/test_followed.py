"""Indices that follow the log for long, beside others that are made now (C-70): what each rests on is followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commands.entities import AttemptKey
from commands.evolve import begin, evolve
from commands.plan import Plan
from commands.policy import Policy
from events.checkpoint import CheckpointRecorded
from events.envelope import Event
from events.gang import GangReleased, GangResized, ResizeReason
from events.ids import Epoch, GpuMask, GpuType, Instant, JobId, NodeIndex
from events.job import (
    Elastic,
    EndReason,
    JobCancelRequested,
    JobExtended,
    JobFinished,
    JobPriorityChanged,
    JobState,
    PriorityClass,
    Span,
    Topology,
)
from events.node import NodesConfirmed
from events.policy import PolicyChanged
from events.reservation import FreedBecause
from scheduler.planning.plan import Planner
from scheduler.planning.preempt_ground import Entry
from scheduler.planning.quota import Shares
from scheduler.planning.spares import Spares
from scheduler.planning.victims import VictimIndex
from tests.crowds import BATCH, HOUR_MS, PREEMPTIBLE, RESEARCH, SERVING, Crowd, registered

WHOLE = 0b11111111
H100 = GpuType("h100")


def victims_now(made: Crowd) -> tuple[dict[AttemptKey, Entry], dict[AttemptKey, Entry]]:
    """Who may be displaced, by the index that followed and by one that is made now."""
    fresh = VictimIndex(made.state, Shares(made.state))
    for index in (made.victims, fresh):
        index.refresh(Instant(made.at))
    return made.victims.entries, fresh.entries


def test_the_second_preemption_shields_no_longer_than_the_first_is_of_the_last_day() -> None:
    """Preempted a day less 10 minutes ago, and again just now: shielded for half an hour, not for an hour (R-42)."""
    made = Crowd()
    made.nodes(8)
    made.quota("blue", 0)
    made.run("v", (0, WHOLE), team="blue", cls=PREEMPTIBLE)
    key = (JobId("v"), 1)
    at = (Instant(made.at - 24 * HOUR_MS + 600_000), Instant(made.at))
    made.state.jobs.put(key[0], replace(made.state.jobs[key[0]], preempted_at=at))
    made.state.attempts.put(key, replace(made.state.attempts[key], after_preemption=True))
    made.feed(made.state.accept())
    for seconds in (60, 1_200, 600):
        made.pass_time(seconds)
        followed, fresh = victims_now(made)
        assert followed == fresh
    made.queue("w", 1, 8, team="red", cls=BATCH)
    made.quota("red", 0)
    assert made.rooms("w") != [None]


def test_what_an_elastic_job_would_be_covered_for_follows_the_guarantee_that_is_left() -> None:
    """Two of the team hold its guarantee, the elastic one borrows; one of the two ends. It borrows still, and would be
    covered but for what it has lent (R-44)."""
    made = Crowd()
    made.nodes(8, 8, 8, 8)
    made.quota("red", 16)
    made.run("a", (0, WHOLE))
    made.run("b", (1, WHOLE))
    made.run("e", (2, WHOLE), (3, WHOLE), elastic=Elastic(min_replicas=1, max_replicas=2))
    followed, fresh = victims_now(made)
    assert followed == fresh
    before = followed[JobId("e"), 1].level
    made.commit(*made.gone(made.state.attempts[JobId("b"), 1]))
    followed, fresh = victims_now(made)
    assert followed == fresh
    assert followed[JobId("e"), 1].level > before


def test_the_pledge_of_a_job_that_is_gone_makes_nobody_borrow() -> None:
    """It is there until the next cycle, and counts no more: the lease that came after it is covered again (C-70)."""
    made = Crowd()
    made.nodes(8)
    made.quota("red", 4)
    made.quota("blue", 0)
    made.run("low", (0, 0x0F), team="blue", cls=PREEMPTIBLE)
    made.run("own", (0, 0xF0), team="red")
    made.queue("next", 1, 4, team="red", cls=BATCH)
    made.order("next")
    own = (JobId("own"), 1)
    followed, fresh = victims_now(made)
    assert followed == fresh
    borrows = followed[own].level
    done = JobFinished(job_id=JobId("next"), state=JobState.CANCELLED, reason=EndReason.CANCELLED)
    made.commit(JobCancelRequested(job_id=JobId("next")), done)
    assert made.state.pledges.rows
    followed, fresh = victims_now(made)
    assert followed == fresh
    assert followed[own].level > borrows


def with_spares(percent: int = 50) -> tuple[Crowd, Planner]:
    """Eight nodes of 8, and a job that waits; gangs of 16 GPUs and more have spares."""
    made = Crowd()
    made.nodes(*[8] * 8)
    whole = Policy(spare_gang_gpus_min=16, spare_nodes_percent=percent).model_dump(mode="json")
    made.commit(PolicyChanged(version=1, policy=whole))
    made.quota("red", 64)
    made.queue("waits", 1, 8)
    return made, Planner(made.state)


def follow(made: Crowd, planner: Planner, *events: Event) -> tuple[int, int]:
    """The facts; then the spare nodes, as a planner followed them and as found now."""
    begin(made.state, Epoch(1), made.state.meta.n + 1, Instant(made.at))
    for event in events:
        evolve(made.state, event)
    planner.feed(made.state.accept())
    followed = planner.pools.eligible(made.job("waits"))
    return 0 if followed is None else ~followed, Spares(made.state).held(H100)


def test_a_gang_that_grows_has_more_spares() -> None:
    """One in two of its nodes: one for two, two for four (R-34)."""
    made, planner = with_spares()
    elastic = Elastic(min_replicas=1, max_replicas=4)
    runs = made.running("gang", (0, WHOLE), (1, WHOLE), cls=RESEARCH, elastic=elastic)
    followed, fresh = follow(made, planner, *runs)
    assert followed == fresh == 0b100
    grown = tuple((NodeIndex(index), GpuMask(WHOLE)) for index in (4, 5))
    more = GangResized(job_id=JobId("gang"), attempt=1, because=ResizeReason.GREW, grown=grown)
    followed, fresh = follow(made, planner, more)
    assert followed == fresh == 0b1100


def test_a_spare_is_lent_to_the_lowest_class_only_as_long_as_it_is_that() -> None:
    """The job of a lease that still ends is given another class: the next node is the spare."""
    made, planner = with_spares()
    low = made.running("low", (2, 0b1), cls=PREEMPTIBLE)
    followed, fresh = follow(made, planner, *made.running("gang", (0, WHOLE), (1, WHOLE)), *low)
    assert followed == fresh == 0b100
    followed, fresh = follow(made, planner, JobPriorityChanged(job_id=JobId("low"), priority_class=RESEARCH))
    assert followed == fresh == 0b1000


def test_a_gang_whose_node_is_in_another_block_has_its_spares_near_that() -> None:
    """It registers again from elsewhere: the block is one of the gang's now, and has the spare."""
    made, _ = with_spares()
    made.commit(registered(8, 8, block="a0"), NodesConfirmed(nodes=(NodeIndex(8),)))
    planner = Planner(made.state)
    followed, fresh = follow(made, planner, *made.running("gang", (0, WHOLE), (1, WHOLE)))
    assert followed == fresh == 0b100
    followed, fresh = follow(made, planner, registered(1, 8, block="a0"), NodesConfirmed(nodes=(NodeIndex(1),)))
    assert followed == fresh == 0b1_0000_0000


def test_what_came_and_went_while_nobody_asked_is_not_kept() -> None:
    """Where every job starts at once nobody asks who could make room, for months (C-70)."""
    made = Crowd()
    made.nodes(8)
    made.quota("red", 8)
    for number in range(30):
        made.run(f"j{number}", (0, WHOLE))
        attempt = made.state.attempts[JobId(f"j{number}"), 1]
        made.commit(*made.gone(attempt), GangReleased(job_id=attempt.job_id, attempt=1))
    assert made.victims.unreckoned == 0
    made.run("last", (0, WHOLE))
    followed, fresh = victims_now(made)
    assert followed == fresh
    assert made.victims.unreckoned == 0


def follows(made: Crowd, planner: Planner) -> Plan:
    """What a planner that followed plans now: the same as one that is made now."""
    now = Instant(made.at + 1000)
    plan: Plan = planner.plan(now)
    assert plan == Planner(made.state).plan(now)
    return plan


def told(made: Crowd, planner: Planner, *events: Event) -> None:
    """The facts, for the planner alone."""
    made.at += 1000
    begin(made.state, Epoch(1), made.state.meta.n + 1, Instant(made.at))
    for event in events:
        evolve(made.state, event)
    planner.feed(made.state.accept())


def test_what_comes_free_on_nodes_held_for_whom_it_overtakes_is_news_to_a_job() -> None:
    """Half a node, of two that are held for a gang that borrows, whose start is as far away as it was. That nothing
    fits was seen and remembered: one GPU is free, of too little memory for the one job that it is enough for."""
    made = Crowd()
    made.nodes(8, 8)
    made.quota("owner", 16)
    made.quota("red", 0)
    made.quota("blue", 8)
    for name, rank in (("a", (0, 0b1111111)), ("b", (1, 0b1111)), ("c", (1, 0b11110000))):
        made.run(name, rank, team="owner", cls=SERVING)
    made.queue("gang", 2, 8, team="red")
    made.apply(Planner(made.state).plan(Instant(made.at + 1000)))
    assert made.state.reservations.rows
    made.queue("small", 1, 4, team="blue", cls=BATCH, max_runtime_s=40 * 86_400)
    made.queue("large", 1, 1, team="blue", cls=BATCH, gpu_memory_gb_min=100)
    planner = Planner(made.state)
    for _ in range(2):
        assert follows(made, planner).placements == ()
    told(made, planner, *made.gone(made.state.attempts[JobId("b"), 1]))
    (placement,) = follows(made, planner).placements
    assert (placement.job_id, placement.ranks) == ("small", ((1, 0b1111),))


def test_a_checkpoint_is_news_where_the_least_harm_is_not_within_the_quota() -> None:
    """The gang costs more on the nodes where room could be made, and its team has so much only if its own job there is
    among those that stop: it is once less is lost with it than with the others."""
    made = Crowd()
    made.nodes(8, 8, 8)
    made.nodes(4, 4, 4, block="b1")
    for team, guaranteed, borrow_limit in (("red", 0, 24), ("green", 0, 0), ("owner", 12, 0)):
        made.quota(team, guaranteed, borrow_limit)
    for name, rank in (("a", (3, 0b11)), ("b", (4, 0b1111)), ("c", (5, 0b1111))):
        made.run(name, rank, team="owner", cls=SERVING)
    made.run("two", (3, 0b1100), cls=BATCH)
    made.run("own", (0, WHOLE), cls=PREEMPTIBLE)
    made.pass_time(3600)
    for name, index in (("g1", 1), ("g2", 2)):
        made.run(name, (index, WHOLE), team="green", cls=PREEMPTIBLE)
    made.queue("gang", 3, 4, max_runtime_s=40 * 86_400)
    made.apply(Planner(made.state).plan(Instant(made.at + 1000)))
    planner = Planner(made.state)
    for _ in range(2):
        assert follows(made, planner).empty()
    of: dict[str, Any] = {"job_id": JobId("own"), "attempt": 1, "node": NodeIndex(0), "report": 2, "sequence": 1}
    made.pass_time(600)
    told(made, planner, CheckpointRecorded(**of, uri="u", size_bytes=1, step=1))
    (room,) = follows(made, planner).rooms
    assert (JobId("own"), 1) in room.victims


@pytest.mark.parametrize("cls", [PREEMPTIBLE, SERVING])
def test_a_node_that_comes_back_in_another_rack_is_news_to_a_gang_that_wants_one_rack(cls: PriorityClass) -> None:
    """Two nodes in two racks are no place for it; in one they are: room is made there, or they are held."""
    made = Crowd()
    made.nodes(8, rack="r0")
    made.nodes(8, rack="r1")
    made.quota("red", 16)
    made.quota("owner", 8 if cls is SERVING else 0)
    made.run("there", (0, WHOLE), team="owner", cls=cls)
    made.queue("gang", 2, 8, team="red", topology=Topology(pack=Span.RACK))
    planner = Planner(made.state)
    assert follows(made, planner).empty()
    moved = replace(registered(1, 8, rack="r0"), generation=2)
    told(made, planner, moved, NodesConfirmed(nodes=(NodeIndex(1),)))
    plan = follows(made, planner)
    assert len(plan.rooms) == (cls is PREEMPTIBLE)
    assert len(plan.holds) == (cls is SERVING)


def test_an_extension_after_which_a_job_may_not_borrow_is_news_to_the_one_that_nodes_are_held_for() -> None:
    """Borrowed GPUs go to jobs of two hours: one that was extended over that waits for its guarantee, and loses its
    nodes at once, though its limit of use and what is free are what they were."""
    made = Crowd()
    made.commit(PolicyChanged(version=1, policy=Policy(borrow_runtime_max_s=7_200).model_dump(mode="json")))
    made.nodes(8)
    made.quota("red", 4)
    made.quota("blue", 4)
    made.run("r", (0, 0b1111), team="blue", cls=BATCH)
    made.queue("held", 1, 8, max_runtime_s=7_200)
    made.apply(Planner(made.state).plan(Instant(made.at + 1000)))
    assert made.state.reservations.rows
    planner = Planner(made.state)
    for _ in range(2):
        assert follows(made, planner).empty()
    told(made, planner, JobExtended(job_id=JobId("held"), max_runtime_s=7_300))
    assert follows(made, planner).holds_over == ((JobId("held"), FreedBecause.GONE),)
