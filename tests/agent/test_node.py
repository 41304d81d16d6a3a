"""The loop of an agent, in virtual time, against a scheduler that the test plays."""

from collections.abc import AsyncIterator

import pytest

from agent.ports import Observed
from agent.simulated import SimulatedRuntime, overlaps
from events.ids import Epoch, LeaseId
from events.task import TaskEnd
from scheduler.link import (
    CheckpointReport,
    ExtendTask,
    Heartbeat,
    HeartbeatAck,
    NotLeader,
    Phase,
    Register,
    RegisterRefused,
    TaskEndedReport,
    TaskStartedReport,
)
from tests.agent.builders import LEASE, start_task, stop_task
from tests.agent.virtual import Node

DURATION = {"SIGNALBOX_SIM_DURATION_S": "20"}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node whose agent has dialed. However the test went, no GPU ran two leases."""
    node = Node()
    await node.boot()
    yield node
    assert node.task is not None
    if not node.task.done():
        await node.kill()
    assert node.runtime.violations == []
    assert overlaps(node.ledger.lines) == []


def ends(node: Node) -> list[tuple[LeaseId, TaskEnd, int | None]]:
    """The ends reported on the newest line."""
    return [(end.lease_id, end.end, end.exit_code) for end in node.said(TaskEndedReport)]


async def test_a_task_is_listed_reported_and_forgotten(node: Node) -> None:
    """From its StartTask on a lease is listed with its phase, until the log has its end."""
    await node.register()
    await node.say(start_task(env=DURATION))
    await node.pass_time(6)
    assert node.said(Heartbeat)[-1].running[0].phase is Phase.RUNNING
    await node.pass_time(20)
    assert node.reports() == [
        TaskStartedReport(number=1, lease_id=LEASE),
        TaskEndedReport(number=2, lease_id=LEASE, end=TaskEnd.EXITED, exit_code=0),
    ]
    assert node.said(Heartbeat)[-1].running[0].phase is Phase.ENDED
    await node.acknowledge()
    await node.pass_time(6)
    assert node.said(Heartbeat)[-1].running == ()


async def test_heartbeats_come_every_5_s_and_their_numbers_grow(node: Node) -> None:
    """A minute has twelve heartbeats, numbered without a gap, over sessions too."""
    await node.register()
    await node.pass_time(30)
    node.line.close()
    await node.clock.advance(1.0)
    await node.register()
    await node.pass_time(30)
    beats = [message.number for line in node.lines for message in line.said if isinstance(message, Heartbeat)]
    assert beats == list(range(1, len(beats) + 1))
    assert 12 <= len(beats) <= 14


async def test_ten_seconds_without_word_end_the_session(node: Node) -> None:
    """An agent that hears nothing for 10 s, before or after it is registered, dials the next scheduler."""
    await node.clock.advance(10.5)
    assert [line.address for line in node.lines] == ["a:1", "b:1"]
    await node.register()
    await node.clock.advance(11)
    assert len(node.lines) == 3
    assert node.lines[1].closed


async def test_p_18_a_frozen_agent_obeys_nothing_that_waited(node: Node) -> None:
    """A StartTask that waited in the socket of an agent that stood still for 200 s starts nothing."""
    await node.register()
    await node.pass_time(6)
    node.clock.freeze(200)
    await node.say(start_task(last_heartbeat=1))
    await node.clock.advance(1)
    assert node.agent.fence.book.leases == {}
    assert node.lines[0].closed
    assert len(node.lines) == 2


async def test_p_18_a_start_on_an_old_heartbeat_is_refused(node: Node) -> None:
    """A start that names a heartbeat of over 30 s ago does not start, on a session that is sound."""
    await node.register()
    await node.pass_time(40)
    await node.say(start_task(last_heartbeat=1))
    assert node.agent.fence.book.leases == {}
    await node.say(start_task(last_heartbeat=node.said(Heartbeat)[-1].number))
    assert LEASE in node.agent.fence.book.leases


async def test_p_17_a_deposed_leader_is_not_obeyed(node: Node) -> None:
    """After a word of epoch 2, starts, stops and acknowledgements of epoch 1 change nothing."""
    await node.register(epoch=2)
    await node.say(start_task(epoch=2))
    await node.say(stop_task(epoch=1), HeartbeatAck(epoch=Epoch(1), number=1, disowned=(LEASE,)))
    await node.acknowledge(epoch=1)
    await node.pass_time(6, epoch=2)
    assert node.said(Heartbeat)[-1].running[0].phase is Phase.RUNNING
    assert len(node.agent.fence.book.reports) == 1


async def test_p_12_an_agent_tells_its_epoch_and_leaves_an_older_leader(node: Node) -> None:
    """The next Register carries the newest epoch heard, and a leader of an older one is left."""
    await node.register(epoch=5)
    node.line.close()
    await node.clock.advance(1)
    first = node.line.said[0]
    assert isinstance(first, Register)
    assert first.epoch_floor == 5
    await node.register(epoch=4)
    assert node.line.closed


async def test_a_standby_points_to_the_leader(node: Node) -> None:
    """A NotLeader with an address is followed at once; without one the list is gone round with pauses."""
    await node.say(NotLeader(address="leader:9"))
    await node.clock.advance(0.1)
    assert node.line.address == "leader:9"
    await node.say(NotLeader(address=None))
    await node.clock.advance(5)
    assert node.line.address == "b:1"


async def test_reports_are_sent_again_on_each_session_until_acknowledged(node: Node) -> None:
    """What the log may not have is said again to the next leader, under the same numbers."""
    await node.register()
    await node.say(start_task(env=DURATION))
    await node.pass_time(25)
    before = node.reports()
    node.line.close()
    await node.clock.advance(1)
    first = node.line.said[0]
    assert isinstance(first, Register)
    assert (first.last_report, first.running[0].phase) == (2, Phase.ENDED)
    await node.register(epoch=2)
    assert node.reports() == before
    await node.acknowledge(epoch=2)
    assert node.agent.fence.book.reports == []


async def test_r_65_the_next_agent_adopts_the_task(node: Node) -> None:
    """kill -9 of the agent: the task runs on, the next agent lists it, and its end is reported once."""
    await node.register()
    await node.say(start_task(env=DURATION))
    await node.acknowledge()
    await node.kill()
    await node.clock.advance(5)
    await node.boot()
    first = node.line.said[0]
    assert isinstance(first, Register)
    assert (first.incarnation, first.journal, first.running[0].phase) == ("i-2", "journal-1", Phase.RUNNING)
    await node.register()
    await node.pass_time(20)
    assert node.reports() == [TaskEndedReport(number=2, lease_id=LEASE, end=TaskEnd.EXITED, exit_code=0)]


async def test_a_machine_that_went_down_has_lost_its_tasks(node: Node) -> None:
    """After a loss of power the next agent reports the end of each lease before it registers."""
    await node.register()
    await node.say(start_task(env=DURATION))
    await node.kill()
    node.runtime.crash()
    await node.boot()
    first = node.line.said[0]
    assert isinstance(first, Register)
    assert (first.last_report, first.running[0].phase) == (2, Phase.ENDED)
    await node.register()
    assert ends(node) == [(LEASE, TaskEnd.LOST, None)]


async def test_p_15_an_order_to_stop_outlives_the_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that dies between its journal and the runtime when it is told to stop a task has told the next one."""
    await node.register()
    with monkeypatch.context() as died:
        died.setattr(SimulatedRuntime, "stop", lambda *_: None)
        await node.say(start_task(env=DURATION | {"SIGNALBOX_SIM_IGNORES_TERM": ""}), stop_task(grace_s=8))
        await node.kill()
    await node.boot()
    await node.register()
    await node.pass_time(10)
    assert ends(node) == [(LEASE, TaskEnd.STOPPED, 137)]


async def test_r_63_a_disowned_lease_is_killed(node: Node) -> None:
    """A lease that no job holds is killed without grace."""
    await node.register()
    await node.say(start_task(env=DURATION))
    await node.say(HeartbeatAck(epoch=Epoch(1), number=1, disowned=(LEASE, LeaseId("j_unknown.1.0"))))
    await node.clock.advance(0.1)
    assert ends(node) == [(LEASE, TaskEnd.STOPPED, 137)]


@pytest.mark.parametrize(("kill_s", "second"), [(0, Phase.RUNNING), (8, Phase.RUNNING), (100, Phase.ENDED)])
async def test_p_15_a_newer_grant_on_a_gpu_waits_for_the_older_to_be_gone(
    node: Node, kill_s: int, second: Phase
) -> None:
    """The log has ended an older lease that still runs here: it is killed, and only when it is gone the newer one
    starts; if that takes too long for its heartbeat, the newer one never starts (P-18)."""
    await node.register()
    stubborn = {"SIGNALBOX_SIM_IGNORES_TERM": "", "SIGNALBOX_SIM_KILL_S": str(kill_s)}
    await node.say(start_task(env={"SIGNALBOX_SIM_DURATION_S": "600"} | stubborn))
    other = LeaseId("j_2.1.0")
    await node.say(start_task(lease_id=other, grant=(1, 11), env={"SIGNALBOX_SIM_DURATION_S": "600"}))
    await node.pass_time(40)
    phases = {running.lease_id: running.phase for running in node.said(Heartbeat)[-1].running}
    assert phases == {LEASE: Phase.ENDED if kill_s < 40 else Phase.STOPPING, other: second}
    if second is Phase.ENDED:
        assert ends(node) == [(other, TaskEnd.NEVER_STARTED, None)]
    else:
        assert ends(node) == [(LEASE, TaskEnd.STOPPED, 137)]


async def test_p_17_a_stop_before_its_start_over_the_wire(node: Node) -> None:
    """The stop is answered, the start is not obeyed, and nothing ran."""
    await node.register()
    await node.say(stop_task(), start_task(env=DURATION))
    await node.pass_time(6)
    assert ends(node) == [(LEASE, TaskEnd.NEVER_STARTED, None)]
    assert not [line for line in node.ledger.lines if "task" in line]


async def test_r_64_unreachable_schedulers_end_nothing(node: Node) -> None:
    """An hour in which nobody answers leaves the task running."""
    await node.register()
    await node.say(start_task(env={"SIGNALBOX_SIM_DURATION_S": "7200"}))
    await node.clock.advance(3600)
    assert node.agent.fence.book.leases[LEASE].phase is Phase.RUNNING


async def test_r_64_a_leader_that_exists_and_does_not_renew_ends_tasks_after_15_min(node: Node) -> None:
    """Standbys that name a leader for 15 min, while that one does not answer, end the tasks; to the leader, when it is
    heard again, they are lost, since it never stopped them."""
    await node.register()
    await node.say(start_task(env={"SIGNALBOX_SIM_DURATION_S": "7200"}))
    node.line.close()
    for _ in range(950):
        await node.clock.advance(1)
        if not node.line.closed:
            await node.say(NotLeader(address="leader:9"))
    assert node.agent.fence.book.leases[LEASE].phase is Phase.ENDED
    node.line.close()
    await node.clock.advance(5)
    await node.register()
    assert ends(node) == [(LEASE, TaskEnd.LOST, 143)]


async def test_c_48_a_leader_after_a_long_outage_ends_nothing(node: Node) -> None:
    """An hour without anybody, then a standby that names the leader: nothing is concluded from the hour."""
    await node.register()
    await node.say(start_task(env={"SIGNALBOX_SIM_DURATION_S": "7200"}))
    await node.clock.advance(3600)
    await node.say(NotLeader(address="leader:9"))
    await node.clock.advance(1)
    assert node.agent.fence.book.leases[LEASE].phase is Phase.RUNNING


async def test_a_refused_agent_tries_again_and_keeps_its_tasks(node: Node) -> None:
    """RegisterRefused ends the session, not the tasks; the epoch in it counts as heard."""
    await node.register()
    await node.say(start_task(env=DURATION))
    node.line.close()
    await node.clock.advance(1)
    await node.say(RegisterRefused(epoch=Epoch(9), reason="another incarnation lives"))
    await node.clock.advance(5)
    first = node.line.said[0]
    assert isinstance(first, Register)
    assert (first.epoch_floor, first.running[0].phase) == (9, Phase.RUNNING)


async def test_limits_and_extensions(node: Node) -> None:
    """A task ends at its limit by itself; an extension moves it."""
    await node.register()
    await node.say(start_task(env={"SIGNALBOX_SIM_DURATION_S": "600"}, limit_s=30, grace_s=10))
    await node.pass_time(10)
    await node.say(ExtendTask(epoch=Epoch(1), lease_id=LEASE, limit_s=60))
    await node.pass_time(50)
    assert ends(node) == []
    await node.pass_time(20)
    assert ends(node) == [(LEASE, TaskEnd.TIMED_OUT, 143)]


async def test_checkpoints_are_reported_and_resumed_from(node: Node) -> None:
    """A virtual task reports its checkpoints; the next attempt works off what is left after the last."""
    await node.register()
    env = {"SIGNALBOX_SIM_DURATION_S": "100", "SIGNALBOX_SIM_CHECKPOINT_S": "10"}
    await node.say(start_task(env=env, checkpoint_uri="sim://j_1"))
    await node.pass_time(35)
    made = node.said(CheckpointReport)
    assert [(report.sequence, report.step) for report in made] == [(1_000_001, 10), (1_000_002, 20), (1_000_003, 30)]
    await node.say(stop_task(grace_s=5))
    await node.pass_time(5)
    again = start_task(
        lease_id="j_1.2.0", attempt=2, grant=(1, 11), env=env, checkpoint_uri="sim://j_1", resume_uri=made[-1].uri,
        last_heartbeat=node.said(Heartbeat)[-1].number,
    )  # fmt: skip
    await node.say(again)
    await node.pass_time(72)
    assert ends(node)[-1] == ("j_1.2.0", TaskEnd.EXITED, 0)


async def test_c_52_a_gpu_that_cannot_be_freed_is_a_fault(node: Node) -> None:
    """While a process survives SIGKILL the heartbeats call its GPU broken, and its lease is listed as stopping."""
    await node.register()
    await node.say(start_task(env=DURATION, gpu_uuids=("GPU-n-1-1",)))
    stuck = Observed(lease_id=LEASE, phase=Phase.STOPPING, unkillable=True, detail="survive SIGKILL: [7]")
    node.runtime._fresh.append(stuck)
    await node.pass_time(10)
    assert node.said(Heartbeat)[-1].gpu_faults == 0b10
    await node.pass_time(20)
    assert ends(node) == [(LEASE, TaskEnd.EXITED, 0)]
    await node.acknowledge()
    await node.pass_time(6)
    assert node.said(Heartbeat)[-1].gpu_faults == 0


async def test_an_agent_whose_journal_fails_ends(node: Node) -> None:
    """An agent that cannot write what it decides does not go on as if it had."""
    await node.register()

    def fail(_: object) -> None:
        raise OSError("disk full")

    node.agent.fence.journal = type("Full", (), {"save": staticmethod(fail)})()
    await node.say(start_task())
    assert node.task is not None
    assert node.task.done()
    assert isinstance(node.task.exception(), OSError)
    assert not [line for line in node.ledger.lines if "task" in line]
