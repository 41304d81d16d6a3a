"""Lost nodes, failed starts and time-outs: what fails, what waits again, and what must not be touched."""

from __future__ import annotations

import pytest

from commands.messages import EaseSilence
from commands.reports import Tick
from events.gang import GangAllocated, GangEnding, GangReleased
from events.ids import Instant
from events.job import EndReason, JobFinished, JobQueued, JobState, Overlap, QueueReason
from events.leadership import ClockGap, LeaderElected
from events.node import (
    GpuFaulted,
    MassSilence,
    NodeLost,
    NodeReturned,
    NodesConfirmed,
    NodeSuspected,
    SilenceEased,
)
from events.task import TaskEnded
from tests.builders import job_id, quota
from tests.scenario import Scenario
from tests.unit.steps import (
    after,
    all_register,
    cancel,
    checkpointed,
    cluster,
    due,
    ended,
    ending,
    extend,
    granted,
    heard,
    hold,
    lost,
    missing,
    plan,
    policy,
    registers,
    release,
    runs,
    silent,
    started,
    stopped,
    submit,
    takeover,
)

A = job_id("a")
ALONE_MS = (900 + 60 + 60) * 1000
GANG = {"replicas": 2, "gpus_per_replica": 8}


@pytest.fixture
def ready() -> Scenario:
    """Three nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8] [8]"), quota())


class TestLoss:
    """One node falls silent (R-70, P-15)."""

    def test_first_suspicion_then_loss(self, ready: Scenario) -> None:
        """30 s and 90 s; nothing below."""
        n0 = ready.node("n0").index
        ready.when(silent(29, "n0")).then_nothing()
        ready.when(silent(30, "n0")).then(NodeSuspected(node=n0, silent_s=30))
        ready.when(silent(89, "n0")).then_nothing()
        ready.when(silent(90, "n0")).then(NodeLost(node=n0, silent_s=90))
        ready.when(silent(200, "n0")).then_nothing()

    def test_its_gang_waits_again_in_front_and_the_rest_of_it_is_stopped(self, ready: Scenario) -> None:
        """At once, without waiting for the other ranks; its GPUs stay claimed, and are charged to nobody."""
        ready.given(runs("a", **GANG)).when(lost("n0")).then(
            NodeSuspected,
            NodeLost,
            GangEnding(job_id=A, attempt=1, reason=EndReason.NODE_LOST, grace_s=60),
            JobQueued(job_id=A, attempt=2, reason=QueueReason.FAULT, front=True),
        )
        assert (ready.node("n0").used, ready.charged("red")) == (0xFF, 8)

    def test_a_job_in_front_goes_before_its_class(self, ready: Scenario) -> None:
        """Though it is the youngest of it."""
        ready.given(submit("b"), hold("b"), runs("a"), lost("n0"), release("b"), plan())
        assert [grant.job_id for grant in ready.grants] == [A, A, job_id("b")]

    def test_a_job_that_must_not_overlap_waits_until_a_copy_that_was_cut_off_has_ended(self, ready: Scenario) -> None:
        """15 min of isolation, its grace and a margin of 60 s (P-22); others start at once."""
        ready.given(runs("a", overlap=Overlap.NEVER), lost("n0"))
        assert ready.job("a").not_before_at == ready.at + ALONE_MS

    @pytest.mark.parametrize("reason", ["requeued", "drained", "preempted"])
    def test_nor_does_it_overlap_where_the_node_is_lost_while_it_is_stopped(self, ready: Scenario, reason: str) -> None:
        """Why it was to stop says nothing about the copy that was cut off."""
        ready.given(runs("a", overlap=Overlap.NEVER), ending("a", reason), lost("n0"))
        assert ready.job("a").not_before_at == ready.at + ALONE_MS

    def test_nor_with_the_ranks_of_its_own_gang_that_are_still_stopping(self, ready: Scenario) -> None:
        """A rank that could not start queues the job again while another still runs."""
        ready.given(granted("a", **GANG, overlap=Overlap.NEVER), started("a", 0))
        ready.given(ended("a", 1, end="start_failed", exit_code=None))
        assert ready.job("a").not_before_at == ready.at + ALONE_MS

    def test_where_all_of_it_is_known_to_be_gone_it_starts_at_once(self, ready: Scenario) -> None:
        """That is the evidence for which it would have to wait."""
        ready.given(runs("a", overlap=Overlap.NEVER), ended("a", end="lost", exit_code=None))
        assert ready.job("a").not_before_at is None

    def test_several_leases_of_one_gang_on_it(self, ready: Scenario) -> None:
        """One fault, counted once."""
        ready.given(runs("a", replicas=3), lost("n0"))
        assert ready.job("a").faults == 1

    def test_several_jobs_on_it(self, ready: Scenario) -> None:
        """All of them wait again, in the order of their leases."""
        ready.given(runs("a", "b"), lost("n0"))
        assert [event.job_id for event in ready.events if isinstance(event, JobQueued)] == [A, job_id("b")]

    def test_a_suspect_that_is_heard_again_was_never_gone(self, ready: Scenario) -> None:
        """Its job runs on (C-40)."""
        ready.given(runs("a"), silent(30, "n0"))
        ready.when(heard("n0")).then(NodeReturned)
        assert ready.job_state("a") == JobState.RUNNING

    def test_a_lost_node_has_to_register(self, ready: Scenario) -> None:
        """A heartbeat alone does not bring it back."""
        ready.given(lost("n0")).when(heard("n0")).then_nothing()

    def test_it_returns_with_its_orphan_and_frees_the_gpu_when_that_is_gone(self, ready: Scenario) -> None:
        """Charged again while it runs; freed by confirmation alone."""
        ready.given(runs("a"), lost("n0"), plan(), started("a"))
        assert ready.placed("a").startswith("n1")
        ready.when(registers("n0")).then(NodeReturned)
        assert (ready.charged("red"), ready.node("n0").used) == (2, 1)
        ready.when(stopped("a", 0, 1)).then(TaskEnded, GangReleased)
        assert (ready.charged("red"), ready.node("n0").used) == (1, 0)
        assert ready.job_state("a") == JobState.STARTING or ready.job_state("a") == JobState.RUNNING

    def test_nothing_new_on_a_suspect_or_lost_node(self, ready: Scenario) -> None:
        """Its free GPUs are not used."""
        ready.given(silent(30, "n0"), lost("n1"), granted("a", gpus_per_replica=8))
        assert ready.placed("a").startswith("n2")


class TestFaultsInARow:
    """Without limit as long as the job progresses; three in a row end it (R-6)."""

    def test_the_first_retry_is_at_once_the_second_waits_the_third_fault_ends(self, ready: Scenario) -> None:
        """Node losses and failed starts count together."""
        ready.given(runs("a"), lost("n0"))
        assert ready.job("a").not_before_at is None
        ready.given(plan(), started("a"), lost("n1"))
        assert ready.job("a").not_before_at == ready.at + 30_000
        ready.when(plan()).then_nothing()
        ready.given(after(30), plan(), started("a")).when(lost("n2")).then(
            NodeSuspected,
            NodeLost,
            GangEnding,
            JobFinished(job_id=A, state=JobState.FAILED, reason=EndReason.NODE_LOST),
        )

    def test_a_checkpoint_in_between_counts_anew(self, ready: Scenario) -> None:
        """Progress resets the count."""
        for node in ("n0", "n1", "n2"):
            ready.given(plan() if node != "n0" else submit("a"), after(60), plan())
            ready.given(started("a"), checkpointed("a", int(node[1]) + 1), lost(node))
        assert ready.job_state("a") == JobState.QUEUED

    def test_a_start_that_fails_is_set_back_and_ends_in_the_end(self, ready: Scenario) -> None:
        """It does not win every cycle (C-8), is not in front, and the third failure ends it."""
        fails = ended("a", end="start_failed", exit_code=None)
        ready.given(submit("a"), plan()).when(fails).then(
            TaskEnded, GangEnding, JobQueued(job_id=A, attempt=2, reason=QueueReason.START_FAILED), GangReleased
        )
        ready.given(plan(), fails)
        assert ready.job("a").not_before_at == ready.at + 30_000
        assert ready.job("a").setbacks == 2
        ready.given(after(30), plan(), fails)
        assert ready.job_state("a") == JobState.FAILED

    def test_backoff_doubles_up_to_its_longest(self, ready: Scenario) -> None:
        """30 s, 60 s, 120 s, ... at most 900 s."""
        ready.given(policy(fault_restarts_without_progress_max=9), submit("a"))
        waits = []
        for _ in range(8):
            ready.given(after(900), plan(), ended("a", end="start_failed", exit_code=None))
            until = ready.job("a").not_before_at
            waits.append((until - ready.at) // 1000 if until is not None else 0)
        assert waits == [0, 30, 60, 120, 240, 480, 900, 900]

    def test_a_lease_that_is_missing_fails_its_attempt(self, ready: Scenario) -> None:
        """Queued again at once; the GPUs wait for the confirmation (R-63, P-15)."""
        ready.given(runs("a")).when(missing("a")).then(GangEnding, JobQueued)
        assert ready.node("n0").used == 1
        ready.when(ended("a", 0, 1, end="never_started", exit_code=None)).then(TaskEnded, GangReleased)

    def test_a_lease_that_ended_is_not_missed(self, ready: Scenario) -> None:
        """The observation was late."""
        ready.given(runs("a"), ended("a")).when(missing("a")).then_nothing()

    def test_a_broken_gpu_leaves_the_inventory_once(self, ready: Scenario) -> None:
        """What runs on it goes on; nothing new is placed there."""
        n0 = ready.node("n0").index
        ready.given(runs("a")).when(Tick(faults=((n0, 0b11),))).then(GpuFaulted)
        ready.when(Tick(faults=((n0, 0b11),))).then_nothing()
        ready.given(ended("a"), granted("b", gpus_per_replica=6))
        assert ready.placed("b") == "n0:2,3,4,5,6,7"


class TestMassSilence:
    """Many at once is no loss of nodes (P-20)."""

    @pytest.fixture
    def fleet(self) -> Scenario:
        """81 nodes in blocks of 10 and one of 1; a job on the last."""
        blocks = [f"b{block}: " + "[1] " * 10 for block in range(8)]
        return Scenario().given(cluster("\n".join([*blocks, "b8: [1]"])), quota(), runs("a"))

    def test_more_than_ten_percent_and_at_least_eight(self, fleet: Scenario) -> None:
        """9 of 81 are over 10%: nobody is lost; 8 are not."""
        eight = [f"n{index * 10}" for index in range(8)]
        fleet.given(silent(30, *eight)).when(silent(90, *eight))
        assert sum(isinstance(event, NodeLost) for event in fleet.events) == 8

    def test_nine_of_them_are_held(self, fleet: Scenario) -> None:
        """Suspects all, lost none, and their jobs run on."""
        nine = [f"n{index * 10}" for index in range(9)]
        fleet.when(silent(30, *nine)).then(*[NodeSuspected] * 9, MassSilence(silent=9, of=81))
        fleet.when(silent(90, *nine)).then_nothing()
        assert fleet.job_state("a") == JobState.RUNNING

    def test_a_whole_block_of_eight(self) -> None:
        """A leaf switch: held, though it is under 10% of the fleet; seven of the eight are lost."""
        blocks = [f"b{block}: " + "[1] " * 20 for block in range(5)]
        fleet = Scenario().given(cluster("\n".join([*blocks, "b5: " + "[1] " * 8])))
        fleet.when(silent(30, *[f"n{100 + index}" for index in range(8)]))
        assert isinstance(fleet.events[-1], MassSilence)

    def test_seven_of_seven_are_lost(self) -> None:
        """A small cluster has no mass."""
        fleet = Scenario().given(cluster("b0: " + "[1] " * 7))
        names = [f"n{index}" for index in range(7)]
        fleet.given(silent(30, *names)).when(silent(90, *names)).then(*[NodeLost] * 7)

    def test_ends_when_fewer_are_silent(self, fleet: Scenario) -> None:
        """Those who still are then have their own clocks again."""
        nine = [f"n{index * 10}" for index in range(9)]
        fleet.given(silent(30, *nine))
        fleet.when(heard(*nine[:2])).then(NodeReturned, NodeReturned, SilenceEased(silent=7))
        fleet.when(silent(95, *nine[2:])).then(*[NodeLost] * 7, GangEnding, JobQueued)

    def test_ends_on_an_operators_word(self, fleet: Scenario) -> None:
        """They are really down: lost on the next tick, while the rest of the clocks go on."""
        nine = [f"n{index * 10}" for index in range(9)]
        fleet.given(silent(30, *nine)).when(EaseSilence(reason="seen")).then(SilenceEased(silent=9, operator=True))
        fleet.when(silent(95, *nine))
        assert sum(isinstance(event, NodeLost) for event in fleet.events) == 9
        fleet.when(silent(30, "n1")).then(NodeSuspected, SilenceEased)

    def test_no_start_times_out_on_a_silent_node(self, fleet: Scenario) -> None:
        """Nothing fails: also not a gang whose word that it runs cannot come through."""
        fleet.given(granted("b"))
        node = fleet.placed("b").split(":")[0]
        nine = [node, *[f"n{70 + index}" for index in range(8)]]
        fleet.given(silent(30, *nine), after(700)).when(due("b")).then_nothing()
        fleet.given(heard(*nine)).when(due("b")).then(GangEnding, JobQueued)


class TestTimeOuts:
    """Run-time limits and start time-outs (R-5, R-30)."""

    def test_stopped_at_the_limit_less_the_grace(self, ready: Scenario) -> None:
        """SIGTERM early enough that SIGKILL comes by the limit; the job ends TIMED_OUT."""
        ready.given(runs("a", max_runtime_s=3600, grace_s=120))
        limit_at = ready.attempt("a").limit_at
        assert limit_at is not None
        ready.at = Instant(limit_at - 120_000 - 1001)
        ready.when(due("a")).then_nothing()
        ready.at = Instant(limit_at - 120_000 - 1000)
        ready.when(due("a")).then(GangEnding(job_id=A, attempt=1, reason=EndReason.TIMED_OUT, grace_s=120))
        ready.given(ended("a", exit_code=0))
        assert ready.job_state("a") == JobState.TIMED_OUT

    def test_a_short_job_has_at_least_half_its_time(self, ready: Scenario) -> None:
        """A grace as long as the limit does not stop a job before it began."""
        ready.given(runs("a", max_runtime_s=60, grace_s=60)).when(due("a")).then_nothing()
        ready.given(after(30)).when(due("a")).then(
            GangEnding(job_id=A, attempt=1, reason=EndReason.TIMED_OUT, grace_s=30)
        )

    def test_an_extension_in_time_counts(self, ready: Scenario) -> None:
        """The timer may be early: it is judged against the limit that holds."""
        ready.given(runs("a", max_runtime_s=3600), extend("a", 600), after(3590)).when(due("a")).then_nothing()

    def test_a_gang_that_does_not_start_is_released_whole(self, ready: Scenario) -> None:
        """After 10 min, although one rank of it runs; the job waits again, set back."""
        ready.given(granted("a", **GANG), started("a", 0), after(597)).when(due("a")).then_nothing()
        ready.given(after(3)).when(due("a")).then(
            GangEnding(job_id=A, attempt=1, reason=EndReason.START_TIMEOUT, grace_s=60),
            JobQueued(job_id=A, attempt=2, reason=QueueReason.START_FAILED),
        )

    def test_once_running_it_does_not_time_out_as_a_start(self, ready: Scenario) -> None:
        """Only the limit is left."""
        ready.given(runs("a"), after(900)).when(due("a")).then_nothing()

    def test_what_is_being_stopped_or_gone_is_not_due(self, ready: Scenario) -> None:
        """The first reason stands (C-62)."""
        ready.given(runs("a"), cancel("a"), after(4000)).when(due("a")).then_nothing()
        ready.given(stopped("a")).when(due("a")).then_nothing()

    def test_a_new_leader_hears_a_node_before_it_times_its_leases_out(self, ready: Scenario) -> None:
        """What ended, or began, while nobody led is in reports that are still to come (C-40, C-48)."""
        ready.given(granted("a"), runs("b", max_runtime_s=900), takeover(after_s=599))
        ready.when(due("a"), after(400), due("b")).then_nothing()
        ready.given(all_register)
        ready.when(due("a"), due("b")).then(GangEnding, JobQueued, GangEnding)


class TestClockGap:
    """Down for longer than any time-out, then back: no mass failure (P-11, C-48)."""

    def test_over_ten_minutes_is_a_gap(self, ready: Scenario) -> None:
        """Exactly ten is none."""
        ready.when(takeover(after_s=599)).then(LeaderElected)
        ready.when(takeover(after_s=600)).then(LeaderElected, ClockGap)
        assert ready.state.meta.quiet_until_at == ready.at + 120_000

    def test_quiets_every_time_out_until_agents_had_two_minutes(self, ready: Scenario) -> None:
        """Silence, absence, limit and start: none counts; what is heard and broken does."""
        ready.given(granted("a"), runs("b"), takeover(after_s=7200), registers("n0"), registers("n1"))
        ready.when(silent(95, "n2"), missing("b"), due("a"), due("b")).then_nothing()
        ready.given(after(120)).when(due("b")).then(GangEnding)

    def test_the_first_leader_of_all_has_no_gap(self) -> None:
        """There is no record before it."""
        assert Scenario().when(takeover(after_s=7200)).state.meta.quiet_until_at > 0
        assert Scenario().state.meta.quiet_until_at == 0


def test_nodes_wait_for_their_confirmation_in_every_epoch(ready: Scenario) -> None:
    """Nothing is granted on a node that has not said what it runs to this leader (P-16)."""
    ready.given(submit("a"), takeover()).when(plan()).then_nothing()
    ready.when(registers("n1")).then(NodesConfirmed)
    ready.when(plan()).then(GangAllocated)
    assert ready.placed("a") == "n1:0"
