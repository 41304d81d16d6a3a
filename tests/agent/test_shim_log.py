"""The bounded output of a task, chunk by chunk: what its files hold at every boundary, and when the disk says no."""

import os
from pathlib import Path

from agent.shim_log import OutputLog
from agent.tail import read_log

HALF = 1000
NOTE_BYTES = 100


class Written:
    """A log of two halves, fed one chunk at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = OutputLog(str(directory), 2 * HALF)

    def write(self, chunk: bytes) -> None:
        os.write(self.log.input, chunk)
        assert self.log.pump() == len(chunk)

    def now(self) -> bytes:
        return (self.directory / "output.log").read_bytes()

    def close(self) -> None:
        self.log.close_input()
        self.log.close()


def test_the_newest_output_is_in_the_newest_file(tmp_path: Path) -> None:
    """Also where a chunk fills it to the byte: the next file begins with the chunk that needs it."""
    written = Written(tmp_path)
    for size in (HALF, HALF - NOTE_BYTES, HALF, 1, HALF):
        chunk = os.urandom(size)
        written.write(chunk)
        assert written.now().endswith(chunk)
    written.close()


def test_where_the_next_file_cannot_be_made_output_is_lost_and_the_bound_kept(tmp_path: Path) -> None:
    """Nothing has moved: what was kept reads as before, and when there is room again the output goes on."""
    written = Written(tmp_path)
    written.write(b"a" * HALF)
    hindrance = tmp_path / "log.new"
    hindrance.mkdir()
    for _ in range(5):
        written.write(b"b" * HALF)
    assert [path.name for path in tmp_path.glob("output.log*")] == ["output.log"]
    assert read_log(tmp_path, 0) == (0, b"a" * HALF)
    hindrance.rmdir()
    written.write(b"c" * 10)
    assert read_log(tmp_path, 0) == (0, b"a" * HALF)
    begins, after = read_log(tmp_path, HALF)
    assert (begins, after[-10:]) == (HALF, b"c" * 10)
    written.close()
