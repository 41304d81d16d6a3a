"""What the planner says of a waiting job (scheduler.planning.explain), as codes with figures and sentences for people.

Where the read models know the names behind a figure (which jobs, which nodes), their document is told; the planner's
word decides what is told at all, and in which order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from api.times import format_duration, format_time
from events.preemption import PreemptionRule
from projections.rows import JobRow
from scheduler.planning.explain import Factor, Reason

Document = dict[str, Any]
Figures = Mapping[str, Any]

NAMED = frozenset(
    {Factor.HELD, Factor.DEPENDENCIES, Factor.THROTTLED, Factor.BACKOFF, Factor.PLEDGED, Factor.OUT_OF_SERVICE}
)
"""Of these the read models know more than counts."""
_TIMES = "_at"


def documents(row: JobRow, factors: Iterable[Reason], named: Iterable[Document]) -> Iterator[Document]:
    """Every factor. `named`: what the read models say of the same job."""
    known: dict[str, Document] = {}
    for document in named:
        known.setdefault(document["code"], document)
    for reason in factors:
        before = known.get(reason.factor, {})
        if before and reason.factor in NAMED:
            yield before
            continue
        figures = {name: _shown(name, value) for name, value in reason.figures.items()}
        text = _SENTENCES[reason.factor](row, figures)
        kind = {"team": row.team, "gpu_type": row.gpu_type}
        yield {"code": str(reason.factor), **kind, **before, **figures, "text": text}


def _shown(name: str, value: int | str) -> Any:
    """An instant as a time; 0: there is none."""
    return format_time(int(value) or None) if name.endswith(_TIMES) else value


# Sentences


def _over_limit(row: JobRow, f: Figures) -> str:
    asked = f"asks for {gpus(f['asked'], row.gpu_type)}; team {row.team}"
    if f["asked"] > f["limit"]:
        return f"{asked} may use {f['limit']} in all: it cannot start as the quota is"
    return f"{asked} uses {f['use']} of the {f['limit']} that it may use"


def _not_covered(row: JobRow, f: Figures) -> str:
    return f"may not be preempted, and so starts only inside its team's guarantee: {_guarantee(row, f)}"


def _borrows_too_long(row: JobRow, f: Figures) -> str:
    runs = f"may run for {format_duration(f['left_s'])} more" if f["left_s"] else "has no limit"
    lent = f"GPUs beyond its team's guarantee are lent for at most {format_duration(f['lent_s'])}, and it {runs}"
    return f"{lent}: {_guarantee(row, f)}"


def _guarantee(row: JobRow, f: Figures) -> str:
    asked = f"asks for {gpus(f['asked'], row.gpu_type)}; team {row.team} is guaranteed {f['guaranteed']}"
    if f["asked"] > f["guaranteed"]:
        return f"{asked}: it cannot start as the quota is"
    return f"{asked}, of which {f['covered']} {are(f['covered'])} in use"


def _capacity(row: JobRow, f: Figures) -> str:
    return f"{_needs(row, f)}{_pledged_gpus(f)}{_expected(f)}"


def _hint(row: JobRow, f: Figures) -> str:
    asked = ", ".join(f"{name} {f[name]}" for name in ("pack", "spread", "max_blocks") if name in f)
    return f"enough is free, and not as its hint asks ({asked}): {_needs(row, f)}{_expected(f)}"


def _needs(row: JobRow, f: Figures) -> str:
    if "whole_nodes_needed" in f:
        free = f["whole_nodes_free"]
        nodes = count(f["whole_nodes_needed"], f"whole {row.gpu_type} node")
        best = f", at most {f['best_block_whole_nodes']} in one block" if free else ""
        return f"needs {nodes}; {free} {are(free)} free{best}"
    free, largest = f["gpus_free"], f["largest_free_on_one_node"]
    best = f", at most {largest} on one node" if free else ""
    return f"needs {gpus(f['gpus_needed'], row.gpu_type)}; {free} {are(free)} free for it{best}"


def _pledged_gpus(f: Figures) -> str:
    idle = f["gpus_pledged"]
    return f"; {idle} {are(idle)} idle and kept for jobs that room was made for" if idle else ""


def _expected(f: Figures) -> str:
    return f"; enough is expected by {f['expected_at']}" if f.get("expected_at") else ""


def _gpu_memory(row: JobRow, f: Figures) -> str:
    least, has = f["gpu_memory_gb_min"], f["nodes_with"]
    nodes = count(f["nodes_of_type"], "node")
    return f"needs {least} GB a GPU: {has} of {nodes} with {row.gpu_type} GPUs {'has' if has == 1 else 'have'} that"


def _set_apart(row: JobRow, f: Figures) -> str:
    nodes, free = f["nodes"], f["gpus_free"]
    held = f"{count(nodes, 'node')} with {row.gpu_type} GPUs {are(nodes)} set apart for other jobs, or as hot spares"
    return f"{held}; {free} of their GPUs {are(free)} free"


def _reserved(row: JobRow, f: Figures) -> str:
    held = f"{count(f['nodes'], 'node')} with {row.gpu_type} GPUs {are(f['nodes'])} held for {f['job']}"
    ends = f"might run until {f['ends_at']}" if f["ends_at"] else "has no limit"
    return f"{held}, which is to start at {f['start_at']}; this job {ends}"


def _out_of_service(row: JobRow, f: Figures) -> str:
    told = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in f.items())
    return f"nodes with {row.gpu_type} GPUs are out of service: {told}"


def _pledged(row: JobRow, f: Figures) -> str:
    made = f"room of {gpus(f['gpus'], row.gpu_type)} is being made{by_rule(f['rule'])}"
    return f"{made}: {count(f['victims'], 'job')} {are(f['victims'])} stopped, {f['awaited']} awaited"


def by_rule(rule: str) -> str:
    """The rule under which somebody is stopped, if anybody is."""
    return "" if rule == PreemptionRule.NOBODY else f" ({rule})"


def _order(row: JobRow, f: Figures) -> str:
    return f"under the preset {f['preset']} {count(f['ahead'], 'job')} that came before it {_go(f['ahead'])} first"


def _throttled(row: JobRow, f: Figures) -> str:
    return f"{count(f['elements'], 'element')} {are(f['elements'])} running, and no more may; {f['waiting']} wait"


_SENTENCES: dict[Factor, Callable[[JobRow, Figures], str]] = {
    Factor.HELD: lambda row, f: "held until it is released",
    Factor.DEPENDENCIES: lambda row, f: f"waits for the end of {count(f['jobs'], 'job')}, {f['first']} the first",
    Factor.THROTTLED: _throttled,
    Factor.BACKOFF: lambda row, f: f"is not tried again before {f['until_at']}",
    Factor.PLEDGED: _pledged,
    Factor.OVER_LIMIT: _over_limit,
    Factor.NOT_COVERED: _not_covered,
    Factor.BORROWS_TOO_LONG: _borrows_too_long,
    Factor.CAPACITY: _capacity,
    Factor.HINT: _hint,
    Factor.GPU_MEMORY: _gpu_memory,
    Factor.SET_APART: _set_apart,
    Factor.RESERVED: _reserved,
    Factor.OUT_OF_SERVICE: _out_of_service,
    Factor.ORDER: _order,
    Factor.NEXT: lambda row, f: "nothing holds it back: it starts with the next cycle",
}


def gpus(number: int, gpu_type: str) -> str:
    """ "1 h100 GPU"."""
    return f"{number} {gpu_type} GPU{'' if number == 1 else 's'}"


def count(number: int, what: str) -> str:
    """ "2 nodes"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb to a number."""
    return "is" if number == 1 else "are"


def _go(number: int) -> str:
    return "goes" if number == 1 else "go"
