"""The GPUs of a node: declared, and through a stand-in of NVML with its calls and errors."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.gpus import DeclaredGpus, NvmlGpus, WatchedGpus, type_of
from agent.main import open_gpus, parse_declared
from tests.servers.waiting import until


class NVMLError(Exception):
    """As pynvml's."""


class Nvml:
    """The calls of pynvml that are used, over two GPUs."""

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.errors = {0: 0, 1: 0}
        self.xids: list[tuple[int, int]] = []
        self.processes: dict[int, list[int]] = {}
        self.hang = threading.Event()
        self.hang.set()

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        self.nvmlDeviceGetMemoryInfo(handle)
        return [SimpleNamespace(pid=pid) for pid in self.processes[handle]]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        assert self.hang.wait(20)
        if handle in self.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(total=85_520_809_984)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return self.errors[handle]

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, types: int, events: object) -> None: ...

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise NVMLError("timeout")
        device, xid = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=xid)


@pytest.mark.parametrize(
    ("name", "memory_gb", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 80, "h100"),
        ("NVIDIA H100 PCIe", 80, "h100"),
        ("NVIDIA H200", 140, "h200"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80"),
        ("NVIDIA A100-PCIE-40GB", 40, "a100-40"),
        ("Tesla V100-SXM2-32GB", 32, "v100-32"),
        ("NVIDIA B200", 180, "b200"),
        ("NVIDIA GB200", 186, "gb200"),
        ("NVIDIA L40S", 45, "l40s"),
        ("Tesla T4", 15, "t4"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx-4090"),
        ("Something New 9", 9, "something-new-9"),
    ],
)
def test_product_names_become_our_types(name: str, memory_gb: int, expected: str) -> None:
    """What NVML calls a product is one type of ours; those sold in two sizes carry theirs."""
    assert type_of(name, memory_gb) == expected


def test_nvml_gives_the_inventory() -> None:
    """UUIDs in NVML's order, the type, and the memory in GB."""
    inventory = NvmlGpus(Nvml()).inventory()
    assert (inventory.gpu_type, inventory.gpu_memory_gb) == ("h100", 80)
    assert [slot.uuid for slot in inventory.slots] == ["GPU-0", "GPU-1"]


def test_a_gpu_off_the_bus_is_a_fault_and_stays_in_the_inventory() -> None:
    """A GPU that stops answering is masked, keeps its slot, and stays masked when it answers again."""
    nvml = Nvml()
    gpus = NvmlGpus(nvml)
    assert gpus.faults() == 0
    nvml.lost.add(1)
    assert gpus.faults() == 0b10
    nvml.lost.clear()
    assert gpus.faults() == 0b10
    assert len(gpus.inventory().slots) == 2


def test_r_71_a_fatal_xid_and_an_uncorrectable_error_are_the_gpus() -> None:
    """Xid 79 and uncorrectable ECC mask their GPU; Xid 13 is the application's."""
    nvml = Nvml()
    gpus = NvmlGpus(nvml)
    nvml.xids = [(0, 13), (0, 31)]
    assert gpus.faults() == 0
    nvml.xids = [(0, 79)]
    assert gpus.faults() == 0b01
    nvml.errors[1] = 1
    assert gpus.faults() == 0b11


def test_r_63_processes_on_gpus_are_named() -> None:
    """Each process that computes on a GPU is given with its UUID; a GPU that does not answer has none."""
    nvml = Nvml()
    nvml.processes = {0: [11, 12], 1: [13]}
    gpus = NvmlGpus(nvml)
    assert gpus.holders() == [("GPU-0", 11), ("GPU-0", 12), ("GPU-1", 13)]
    nvml.lost.add(1)
    assert gpus.holders() == [("GPU-0", 11), ("GPU-0", 12)]


def test_a_driver_that_hangs_holds_up_nobody() -> None:
    """While NVML does not return, the last answer stands; after a while every GPU is called broken."""
    nvml = Nvml()
    gpus = WatchedGpus(NvmlGpus(nvml), every_s=0.01, patience_s=0.3)
    nvml.errors[1] = 1
    until(lambda: gpus.faults() == 0b10)
    nvml.hang.clear()
    until(lambda: gpus.faults() == 0b11)
    nvml.hang.set()
    until(lambda: gpus.faults() == 0b10)
    gpus.close()


def test_declared_gpus_come_from_a_file_and_their_faults_too(tmp_path: Path) -> None:
    """The inventory is read once, the faults each time."""
    path = tmp_path / "gpus.json"
    path.write_text('{"gpu_type": "h100", "gpu_memory_gb": 80, "gpus": [{"uuid": "A"}, {"uuid": "B", "island": 1}]}')
    gpus = open_gpus(str(path), "n-1")
    assert [(slot.uuid, slot.island) for slot in gpus.inventory().slots] == [("A", 0), ("B", 1)]
    assert gpus.faults() == 0
    path.write_text('{"faults": [1]}')
    assert gpus.faults() == 0b10
    path.write_text("{")
    assert gpus.faults() == 0


def test_declared_gpus_can_be_counted() -> None:
    """`declared:TYPE:COUNT:MEMORY_GB` makes UUIDs of the node's name; anything else is refused."""
    inventory = open_gpus("declared:a100-80:2:80", "n-7").inventory()
    assert [slot.uuid for slot in inventory.slots] == ["GPU-n-7-0", "GPU-n-7-1"]
    assert DeclaredGpus.counted("n-7", "a100-80", 2, 80).inventory() == inventory
    for wrong in ("declared:h100:8", "declared::8:80", "declared:h100:x:80"):
        with pytest.raises(ValueError, match=r"declared|invalid literal"):
            parse_declared(wrong)
