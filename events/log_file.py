"""A log in a file: exported from where it is kept, and read through the same port. It is never written on.

Text, for people and their tools too. A first line of JSON that says what it is; then a line for each record: its
offset, a tab, `=` (bytes as they are) or `64` (in base 64, where they hold a line's end), a tab, its bytes; a last line
with what is known of the head (P-5), so that a file that was cut off shows it. `cut -f3 | jq` reads it.
"""

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from events.ids import ClusterId, LogId
from events.log import READ_BATCH, AppendRefused, LogUnusable, Noted, Raw, RecordLog, read_log_id

FORMAT = 1
INDEX_EVERY = 1_000


class LogFile:
    """RecordLog over a file. Knows its records' offsets as they stand in it; gaps are for the reader to find."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("rb")
        self._offsets: list[int] = []
        self._places: list[int] = []
        self._end = -1
        self.noted: tuple[Noted, ...] = ()
        """Heads known when it was exported; empty where the last line is missing."""
        self.cut = "the file has no last line: it was cut off"
        """How the file's end shows that it is not as it was exported; "" where it does not."""
        try:
            self.cluster = self._read_first()
            self._index()
        except LogUnusable:
            self._file.close()
            raise

    async def open(self, *, create: bool = False) -> LogId:
        """As RecordLog.open. Raises LogUnusable where its first record is no genesis."""
        found = await read_log_id(self)
        if found is None:
            raise LogUnusable(f"{self._path}: there is no record in it")
        return found

    async def close(self) -> None:
        """As RecordLog.close."""
        self._file.close()

    async def abandon(self) -> None:
        """As RecordLog.abandon."""
        self._file.close()

    async def append(self, value: bytes, expected: int, timeout_s: float = 15.0) -> int:
        """As EventLog.append: refused."""
        raise AppendRefused("an exported log is not written on")

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read; a gap does not end it."""
        if after > self._end:
            raise LogUnusable(f"{self._path}: it ends at {self._end}, the position is {after}")
        place = max(0, bisect_right(self._offsets, after) - 1)
        self._file.seek(self._places[place] if self._places else 0)
        found: list[Raw] = []
        while len(found) < limit and (raw := self._next()) is not None:
            if raw.offset > after:
                found.append(raw)
        return found

    async def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """As RecordLog.follow, but it ends: nothing comes any more."""
        while batch := await self.read(after, READ_BATCH):
            after = batch[-1].offset
            yield batch

    async def end(self) -> int:
        """As RecordLog.end."""
        return self._end

    # Lines

    def _read_first(self) -> ClusterId:
        try:
            first = orjson.loads(self._file.readline())
            if first["signalbox_log"] != FORMAT:
                raise LogUnusable(f"{self._path}: format {first['signalbox_log']}, this build reads {FORMAT}")
            return ClusterId(first["cluster"])
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise LogUnusable(f"{self._path}: its first line is not that of an exported log: {error}") from None

    def _index(self) -> None:
        """Look once at every line: where each thousandth record begins, the last offset, and the last line."""
        number = 0
        while (place := self._file.tell()) is not None and (line := self._file.readline()):
            if line.startswith(b"{"):
                self._read_last(line, number)
                return
            offset = self._offset(line)
            if number % INDEX_EVERY == 0:
                self._offsets.append(offset)
                self._places.append(place)
            self._end = max(self._end, offset)
            number += 1

    def _read_last(self, line: bytes, count: int) -> None:
        """The last line, after `count` records. What follows it was never exported, and nobody would look at it."""
        try:
            last = orjson.loads(line)
            self.noted, told = tuple(Noted(**noted) for noted in last["noted"]), last["records"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise LogUnusable(f"{self._path}: its last line cannot be read: {error}") from None
        if told != count:
            self.cut = f"the file's last line tells of {told} records, and there are {count}"
        else:
            self.cut = "something follows the file's last line" if self._file.readline(1) else ""

    def _next(self) -> Raw | None:
        line = self._file.readline()
        if not line or line.startswith(b"{"):
            return None
        try:
            offset, how, value = line.split(b"\t", 2)
            return Raw(int(offset), value[:-1] if how == b"=" else b64decode(value))
        except ValueError as error:
            raise LogUnusable(f"{self._path}: a line is no record: {error}") from None

    def _offset(self, line: bytes) -> int:
        try:
            offset, how, _ = line.split(b"\t", 2)
            if how not in (b"=", b"64"):
                raise ValueError(f"{how[:20]!r} is neither = nor 64")
            return int(offset)
        except ValueError as error:
            raise LogUnusable(f"{self._path}: a line is no record: {error}") from None


async def export(log: RecordLog, to: IO[bytes], noted: Sequence[Noted]) -> int:
    """Write the log, to its end as it is now; how many records. `noted` must have been asked for before. Raises
    LogUnusable, LogUnavailable."""
    last, count, after = await log.end(), 0, -1
    _line(to, {"signalbox_log": FORMAT, "cluster": log.cluster})
    while after < last:
        for raw in await log.read(after, READ_BATCH):
            if raw.offset > last:
                break
            to.write(record_line(raw))
            after, count = raw.offset, count + 1
    _line(to, {"records": count, "noted": list(noted)})
    return count


def record_line(raw: Raw) -> bytes:
    """The line of one record."""
    if b"\n" in raw.value:
        return b"%d\t64\t%b\n" % (raw.offset, b64encode(raw.value))
    return b"%d\t=\t%b\n" % (raw.offset, raw.value)


def _line(to: IO[bytes], what: dict[str, Any]) -> None:
    to.write(orjson.dumps(what) + b"\n")
