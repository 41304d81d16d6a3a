"""Who is served: class, front, time of submission; quota; and what a cycle leaves behind."""

from __future__ import annotations

from events.ids import Instant
from events.job import PriorityClass
from scheduler.planning.plan import Planner
from tests.builders import BLUE, L40S, quota
from tests.scenario import Scenario
from tests.unit.steps import after, cluster, ended, hold, plan, release, runs, submit

WAITS = "waits"


def test_class_then_time_of_submission() -> None:
    """Higher classes first, whoever came first within."""
    scenario = Scenario().given(cluster("b0: [2]"), quota())
    scenario.given(
        submit("late", priority_class=PriorityClass.PREEMPTIBLE),
        submit("a"),
        submit("b"),
        submit("top", priority_class=PriorityClass.PROD_BATCH),
        plan(),
    )
    assert scenario.table("top", "a", "b", "late") == {"top": "n0*1", "a": "n0*1", "b": WAITS, "late": WAITS}


def test_a_gang_that_does_not_fit_stops_nobody_else() -> None:
    """Smaller shapes, other types and other teams go on (C-2)."""
    scenario = Scenario().given(
        cluster("b0: [8] [x.......]\nb1 l40s 48: [4]"), quota(), quota(gpu_type=L40S), quota("blue")
    )
    scenario.given(
        submit("big", replicas=2, gpus_per_replica=8),
        submit("other", gpu_type=L40S),
        submit("small"),
        submit("blue", team=BLUE, gpus_per_replica=8),
        plan(),
    )
    assert scenario.table("big", "other", "small", "blue") == {
        "big": WAITS,
        "other": "n2*1",
        "small": "n1*1",
        "blue": "n0*8",
    }


def test_a_shape_that_does_not_fit_is_tried_once() -> None:
    """Fifty jobs of one shape that cannot run cost one try, and the one that can starts in the same cycle (C-5)."""
    scenario = Scenario().given(cluster("b0: [xxxxxxx.] [8 drained]"), quota())
    scenario.given(*[submit(f"big{number}", replicas=8) for number in range(50)], submit("small"))
    made = scenario.planner.plan(Instant(scenario.at))
    assert (made.tries, len(made.placements)) == (1, 1)


def test_a_team_stays_within_guarantee_and_borrow_limit() -> None:
    """Within one cycle and over several; what it gives back it may use again."""
    scenario = Scenario().given(cluster("b0: [8]"), quota(guaranteed=2, borrow_limit=1), quota("blue"))
    scenario.given(*[submit(name) for name in ("a", "b", "c", "d")], submit("blue", team=BLUE), plan())
    assert scenario.charged("red") == 3
    assert scenario.table("d", "blue") == {"d": WAITS, "blue": "n0*1"}
    scenario.when(plan()).then_nothing()
    scenario.given(ended("a"), plan())
    assert scenario.table("d") == {"d": "n0*1"}


def test_a_lowered_quota_evicts_nobody_and_lets_nobody_in() -> None:
    """It drains by itself (C-15)."""
    scenario = Scenario().given(cluster("b0: [8]"), quota(), runs("a", "b"), quota(borrow_limit=1), submit("c"))
    scenario.when(plan()).then_nothing()
    scenario.given(ended("a")).when(plan()).then_nothing()
    scenario.given(ended("b"), plan())
    assert scenario.table("c") == {"c": "n0*1"}


def test_jobs_that_wait_out_a_backoff_come_in_when_it_is_over() -> None:
    """Also after they were held and released meanwhile, and in a planner that starts afresh."""
    fails = ended("a", end="start_failed", exit_code=None)
    scenario = Scenario().given(cluster("b0: [8]"), quota(), submit("a"), plan(), fails, plan(), fails)
    until = scenario.job("a").not_before_at
    assert until is not None
    assert scenario.planner.plan(Instant(until - 1)).empty()
    scenario.given(hold("a"), release("a")).when(plan()).then_nothing()
    assert Planner(scenario.state).plan(Instant(until - 1)).placements == ()
    assert len(Planner(scenario.state).plan(until).placements) == 1
    scenario.given(after(30), plan())
    assert scenario.job_state("a") == "STARTING"


def test_planning_twice_is_planning_once() -> None:
    """A plan leaves nothing behind in the indices; a fresh planner plans the same (P-23, C-70)."""
    scenario = Scenario().given(cluster("b0: [8] [xxx.....]"), quota())
    scenario.given(submit("a", replicas=3), submit("b", gpus_per_replica=8), submit("c", replicas=9))
    now = Instant(scenario.at)
    first = scenario.planner.plan(now)
    assert first.placements
    assert scenario.planner.plan(now) == first
    assert Planner(scenario.state).plan(now) == first


def test_a_cycle_is_cut_at_its_limit_and_goes_on_in_the_next() -> None:
    """So that a commit stays small; nobody is passed over."""
    scenario = Scenario().given(cluster("b0: [8]"), quota(), *[submit(f"j{number}") for number in range(8)])
    made = scenario.planner.plan(Instant(scenario.at), ranks_max=3)
    assert [placement.job_id for placement in made.placements] == ["j_j0", "j_j1", "j_j2"]
