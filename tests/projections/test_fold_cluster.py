"""What each event makes of nodes, quotas, leadership and policy, and of the timeline where nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from events.envelope import Event
from events.ids import Epoch, GpuMask, GpuType, Instant, JobId, NodeId, NodeIndex, TeamId
from events.leadership import ClaimConflictFound, ClockGap, CommandRefused, CommandRepeated, LeaderElected
from events.node import (
    GpuFaulted,
    GpuRepaired,
    MassSilence,
    NodeDrained,
    NodeLost,
    NodeRemoved,
    NodeReturned,
    NodesConfirmed,
    NodeSuspected,
    NodeUndrained,
    NodeWiped,
    SilenceEased,
)
from events.policy import PolicyChanged
from events.quota import QuotaChanged, TeamClassesChanged
from events.task import ZombieReclaimed
from projections.rows import ClusterRow, LeaderRow, NodeRow, PolicyRow, QuotaRow, TeamRow, TimelineRow
from tests.projections.story import T0, Story, registered

N0 = NodeIndex(0)


@pytest.fixture
async def story() -> Story:
    """One node of four GPUs."""
    made = await Story().begun()
    await made.node(0, gpus=4)
    return made


async def node_after(story: Story, *events: Event) -> NodeRow:
    await story.commit(*events)
    return story.row(NodeRow, 0)


async def test_a_node_is_up_once_registered(story: Story) -> None:
    """With place, address, type, memory and the UUID in each slot."""
    node = story.row(NodeRow, 0)
    assert (node.node_id, node.state, node.block, node.rack, node.address) == ("n-0", "up", "b0", "r0", "10.0.0.0")
    assert (node.gpu_type, node.gpu_memory_gb, node.gpu_count, node.generation) == ("h100", 80, 4, 1)
    assert node.gpus[3] == {"uuid": "GPU-0-1-3", "island": 0}
    assert (node.registered_at, node.confirmed_at, node.confirmed_epoch) == (story.at, None, None)


async def test_confirmation_changes_nothing_else(story: Story) -> None:
    """It says when and in which epoch; the node's last change stays the one before."""
    before = story.row(NodeRow, 0).changed_seq
    node = await node_after(story, NodesConfirmed(nodes=(N0,)))
    assert (node.confirmed_at, node.confirmed_epoch, node.changed_seq) == (story.at, 1, before)


async def test_silence_loss_and_return_show(story: Story) -> None:
    """up, suspect, lost, up; with the seconds of silence while it lasts."""
    node = await node_after(story, NodeSuspected(node=N0, silent_s=31))
    assert (node.state, node.silent_s) == ("suspect", 31)
    node = await node_after(story, NodeLost(node=N0, silent_s=92))
    assert (node.state, node.silent_s, node.state_changed_at) == ("lost", 92, story.at)
    node = await node_after(story, NodeWiped(node=N0, reason="burnt"))
    assert node.state == "lost"
    node = await node_after(story, NodeReturned(node=N0))
    assert (node.state, node.silent_s) == ("up", None)


async def test_drain_and_loss_outlive_a_new_agent(story: Story) -> None:
    """A node that registers again is as drained, lost and faulty as before, and has to be confirmed anew."""
    await node_after(story, NodeDrained(node=N0, reason="xid 79", now=True), NodesConfirmed(nodes=(N0,)))
    await node_after(story, NodeLost(node=N0, silent_s=90), GpuFaulted(node=N0, mask=GpuMask(0b10), code="ecc"))
    node = await node_after(story, registered(0, 4, incarnation="second"))
    assert (node.incarnation, node.state, node.drained, node.drain_reason) == ("second", "lost", True, "xid 79")
    assert (node.drain_now, node.faults, node.confirmed_epoch) == (True, {"1": "ecc"}, None)
    node = await node_after(story, NodeUndrained(node=N0))
    assert (node.drained, node.drain_reason, node.drain_now) == (False, None, False)


async def test_a_new_generation_has_whole_gpus(story: Story) -> None:
    """Faults belong to the GPUs that were in the slots then."""
    await node_after(story, GpuFaulted(node=N0, mask=GpuMask(0b10), code="ecc"))
    node = await node_after(story, registered(0, 2, generation=2))
    assert (node.generation, node.gpu_count, node.faults) == (2, 2, {})


async def test_gpus_fault_and_are_repaired_one_by_one(story: Story) -> None:
    """Each slot with its code; a quarantined claim is a fault too, an unconfirmed one is none."""
    node = await node_after(story, GpuFaulted(node=N0, mask=GpuMask(0b1010), code="xid 79"))
    assert node.faults == {"1": "xid 79", "3": "xid 79"}
    assert (await node_after(story, GpuRepaired(node=N0, mask=GpuMask(0b1000)))).faults == {"1": "xid 79"}
    conflict: dict[str, Any] = {"node_id": NodeId("n-0"), "gpu": 2, "held_by": "?"}
    assert (await node_after(story, ClaimConflictFound(**conflict))).faults == {"1": "xid 79"}
    node = await node_after(story, ClaimConflictFound(**conflict, quarantined=True))
    assert node.faults == {"1": "xid 79", "2": "claim_conflict"}


async def test_a_removed_node_stays_on_record_and_may_come_back(story: Story) -> None:
    """Without GPUs while it is gone; up when it registers again."""
    node = await node_after(story, NodeRemoved(node=N0, reason="scrap"))
    assert (node.state, node.gpu_count, node.gpus) == ("removed", 0, [])
    node = await node_after(story, registered(0, 4))
    assert (node.state, node.gpu_count) == ("up", 4)


async def test_quotas_classes_and_policies_are_kept_with_who_changed_them(story: Story) -> None:
    """The quota and the classes as they are now; every version of the policy."""
    research, h100 = TeamId("research"), GpuType("h100")
    await story.commit(QuotaChanged(team=research, gpu_type=h100, guaranteed=8, borrow_limit=4))
    await story.commit(QuotaChanged(team=research, gpu_type=h100, guaranteed=16, borrow_limit=0, reason="grew"))
    await story.commit(TeamClassesChanged(team=research, classes=("research",)))
    for version in (1, 2):
        await story.commit(PolicyChanged(version=version, policy={"key_days": version}, reason="try"))
    quota = story.row(QuotaRow, "research", "h100")
    assert (quota.guaranteed, quota.borrow_limit, quota.actor, quota.reason) == (16, 0, "user:ada", "grew")
    assert story.row(TeamRow, "research").classes == ["research"]
    assert [row.policy for row in story.rows.rows_of(PolicyRow)] == [{"key_days": 1}, {"key_days": 2}]
    assert story.row(ClusterRow).policy_version == 2


async def test_the_leader_is_the_one_of_the_newest_term(story: Story) -> None:
    """A term names the holder; its LeaderElected says since when it acts."""
    await story.commit(LeaderElected(epoch=Epoch(1), holder="scheduler-1"))
    await story.term()
    now = story.row(ClusterRow)
    assert (now.epoch, now.holder, now.elected_at) == (2, "scheduler-2", None)
    await story.commit(LeaderElected(epoch=Epoch(2), holder="scheduler-2"))
    assert story.row(ClusterRow).elected_at == story.at
    assert [(row.epoch, row.elected_at is not None) for row in story.rows.rows_of(LeaderRow)] == [(1, True), (2, True)]


async def test_mass_silence_and_clock_gaps_show(story: Story) -> None:
    """Held while so many are silent, overridden by an operator, or over."""
    await story.commit(MassSilence(silent=9, of=20), ClockGap(gap_s=700, until_at=Instant(T0 + 1)))
    now = story.row(ClusterRow)
    assert (now.silence, now.silent, now.silent_of, now.quiet_until_at) == ("held", 9, 20, T0 + 1)
    await story.commit(SilenceEased(silent=9, operator=True))
    assert story.row(ClusterRow).silence == "overridden"
    await story.commit(SilenceEased(silent=0))
    assert (story.row(ClusterRow).silence, story.row(ClusterRow).silence_changed_at) == ("none", story.at)


async def test_the_last_command_taken_is_known(story: Story) -> None:
    """Its place in the commands log, from the commit that answers it."""
    assert story.row(ClusterRow).commands_position is None
    await story.command(CommandRefused(code="unknown_job"), type="hold_job", job_id="j_x")
    assert story.row(ClusterRow).commands_position == 1


async def test_an_answer_that_changes_nothing_is_found_by_what_was_asked(story: Story) -> None:
    """The job, its team or the node of a refused or repeated command are those that the command named."""
    await story.job("a")
    await story.command(CommandRefused(code="wrong_state"), type="hold_job", job_id="j_a")
    await story.command(CommandRefused(code="unknown_node"), type="drain_node", node_id="n-9")
    await story.command(CommandRefused(code="over_inventory"), type="set_quota", team="prod")
    await story.command(CommandRepeated(job_id="j_a", seq=2), type="submit_job", job_id="j_a")
    await story.command(CommandRepeated(job_id="", seq=2), type="drain_node", node_id="n-0")
    rows = story.rows.rows_of(TimelineRow)[-5:]
    assert [(row.job_id, row.team, row.node_id) for row in rows] == [
        ("j_a", "research", None),
        (None, None, "n-9"),
        (None, "prod", None),
        ("j_a", "research", None),
        (None, None, "n-0"),
    ]


async def test_a_zombie_is_on_the_timeline_of_its_node_and_gpu(story: Story) -> None:
    """Though no other row changes."""
    await story.commit(ZombieReclaimed(node=N0, report=1, gpu=3, pid=4711))
    row = story.rows.rows_of(TimelineRow)[-1]
    assert (row.type, row.node_id, row.gpus, row.job_id) == ("zombie.reclaimed", "n-0", [3], None)


async def test_an_unknown_job_has_no_team(story: Story) -> None:
    """A command about a job that is not there is on record under its id all the same."""
    await story.command(CommandRefused(code="unknown_job"), type="cancel_job", job_id=JobId("j_no"))
    row = story.rows.rows_of(TimelineRow)[-1]
    assert (row.job_id, row.team) == ("j_no", None)
