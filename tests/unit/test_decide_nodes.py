"""Operators about nodes, and nodes about themselves: drain, wipe, remove, register."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commands.messages import DrainNode, EaseSilence, RemoveNode, UndrainNode, WipeNode
from commands.refusal import RefusalCode
from events.gang import GangEnding, GangReleased, LeaseReleased, ReleasedBy
from events.ids import BlockId, NodeId
from events.job import EndReason, JobFinished, JobQueued, JobState, QueueReason
from events.leadership import CommandDone
from events.node import (
    GpuSlot,
    NodeDrained,
    NodeRegistered,
    NodeRemoved,
    NodeReturned,
    NodesConfirmed,
    NodeUndrained,
    NodeWiped,
)
from events.task import TaskEnded
from tests.builders import job_id, quota, register
from tests.scenario import Scenario
from tests.unit.steps import (
    cancel,
    checkpointed,
    cluster,
    ended,
    granted,
    lost,
    plan,
    registers,
    runs,
    silent,
    started,
    stopped,
    submit,
    takeover,
)

A = job_id("a")
N0 = NodeId("n0")
GANG = {"replicas": 2, "gpus_per_replica": 8}


def drain(name: str, *, now: bool = False, reason: str = "fan") -> DrainNode:
    return DrainNode(node_id=NodeId(name), reason=reason, now=now)


def wipe(name: str) -> WipeNode:
    return WipeNode(node_id=NodeId(name), reason="reinstalled")


def remove(name: str) -> RemoveNode:
    return RemoveNode(node_id=NodeId(name), reason="sold")


@pytest.fixture
def ready() -> Scenario:
    """Three nodes and a team."""
    return Scenario().given(cluster("b0: [8] [8] [8]"), quota())


@pytest.mark.parametrize(
    "command", [drain("n9"), UndrainNode(node_id=NodeId("n9")), wipe("n9"), remove("n9")], ids=lambda one: one.type
)
def test_a_node_must_be_registered(ready: Scenario, command: object) -> None:
    """Commands about an unknown or removed node are refused."""
    ready.when(command).then_refused(RefusalCode.UNKNOWN_NODE, "node_id")
    ready.given(remove("n0"))
    ready.when(replace(command, node_id=N0)).then_refused(RefusalCode.UNKNOWN_NODE)  # type: ignore[type-var]


class TestDrain:
    """No new work; now, or when idle (R-73)."""

    def test_when_idle(self, ready: Scenario) -> None:
        """What runs goes on; nothing new starts there (C-33)."""
        ready.given(runs("a")).when(drain("n0")).then(NodeDrained(node=ready.node("n0").index, reason="fan"))
        assert ready.job_state("a") == JobState.RUNNING
        ready.given(granted("b"))
        assert ready.placed("b").startswith("n1")

    def test_now(self, ready: Scenario) -> None:
        """Its attempts are stopped with grace, and wait again in front, each once."""
        ready.given(runs("a", replicas=3)).when(drain("n0", now=True)).then(
            NodeDrained, GangEnding(job_id=A, attempt=1, reason=EndReason.DRAINED, grace_s=60)
        )
        ready.given(ended("a", 0), ended("a", 1)).when(ended("a", 2)).then(
            TaskEnded, JobQueued(job_id=A, attempt=2, reason=QueueReason.DRAINED, front=True), GangReleased
        )
        ready.given(plan())
        assert ready.placed("a").startswith("n1")

    def test_now_after_when_idle(self, ready: Scenario) -> None:
        """A drained node can be drained harder."""
        ready.given(runs("a"), drain("n0")).when(drain("n0", now=True)).then(GangEnding)
        ready.when(drain("n0", now=True)).then(CommandDone)

    def test_another_reason_replaces_the_first(self, ready: Scenario) -> None:
        """The same again finds all done."""
        ready.given(drain("n0")).when(drain("n0")).then(CommandDone)
        ready.when(drain("n0", reason="disk")).then(NodeDrained)
        assert ready.node("n0").drained == "disk"

    def test_outlives_everything_but_its_end(self, ready: Scenario) -> None:
        """Agent restart, loss, return, takeover; then undrain, once."""
        ready.given(drain("n0"), registers("n0", incarnation="agent-2"), lost("n0"), registers("n0"), takeover())
        assert ready.node("n0").drained == "fan"
        ready.when(UndrainNode(node_id=N0)).then(NodeUndrained)
        ready.when(UndrainNode(node_id=N0)).then(CommandDone)


class TestWipeAndRemove:
    """An operator's word frees what is quarantined (P-15)."""

    def test_only_a_lost_node_is_wiped(self, ready: Scenario) -> None:
        """What answers, or may answer, can be asked to stop."""
        ready.when(wipe("n0")).then_refused(RefusalCode.NODE_NOT_LOST)
        ready.given(silent(30, "n0")).when(wipe("n0")).then_refused(RefusalCode.NODE_NOT_LOST)

    def test_a_wiped_node_holds_nothing(self, ready: Scenario) -> None:
        """Its leases end on that word; the old attempt is over when its last one is."""
        ready.given(runs("a", **GANG), lost("n0"), stopped("a", 1))
        ready.when(wipe("n0")).then(
            NodeWiped(node=ready.node("n0").index, reason="reinstalled"),
            LeaseReleased(job_id=A, attempt=1, rank=0, by=ReleasedBy.WIPED),
            GangReleased(job_id=A, attempt=1),
        )
        assert (ready.node("n0").used, ready.charged("red")) == (0, 0)
        assert ready.job_state("a") == JobState.QUEUED

    def test_a_job_that_only_waited_for_it_is_forgotten(self, ready: Scenario) -> None:
        """Its end is remembered, and no more."""
        ready.given(runs("a"), cancel("a"), lost("n0"))
        assert A in ready.state.jobs
        ready.given(wipe("n0"))
        assert A not in ready.state.jobs
        assert ready.job_state("a") == JobState.CANCELLED

    def test_what_is_in_use_is_not_removed(self, ready: Scenario) -> None:
        """Unless it is lost."""
        ready.given(runs("a")).when(remove("n0")).then_refused(RefusalCode.NODE_NOT_LOST, "node_id")
        ready.given(lost("n0")).when(remove("n0")).then(LeaseReleased, GangReleased, NodeRemoved)
        assert ready.node("n0").gpus == ()

    def test_a_removed_node_may_come_back_as_another(self, ready: Scenario) -> None:
        """Under its old index, as a new generation; its GPUs may have gone to another node meanwhile."""
        ready.given(remove("n0"), adopt("n3", ready, "n0")).when(registers("n0"))
        assert "is registered by node n3" in ready.refused[N0]
        fresh = tuple(GpuSlot(uuid=f"GPU-new-{slot}") for slot in range(4))
        ready.when(registers("n0", gpus=fresh)).then(NodeRegistered, NodesConfirmed)
        assert (ready.node("n0").generation, ready.node("n0").index) == (2, 0)


def adopt(name: str, scenario: Scenario, other: str) -> object:
    """A new node registers with the GPUs of another."""

    def step(scenario: Scenario) -> None:
        scenario.said[NodeId(name)] = register(name, gpus=scenario.said[NodeId(other)].gpus)
        registers(name)(scenario)

    return step


class TestRegister:
    """Who may register, and what it changes (P-16, P-19, P-21)."""

    def test_a_new_node(self, ready: Scenario) -> None:
        """Gets the next index, and is confirmed in the same commit."""
        ready.said[NodeId("n9")] = register("n9")
        ready.when(registers("n9")).then(NodeRegistered, NodesConfirmed)
        assert (ready.node("n9").index, ready.node("n9").generation) == (3, 1)

    def test_again_is_nothing(self, ready: Scenario) -> None:
        """A reconnect of the same agent is no fact."""
        ready.when(registers("n0")).then_nothing()

    def test_a_new_leader_hears_it_anew(self, ready: Scenario) -> None:
        """Only its confirmation is new."""
        ready.given(takeover()).when(registers("n0")).then(NodesConfirmed)

    def test_an_agent_that_was_restarted(self, ready: Scenario) -> None:
        """A new incarnation takes over what runs, its drain and its report numbers."""
        ready.given(runs("a")).when(registers("n0", incarnation="agent-2")).then(NodeRegistered, NodesConfirmed)
        assert ready.node("n0").last_report == 1
        ready.when(ended("a")).then(TaskEnded, JobFinished, GangReleased)

    def test_a_second_live_incarnation_is_refused(self, ready: Scenario) -> None:
        """While the first has a session; the same one may reconnect."""
        ready.when(registers("n0", incarnation="agent-2", other_live=True)).then_nothing()
        assert "another agent is live" in ready.refused[N0]
        ready.when(registers("n0", other_live=True)).then_nothing()
        assert ready.refused == {}

    def test_a_journal_with_fewer_reports_than_the_log_took_is_refused(self, ready: Scenario) -> None:
        """Its disk was set back: numbers would come twice with another meaning."""
        ready.given(runs("a"), checkpointed("a", 1)).when(registers("n0", last_report=1)).then_nothing()
        assert "are in the log" in ready.refused[N0]

    def test_a_changed_inventory_waits_until_every_lease_has_ended(self, ready: Scenario) -> None:
        """Then it is a new generation, with its broken GPUs whole."""
        fewer = ready.said[N0].gpus[:4]
        ready.given(runs("a")).when(registers("n0", gpus=fewer)).then_nothing()
        assert "while 1 leases live" in ready.refused[N0]
        ready.given(ended("a")).when(registers("n0", gpus=fewer)).then(NodeRegistered, NodesConfirmed)
        assert (ready.node("n0").generation, ready.node("n0").all_gpus) == (2, 0xF)
        assert "GPU-n0-7" not in ready.state.uuids

    def test_a_place_is_inventory_too(self, ready: Scenario) -> None:
        """A node that moved to another block is a new generation, known by the same UUIDs."""
        ready.when(registers("n0", block=BlockId("b7"))).then(NodeRegistered, NodesConfirmed)
        assert ready.node("n0").generation == 2

    def test_a_gpu_is_on_one_node(self, ready: Scenario) -> None:
        """A UUID of another node, or one named twice, is refused."""
        gpus = (*ready.said[N0].gpus[:7], ready.said[NodeId("n1")].gpus[0])
        ready.when(registers("n0", gpus=gpus)).then_nothing()
        assert "is registered by node n1" in ready.refused[N0]
        ready.when(registers("n0", gpus=(gpus[0], gpus[0]))).then_nothing()
        assert "twice" in ready.refused[N0]


class TestReconcile:
    """What a node does not list is gone, once its reports are taken (P-19)."""

    def test_a_running_lease_that_the_same_disk_does_not_list(self, ready: Scenario) -> None:
        """Is gone: its attempt failed, and its GPUs are free."""
        ready.given(runs("a")).when(registers("n0", running=())).then(
            GangEnding(job_id=A, attempt=1, reason=EndReason.LEASE_MISSING, grace_s=60),
            JobQueued,
            LeaseReleased(job_id=A, attempt=1, rank=0, by=ReleasedBy.RECONCILED),
            GangReleased,
        )

    def test_not_while_reports_are_to_come(self, ready: Scenario) -> None:
        """They will say how it ended: here, well."""
        ready.given(runs("a")).when(registers("n0", running=(), last_report=2)).then_nothing()
        ready.when(ended("a")).then(TaskEnded, JobFinished, GangReleased)
        assert ready.job_state("a") == JobState.SUCCEEDED

    def test_a_granted_lease_is_on_its_way_to_the_same_disk(self, ready: Scenario) -> None:
        """Its start is said again."""
        ready.given(granted("a")).when(registers("n0", running=())).then_nothing()
        ready.when(started("a"))
        assert ready.job_state("a") == JobState.RUNNING

    def test_a_granted_lease_that_was_to_stop_is_gone(self, ready: Scenario) -> None:
        """It will never start: its start is not said again."""
        ready.given(granted("a"), cancel("a")).when(registers("n0", running=())).then(
            LeaseReleased, JobFinished, GangReleased
        )

    def test_another_disk_has_nothing_of_what_it_does_not_list(self, ready: Scenario) -> None:
        """Granted or running: gone; and its reports count from one again."""
        ready.given(granted("a"), runs("b"))
        ready.when(registers("n0", running=(), journal="other", boot_id="boot-2"))
        released = [event.job_id for event in ready.events if isinstance(event, LeaseReleased)]
        assert released == [A, job_id("b")]
        assert ready.node("n0").last_report == 0
        ready.given(plan(), started("a", number=1))
        assert ready.job_state("a") == JobState.RUNNING

    def test_two_ranks_of_one_gang_on_the_node(self, ready: Scenario) -> None:
        """One fault, both leases free, the gang released once."""
        ready.given(runs("a", replicas=2)).when(registers("n0", running=())).then(
            GangEnding, JobQueued, LeaseReleased, LeaseReleased, GangReleased
        )
        assert ready.job("a").faults == 1

    def test_a_lost_node_that_lists_nothing(self, ready: Scenario) -> None:
        """Its orphans are dead: returned, and free."""
        ready.given(runs("a"), lost("n0")).when(registers("n0", running=())).then(
            NodeReturned, LeaseReleased, GangReleased
        )
        assert (ready.node("n0").used, ready.charged("red")) == (0, 0)

    def test_a_node_whose_other_disk_knows_its_lease(self, ready: Scenario) -> None:
        """Nothing ends that is listed, whatever the disk."""
        ready.given(runs("a")).when(registers("n0", journal="other")).then(NodeRegistered, NodesConfirmed)
        assert ready.job_state("a") == JobState.RUNNING


def test_silence_is_eased_only_while_it_is_held(ready: Scenario) -> None:
    """An operator's word on silence needs a silence."""
    ready.when(EaseSilence(reason="x")).then_refused(RefusalCode.WRONG_STATE, "silence")


def test_a_job_submitted_to_a_cluster_without_nodes_is_told_so() -> None:
    """The type is unknown while nothing has registered."""
    scenario = Scenario().given(quota())
    scenario.when(submit("a"))
    assert scenario.events[0].limit == "no node is registered"
