"""What a job appends to its report file, one JSON object a line:

{"checkpoint": {"sequence": 7, "uri": "...", "size_bytes": 9, "step": 1200}}, {"step": 1300}, {"finished": true}
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from agent.ports import Checkpoint

_READ_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class ReportFile:
    """Read as it grows. `read_to`: bytes taken, whole lines only. Lines that say nothing we know are passed over: they
    are the job's, and no fault of the node's."""

    path: Path
    read_to: int = 0
    step: int | None = None
    finished: bool = False

    def read(self) -> tuple[Checkpoint, ...]:
        """The checkpoints reported since."""
        try:
            if self.path.stat().st_size <= self.read_to:
                return ()
            with open(self.path, "rb") as file:
                file.seek(self.read_to)
                new = file.read(_READ_BYTES_MAX)
        except OSError:
            return ()
        whole, _, rest = new.rpartition(b"\n")
        if not whole and len(rest) == _READ_BYTES_MAX:
            # No line is that long: pass over it.
            self.read_to += len(rest)
            return ()
        self.read_to += len(new) - len(rest)
        found = [self._line(line) for line in whole.split(b"\n")]
        return tuple(checkpoint for checkpoint in found if checkpoint is not None)

    def recover_finished(self) -> None:
        """Take up what was read before the agent was restarted, but for the checkpoints."""
        read_to, self.read_to = self.read_to, 0
        while self.read_to < read_to:
            before = self.read_to
            self.read()
            if self.read_to == before:
                break
        self.read_to = read_to

    def _line(self, line: bytes) -> Checkpoint | None:
        try:
            said = orjson.loads(line)
        except ValueError:
            return None
        if not isinstance(said, dict):
            return None
        self.finished = self.finished or said.get("finished") is True
        if isinstance(said.get("step"), int):
            self.step = said["step"]
        checkpoint = said.get("checkpoint")
        return _checkpoint(checkpoint) if isinstance(checkpoint, dict) else None


def _checkpoint(said: dict[str, Any]) -> Checkpoint | None:
    step, size_bytes, uri = said.get("step"), said.get("size_bytes"), said.get("uri")
    sequence = said.get("sequence", step)
    if not _count(sequence) or not isinstance(uri, str) or not (size_bytes is None or _count(size_bytes)):
        return None
    return Checkpoint(sequence=sequence, uri=uri, size_bytes=size_bytes or 0, step=step if _count(step) else None)


def _count(value: object) -> TypeGuard[int]:
    """A whole number that the wire can carry."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
