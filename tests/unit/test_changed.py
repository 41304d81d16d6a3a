"""What a commit left alone of a row, so that nobody looks at it again."""

from __future__ import annotations

from typing import Any

import pytest

from commands.changed import only_saved
from commands.rows import replace
from events.ids import JobId
from events.job import JobState, PriorityClass
from tests.builders import RED, quota
from tests.scenario import Scenario
from tests.unit.steps import checkpointed, cluster, runs

JOB = JobId("j_a")


@pytest.fixture
def running() -> Scenario:
    """A job runs on one node."""
    return Scenario().given(cluster("b0: [8]"), quota(RED, 8), runs("a", gpus_per_replica=8))


def test_a_checkpoint_changes_nothing_else(running: Scenario) -> None:
    """Of a job that runs: not for the queue, nor for shares."""
    before = running.state.jobs[JOB]
    running.given(checkpointed("a", 1))
    assert only_saved(before, running.state.jobs[JOB])


@pytest.mark.parametrize(
    "other",
    [
        {"priority_class": PriorityClass.PREEMPTIBLE},
        {"state": JobState.QUEUED},
        {"open_attempts": (1, 2)},
        {"preempted_at": (1,)},
        {"max_runtime_s": 7},
    ],
)
def test_what_comes_with_it_is_news(running: Scenario, other: dict[str, Any]) -> None:
    """Another class, say, in the same commit."""
    before = running.state.jobs[JOB]
    running.given(checkpointed("a", 1))
    assert not only_saved(before, replace(running.state.jobs[JOB], **other))


def test_without_a_checkpoint_it_is_something_else(running: Scenario) -> None:
    """A row that is the same is no newer checkpoint."""
    job = running.state.jobs[JOB]
    assert not only_saved(job, job)
