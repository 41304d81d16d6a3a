"""The GPUs of a real node: as declared in a file or on the command line, or as NVML sees them."""

import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import structlog

from agent.ports import Inventory
from events.ids import GpuType
from events.node import GpuSlot

_log = structlog.get_logger(__name__)

FATAL_XIDS = frozenset({46, 48, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 136, 140, 143, 145, 154})
"""Errors that are the GPU's. 13, 31, 43 and 45 are the application's and blame nobody (R-71)."""


@dataclass(frozen=True, slots=True)
class DeclaredGpus:
    """What somebody says there is. With `path`, its "faults" (slots) are read each time, for drills."""

    declared: Inventory
    path: Path | None = None

    @classmethod
    def counted(cls, node: str, gpu_type: str, count: int, memory_gb: int) -> "DeclaredGpus":
        """`count` GPUs of a type, their UUIDs made of the node's name."""
        slots = tuple(GpuSlot(uuid=f"GPU-{node}-{index}") for index in range(count))
        return cls(Inventory(gpu_type=GpuType(gpu_type), gpu_memory_gb=memory_gb, slots=slots))

    @classmethod
    def read(cls, path: Path) -> "DeclaredGpus":
        """{"gpu_type": "h100", "gpu_memory_gb": 80, "gpus": [{"uuid": "GPU-1", "island": 0}], "faults": []}"""
        said = orjson.loads(path.read_bytes())
        slots = tuple(GpuSlot(uuid=gpu["uuid"], island=gpu.get("island", 0)) for gpu in said["gpus"])
        gpu_type, memory_gb = GpuType(said["gpu_type"]), int(said["gpu_memory_gb"])
        return cls(Inventory(gpu_type=gpu_type, gpu_memory_gb=memory_gb, slots=slots), path)

    def inventory(self) -> Inventory:
        """As declared."""
        return self.declared

    def faults(self) -> int:
        """As declared; a file that cannot be read now declares none."""
        if self.path is None:
            return 0
        try:
            said = orjson.loads(self.path.read_bytes())
            return sum(1 << slot for slot in set(said.get("faults", ())))
        except (OSError, ValueError):
            return 0


def type_of(name: str, memory_gb: int) -> GpuType:
    """Our word for an NVML product name: `NVIDIA A100-SXM4-80GB` is a100-80, `NVIDIA H100 80GB HBM3` h100."""
    lower = name.lower()
    # Types sold in sizes that a job must tell apart carry the size, rounded to what is on the box.
    for family, sizes in (("a100", (40, 80)), ("v100", (16, 32))):
        if re.search(rf"\b{family}\b", lower):
            return GpuType(f"{family}-{min(sizes, key=lambda size: abs(size - memory_gb))}")
    if found := re.search(r"\b(gb?[23]00|h[12]00|h20|h800|b[123]00|a[1-9]0|l40s?|l4|t4|gh200|rtx \w+)\b", lower):
        return GpuType(found[1].replace(" ", "-"))
    return GpuType(re.sub(r"[^a-z0-9]+", "-", lower.removeprefix("nvidia ")).strip("-"))


@dataclass(slots=True)
class NvmlGpus:
    """What NVML sees, in its order, as it was when the agent started: a GPU that falls off the bus stays in the
    inventory and is a fault, so that slots keep their UUIDs (P-21). `nvml` is the module pynvml, or a stand-in."""

    nvml: Any
    _handles: list[Any] = field(init=False)
    _inventory: Inventory = field(init=False)
    _events: Any = field(init=False, default=None)
    _broken: int = field(init=False, default=0)

    @classmethod
    def open(cls) -> "NvmlGpus":
        """With the driver of this machine. Raises pynvml.NVMLError where there is none."""
        import pynvml

        return cls(pynvml)

    def __post_init__(self) -> None:
        nvml = self.nvml
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        if not self._handles:
            raise ValueError("NVML sees no GPU")
        slots = tuple(GpuSlot(uuid=_text(nvml.nvmlDeviceGetUUID(handle))) for handle in self._handles)
        memory_gb = round(min(nvml.nvmlDeviceGetMemoryInfo(handle).total for handle in self._handles) / 2**30)
        types = {type_of(_text(nvml.nvmlDeviceGetName(handle)), memory_gb) for handle in self._handles}
        if len(types) > 1:
            raise ValueError(f"GPUs of several types on one node: {sorted(types)}")
        self._inventory = Inventory(gpu_type=types.pop(), gpu_memory_gb=memory_gb, slots=slots)
        self._listen()

    def _listen(self) -> None:
        nvml = self.nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError as failure:
            _log.warning("gpus.no_xid_events", reason=str(failure))
            self._events = None

    def inventory(self) -> Inventory:
        """As at the start."""
        return self._inventory

    def faults(self) -> int:
        """Broken stays broken until the agent starts anew, after a repair."""
        self._take_xids()
        for slot, handle in enumerate(self._handles):
            if not self._broken >> slot & 1 and not self._healthy(handle):
                self._broken |= 1 << slot
        return self._broken

    def holders(self) -> list[tuple[str, int]]:
        """(UUID, pid) of the processes that compute on a GPU."""
        found = []
        for slot, handle in zip(self._inventory.slots, self._handles, strict=True):
            try:
                running = self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self.nvml.NVMLError:
                continue
            found += [(slot.uuid, int(process.pid)) for process in running]
        return found

    def _healthy(self, handle: Any) -> bool:
        nvml = self.nvml
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:
            return False
        try:
            kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter)) == 0
        except nvml.NVMLError:
            # Without ECC there is nothing to count.
            return True

    def _take_xids(self) -> None:
        nvml = self.nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                # Nothing has come.
                return
            xid, uuid = int(event.eventData), _text(nvml.nvmlDeviceGetUUID(event.device))
            _log.warning("gpus.xid", xid=xid, uuid=uuid)
            if xid in FATAL_XIDS:
                self._broken |= sum(1 << i for i, slot in enumerate(self._inventory.slots) if slot.uuid == uuid)


class WatchedGpus:
    """Asks from a thread of its own: a driver that hangs, as it does when a GPU dies, must not hold up the agent.
    While it hangs for longer than `patience_s` every slot is called broken."""

    def __init__(self, gpus: NvmlGpus, *, every_s: float = 5.0, patience_s: float = 60.0) -> None:
        self._gpus = gpus
        self._every_s = every_s
        self._patience_s = patience_s
        self._mask = 0
        self._answered_at = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="gpus", daemon=True).start()

    def inventory(self) -> Inventory:
        """As at the start."""
        return self._gpus.inventory()

    def faults(self) -> int:
        """As last seen."""
        if time.monotonic() - self._answered_at > self._patience_s:
            return (1 << len(self._gpus.inventory().slots)) - 1
        return self._mask

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._mask = self._gpus.faults()
            self._answered_at = time.monotonic()
            self._ended.wait(self._every_s)


def _text(value: str | bytes) -> str:
    """Older pynvml gives bytes."""
    return value.decode() if isinstance(value, bytes) else value
