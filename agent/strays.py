"""Processes that have no business here: of leases that are over, or strangers on the node's GPUs (R-63)."""

import signal
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field

import structlog

from agent.ports import Orphan
from agent.processes import descendants, environ_of, marked, send_signal
from events.ids import LeaseId

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Strays:
    """`owner`: see agent.processes.MARKER. `holders`: (GPU uuid, pid) of the processes on the node's GPUs."""

    owner: str
    holders: Callable[[], Collection[tuple[str, int]]]
    _strangers: set[tuple[str, int]] = field(default_factory=set)

    def kill_unknown(self, known: Container[LeaseId]) -> tuple[Orphan, ...]:
        """Kill what runs for any other lease of ours. One orphan is told per lease: its first process."""
        found: dict[str, Orphan] = {}
        for pid, lease in sorted(marked(self.owner).items()):
            if LeaseId(lease) in known:
                continue
            if lease not in found:
                gpu = environ_of(pid).get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
                found[lease] = Orphan(gpu_uuid=gpu, pid=pid)
                _log.warning("agent.orphan_killed", pid=pid, lease=lease)
            send_signal([pid], signal.SIGKILL)
        return tuple(found.values())

    def kill_strangers(self, shims: Collection[int]) -> tuple[Orphan, ...]:
        """Kill what is on a GPU and below none of the shims, when it is seen for the second time: at the first look it
        may be of a task that has just begun or ended."""
        held = set(self.holders())
        ours = {pid for shim in shims for pid in descendants(shim)} if held else set()
        strangers = {(gpu, pid) for gpu, pid in held if pid not in ours}
        found = tuple(Orphan(gpu_uuid=gpu, pid=pid) for gpu, pid in sorted(strangers & self._strangers))
        for orphan in found:
            _log.warning("agent.stranger_killed", pid=orphan.pid, gpu=orphan.gpu_uuid)
        send_signal([orphan.pid for orphan in found], signal.SIGKILL)
        self._strangers = strangers
        return found
