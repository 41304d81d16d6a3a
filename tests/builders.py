"""Values that tests of the core are made of: specs, reports, and clusters drawn as text.

A cluster is drawn block by block, a node in each bracket:

    b0: [8] [..xx] | [8 drained]        b0 has three h100 nodes in two racks; GPUs 2 and 3 of the second are in use
    b1 l40s 48: [4] [..|..]             another type and memory (GB); islands of GPUs are divided by |

`[8]` is short for `[........]`. Nodes are called n0, n1, ... as they are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from commands.messages import QuotaLine, SetQuota
from commands.reports import Register
from events.ids import BlockId, Epoch, GpuType, JobId, LeaseId, NodeId, TeamId, lease_id
from events.job import CheckpointPlan, JobSpec, PriorityClass, Span, Topology
from events.node import GpuSlot

H100, L40S = GpuType("h100"), GpuType("l40s")
RED, BLUE = TeamId("red"), TeamId("blue")
ALL_CLASSES = tuple(PriorityClass)
PLENTY = 100_000


def job_id(name: str) -> JobId:
    """The id of the job that a test calls `name`."""
    return JobId(f"j_{name}")


def lease(name: str, rank: int = 0, attempt: int = 1) -> LeaseId:
    return lease_id(job_id(name), attempt, rank)


def spec(**fields: Any) -> JobSpec:
    """A spec with what a test does not care about filled in. `grace_s` and `hint` are short for what holds them."""
    grace_s, hint = fields.pop("grace_s", None), fields.pop("hint", None)
    if grace_s is not None:
        fields["checkpoint"] = CheckpointPlan(grace_s=grace_s)
    if hint is not None:
        fields["topology"] = hint
    return JobSpec(**{"team": RED, "command": ("train",), "gpu_type": H100, "max_runtime_s": 3600, **fields})


def pack(span: str, max_blocks: int | None = None, *, strict: bool = True) -> Topology:
    return Topology(pack=Span(span), max_blocks=max_blocks, strict=strict)


def spread(span: str, max_blocks: int | None = None, *, strict: bool = True) -> Topology:
    return Topology(spread=Span(span), max_blocks=max_blocks, strict=strict)


def at_most(blocks: int, *, strict: bool = True) -> Topology:
    return Topology(max_blocks=blocks, strict=strict)


def quota(
    team: str = RED,
    guaranteed: int = 0,
    borrow_limit: int = PLENTY,
    gpu_type: GpuType = H100,
    classes: tuple[PriorityClass, ...] | None = ALL_CLASSES,
) -> SetQuota:
    line = QuotaLine(gpu_type=gpu_type, guaranteed=guaranteed, borrow_limit=borrow_limit)
    return SetQuota(team=TeamId(team), lines=(line,), classes=classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """One node of a picture. `used`: mask of GPUs in use; `words`: what stands after the GPUs."""

    id: NodeId
    said: Register
    used: int
    words: tuple[str, ...]


def register(name: str, **fields: Any) -> Register:
    """What the agent of a node says first; an 8-GPU H100 node in b0 unless told otherwise."""
    gpus = fields.pop("gpu_count", 8)
    return Register(
        **{
            "node_id": NodeId(name),
            "boot_id": "boot-1",
            "incarnation": "agent-1",
            "journal": f"journal-{name}",
            "last_report": 0,
            "epoch_floor": Epoch(0),
            "block": BlockId("b0"),
            "rack": "r0",
            "address": f"{name}.example",
            "gpu_type": H100,
            "gpu_memory_gb": 80,
            "gpus": tuple(GpuSlot(uuid=f"GPU-{name}-{slot}") for slot in range(gpus)),
            **fields,
        }
    )


_LINE = re.compile(r"(?P<block>\w+)(?: (?P<type>[\w-]+))?(?: (?P<memory>\d+))?:(?P<nodes>.*)")


def drawn(picture: str) -> list[DrawnNode]:
    """The nodes of a picture, in the order in which they are read."""
    nodes: list[DrawnNode] = []
    for line in filter(None, map(str.strip, picture.splitlines())):
        parts = _LINE.fullmatch(line)
        assert parts is not None, f"not a line of a picture: {line}"
        for rack, text in enumerate(re.split(r"(?<=\])\s*\|", parts["nodes"])):
            for inside in re.findall(r"\[([^]]*)\]", text):
                place = {"block": BlockId(parts["block"]), "rack": f"r{rack}"}
                kind = {"gpu_type": GpuType(parts["type"] or H100), "gpu_memory_gb": int(parts["memory"] or 80)}
                nodes.append(_node(f"n{len(nodes)}", inside, {**place, **kind}))
    return nodes


def _node(name: str, inside: str, fields: dict[str, Any]) -> DrawnNode:
    shape, *words = inside.split()
    gpus = "." * int(shape) if shape.isdigit() else shape
    islands = [island for island, part in enumerate(gpus.split("|")) for _ in part]
    gpus = gpus.replace("|", "")
    slots = tuple(GpuSlot(uuid=f"GPU-{name}-{slot}", island=island) for slot, island in enumerate(islands))
    used = sum(1 << slot for slot, glyph in enumerate(gpus) if glyph == "x")
    said = register(name, gpus=slots, **fields)
    return DrawnNode(id=NodeId(name), said=said, used=used, words=tuple(words))


def mask_text(mask: int) -> str:
    """Slots of a mask: 0b1101 -> 0,2,3."""
    return ",".join(str(slot) for slot in range(mask.bit_length()) if mask >> slot & 1)
