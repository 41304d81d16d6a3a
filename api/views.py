"""Rows of the read models as the documents that go out: API.md's names, RFC 3339 times, durations with a unit."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from api.times import format_duration, format_time, spoken_durations
from api.waiting import Known, estimated_start, is_waiting, waiting_view
from commands.policy import DEFAULT
from events.job import ENDS, CheckpointPlan, JobState
from projections.blockers import Failure
from projections.queries import NodeUse, QuotaUse
from projections.rows import AttemptRow, ClusterRow, JobRow, LeaseRow, PolicyRow, TimelineRow
from scheduler.planning.standings import TeamStanding

Document = dict[str, Any]

UNKNOWN = Known()
_SPEC_PLAIN = (
    *("image", "command", "env", "secrets", "replicas", "gpus_per_replica", "gpu_memory_gb_min", "topology"),
    *("elastic", "data", "workdir", "interactive", "overlap", "retries", "depends_on"),
)

_ATTEMPT_PLAIN = (
    *("attempt", "ranks", "gpus", "nodes", "blocks", "fallback", "ending_reason", "exit_code", "failed_rank"),
    *("preempted_by", "preempted_rule"),
)


def spec_view(spec: Mapping[str, Any]) -> Document:
    """A stored spec in the wire form in which it was submitted."""
    plan = spec["checkpoint"]
    array = spec.get("array")
    return {
        **{name: spec.get(name) for name in _SPEC_PLAIN},
        "max_runtime": runtime(spec["max_runtime_s"]),
        "checkpoint": {
            "preemptible": plan["preemptible"],
            "grace_seconds": plan.get("grace_s", CheckpointPlan().grace_s),
            "interval": format_duration(plan["interval_s"]),
            "uri": plan["uri"],
        },
        "deadline": format_time(spec.get("deadline_at")),
        "array": array_view(array) if array else None,
    }


def array_view(array: Mapping[str, Any]) -> str:
    """ "0-999%16"."""
    return f"{array['first']}-{array['last']}" + (f"%{array['throttle']}" if array["throttle"] else "")


def runtime(seconds: int | None) -> str:
    """max_runtime as clients write it."""
    return "unlimited" if seconds is None else format_duration(seconds)


def job_view(
    row: JobRow,
    attempt: AttemptRow | None = None,
    ahead: int | None = None,
    known: Known = UNKNOWN,
    failure: Failure | None = None,
    leases: Sequence[LeaseRow] = (),
) -> Document:
    """A job. `attempt` and its `leases`: the current one, where it is asked for; `ahead`: jobs before it, where it
    queues; `known`: why it waits; `failure`: of its newest attempt that failed, where it is asked for."""
    return {
        "job_id": row.job_id,
        "cluster": row.cluster,
        "team": row.team,
        "principal": row.principal,
        "name": row.name,
        "labels": row.labels,
        "state": row.state,
        "held": row.held,
        "priority_class": row.priority_class,
        "gpu_type": row.gpu_type,
        "gpus": row.gpus,
        "max_runtime": runtime(row.max_runtime_s),
        "attempt": row.attempt,
        "queue_position": None if ahead is None else ahead + 1,
        "estimated_start": estimated_start(row),
        "submitted_at": format_time(row.submitted_at),
        "queued_at": format_time(row.queued_at),
        "granted_at": format_time(row.granted_at),
        "started_at": format_time(row.started_at),
        "limit_at": format_time(row.limit_at),
        "ended_at": format_time(row.ended_at),
        "end_reason": row.end_reason,
        "exit_code": row.exit_code,
        "failure": failure_view(failure),
        "preemptions": row.preemptions,
        "preempted_by": preemption_view(row),
        "faults": row.faults,
        "retried": row.retried,
        "array": _array_progress(row),
        "element_of": row.element_of,
        "element": row.element,
        "last_checkpoint": row.checkpoint_uri,
        "checkpoint_step": row.checkpoint_step,
        "allocation": _allocation(row, attempt, leases),
        "reservation": reservation_view(row),
        "pledge": pledge_view(row),
        "waiting": waiting_view(row, known) if row.state == JobState.QUEUED else None,
        "rejection": rejection_view(row),
        "spec": spec_view(row.spec),
        "seq": row.submit_seq,
        "changed_seq": row.changed_seq,
    }


def _array_progress(row: JobRow) -> Document | None:
    """How far an array is; an element that was granted is a job of its own."""
    array = row.spec.get("array")
    if not array:
        return None
    count = array["last"] - array["first"] + 1
    ended = row.elements_made - row.elements_open
    return {
        "elements": array_view(array),
        "waiting": 0 if row.state in ENDS or row.cancel_requested_at is not None else count - row.elements_made,
        "running": row.elements_open,
        "succeeded": row.elements_succeeded,
        "failed": ended - row.elements_succeeded,
    }


def reservation_view(row: JobRow) -> Document | None:
    """The nodes that are held for a job that waits, and when it is to start on them."""
    held = row.reservation
    if held is None or not is_waiting(row):
        return None
    times = {"start_at": format_time(held["start_at"]), "since": format_time(held["since"])}
    return {"nodes": held["nodes"], **times}


def pledge_view(row: JobRow) -> Document | None:
    """The room that is being made for a job: by which rule, where, whom it stops, and whose end it awaits."""
    pledge = row.pledge
    if pledge is None or not is_waiting(row):
        return None
    keys = {name: [_attempt_key(key) for key in pledge[name]] for name in ("victims", "awaited")}
    plain = {name: pledge[name] for name in ("rule", "gpus", "nodes")}
    return {**plain, **keys, "since": format_time(pledge["since"])}


def preemption_view(row: JobRow) -> Document | None:
    """For whom, by which rule and when a job was last stopped for another; its attempts have each time."""
    last = row.preempted
    if last is None:
        return None
    return {"job_id": last["by"], "rule": last["rule"], "attempt": last["attempt"], "at": format_time(last["at"])}


def _attempt_key(key: Sequence[Any]) -> Document:
    return {"job_id": key[0], "attempt": key[1]}


def rejection_view(row: JobRow) -> Document | None:
    """Why a job was rejected; None where it was not."""
    if row.rejected_code is None:
        return None
    figures = {"value": row.rejected_value, "limit": row.rejected_limit}
    return {
        "code": row.rejected_code,
        "field": row.rejected_field,
        **(spoken_durations(figures) if row.rejected_field == "max_runtime" else figures),
    }


def _allocation(row: JobRow, attempt: AttemptRow | None, leases: Sequence[LeaseRow]) -> Document | None:
    """What it holds now: an elastic job grows and shrinks, and a rank that has ended holds nothing."""
    if attempt is None or row.state in ENDS or row.state == JobState.QUEUED:
        return None
    live = [lease for lease in leases if lease.ended_at is None]
    return {
        "attempt": attempt.attempt,
        "nodes": sorted({lease.node_id for lease in live}),
        "blocks": sorted({lease.block for lease in live}),
        "replicas": len(live),
        "gpus": sum(lease.gpu_count for lease in live),
        "fallback": attempt.fallback,
    }


def failure_view(failure: Failure | None) -> Document | None:
    """How the first rank of the newest attempt ended that failed; None where none did."""
    return asdict(failure) if failure is not None else None


def attempt_view(row: AttemptRow) -> Document:
    """One attempt."""
    times = ("queued_at", "granted_at", "limit_at", "running_at", "ending_at", "released_at")
    return {name: getattr(row, name) for name in _ATTEMPT_PLAIN} | {
        name: format_time(getattr(row, name)) for name in times
    }


def quota_view(use: QuotaUse) -> Document:
    """What a team may use of a type, and does; a figure that was set in percent says so."""
    figures = ("guaranteed", "borrow_limit", "in_use", "borrowed")
    percent = {name: getattr(use, name) for name in ("guaranteed_percent", "borrow_limit_percent")}
    return {name: getattr(use, name) for name in figures} | {
        name: value for name, value in percent.items() if value is not None
    }


def standing_view(standing: TeamStanding) -> Document:
    """How a team stands on a type; what it used in GPU-hours."""
    figures = asdict(standing)
    used_gpu_s, share = figures.pop("used_gpu_s"), figures.pop("share")
    used = {"used_gpu_hours": round(used_gpu_s / 3600, 1), "share": None if share is None else round(share, 3)}
    return {**figures, **used}


def node_view(use: NodeUse) -> Document:
    """A node and how much of it is used."""
    row = use.node
    return {
        "node_id": row.node_id,
        "address": row.address,
        "block": row.block,
        "rack": row.rack,
        "gpu_type": row.gpu_type,
        "gpu_memory_gb": row.gpu_memory_gb,
        "gpu_count": row.gpu_count,
        "gpus_used": len(use.held),
        "gpus_faulted": len(row.faults),
        "state": row.state,
        "silent_s": row.silent_s,
        "drained": row.drained,
        "drain_reason": row.drain_reason,
        "generation": row.generation,
        "jobs": sorted({job_id for job_id, _, _ in use.held.values()}),
        "registered_at": format_time(row.registered_at),
        "state_changed_at": format_time(row.state_changed_at),
        "changed_seq": row.changed_seq,
    }


def slots_view(use: NodeUse) -> list[Document]:
    """The GPUs of a node, slot by slot: what each is, its fault, and who holds it."""
    slots = []
    for slot, gpu in enumerate(use.node.gpus):
        held = use.held.get(slot)
        lease = {"job_id": held[0], "attempt": held[1], "rank": held[2]} if held else None
        fault = use.node.faults.get(str(slot))
        slots.append({"slot": slot, "uuid": gpu["uuid"], "island": gpu["island"], "fault": fault, "lease": lease})
    return slots


def leader_view(row: ClusterRow) -> Document:
    """Who leads, and what holds for the whole cluster."""
    return {
        "epoch": row.epoch,
        "holder": row.holder,
        "elected_at": format_time(row.elected_at),
        "policy_version": row.policy_version,
        "silence": row.silence,
        "silent": row.silent,
        "quiet_until": format_time(row.quiet_until_at),
    }


def policy_view(rows: Sequence[PolicyRow], version: int | None) -> Document | None:
    """A version of the policy, the newest by default, with who put it in force and why; and the history, newest first:
    what each version changed. Version 0 is the built-in default."""
    built_in = DEFAULT.model_dump(mode="json")
    whole = {0: built_in} | {row.version: built_in | row.policy for row in reversed(rows)}
    shown = max(whole) if version is None else version
    if shown not in whole:
        return None
    history = [{**_policy_facts(row), "changed": _changed(whole, row.version)} for row in rows]
    said = {row.version: _policy_facts(row) for row in rows}
    facts = said.get(shown, {"version": 0, "changed_at": None, "actor": None, "reason": "", "seq": None})
    return {**facts, "policy": whole[shown], "history": history}


def _policy_facts(row: PolicyRow) -> Document:
    return {
        "version": row.version,
        "changed_at": format_time(row.at),
        "actor": row.actor,
        "reason": row.reason,
        "seq": row.seq,
    }


def _changed(whole: Mapping[int, Document], version: int) -> Document:
    """Parameters that a version changed: {name: {"from", "to"}}. One whose predecessor is not at hand: against the
    default."""
    before, after = whole.get(version - 1, whole[0]), whole[version]
    names = sorted(name for name in after if before.get(name) != after[name])
    return {name: {"from": before.get(name), "to": after[name]} for name in names}


def event_view(row: TimelineRow) -> Document:
    """An event in the feed's form, with the node and GPUs it is about."""
    return {**event_document(row), "attempt": row.attempt, "node_id": row.node_id, "gpus": row.gpus}


def event_document(row: TimelineRow) -> Document:
    """A record of read.timeline in the feed's form."""
    return {
        "seq": row.seq,
        "at": format_time(row.at),
        "n": row.n,
        "cluster": row.cluster,
        "type": row.type,
        "v": row.v,
        "job_id": row.job_id,
        "team": row.team,
        "actor": row.actor,
        "cause": row.cause,
        "input": {"kind": row.input_kind, "id": row.input_id},
        "body": row.body,
    }
