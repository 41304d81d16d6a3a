"""The fleet of a scenario: groups of alike nodes, written as `128x8:h100/block=32`, or read from a list of nodes."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from commands.reports import Register
from events.ids import BlockId, Epoch, GpuType, NodeId
from events.node import GpuSlot
from replay.traces.records import opened, reading
from replay.traces.rows import BadOption, BadTrace

ANY_TYPE = "gpu"
NODES_MAX = 20_000
GPUS_MAX = 64
_SMALL = re.compile(r"[0-9]{1,4}")
_GROUP = re.compile(r"(\d{1,6})x(\d{1,2})(?::([A-Za-z0-9][\w.+-]{0,62}))?((?:/\w+=\d{1,6})*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`nodes` nodes of `gpus` GPUs each; `block` of them under one leaf switch, `rack` in a rack. `memory_gb`: of each
    GPU; 0 where it is not known."""

    nodes: int
    gpus: int
    gpu_type: str = ANY_TYPE
    memory_gb: int = 80
    block: int = 32
    rack: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All groups, in order. `left_out`: nodes of a list that have no GPUs."""

    groups: tuple[Group, ...]
    left_out: int = 0

    @property
    def gpus(self) -> int:
        return sum(group.nodes * group.gpus for group in self.groups)

    def types(self) -> dict[str, int]:
        """GPUs of each type, in the order of the groups."""
        found: Counter[str] = Counter()
        for group in self.groups:
            found[group.gpu_type] += group.nodes * group.gpus
        return dict(found)

    def sizes(self, gpu_type: str) -> dict[int, int]:
        """Node size -> how many nodes of that type have it, large ones first."""
        found: Counter[int] = Counter()
        for group in self.groups:
            if group.gpu_type == gpu_type:
                found[group.gpus] += group.nodes
        return dict(sorted(found.items(), reverse=True))

    def registers(self) -> tuple[Register, ...]:
        """The registration of each node. No block has nodes of two groups."""
        return tuple(self._registers())

    def _registers(self) -> Iterator[Register]:
        first_node = first_block = 0
        for group in self.groups:
            for place in range(group.nodes):
                yield _register(group, first_node + place, first_block + place // group.block)
            first_node += group.nodes
            first_block += -(-group.nodes // group.block)


def _register(group: Group, number: int, block: int) -> Register:
    name = f"n{number:05d}"
    return Register(
        node_id=NodeId(name),
        boot_id=f"{name}-boot",
        incarnation=f"{name}-agent",
        journal=f"{name}-journal",
        last_report=0,
        epoch_floor=Epoch(0),
        block=BlockId(f"b{block:04d}"),
        rack=f"r{number // group.rack:05d}",
        address=name,
        gpu_type=GpuType(group.gpu_type),
        gpu_memory_gb=group.memory_gb,
        gpus=tuple(GpuSlot(uuid=f"{name}-{slot}") for slot in range(group.gpus)),
    )


def parse_fleet(text: str) -> Fleet:
    """`128x8`, `128x8:h100/block=32/rack=4/memory=80`, several with commas between. Raises BadOption."""
    fleet = Fleet(groups=tuple(_group(part.strip()) for part in text.split(",")))
    nodes = sum(group.nodes for group in fleet.groups)
    if nodes > NODES_MAX:
        raise BadOption("fleet", text, f"{nodes} nodes, and at most {NODES_MAX} can be")
    return fleet


def _group(text: str) -> Group:
    if (found := _GROUP.fullmatch(text)) is None:
        raise BadOption("fleet", text, "has to be NODESxGPUS[:TYPE][/block=N][/rack=N][/memory=GB], as 128x8:h100")
    nodes, gpus, gpu_type, more = found.groups()
    group = Group(nodes=int(nodes), gpus=int(gpus), gpu_type=gpu_type or ANY_TYPE)
    if not (group.nodes and 1 <= group.gpus <= GPUS_MAX):
        raise BadOption("fleet", text, f"has to be of at least one node, with 1 to {GPUS_MAX} GPUs")
    for setting in filter(None, more.split("/")):
        group = _set(group, setting)
    return group


def _set(group: Group, setting: str) -> Group:
    key, _, value = setting.partition("=")
    count = int(value)
    match key:
        case "block" if count:
            return replace(group, block=count)
        case "rack" if count:
            return replace(group, rack=count)
        case "memory":
            return replace(group, memory_gb=count)
        case _:
            raise BadOption("fleet", setting, "after / stands block=N or rack=N, at least 1, or memory=GB")


def fleet_of(text: str) -> Fleet:
    """A fleet as it is written on a command line: in short, or the path of a list of nodes."""
    return read_fleet(text) if Path(text).is_file() else parse_fleet(text)


@dataclass(frozen=True, slots=True)
class NodeList:
    """A list of nodes as a table: which columns hold GPUs, their type ("": none) and their memory ("": none)."""

    title: str
    gpus: str
    gpu_type: str = ""
    memory: str = ""


NODE_LISTS = (
    NodeList("Alibaba openb nodes", gpus="gpu", gpu_type="model"),
    NodeList("Philly machines", gpus="number of GPUs", memory="single GPU mem"),
)


def read_fleet(path: Path | str, block: int = 32) -> Fleet:
    """The fleet of a list of nodes: a group for each type and size. Raises BadTrace where it is none that is known.

    What no list says is put in: `block` nodes under a leaf switch.
    """
    path = Path(path)
    with reading(path), opened(path) as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        names = [*(rows.fieldnames or ()), ""]
        kind = next((kind for kind in NODE_LISTS if kind.gpus in names and kind.gpu_type in names), None)
        if kind is None:
            known = "; ".join(f"{kind.title} ({kind.gpus})" for kind in NODE_LISTS)
            raise BadTrace(f"{path}: no list of nodes that is known. Known: {known}")
        alike = Counter(_alike(kind, row, f"{path}, row {number}") for number, row in enumerate(rows, 1))
    left_out = sum(count for (_, gpus, _), count in alike.items() if not gpus)
    groups = tuple(
        Group(nodes=count, gpus=gpus, gpu_type=gpu_type, memory_gb=memory_gb, block=block)
        for (gpu_type, gpus, memory_gb), count in sorted(alike.items())
        if gpus
    )
    if not groups:
        raise BadTrace(f"{path}: none of its {left_out} nodes has a GPU")
    return Fleet(groups=groups, left_out=left_out)


def _alike(kind: NodeList, row: dict[str, str | None], where: str) -> tuple[str, int, int]:
    """(type, GPUs, memory) of a node."""
    gpus, memory = (row.get(kind.gpus) or "").strip(), (row.get(kind.memory) or "").strip().removesuffix("GB")
    if not _SMALL.fullmatch(gpus) or int(gpus) > GPUS_MAX or (memory and not _SMALL.fullmatch(memory)):
        raise BadTrace(f"{where}: {gpus!r} GPUs of {memory!r} GB: has to be 0 to {GPUS_MAX} GPUs, and whole GB")
    return (row.get(kind.gpu_type) or ANY_TYPE).strip(), int(gpus), int(memory or 0)
