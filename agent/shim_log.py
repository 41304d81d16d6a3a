"""The captured output of one task, of bounded size. Standard library only: the shim imports it.

`output.log` is what is written now; when it is full it becomes `output.log.1`, whose predecessor is lost. `log.json`
says how many bytes came before each, so that an offset means the same byte for ever.
"""

from __future__ import annotations

import contextlib
import json
import os

_READ_BYTES = 1 << 16


class OutputLog:
    """A pipe, and the file it ends in. Writers wait for it: output cannot outrun the bound."""

    def __init__(self, directory: str, bytes_max: int) -> None:
        self._directory = directory
        self._half = max(1, bytes_max // 2)
        self._before = 0
        self._size = 0
        self._path = os.path.join(directory, "output.log")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.output, self.input = os.pipe()
        os.set_blocking(self.output, False)

    def close_input(self) -> None:
        """The task has its end: from now on the pipe ends with its last process."""
        os.close(self.input)
        self.input = -1

    def pump(self) -> int | None:
        """Take what is there. 0: nothing more will come; None: there is nothing now."""
        try:
            read = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return None
        if not read:
            return 0
        try:
            self._write(read)
        except OSError:
            # A full disk must not stop the task: the output is lost instead.
            pass
        return len(read)

    def _write(self, chunk: bytes) -> None:
        # Before the chunk and not after it: what is written now always ends with the newest output.
        if self._size >= self._half:
            self._rotate()
        self._size += os.write(self._file, chunk)

    def _rotate(self) -> None:
        """What needs room on the disk comes first: where there is none, nothing has moved, and the next chunk tries
        again."""
        offsets = {"output.log.1": self._before, "output.log": self._before + self._size}
        beside = os.path.join(self._directory, "log.new")
        with open(beside, "w") as file:
            json.dump(offsets, file)
        fresh = os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            with contextlib.suppress(FileNotFoundError):  # it was moved by a try that failed after that
                os.replace(self._path, self._path + ".1")
            os.replace(beside, os.path.join(self._directory, "log.json"))
            os.replace(self._path + ".new", self._path)
        except OSError:
            os.close(fresh)
            raise
        os.close(self._file)
        self._file = fresh
        self._before, self._size = self._before + self._size, 0
        note = f"[signalbox: {self._before} bytes came before; at least {self._half} of them are kept]\n".encode()
        self._size += os.write(self._file, note)

    def close(self) -> None:
        """No more will come."""
        os.close(self._file)
        os.close(self.output)
