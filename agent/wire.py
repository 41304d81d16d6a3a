"""Between scheduler.link's plain values and the protobuf messages of agent/rpc, without loss, in both directions.

Nothing else in the program sees a protobuf message. An item that this side does not know (a newer peer) is Unreadable:
the stream ends, since a command skipped in silence would be a command lost.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar, assert_never

from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from events.ids import BlockId, Epoch, GpuType, JobId, LeaseId, NodeId
from events.node import GpuSlot
from events.task import TaskEnd
from scheduler import link

_Reader = TypeVar("_Reader")


class Unreadable(ValueError):
    """A message that this side has no meaning for."""


_PHASE_TO = {phase: pb.Phase.Value(f"PHASE_{phase.name}") for phase in link.Phase}
_PHASE_FROM: dict[int, link.Phase] = {number: phase for phase, number in _PHASE_TO.items()}
_END_TO = {end: pb.TaskEnd.Value(f"TASK_END_{end.name}") for end in TaskEnd}
_END_FROM: dict[int, TaskEnd] = {number: end for end, number in _END_TO.items()}


def agent_message(messages: Iterable[link.FromAgent]) -> pb.AgentMessage:
    """All of `messages`, in order, as one message of the stream."""
    return pb.AgentMessage(items=[_agent_item(message) for message in messages])


def from_agent(message: pb.AgentMessage) -> list[link.FromAgent]:
    """What the agent said, in order. Raises Unreadable."""
    return [_reader(_FROM_AGENT, item.WhichOneof("message"))(item) for item in message.items]


def scheduler_message(messages: Iterable[link.ToAgent]) -> pb.SchedulerMessage:
    """All of `messages`, in order, as one message of the stream."""
    return pb.SchedulerMessage(items=[_scheduler_item(message) for message in messages])


def to_agent(message: pb.SchedulerMessage) -> list[link.ToAgent]:
    """What the scheduler said, in order. Raises Unreadable."""
    return [_reader(_TO_AGENT, item.WhichOneof("message"))(item) for item in message.items]


def _agent_item(m: link.FromAgent) -> pb.AgentItem:
    match m:
        case link.Heartbeat():
            return pb.AgentItem(heartbeat=_heartbeat(m))
        case link.Register():
            return pb.AgentItem(register=_register(m))
        case link.TaskStartedReport():
            return pb.AgentItem(task_started=pb.TaskStarted(number=m.number, lease_id=m.lease_id))
        case link.TaskEndedReport():
            return pb.AgentItem(task_ended=_task_ended(m))
        case link.CheckpointReport():
            return pb.AgentItem(checkpoint=_checkpoint(m))
        case link.ZombieReport():
            return pb.AgentItem(zombie=pb.Zombie(number=m.number, gpu=m.gpu, pid=m.pid))
        case _:
            assert_never(m)


def _scheduler_item(m: link.ToAgent) -> pb.SchedulerItem:
    match m:
        case link.HeartbeatAck():
            return pb.SchedulerItem(
                heartbeat_ack=pb.HeartbeatAck(epoch=m.epoch, number=m.number, disowned=list(m.disowned))
            )
        case link.ReportAck():
            return pb.SchedulerItem(report_ack=pb.ReportAck(epoch=m.epoch, number=m.number))
        case link.StartTask():
            return pb.SchedulerItem(start_task=_start_task(m))
        case link.StopTask():
            return pb.SchedulerItem(stop_task=_stop_task(m))
        case link.ExtendTask():
            extend = pb.ExtendTask(epoch=m.epoch, lease_id=m.lease_id, limit_s=m.limit_s)
            return pb.SchedulerItem(extend_task=extend)
        case link.Registered():
            return pb.SchedulerItem(registered=pb.Registered(epoch=m.epoch, heartbeat_s=m.heartbeat_s))
        case link.RegisterRefused():
            return pb.SchedulerItem(register_refused=pb.RegisterRefused(epoch=m.epoch, reason=m.reason))
        case link.NotLeader():
            return pb.SchedulerItem(not_leader=pb.NotLeader(address=m.address))
        case link.TailLog():
            return pb.SchedulerItem(tail_log=_tail_log(m))
        case _:
            assert_never(m)


# To protobuf


def _grant(grant: link.Grant) -> pb.Grant:
    return pb.Grant(epoch=grant[0], n=grant[1])


def _running(leases: tuple[link.Running, ...]) -> list[pb.RunningLease]:
    return [pb.RunningLease(lease_id=r.lease_id, grant=_grant(r.grant), phase=_PHASE_TO[r.phase]) for r in leases]


def _register(m: link.Register) -> pb.Register:
    return pb.Register(
        node_id=m.node_id,
        boot_id=m.boot_id,
        incarnation=m.incarnation,
        journal=m.journal,
        last_report=m.last_report,
        epoch_floor=m.epoch_floor,
        block=m.block,
        rack=m.rack,
        address=m.address,
        gpu_type=m.gpu_type,
        gpu_memory_gb=m.gpu_memory_gb,
        gpus=[pb.GpuSlot(uuid=slot.uuid, island=slot.island) for slot in m.gpus],
        running=_running(m.running),
    )


def _heartbeat(m: link.Heartbeat) -> pb.Heartbeat:
    return pb.Heartbeat(
        node_id=m.node_id,
        number=m.number,
        running=_running(m.running),
        gpu_faults=m.gpu_faults,
        disk_free_bytes=m.disk_free_bytes,
    )


def _task_ended(m: link.TaskEndedReport) -> pb.TaskEnded:
    return pb.TaskEnded(
        number=m.number,
        lease_id=m.lease_id,
        end=_END_TO[m.end],
        exit_code=m.exit_code,
        finished=m.finished,
        detail=m.detail,
    )


def _checkpoint(m: link.CheckpointReport) -> pb.Checkpoint:
    return pb.Checkpoint(
        number=m.number, lease_id=m.lease_id, sequence=m.sequence, uri=m.uri, size_bytes=m.size_bytes, step=m.step
    )


def _start_task(m: link.StartTask) -> pb.StartTask:
    return pb.StartTask(
        epoch=m.epoch,
        grant=_grant(m.grant),
        last_heartbeat=m.last_heartbeat,
        lease_id=m.lease_id,
        job_id=m.job_id,
        attempt=m.attempt,
        rank=m.rank,
        replicas=m.replicas,
        gpus_per_replica=m.gpus_per_replica,
        command=m.command,
        gpu_uuids=m.gpu_uuids,
        master_addr=m.master_addr,
        master_port=m.master_port,
        limit_s=m.limit_s,
        grace_s=m.grace_s,
        image=m.image,
        env=m.env,
        secrets=m.secrets,
        workdir=m.workdir,
        checkpoint_uri=m.checkpoint_uri,
        resume_uri=m.resume_uri,
        overlap_never=m.overlap_never,
    )


def _stop_task(m: link.StopTask) -> pb.StopTask:
    return pb.StopTask(epoch=m.epoch, grant=_grant(m.grant), lease_id=m.lease_id, grace_s=m.grace_s, reason=m.reason)


def _tail_log(m: link.TailLog) -> pb.TailLog:
    return pb.TailLog(
        epoch=m.epoch, lease_id=m.lease_id, url=m.url, token=m.token, follow=m.follow, from_byte=m.from_byte
    )


# From protobuf


def _reader(readers: dict[str, _Reader], kind: str | None) -> _Reader:
    if kind is None:
        raise Unreadable("an item of a kind that this version does not know")
    return readers[kind]


def _phase(number: int) -> link.Phase:
    try:
        return _PHASE_FROM[number]
    except KeyError:
        raise Unreadable(f"phase {number}") from None


def _end(number: int) -> TaskEnd:
    try:
        return _END_FROM[number]
    except KeyError:
        raise Unreadable(f"task end {number}") from None


def _read_grant(m: pb.Grant) -> link.Grant:
    return m.epoch, m.n


def _read_running(leases: Iterable[pb.RunningLease]) -> tuple[link.Running, ...]:
    return tuple(
        link.Running(lease_id=LeaseId(r.lease_id), grant=_read_grant(r.grant), phase=_phase(r.phase)) for r in leases
    )


def _read_register(item: pb.AgentItem) -> link.Register:
    m = item.register
    return link.Register(
        node_id=NodeId(m.node_id),
        boot_id=m.boot_id,
        incarnation=m.incarnation,
        journal=m.journal,
        last_report=m.last_report,
        epoch_floor=Epoch(m.epoch_floor),
        block=BlockId(m.block),
        rack=m.rack,
        address=m.address,
        gpu_type=GpuType(m.gpu_type),
        gpu_memory_gb=m.gpu_memory_gb,
        gpus=tuple(GpuSlot(uuid=slot.uuid, island=slot.island) for slot in m.gpus),
        running=_read_running(m.running),
    )


def _read_heartbeat(item: pb.AgentItem) -> link.Heartbeat:
    m = item.heartbeat
    return link.Heartbeat(
        node_id=NodeId(m.node_id),
        number=m.number,
        running=_read_running(m.running),
        gpu_faults=m.gpu_faults,
        disk_free_bytes=m.disk_free_bytes,
    )


def _read_task_started(item: pb.AgentItem) -> link.TaskStartedReport:
    return link.TaskStartedReport(number=item.task_started.number, lease_id=LeaseId(item.task_started.lease_id))


def _read_task_ended(item: pb.AgentItem) -> link.TaskEndedReport:
    m = item.task_ended
    return link.TaskEndedReport(
        number=m.number,
        lease_id=LeaseId(m.lease_id),
        end=_end(m.end),
        exit_code=m.exit_code if m.HasField("exit_code") else None,
        finished=m.finished,
        detail=m.detail,
    )


def _read_checkpoint(item: pb.AgentItem) -> link.CheckpointReport:
    m = item.checkpoint
    return link.CheckpointReport(
        number=m.number,
        lease_id=LeaseId(m.lease_id),
        sequence=m.sequence,
        uri=m.uri,
        size_bytes=m.size_bytes,
        step=m.step if m.HasField("step") else None,
    )


def _read_zombie(item: pb.AgentItem) -> link.ZombieReport:
    return link.ZombieReport(number=item.zombie.number, gpu=item.zombie.gpu, pid=item.zombie.pid)


def _read_start_task(item: pb.SchedulerItem) -> link.StartTask:
    m = item.start_task
    return link.StartTask(
        epoch=Epoch(m.epoch),
        grant=_read_grant(m.grant),
        last_heartbeat=m.last_heartbeat,
        lease_id=LeaseId(m.lease_id),
        job_id=JobId(m.job_id),
        attempt=m.attempt,
        rank=m.rank,
        replicas=m.replicas,
        gpus_per_replica=m.gpus_per_replica,
        command=tuple(m.command),
        gpu_uuids=tuple(m.gpu_uuids),
        master_addr=m.master_addr,
        master_port=m.master_port,
        limit_s=m.limit_s if m.HasField("limit_s") else None,
        grace_s=m.grace_s,
        image=m.image if m.HasField("image") else None,
        env=dict(m.env),
        secrets=dict(m.secrets),
        workdir=m.workdir if m.HasField("workdir") else None,
        checkpoint_uri=m.checkpoint_uri if m.HasField("checkpoint_uri") else None,
        resume_uri=m.resume_uri if m.HasField("resume_uri") else None,
        overlap_never=m.overlap_never,
    )


def _read_stop_task(item: pb.SchedulerItem) -> link.StopTask:
    m = item.stop_task
    grant, lease = _read_grant(m.grant), LeaseId(m.lease_id)
    return link.StopTask(epoch=Epoch(m.epoch), grant=grant, lease_id=lease, grace_s=m.grace_s, reason=m.reason)


def _read_extend_task(item: pb.SchedulerItem) -> link.ExtendTask:
    m = item.extend_task
    limit_s = m.limit_s if m.HasField("limit_s") else None
    return link.ExtendTask(epoch=Epoch(m.epoch), lease_id=LeaseId(m.lease_id), limit_s=limit_s)


def _read_registered(item: pb.SchedulerItem) -> link.Registered:
    return link.Registered(epoch=Epoch(item.registered.epoch), heartbeat_s=item.registered.heartbeat_s)


def _read_register_refused(item: pb.SchedulerItem) -> link.RegisterRefused:
    return link.RegisterRefused(epoch=Epoch(item.register_refused.epoch), reason=item.register_refused.reason)


def _read_not_leader(item: pb.SchedulerItem) -> link.NotLeader:
    return link.NotLeader(address=item.not_leader.address if item.not_leader.HasField("address") else None)


def _read_report_ack(item: pb.SchedulerItem) -> link.ReportAck:
    return link.ReportAck(epoch=Epoch(item.report_ack.epoch), number=item.report_ack.number)


def _read_heartbeat_ack(item: pb.SchedulerItem) -> link.HeartbeatAck:
    m = item.heartbeat_ack
    disowned = tuple(LeaseId(lease) for lease in m.disowned)
    return link.HeartbeatAck(epoch=Epoch(m.epoch), number=m.number, disowned=disowned)


def _read_tail_log(item: pb.SchedulerItem) -> link.TailLog:
    m = item.tail_log
    return link.TailLog(
        epoch=Epoch(m.epoch),
        lease_id=LeaseId(m.lease_id),
        url=m.url,
        token=m.token,
        follow=m.follow,
        from_byte=m.from_byte,
    )


_FROM_AGENT: dict[str, Callable[[pb.AgentItem], link.FromAgent]] = {
    "register": _read_register,
    "heartbeat": _read_heartbeat,
    "task_started": _read_task_started,
    "task_ended": _read_task_ended,
    "checkpoint": _read_checkpoint,
    "zombie": _read_zombie,
}
_TO_AGENT: dict[str, Callable[[pb.SchedulerItem], link.ToAgent]] = {
    "registered": _read_registered,
    "register_refused": _read_register_refused,
    "not_leader": _read_not_leader,
    "start_task": _read_start_task,
    "stop_task": _read_stop_task,
    "extend_task": _read_extend_task,
    "report_ack": _read_report_ack,
    "heartbeat_ack": _read_heartbeat_ack,
    "tail_log": _read_tail_log,
}
