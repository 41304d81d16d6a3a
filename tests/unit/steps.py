"""What can be given or done in a scenario, each in a few words: steps for `given` and `when`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from commands.messages import CancelJob, ChangeJob, CommandRecord, ExtendJob, HoldJob, ReleaseJob, RequeueJob, SubmitJob
from commands.policy import Policy
from commands.reports import CheckpointReport, FromNode, Phase, TaskEndedReport, TaskStartedReport, Tick, ZombieReport
from events.gang import GangAllocated, GangEnding
from events.ids import GpuMask, LeaseId, NodeId, NodeIndex, TeamId
from events.job import ArrayRange, EndReason, JobQueued, JobSubmitted, QueueReason
from events.node import NodeDrained, NodeLost, NodeRegistered, NodesConfirmed, NodeSuspected
from events.policy import PolicyChanged
from events.task import TaskEnd
from tests.builders import DrawnNode, drawn, job_id, lease, spec
from tests.scenario import ADA, Scenario, running_leases, with_number

Step = Callable[[Scenario], None]
OTHERS = TeamId("others")
"""Team of the jobs that use the GPUs which a picture shows in use."""

# Clusters


def cluster(picture: str) -> Step:
    """Nodes as drawn: registered, confirmed, and in the state that their words say.

    Words: drained, suspect, lost, unconfirmed.
    """

    def step(scenario: Scenario) -> None:
        facts: list[Any] = []
        for place, node in enumerate(drawn(picture), len(scenario.state.nodes)):
            index = NodeIndex(place)
            scenario.said[node.id] = node.said
            said = {name: getattr(node.said, name) for name in SAID}
            facts.append(NodeRegistered(node=index, generation=1, **said))
            if "unconfirmed" not in node.words:
                facts.append(NodesConfirmed(nodes=(index,)))
            if node.used:
                facts += _occupied(index, node)
            if "drained" in node.words:
                facts.append(NodeDrained(node=index, reason="drawn"))
            if {"suspect", "lost"} & set(node.words):
                facts.append(NodeSuspected(node=index, silent_s=30))
            if "lost" in node.words:
                facts.append(NodeLost(node=index, silent_s=90))
        scenario.facts(*facts)

    return step


SAID = (
    "node_id",
    "boot_id",
    "incarnation",
    "journal",
    "address",
    "block",
    "rack",
    "gpu_type",
    "gpu_memory_gb",
    "gpus",
)
"""Fields that NodeRegistered takes over from Register."""


def _occupied(index: NodeIndex, node: DrawnNode) -> list[Any]:
    """A job of other people on the GPUs that are in use."""
    job = job_id(f"other{index}")
    count, mask = node.used.bit_count(), GpuMask(node.used)
    asked = spec(team=OTHERS, gpu_type=node.said.gpu_type, gpus_per_replica=count, max_runtime_s=None)
    return [
        JobSubmitted(job_id=job, spec=asked, principal=ADA),
        JobQueued(job_id=job, attempt=1, reason=QueueReason.SUBMITTED),
        GangAllocated(job_id=job, attempt=1, ranks=((index, mask),), limit_at=None),
    ]


def policy(**fields: Any) -> Step:
    """A policy with these parameters is in force."""

    def step(scenario: Scenario) -> None:
        whole = Policy(**fields).model_dump(mode="json")
        scenario.take(PolicyChanged(version=scenario.state.meta.policy_version + 1, policy=whole))

    return step


# Jobs


def submit(name: str, **fields: Any) -> SubmitJob:
    return SubmitJob(job_id=job_id(name), spec=spec(**fields))


def array(first: int, last: int, throttle: int | None = None) -> ArrayRange:
    return ArrayRange(first=first, last=last, throttle=throttle)


def cancel(name: str) -> CancelJob:
    return CancelJob(job_id=job_id(name))


def hold(name: str) -> HoldJob:
    return HoldJob(job_id=job_id(name))


def release(name: str) -> ReleaseJob:
    return ReleaseJob(job_id=job_id(name))


def requeue(name: str) -> RequeueJob:
    return RequeueJob(job_id=job_id(name))


def extend(name: str, by_s: int) -> ExtendJob:
    return ExtendJob(job_id=job_id(name), by_s=by_s)


def change(name: str, **fields: Any) -> ChangeJob:
    return ChangeJob(job_id=job_id(name), **fields)


def keyed(command: Any, key: str, body: str, principal: str = "user:ada") -> Step:
    """The command under an idempotency key of the test's choice."""

    def step(scenario: Scenario) -> None:
        made: CommandRecord = scenario.record(command, key, body)
        scenario.command(replace(made, principal=principal))  # type: ignore[arg-type]

    return step


def plan() -> Step:
    return Scenario.plan


def quietly(scenario: Scenario) -> None:
    """Five more cycles, and nothing moves (C-70)."""
    for _ in range(5):
        scenario.when(plan()).then_nothing()


def runs(*names: str, **fields: Any) -> Step:
    """These jobs are submitted, granted and running."""

    def step(scenario: Scenario) -> None:
        for name in names:
            scenario.take(submit(name, **fields))
            scenario.plan()
            assert scenario.job_state(name) == "STARTING", f"{name} found no room: {scenario.job_state(name)}"
            all_started(name)(scenario)

    return step


def granted(*names: str, **fields: Any) -> Step:
    """These jobs are submitted and granted; nothing of them was heard yet."""

    def step(scenario: Scenario) -> None:
        for name in names:
            scenario.take(submit(name, **fields))
            scenario.plan()
            assert scenario.job_state(name) == "STARTING", f"{name} found no room: {scenario.job_state(name)}"

    return step


def ending(name: str, reason: str, grace_s: int = 60) -> Step:
    """The newest attempt is to stop, for a reason that this version has no command for."""

    def step(scenario: Scenario) -> None:
        number = scenario.job(name).attempt
        event = GangEnding(job_id=job_id(name), attempt=number, reason=EndReason(reason), grace_s=grace_s)
        scenario.take(event)

    return step


# Reports


def started(name: str, rank: int = 0, attempt: int | None = None, *, number: int | None = None) -> Step:
    return _reported(name, rank, attempt, number, lambda held: TaskStartedReport(number=0, lease_id=held))


def all_started(name: str) -> Step:
    """Every rank of the newest attempt reports that it runs."""

    def step(scenario: Scenario) -> None:
        made: list[Any] = []
        for rank in range(len(scenario.attempt(name).ranks)):
            started(name, rank)(scenario)
            made += scenario.events
        scenario.events = tuple(made)

    return step


def ended(
    name: str,
    rank: int = 0,
    attempt: int | None = None,
    *,
    end: str = "exited",
    exit_code: int | None = 0,
    finished: bool = False,
    number: int | None = None,
) -> Step:
    """A rank is gone."""

    def report(held: LeaseId) -> TaskEndedReport:
        return TaskEndedReport(
            number=0, lease_id=held, end=TaskEnd(end), exit_code=exit_code, finished=finished, detail=""
        )

    return _reported(name, rank, attempt, number, report)


def stopped(name: str, rank: int = 0, attempt: int | None = None, *, finished: bool = False) -> Step:
    """A rank is gone by our StopTask."""
    return ended(name, rank, attempt, end="stopped", exit_code=143, finished=finished)


def checkpointed(
    name: str, sequence: int, rank: int = 0, attempt: int | None = None, *, number: int | None = None
) -> Step:
    def report(held: LeaseId) -> CheckpointReport:
        return CheckpointReport(number=0, lease_id=held, sequence=sequence, uri=f"s3://c/{held}", size_bytes=9)

    return _reported(name, rank, attempt, number, report)


def reports(node: str, report: Any, *, number: int | None = None) -> Step:
    """Any report of a node."""
    return lambda scenario: scenario.take(with_number(scenario, NodeId(node), report, number))


def zombie(node: str, gpu: int, *, number: int | None = None) -> Step:
    return reports(node, ZombieReport(number=0, gpu=gpu, pid=77), number=number)


def _reported(name: str, rank: int, attempt: int | None, number: int | None, report: Callable[[LeaseId], Any]) -> Step:
    def step(scenario: Scenario) -> None:
        job = scenario.state.jobs.get(job_id(name))
        which = attempt if attempt is not None else job.attempt if job is not None else 1
        node = node_of(scenario, name, which, rank)
        scenario.take(with_number(scenario, node, report(lease(name, rank, which)), number))

    return step


def node_of(scenario: Scenario, name: str, number: int, rank: int) -> NodeId:
    """Where a rank was placed, also after its attempt is over."""
    for raw in reversed(scenario.grants):
        if (raw.job_id, raw.attempt) == (job_id(name), number):
            return scenario.state.nodes[raw.ranks[rank][0]].id
    raise AssertionError(f"{name} has had no attempt {number}")


# Nodes and time


def registers(name: str, *, other_live: bool = False, **fields: Any) -> Step:
    """The agent of a node registers, as last time but for `fields`.

    It lists every lease that the state has there, unless `running` says otherwise.
    """

    def step(scenario: Scenario) -> None:
        node_id = NodeId(name)
        node = scenario.state.node_by_id(node_id)
        said = scenario.said[node_id]
        if fields.get("journal", said.journal) != said.journal:
            scenario.reports[node_id] = 0
        listed = running_leases(scenario, node, Phase.RUNNING) if node is not None else ()
        usual = {"running": listed, "last_report": scenario.reports.get(node_id, 0)}
        scenario.said[node_id] = replace(said, **{**usual, **fields})
        scenario.take(FromNode(node_id=node_id, message=scenario.said[node_id], other_live=other_live))
        if scenario.refused:
            scenario.said[node_id] = said

    return step


def all_register(scenario: Scenario) -> None:
    """Every node registers with what it runs."""
    for index in sorted(scenario.state.nodes.rows):
        registers(scenario.state.nodes[index].id)(scenario)


def silent(seconds: int, *names: str) -> Step:
    """A tick on which these nodes have been silent for so long."""

    def step(scenario: Scenario) -> None:
        indexes = sorted(scenario.node(name).index for name in names)
        scenario.take(Tick(silent=tuple((index, seconds) for index in indexes)))

    return step


def heard(*names: str) -> Step:
    return lambda scenario: scenario.take(Tick(heard=tuple(scenario.node(name).index for name in names)))


def lost(*names: str) -> Step:
    """These nodes fall silent and are declared down, one after the other."""

    def step(scenario: Scenario) -> None:
        made: list[Any] = []
        for name in names:
            for seconds in (30, 90):
                silent(seconds, name)(scenario)
                made += scenario.events
        scenario.events = tuple(made)

    return step


def missing(name: str, rank: int = 0, attempt: int = 1) -> Tick:
    return Tick(missing=(lease(name, rank, attempt),))


def due(name: str, attempt: int = 1) -> Tick:
    return Tick(due=((job_id(name), attempt),))


def after(seconds: int) -> Step:
    """Time passes; nothing is written."""

    def step(scenario: Scenario) -> None:
        scenario.at += seconds * 1000
        scenario.events = ()

    return step


def takeover(after_s: int = 1) -> Step:
    return lambda scenario: scenario.takeover(after_s=after_s)
