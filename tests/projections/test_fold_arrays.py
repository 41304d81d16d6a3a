"""What dependencies and arrays make of the rows (R-7): by the core's own facts, and in the queries."""

from __future__ import annotations

from events.job import ArrayRange, Dependency, DependsWhen
from projections.rows import JobRow
from tests.builders import job_id, quota
from tests.projections.folded import rows_of
from tests.scenario import Scenario
from tests.unit.steps import all_started, cancel, cluster, ended, hold, plan, release, stopped, submit

A = job_id("a")


def ready() -> Scenario:
    return Scenario().given(cluster("b0: [4]"), quota())


def test_an_array_from_submission_to_its_end() -> None:
    """Rows of elements come as they are granted; the array's row counts them, and shows how it ended."""
    scenario = ready().given(submit("a", array=ArrayRange(first=0, last=5, throttle=3)), plan())
    rows = rows_of(scenario)
    array = rows.find(JobRow, A)
    element = rows.find(JobRow, job_id("a_1"))
    assert array is not None
    assert element is not None
    assert (array.state, array.elements_made, array.elements_open) == ("QUEUED", 3, 3)
    assert (element.element_of, element.element, element.spec["array"]) == (A, 1, None)
    assert element.submit_seq == array.submit_seq < element.made_seq
    scenario.given(all_started("a_0"), ended("a_0", exit_code=2), plan(), all_started("a_1"), ended("a_1"), plan())
    rows_of(scenario)
    for index in (2, 3, 4):
        scenario.given(all_started(f"a_{index}"), ended(f"a_{index}"), plan())
    scenario.given(all_started("a_5"), ended("a_5"))
    array = rows_of(scenario).find(JobRow, A)
    assert array is not None
    assert (array.state, array.end_reason, array.elements_succeeded) == ("FAILED", "element_failed", 5)


def test_a_cancelled_array() -> None:
    """While its elements are stopped it is shown as cancelling."""
    scenario = ready().given(submit("a", array=ArrayRange(first=0, last=9)), plan(), cancel("a"))
    array = rows_of(scenario).find(JobRow, A)
    assert array is not None
    assert (array.state, array.elements_open, array.elements_cancelled) == ("CANCELLING", 4, 4)
    for index in range(4):
        scenario.given(stopped(f"a_{index}"))
    rows_of(scenario)
    assert scenario.job_state("a") == "CANCELLED"


def test_a_job_that_waits_for_others() -> None:
    """What it still waits for is in its row, and goes with each end."""
    wanted = tuple(Dependency(job=job_id(name), when=DependsWhen.AFTER_OK) for name in "ab")
    scenario = ready().given(submit("a"), submit("b"), plan(), submit("c", depends_on=wanted))
    scenario.given(hold("c"), release("c"), all_started("a"), ended("a"))
    row = rows_of(scenario).find(JobRow, job_id("c"))
    assert row is not None
    assert (row.state, row.waits_on) == ("QUEUED", [job_id("b")])
    scenario.given(all_started("b"), ended("b", exit_code=1))
    row = rows_of(scenario).find(JobRow, job_id("c"))
    assert row is not None
    assert (row.state, row.end_reason, row.waits_on) == ("CANCELLED", "dependency", [])
