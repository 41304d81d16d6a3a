"""The rows against the core's state: two folds of one log that share no code must tell the same story.

A check for tests, the simulation and `verify`; nothing at run time depends on it.
"""

from collections.abc import Iterable
from typing import Any

from commands.entities import Elements, Job, NodeState, RankPhase
from commands.state import State
from events.ids import NodeIndex
from projections.fold.moment import slots_of
from projections.rows import AttemptRow, ClusterRow, JobRow, LeaseRow, NodeRow, QuotaRow
from projections.store import ENDED_STATES, Rows

HAS_ATTEMPT = frozenset({"STARTING", "RUNNING", "PREEMPTING", "CANCELLING"})

Facts = dict[Any, Any]
"""What is known of each thing, in plain values."""


def differences(rows: Rows, state: State) -> list[str]:
    """Where the two disagree, at the same position; `rows` must be whole. Empty: nowhere."""
    expected, shown = facts_of_state(state), facts_of_rows(rows)
    return [
        f"{key}: core {expected.get(key)}, rows {shown.get(key)}"
        for key in sorted(expected.keys() | shown.keys(), key=str)
        if expected.get(key) != shown.get(key)
    ]


def facts_of_state(state: State) -> Facts:
    """What the core knows, as far as the rows show it too: live jobs, open attempts, live leases, nodes, quotas,
    reservations, pledges."""
    meta = state.meta
    facts: Facts = {"cluster": (meta.epoch, meta.policy_version, meta.mass_silence.value, meta.quiet_until_at)}
    for key, job in state.jobs.rows.items():
        facts["job", key] = {
            "state": job.state.value,
            # Of a job that waits the core still names the attempt before, the rows the one it waits for.
            "attempt": job.attempt if job.state in HAS_ATTEMPT and job.elements is None else None,
            "held": job.held,
            "front": job.front,
            "class": job.priority_class.value,
            "labels": job.labels,
            "submitted": (job.submitted_at, job.submit_seq),
            "not_before_at": job.not_before_at,
            "max_runtime_s": job.max_runtime_s,
            "cancel_requested": job.cancel_requested,
            "counts": (job.faults, job.retried, job.preemptions),
            "checkpoint": job.checkpoint and (job.checkpoint.sequence, job.checkpoint.uri),
            "waits_on": list(job.waits_on),
            "element": job.element_of and (job.element_of, job.element),
            "elements": _elements(job),
        }
    for (job_id, number), attempt in state.attempts.rows.items():
        facts["attempt", job_id, number] = {
            "limit_at": attempt.limit_at,
            "grant": attempt.grant,
            "running_at": attempt.running_at,
            "ending": attempt.ending and attempt.ending.value,
            "exit_code": attempt.exit_code,
        }
        for rank, (index, mask) in enumerate(attempt.ranks):
            if attempt.live(rank):
                phase = "running" if attempt.phases[rank] == RankPhase.RUNNING else "granted"
                facts["lease", job_id, number, rank] = (index, slots_of(mask), phase)
    for index, node in state.nodes.rows.items():
        gone = node.state is NodeState.REMOVED
        broken = [] if gone else slots_of(node.broken)
        facts["node", index] = (node.id, node.generation, node.state.value, node.drained, broken, node.confirmed)
    for (team, gpu_type), quota in state.quotas.rows.items():
        facts["quota", team, gpu_type] = (quota.guaranteed, quota.borrow_limit)
    for (team, gpu_type), usage in state.usage.rows.items():
        if usage.charged:
            facts["use", team, gpu_type] = usage.charged
    for held in state.reservations.rows.values():
        facts["reservation", held.job_id] = (_named(state, held.nodes), held.start_at)
    for pledge in state.pledges.rows.values():
        nodes = _named(state, {index for index, _ in pledge.ranks})
        keys = [[list(key) for key in keys] for keys in (pledge.victims, pledge.awaited)]
        facts["pledge", pledge.job_id] = (pledge.rule.value, pledge.gpus, nodes, *keys, pledge.at)
    facts.update({("ended", key): ended.state.value for key, ended in state.ended.rows.items()})
    return facts


def _named(state: State, nodes: Iterable[NodeIndex]) -> list[str]:
    return [state.nodes[index].id for index in sorted(nodes)]


def _elements(job: Job) -> tuple[int, int, int, int]:
    elements = job.elements or Elements()
    return (elements.made, elements.open, elements.cancelled, elements.succeeded)


def facts_of_rows(rows: Rows) -> Facts:
    """The same from the rows, the use of each team too: what the view read.quota_use adds up."""
    facts: Facts = {}
    for row in rows.rows_of(ClusterRow):
        facts["cluster"] = (row.epoch, row.policy_version, row.silence, row.quiet_until_at or 0)
    unreleased = {row.job_id for row in rows.rows_of(AttemptRow) if row.released_at is None}
    for job in rows.rows_of(JobRow):
        if job.state in ENDED_STATES and job.job_id not in unreleased:
            facts["ended", job.job_id] = job.state
        else:
            facts["job", job.job_id] = _job(job)
        if (held := job.reservation) is not None:
            facts["reservation", job.job_id] = (held["nodes"], held["start_at"])
        if (pledge := job.pledge) is not None:
            told = ("rule", "gpus", "nodes", "victims", "awaited", "since")
            facts["pledge", job.job_id] = tuple(pledge[name] for name in told)
    for attempt in rows.rows_of(AttemptRow):
        if attempt.released_at is None:
            facts["attempt", attempt.job_id, attempt.attempt] = {
                "limit_at": attempt.limit_at,
                "grant": (attempt.granted_epoch, attempt.granted_n),
                "running_at": attempt.running_at,
                "ending": attempt.ending_reason,
                "exit_code": attempt.exit_code,
            }
    nodes = {node.node_index: node for node in rows.rows_of(NodeRow)}
    for index, node in nodes.items():
        broken = sorted(map(int, node.faults))
        epoch = node.confirmed_epoch or 0
        facts["node", index] = (node.node_id, node.generation, node.state, node.drain_reason, broken, epoch)
    for lease in rows.rows_of(LeaseRow):
        if lease.phase != "ended":
            facts["lease", lease.job_id, lease.attempt, lease.rank] = (lease.node_index, lease.gpus, lease.phase)
            if nodes[lease.node_index].state != "lost":
                use = ("use", lease.team, lease.gpu_type)
                facts[use] = facts.get(use, 0) + lease.gpu_count
    for quota in rows.rows_of(QuotaRow):
        facts["quota", quota.team, quota.gpu_type] = (quota.guaranteed, quota.borrow_limit)
    return facts


def _job(job: JobRow) -> dict[str, Any]:
    return {
        "state": job.state,
        "attempt": job.attempt if job.state in HAS_ATTEMPT and not job.spec.get("array") else None,
        "held": job.held,
        "front": job.front,
        "class": job.priority_class,
        "labels": job.labels,
        "submitted": (job.submitted_at, job.submit_seq),
        "not_before_at": job.not_before_at,
        "max_runtime_s": job.max_runtime_s,
        "cancel_requested": job.cancel_requested_at is not None,
        "counts": (job.faults, job.retried, job.preemptions),
        "checkpoint": None if job.checkpoint_sequence is None else (job.checkpoint_sequence, job.checkpoint_uri),
        "waits_on": job.waits_on,
        "element": job.element_of and (job.element_of, job.element),
        "elements": (job.elements_made, job.elements_open, job.elements_cancelled, job.elements_succeeded),
    }
