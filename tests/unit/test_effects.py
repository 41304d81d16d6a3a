"""Effects and claims follow from events alone (I-2, I-8), and every event type has one meaning."""

from __future__ import annotations

from typing import Any

import pytest

from commands import snapshot
from commands.evolve import cluster as cluster_rules
from commands.evolve import following, gangs, holdings, jobs, nodes
from commands.evolve.fold import RULES
from commands.state import State
from events.catalogue import EventType
from events.ids import lease_id
from scheduler import effects
from scheduler.claiming import all_claims, claims_of, releases_of
from scheduler.link import ExtendTask, StartTask, StopTask
from tests.builders import job_id, lease, quota
from tests.golden.examples import catalogue
from tests.scenario import Scenario, fold_log
from tests.unit.steps import (
    cancel,
    checkpointed,
    cluster,
    ended,
    extend,
    granted,
    lost,
    plan,
    registers,
    runs,
    started,
    stopped,
    submit,
    takeover,
)

GANG = {"replicas": 2, "gpus_per_replica": 8}


@pytest.fixture
def ready() -> Scenario:
    """Three nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8] [8]"), quota())


def told(scenario: Scenario, heard: dict[int, int] | None = None) -> list[tuple[str, Any]]:
    """What is said to agents after the last step, by a scheduler that has nothing but the log."""
    fresh = State(scenario.state.cluster)
    fold_log(scenario.log, fresh)
    assert snapshot.digest(fresh) == snapshot.digest(scenario.state)
    messages = effects.of_events(fresh, scenario.events, heard or {})
    assert messages == effects.of_events(scenario.state, scenario.events, heard or {})
    return [(str(node), message) for node, message in messages]


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_every_event_type_has_exactly_one_meaning(entry: EventType) -> None:
    """One rule in one file of commands/evolve, and none for anything that is no event."""
    tables = (jobs.RULES, following.RULES, gangs.RULES, nodes.RULES, holdings.RULES, cluster_rules.RULES)
    assert sum(entry.cls in table for table in tables) == 1
    assert set(RULES) == {known.cls for known in catalogue()}


def test_a_grant_starts_every_rank(ready: Scenario) -> None:
    """With its grant, its GPUs by UUID, rank 0's address, and the last heartbeat of its node (P-17, P-18, P-21)."""
    ready.given(submit("a", replicas=2, gpus_per_replica=8, grace_s=30, max_runtime_s=600)).when(plan())
    n1 = ready.node("n1").index
    (first, one), (second, two) = told(ready, {n1: 41})
    assert (first, second) == ("n0", "n1")
    assert isinstance(one, StartTask)
    assert isinstance(two, StartTask)
    assert (one.lease_id, two.lease_id) == (lease("a", 0), lease("a", 1))
    assert (one.last_heartbeat, two.last_heartbeat) == (0, 41)
    assert one.grant == two.grant == (1, ready.state.meta.n)
    assert two.gpu_uuids == tuple(f"GPU-n1-{slot}" for slot in range(8))
    assert (one.master_addr, two.master_addr) == ("n0.example", "n0.example")
    assert one.master_port == two.master_port
    assert (one.limit_s, one.grace_s, one.replicas) == (600, 30, 2)
    assert one.resume_uri is None


def test_the_next_attempt_resumes_where_the_log_says(ready: Scenario) -> None:
    """From the last accepted checkpoint of any attempt."""
    ready.given(runs("a"), checkpointed("a", 3), lost("n0")).when(plan())
    ((_, start),) = told(ready)
    assert start.resume_uri == f"s3://c/{lease('a')}"


def test_an_ending_stops_what_still_holds_a_lease(ready: Scenario) -> None:
    """A rank that is gone hears nothing more."""
    ready.given(runs("a", **GANG), ended("a", 0)).when(cancel("a"))
    ((node, stop),) = told(ready)
    assert isinstance(stop, StopTask)
    assert (node, stop.lease_id, stop.grace_s, stop.reason) == ("n1", lease("a", 1), 60, "cancelled")


def test_a_stop_can_be_said_before_the_start_was_heard(ready: Scenario) -> None:
    """The agent then never starts it (P-17)."""
    ready.given(granted("a")).when(cancel("a"))
    assert [type(message) for _, message in told(ready)] == [StopTask]


def test_an_extension_reaches_every_rank_that_runs(ready: Scenario) -> None:
    """With the time that is left from now."""
    ready.given(runs("a", **GANG, max_runtime_s=600), ended("a", 0)).when(extend("a", 100))
    ((node, message),) = told(ready)
    assert isinstance(message, ExtendTask)
    assert node == "n1"
    limit_at = ready.attempt("a").limit_at
    assert limit_at is not None
    assert message.limit_s == (limit_at - ready.state.meta.at) // 1000


def test_what_a_lease_should_hear_can_be_said_again_at_any_time(ready: Scenario) -> None:
    """By where it stands: start while only granted, nothing while it runs, stop while it ends; in the new epoch."""

    def now() -> list[Any]:
        found = effects.of_attempt(ready.state, job_id("a"), 1, {})
        said = [message for _, message in found if isinstance(message, StartTask | StopTask)]
        return [(type(message), message.epoch, message.grant) for message in said]

    ready.given(granted("a"))
    grant = ready.attempt("a").grant
    ready.given(takeover())
    assert now() == [(StartTask, 2, grant)]
    ready.given(registers("n0"), started("a"))
    assert now() == []
    ready.given(cancel("a"))
    assert now() == [(StopTask, 2, grant)]
    ready.given(stopped("a"))
    assert now() == []


class TestClaims:
    """I-2: what is claimed before an append, released after it, and what the table must hold."""

    def test_a_grant_claims_every_gpu_it_charges(self, ready: Scenario) -> None:
        """Those beyond what was asked for on whole nodes too (R-32)."""
        ready.given(submit("a", replicas=3, gpus_per_replica=4)).when(plan())
        claims = claims_of(ready.state, ready.events)
        assert len(claims) == ready.charged("red") == 16
        assert sorted(all_claims(ready.state), key=str) == sorted(claims, key=str)

    def test_an_end_releases_its_lease_and_no_other(self, ready: Scenario) -> None:
        """On a report, or by reconciliation."""
        ready.given(runs("a", **GANG)).when(ended("a", 0))
        assert releases_of(ready.events) == [lease_id(job_id("a"), 1, 0)]
        assert {held for _, _, held in all_claims(ready.state)} == {lease("a", 1)}
        ready.when(registers("n1", running=()))
        assert releases_of(ready.events) == [lease_id(job_id("a"), 1, 1)]
        assert all_claims(ready.state) == []

    def test_a_loss_releases_nothing(self, ready: Scenario) -> None:
        """The GPUs are quarantined: their claims stay (P-15)."""
        ready.given(runs("a")).when(lost("n0"))
        assert releases_of(ready.events) == []
        assert [held for _, _, held in all_claims(ready.state)] == [lease("a")]
