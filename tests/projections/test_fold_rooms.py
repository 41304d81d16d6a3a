"""What reservations and pledges make of the rows: by the core's own facts, and who was stopped for whom (C-62)."""

from __future__ import annotations

from typing import Any

import pytest

from events.ids import Instant
from events.preemption import PreemptionRule
from events.quota import QuotaChanged
from events.reservation import BlocksMoved
from projections.rows import AttemptRow, JobRow, QuotaRow
from projections.store import Unprojectable
from tests.builders import BLUE, H100, RED, job_id, quota
from tests.projections.folded import rows_of
from tests.projections.story import Story
from tests.scenario import Scenario
from tests.unit.steps import all_started, cancel, cluster, hold, lost, plan, runs, stopped, submit

A, B, C = job_id("a"), job_id("b"), job_id("c")


def job_row(scenario: Scenario, name: str) -> JobRow:
    row = rows_of(scenario).find(JobRow, job_id(name))
    assert row is not None
    return row


def reclaimed() -> Scenario:
    """Blue borrows both nodes; red, whose one of them is, has it made free."""
    scenario = Scenario().given(cluster("b0: [8] [8]"), quota("red", 8, 0), quota("blue", 8, 8))
    scenario.given(runs("a", team=BLUE, gpus_per_replica=8), runs("b", team=BLUE, gpus_per_replica=8))
    return scenario.given(submit("c", gpus_per_replica=8), plan())


def reserved() -> Scenario:
    """A gang waits for both nodes, of which one is in use."""
    scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota("red", 24, 24))
    scenario.given(runs("a", gpus_per_replica=8, max_runtime_s=3600))
    return scenario.given(submit("b", replicas=3, gpus_per_replica=8), plan())


def test_a_pledge_names_whom_it_costs_until_its_job_starts() -> None:
    """Rule, GPUs, nodes and victims are there while room is made, and no longer."""
    scenario = reclaimed()
    pledge = job_row(scenario, "c").pledge
    assert pledge is not None
    told = {name: pledge[name] for name in ("rule", "gpus", "nodes", "victims", "awaited")}
    assert told == {"rule": "reclaim", "gpus": 8, "nodes": ["n1"], "victims": [[B, 1]], "awaited": []}
    scenario.given(stopped("b"), plan())
    assert (job_row(scenario, "c").state, job_row(scenario, "c").pledge) == ("STARTING", None)


def test_the_cause_stands_with_the_attempt_for_ever() -> None:
    """Who was stopped, for whom and by which rule; the job shows the last time, each attempt its own (C-62)."""
    scenario = reclaimed().given(stopped("b"), plan(), all_started("c"), cancel("c"))
    scenario.given(stopped("c"), plan(), all_started("b"))
    rows = rows_of(scenario)
    first, second = (rows.find(AttemptRow, B, number) for number in (1, 2))
    assert first is not None
    assert second is not None
    assert (first.preempted_by, first.preempted_rule) == (C, PreemptionRule.RECLAIM)
    assert (second.preempted_by, second.preempted_rule) == (None, None)
    preempted = job_row(scenario, "b").preempted
    assert preempted is not None
    assert (preempted["by"], preempted["rule"], preempted["attempt"]) == (C, "reclaim", 1)
    assert job_row(scenario, "a").preempted is None


@pytest.mark.parametrize("step", [cancel("c"), hold("c")], ids=["cancelled", "held"])
def test_a_pledge_that_is_over_is_gone(step: Any) -> None:
    """Also where its job never starts."""
    assert job_row(reclaimed().given(step, plan()), "c").pledge is None


def test_a_reservation_is_shown_while_it_stands() -> None:
    """Its nodes by name, and the start it promises."""
    scenario = reserved()
    held = job_row(scenario, "b").reservation
    assert held is not None
    assert held["nodes"] == ["n0", "n1", "n2"]
    assert 3590_000 < held["start_at"] - scenario.at <= 3600_000
    scenario.given(cancel("b"), plan())
    assert job_row(scenario, "b").reservation is None


def test_a_reservation_that_moves_is_shown_where_it_is_now() -> None:
    """Since when stays: it is the same one."""
    scenario = Scenario().given(cluster("b0: [8] [8] [8]"), quota("red", 24, 24))
    scenario.given(runs("a", gpus_per_replica=8, max_runtime_s=3600), runs("x", gpus_per_replica=8))
    scenario.given(submit("b", replicas=2, gpus_per_replica=8), plan())
    before = job_row(scenario, "b").reservation
    assert before is not None
    scenario.given(lost("n2"), plan())
    after = job_row(scenario, "b").reservation
    assert after is not None
    assert "n2" in before["nodes"]
    assert (after["nodes"], after["since"]) == (["n0", "n1"], before["since"])


async def test_what_cannot_be_is_not_passed_over() -> None:
    """A move of what is not held stops the projection."""
    story = await Story().begun()
    job = await story.job("a")
    await story.commit(BlocksMoved(job_id=job, nodes=(), start_at=Instant(0)))
    with pytest.raises(Unprojectable, match="no reservation"):
        story.row(JobRow, job)


async def test_a_quota_in_percent_says_so() -> None:
    """The figures that hold, and what was asked for."""
    story = await Story().begun()
    changed = QuotaChanged(team=RED, gpu_type=H100, guaranteed=8, borrow_limit=4, guaranteed_percent=50)
    await story.commit(changed)
    row = story.row(QuotaRow, RED, H100)
    assert (row.guaranteed, row.guaranteed_percent, row.borrow_limit_percent) == (8, 50, None)
