"""A machine under the process runtime, whose agent can be lost."""

from pathlib import Path

import pytest

from agent.book import LeaseRecord
from agent.clock import LoopClock
from agent.ports import Observed
from agent.process_runtime import ProcessRuntime, ProcessSettings
from agent.processes import all_pids, marked
from events.ids import LeaseId
from scheduler.link import Phase
from tests.agent.builders import GPU, LEASE
from tests.servers.waiting import WITHIN_S, until


class Machine:
    """A runtime over a state directory, what it observed, and another one after the first was lost."""

    def __init__(self, state: Path, settings: ProcessSettings | None = None) -> None:
        self.state = state
        self.settings = settings or ProcessSettings(margin_s=0.0)
        self.runtime = ProcessRuntime(state, LoopClock(), self.settings)
        self.seen: list[Observed] = []

    def restart(self, *records: LeaseRecord) -> list[int]:
        """Forget the runtime, as an agent's kill -9 does; the next adopts these leases. Returns the orphans' pids."""
        self.runtime = ProcessRuntime(self.state, LoopClock(), self.settings)
        self.seen.clear()
        return [orphan.pid for orphan in self.runtime.adopt(records)]

    def look(self) -> list[Observed]:
        self.seen += self.runtime.poll()
        return self.seen

    def until_phase(self, phase: Phase, within_s: float = WITHIN_S) -> Observed:
        return until(
            lambda: next((seen for seen in self.look() if seen.phase is phase), None), within_s=within_s, what=phase
        ) or pytest.fail(phase)

    def ended(self, within_s: float = WITHIN_S) -> Observed:
        return self.until_phase(Phase.ENDED, within_s)

    def processes(self) -> dict[int, str]:
        return marked(str(self.state.resolve()))

    def output(self, lease: LeaseId = LEASE) -> str:
        path = self.state / "leases" / lease / "output.log"
        return path.read_text() if path.exists() else ""

    def status(self) -> str:
        path = self.state / "leases" / LEASE / "status.json"
        return path.read_text() if path.exists() else ""

    def touch(self, name: str) -> None:
        """Make a file in the folder that LEASE works in: its task waits for it."""
        (self.state / "leases" / LEASE / "work" / name).touch()

    def shims(self) -> list[int]:
        wanted = str(self.state / "leases").encode()
        return [pid for pid in all_pids() if wanted in _command_line(pid)]

    def until_output(self, words: str) -> None:
        until(lambda: words in self.output(), what=words)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def record(phase: Phase = Phase.RUNNING, *, started: bool = True, read_to: int = 0) -> LeaseRecord:
    """What a journal says of LEASE."""
    return LeaseRecord(lease_id=LEASE, grant=(1, 10), phase=phase, gpu_uuids=(GPU,), started=started, read_to=read_to)
