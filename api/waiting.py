"""Why a job waits: every reason, as a code with figures and a sentence for people.

The planner's own word (api.factors) where the process has it, and else what the read models know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from api.factors import are, by_rule, count, documents, gpus
from api.times import format_time
from commands.displace import protected
from commands.shape import ANYWHERE, charged_gpus, demanded, takes_whole_nodes
from events.ids import GpuType, TeamId
from events.job import CheckpointPlan, JobSpec, JobState, PriorityClass, Span, Topology
from projections.blockers import Held, Room
from projections.queries import Ahead, QuotaUse
from projections.rows import JobRow
from scheduler.planning.explain import Factor, Reason

Document = dict[str, Any]
LISTED_MAX = 3
"""Jobs that a sentence names; the figures have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was looked up about a waiting job; what was not is None, and nothing is said of it. `others`: what is held
    for other jobs of its type; `now`: a backoff that ended before it is none; `factors`: the planner's word."""

    ahead_of_type: int | None = None
    quota: QuotaUse | None = None
    rooms: Sequence[Room] | None = None
    others: Sequence[Held] = ()
    now: int = 0
    factors: Sequence[Reason] | None = None


def known_of(
    ahead: Ahead | None,
    quotas: Sequence[QuotaUse],
    rooms: Sequence[Room],
    others: Sequence[Held],
    row: JobRow,
    now: int,
    factors: Sequence[Reason] | None = None,
) -> Known:
    """Of what was read for one job."""
    unset = QuotaUse(row.team, row.gpu_type, 0, 0, 0)
    quota = next((use for use in quotas if use.gpu_type == row.gpu_type), unset)
    of_type = None if ahead is None else ahead.of_type
    return Known(ahead_of_type=of_type, quota=quota, rooms=rooms, others=others, now=now, factors=factors)


def is_waiting(row: JobRow) -> bool:
    """Whether it is QUEUED, held or not."""
    return row.state == JobState.QUEUED


def throttle_of(row: JobRow) -> int | None:
    """Of an array with as many elements running as may at once: how many that is. It is in no queue meanwhile."""
    throttle: int | None = (row.spec.get("array") or {}).get("throttle")
    return throttle if throttle is not None and row.elements_open >= throttle else None


def is_in_queue(row: JobRow) -> bool:
    """Whether a job that waits does so for GPUs alone."""
    return not row.held and not row.waits_on and throttle_of(row) is None


def estimated_start(row: JobRow) -> str | None:
    """When it is to start, where nodes are reserved for it; of no other job is that known."""
    return format_time(row.reservation["start_at"]) if row.reservation is not None and is_waiting(row) else None


def waiting_view(row: JobRow, known: Known) -> Document:
    """What is known of why a job waits."""
    ahead = known.ahead_of_type if is_in_queue(row) else None
    return {
        "job_id": row.job_id,
        "state": row.state,
        "since": format_time(row.queued_at),
        "queue_reason": row.queue_reason,
        "ahead_of_type": ahead,
        "estimated_start": estimated_start(row),
        "reasons": list(_reasons(row, known, ahead)) if is_waiting(row) else [],
    }


def _reasons(row: JobRow, known: Known, ahead: int | None) -> Iterator[Document]:
    """All that holds it back, and then its place; its place first where that is all."""
    told = list(_of_the_tables(row, known))
    if known.factors is not None:
        told = list(documents(row, known.factors, told))
    place = [] if ahead is None else [{"code": "queued", "ahead": ahead, "text": _place(ahead, row.gpu_type)}]
    free = known.factors is not None and all(reason.factor is Factor.NEXT for reason in known.factors)
    yield from place + told if free else told + place


def _of_the_tables(row: JobRow, known: Known) -> Iterator[Document]:
    spec = _asked(row)
    if row.held:
        yield {"code": "held", "text": "held until it is released"}
    if jobs := row.waits_on:
        yield {"code": "dependencies", "jobs": jobs, "text": f"waits for the end of {', '.join(jobs)}"}
    if row.not_before_at is not None and row.not_before_at > known.now:
        until = format_time(row.not_before_at)
        yield {"code": "backoff", "until": until, "text": f"is not tried again before {until}"}
    yield from _throttled(row)
    yield from _pledged(row)
    if known.rooms is not None:
        if known.quota is not None:
            yield from _over_limit(spec, known.rooms, known.quota)
            yield from _not_covered(row, spec, known.rooms, known.quota)
        if row.pledge is None:
            yield from _no_room(spec, known.rooms) or _held_for_others(row.gpu_type, known.others)


def _asked(row: JobRow) -> JobSpec:
    """As much of the spec as placement and coverage look at."""
    hint = row.spec.get("topology") or {}
    return JobSpec(
        team=TeamId(row.team),
        command=(),
        gpu_type=GpuType(row.gpu_type),
        max_runtime_s=None,
        replicas=row.spec["replicas"],
        gpus_per_replica=row.spec["gpus_per_replica"],
        topology=Topology(
            pack=Span(hint["pack"]) if hint.get("pack") else None,
            spread=Span(hint["spread"]) if hint.get("spread") else None,
            max_blocks=hint.get("max_blocks"),
            strict=hint.get("strict", True),
        ),
        checkpoint=CheckpointPlan(preemptible=row.spec["checkpoint"]["preemptible"]),
    )


def _place(ahead: int, gpu_type: str) -> str:
    if ahead == 0:
        return f"first in the queue for {gpu_type} GPUs"
    return f"{count(ahead, 'job')} for {gpu_type} GPUs {'is' if ahead == 1 else 'are'} ahead in the queue"


def _over_limit(spec: JobSpec, rooms: Sequence[Room], quota: QuotaUse) -> Iterator[Document]:
    """What the team is charged already leaves too little of its limit, whatever nodes the job would be given."""
    asked = _charge(spec, rooms)
    limit = quota.guaranteed + quota.borrow_limit
    if asked + quota.in_use <= limit:
        return
    yield {
        "code": "over_limit",
        "team": quota.team,
        "gpu_type": quota.gpu_type,
        "asked": asked,
        "use": quota.in_use,
        "limit": limit,
        "guaranteed": quota.guaranteed,
        "borrow_limit": quota.borrow_limit,
        "text": f"asks for {gpus(asked, quota.gpu_type)}; team {quota.team} uses {quota.in_use} of the {limit}"
        " that it may use",
    }


def _charge(spec: JobSpec, rooms: Sequence[Room]) -> int:
    """GPUs that count as its team's use, on the nodes where that is least."""
    fitting = [room.node_gpus for room in rooms if room.node_gpus >= spec.gpus_per_replica]
    return min((charged_gpus(spec, size) for size in fitting), default=spec.gpus)


def _not_covered(row: JobRow, spec: JobSpec, rooms: Sequence[Room], quota: QuotaUse) -> Iterator[Document]:
    """What is never stopped starts inside the guarantee alone, and the team's use leaves too little of that (R-40)."""
    asked = _charge(spec, rooms)
    if not protected(spec, PriorityClass(row.priority_class)) or asked + quota.in_use <= quota.guaranteed:
        return
    text = (
        "may not be preempted, and so starts only inside its team's guarantee: asks for"
        f" {gpus(asked, quota.gpu_type)}; team {quota.team} uses {quota.in_use}, and is guaranteed {quota.guaranteed}"
    )
    figures = {"asked": asked, "use": quota.in_use, "guaranteed": quota.guaranteed}
    yield {"code": "not_covered", "team": quota.team, "gpu_type": quota.gpu_type, **figures, "text": text}


def _throttled(row: JobRow) -> Iterator[Document]:
    """As many elements of the array are there as may be at once."""
    if (throttle := throttle_of(row)) is None:
        return
    text = f"{count(row.elements_open, 'element')} {are(row.elements_open)} running, and no more than {throttle} may"
    yield {"code": "throttled", "running": row.elements_open, "throttle": throttle, "text": text}


def _pledged(row: JobRow) -> Iterator[Document]:
    """Room is being made for it (R-45)."""
    if (pledge := row.pledge) is None:
        return
    stopped, awaited = ([key[0] for key in pledge[name]] for name in ("victims", "awaited"))
    told = [f"{_listed(stopped)} {are(len(stopped))} being stopped for it"] if stopped else []
    told += [f"the end of {_listed(awaited)} is awaited"] if awaited else []
    text = f"room is being made{by_rule(pledge['rule'])}: {'; '.join(told) or 'elastic jobs give GPUs back'}"
    figures = {"rule": pledge["rule"], "gpus": pledge["gpus"], "victims": stopped, "awaited": awaited}
    yield {"code": "pledged", **figures, "text": text}


def _held_for_others(gpu_type: str, others: Sequence[Held]) -> list[Document]:
    """Enough is free, by the counts; some of it is held."""
    found: list[Document] = []
    for one in others:
        start = format_time(one.start_at)
        when = f", which is to start at {start}" if start else ", for which room is made"
        text = f"{count(one.nodes, 'node')} with {gpu_type} GPUs {are(one.nodes)} held for {one.job_id}{when}"
        found.append({"code": "reserved", "job": one.job_id, "nodes": one.nodes, "start_at": start, "text": text})
    return found


def _no_room(spec: JobSpec, rooms: Sequence[Room]) -> list[Document]:
    """Not enough free GPUs on nodes that are in service, and the nodes that are not."""
    usable = [room for room in rooms if room.node_gpus >= spec.gpus_per_replica and room.serving]
    if not any(_fits(spec, room) for room in usable):
        return [_capacity(spec, usable), *_out_of_service(spec.gpu_type, rooms)]
    if demanded(spec) != ANYWHERE and spec.replicas > 1:
        return [
            {
                "code": "hint",
                "pack": spec.topology.pack,
                "spread": spec.topology.spread,
                "max_blocks": spec.topology.max_blocks,
                "text": "enough GPUs are free; they have to lie as its topology hint asks, too",
            }
        ]
    return []


def _on_one_node(spec: JobSpec) -> int:
    """GPUs that have to be on one node."""
    return spec.gpus if demanded(spec).pack is Span.NODE else spec.gpus_per_replica


def _fits(spec: JobSpec, room: Room) -> bool:
    """By the counts, whatever the hint asks for beyond them."""
    if takes_whole_nodes(spec, room.node_gpus):
        return charged_gpus(spec, room.node_gpus) // room.node_gpus <= room.whole
    return spec.replicas <= room.replicas and _on_one_node(spec) <= room.largest


def _capacity(spec: JobSpec, usable: Sequence[Room]) -> Document:
    """Figures of the nodes that come nearest: those with the most whole nodes free, then the most free GPUs."""
    room = max(usable, key=lambda one: (one.whole, one.free), default=None)
    free, total = sum(one.free for one in usable), sum(one.gpus for one in usable)
    figures: Document = {"code": "capacity", "gpu_type": spec.gpu_type, "gpus_free": free, "gpus_in_service": total}
    if room is None:
        text = f"needs {gpus(spec.gpus, spec.gpu_type)}; no node with such GPUs is in service"
        return {**figures, "gpus_needed": spec.gpus, "text": text}
    figures["gpus_needed"] = charged_gpus(spec, room.node_gpus)
    if takes_whole_nodes(spec, room.node_gpus):
        wanted = charged_gpus(spec, room.node_gpus) // room.node_gpus
        figures |= {"whole_nodes_needed": wanted, "whole_nodes_free": room.whole, "node_gpus": room.node_gpus}
        nodes = f"{count(wanted, 'whole node')} of {gpus(room.node_gpus, spec.gpu_type)}"
        return {**figures, "text": f"needs {nodes}; {room.whole} of {room.serving} {are(room.whole)} free"}
    text = f"needs {gpus(spec.gpus, spec.gpu_type)}"
    together, largest = _on_one_node(spec), max(one.largest for one in usable)
    if together > 1:
        figures |= {"gpus_on_one_node": together, "largest_free_on_one_node": largest}
        text += " on one node" if together == spec.gpus else f", each {together} on one node"
    text += f"; {free} of {total} {are(free)} free"
    if together > 1 and free >= together:
        text += f", at most {largest} on one node"
    return {**figures, "text": text}


def _out_of_service(gpu_type: str, rooms: Sequence[Room]) -> Iterator[Document]:
    figures = {
        name: sum(getattr(room, name) for room in rooms) for name in ("drained", "silent", "lost", "unconfirmed")
    }
    if not (out := sum(figures.values())):
        return
    names = sorted(name for room in rooms for name in room.out_names)[:3]
    told = ", ".join(f"{count} {name}" for name, count in figures.items() if count)
    listed = ", ".join(names) + (", ..." if out > len(names) else "")
    text = f"{count(out, 'node')} with {gpu_type} GPUs {are(out)} out of service: {told} ({listed})"
    yield {"code": "out_of_service", "gpu_type": gpu_type, **figures, "nodes": names, "text": text}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED_MAX]) + (f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else "")
