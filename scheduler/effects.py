"""What is to be told to agents, from durable facts alone (I-8). Pure: messages out, nothing sent.

The same functions serve the moment of a commit, a node that registers, and a heartbeat that lacks something, so that
an effect can be repeated at any time: the agent runs a task at most once per lease (P-17).
"""

from collections.abc import Iterable
from zlib import crc32

from commands.decide.attempts import limit_grace_s, stop_grace_s
from commands.entities import Attempt, Job, Node, RankPhase
from commands.state import State
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangResized
from events.ids import Instant, JobId, NodeId, lease_id
from events.job import EndReason, JobExtended, Overlap
from scheduler.link import ExtendTask, StartTask, StopTask

MASTER_PORT_FIRST, MASTER_PORTS = 20_000, 10_000
Message = StartTask | StopTask | ExtendTask


def of_events(state: State, events: Iterable[Event], heard: dict[int, int]) -> list[tuple[NodeId, Message]]:
    """Messages that follow from accepted events. `heard`: node index -> number of its last heartbeat (P-18)."""
    messages: list[tuple[NodeId, Message]] = []
    for event in events:
        match event:
            case GangAllocated() | GangEnding() | GangResized():
                messages += of_attempt(state, event.job_id, event.attempt, heard)
            case JobExtended():
                messages += _extended(state, event.job_id)
            case _:
                pass
    return messages


def of_attempt(state: State, job_id: JobId, number: int, heard: dict[int, int]) -> list[tuple[NodeId, Message]]:
    """What the nodes of an attempt should hear now: start what was granted, stop what is ending."""
    attempt = state.attempts.get((job_id, number))
    if attempt is None:
        return []
    messages: list[tuple[NodeId, Message]] = []
    for rank, (index, _) in enumerate(attempt.ranks):
        message = of_lease(state, attempt, rank, heard.get(index, 0), state.meta.at)
        if message is not None:
            messages.append((state.nodes[index].id, message))
    return messages


def of_lease(state: State, attempt: Attempt, rank: int, last_heartbeat: int, now: Instant) -> Message | None:
    """Start, stop, or nothing: by where the lease stands."""
    if not attempt.live(rank):
        return None
    if attempt.ending is not None:
        return _stop(state, attempt, rank, attempt.grace_s, attempt.ending)
    if rank in attempt.stopping:
        return _stop(state, attempt, rank, stop_grace_s(state.policy, state.jobs[attempt.job_id]), EndReason.PREEMPTED)
    if attempt.phases[rank] != RankPhase.GRANTED:
        return None
    return _start(state, attempt, rank, last_heartbeat, now)


def _stop(state: State, attempt: Attempt, rank: int, grace_s: int, reason: EndReason) -> StopTask:
    return StopTask(
        epoch=state.meta.epoch,
        grant=_grant(attempt, rank),
        lease_id=lease_id(attempt.job_id, attempt.number, rank),
        grace_s=grace_s,
        reason=reason,
    )


def _grant(attempt: Attempt, rank: int) -> tuple[int, int]:
    """Of the commit that granted the rank: that of the attempt, or of the growth that it came with (P-17)."""
    growth = attempt.growth_of(rank)
    return attempt.grant if growth is None else growth.grant


def _start(state: State, attempt: Attempt, rank: int, last_heartbeat: int, now: Instant) -> StartTask:
    job = state.jobs[attempt.job_id]
    spec = job.spec
    index, mask = attempt.ranks[rank]
    node = state.nodes[index]
    return StartTask(
        epoch=state.meta.epoch,
        grant=_grant(attempt, rank),
        last_heartbeat=last_heartbeat,
        lease_id=lease_id(attempt.job_id, attempt.number, rank),
        job_id=attempt.job_id,
        attempt=attempt.number,
        rank=rank,
        replicas=attempt.size_with(rank),
        gpus_per_replica=spec.gpus_per_replica,
        command=spec.command,
        gpu_uuids=visible_uuids(node, mask),
        master_addr=state.nodes[attempt.ranks[0][0]].address,
        master_port=MASTER_PORT_FIRST + crc32(f"{attempt.job_id}.{attempt.number}".encode()) % MASTER_PORTS,
        limit_s=_left_s(attempt, now),
        grace_s=limit_grace_s(state.policy, job, attempt),
        image=spec.image,
        env={**spec.env, **_array_env(state, job)},
        secrets=spec.secrets,
        workdir=spec.workdir,
        checkpoint_uri=spec.checkpoint.uri,
        resume_uri=job.checkpoint.uri if job.checkpoint is not None else None,
        overlap_never=spec.overlap is Overlap.NEVER,
    )


def _array_env(state: State, job: Job) -> dict[str, str]:
    """What an element of an array is told of its place in it (R-7)."""
    array = state.jobs.get(job.element_of) if job.element_of is not None else None
    if array is None or array.spec.array is None:
        return {}
    first, last = array.spec.array.first, array.spec.array.last
    return {
        "SIGNALBOX_ARRAY_JOB": array.id,
        "SIGNALBOX_ARRAY_INDEX": str(job.element),
        "SIGNALBOX_ARRAY_FIRST": str(first),
        "SIGNALBOX_ARRAY_LAST": str(last),
        "SIGNALBOX_ARRAY_COUNT": str(last - first + 1),
    }


def visible_uuids(node: Node, mask: int) -> tuple[str, ...]:
    """UUIDs of the GPUs of a mask, in slot order: the lease's own, whole nodes included (P-21)."""
    return tuple(gpu.uuid for slot, gpu in enumerate(node.gpus) if mask >> slot & 1)


def of_limit(state: State, attempt: Attempt, rank: int, now: Instant) -> ExtendTask | None:
    """The run-time limit again, for a task that runs: an extension may have been lost with its session."""
    if attempt.limit_at is None or attempt.ending is not None or attempt.phases[rank] != RankPhase.RUNNING:
        return None
    return _limit(state, attempt, rank, now)


def _limit(state: State, attempt: Attempt, rank: int, now: Instant) -> ExtendTask:
    lease = lease_id(attempt.job_id, attempt.number, rank)
    return ExtendTask(epoch=state.meta.epoch, lease_id=lease, limit_s=_left_s(attempt, now))


def _left_s(attempt: Attempt, now: Instant) -> int | None:
    if attempt.limit_at is None:
        return None
    return max(1, (attempt.limit_at - now) // 1000)


def _extended(state: State, job_id: JobId) -> list[tuple[NodeId, Message]]:
    job = state.jobs.get(job_id)
    attempt = state.attempts.get((job_id, job.attempt)) if job is not None else None
    if attempt is None:
        return []
    return [
        (state.nodes[index].id, _limit(state, attempt, rank, state.meta.at))
        for rank, (index, _) in enumerate(attempt.ranks)
        if attempt.live(rank)
    ]
