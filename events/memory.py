"""The logs in memory: for tests and for the simulation, where many processes live in one event loop.

All processes of a simulation share one MemoryStore. Each append passes through a hook that may delay, lose,
double or reorder it as Kafka would. Knows no time but the loop's, and draws nothing at random.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from events import codec
from events.envelope import Genesis
from events.ids import ClusterId, LogId
from events.log import READ_BATCH, AppendRefused, LogUnusable, Raw, UnknownOutcome, read_log_id, refuse_oversize


class Topic(StrEnum):
    EVENTS = "events"
    COMMANDS = "commands"


class Mode(StrEnum):
    """Which real log an events log in memory behaves like."""

    KAFKA = "kafka"
    """Stores at the end whatever comes, and returns where it landed."""
    POSTGRES = "postgres"
    """Refuses a record that would not land where its writer expects it."""


@dataclass(frozen=True, slots=True)
class Produce:
    """An append on its way to the log. `land` stores it and returns its offset.

    It may be called late, when the writer has given up or is dead; never (lost); or twice (doubled).
    In Postgres' mode it raises AppendRefused where the head has moved by then.
    """

    topic: Topic
    cluster: ClusterId
    value: bytes
    land: Callable[[], int]


Deliver = Callable[[Produce], Awaitable[int]]
"""The hook: what it returns is the acknowledgement; what it raises is an unknown outcome (but AppendRefused).
It runs on when the writer's time is up or the writer dies, as a request in a socket does."""


class MemoryPartition:
    """The records of one cluster in one topic, and those who wait for more of them."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.start = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # woken in the order in which they came

    @property
    def end(self) -> int:
        """Offset of the last record; -1: none."""
        return len(self.records) - 1

    def land(self, value: bytes) -> int:
        """Store a record at the end, wake the followers, and return its offset."""
        self.records.append(value)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        return self.end

    def land_at(self, value: bytes, expected: int) -> int:
        """The same, but only at `expected`. Raises AppendRefused."""
        if self.end + 1 != expected:
            raise AppendRefused(f"the head has moved: expected {expected}, the next is {self.end + 1}")
        return self.land(value)

    def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read."""
        if after > self.end:
            raise LogUnusable(f"the log ends at {self.end}, the position is {after}: it was truncated")
        if after + 1 < self.start:
            raise LogUnusable(f"the log starts at {self.start}, the position is {after}: records were deleted")
        return [Raw(place, self.records[place]) for place in range(after + 1, min(after + 1 + limit, self.end + 1))]

    async def grown(self) -> None:
        """Wait for the next record."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def truncate(self, end: int) -> None:
        """Fault: everything after `end` is gone, as after a restore from an older copy."""
        del self.records[end + 1 :]

    def delete_before(self, start: int) -> None:
        """Fault: everything before `start` is gone, as by retention."""
        self.start = start


class MemoryStore:
    """What outlives the processes of a simulation: the partitions, and appends that are still under way."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[Topic, ClusterId], MemoryPartition] = {}
        self._created = 0
        self._under_way: set[asyncio.Task[int]] = set()

    def partition(self, topic: Topic, cluster: ClusterId) -> MemoryPartition:
        """The partition as it is now; an empty one where there was none."""
        return self._partitions.setdefault((topic, cluster), MemoryPartition())

    def recreate(self, topic: Topic, cluster: ClusterId) -> None:
        """Fault: the topic is deleted and created again, empty; readers and writers meet the new one."""
        old = self.partition(topic, cluster)
        old.truncate(-1)
        old.start = 0

    def next_log_id(self, topic: Topic, cluster: ClusterId) -> LogId:
        """Another one at each call, the same ones in each run."""
        self._created += 1
        return LogId(f"memory-{topic}-{cluster}-{self._created}")

    def send(self, deliver: Deliver, produce: Produce) -> asyncio.Task[int]:
        """Begin a delivery that goes on whatever becomes of its sender."""
        task = asyncio.ensure_future(_await(deliver, produce))
        self._under_way.add(task)
        task.add_done_callback(self._arrived)
        return task

    def _arrived(self, task: asyncio.Task[int]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the sender may be gone


async def _await(deliver: Deliver, produce: Produce) -> int:
    return await deliver(produce)


class _MemoryLog:
    """What both logs share: reading, and opening."""

    _topic: Topic

    def __init__(self, store: MemoryStore, cluster: ClusterId, *, deliver: Deliver | None = None) -> None:
        self.cluster = cluster
        self._store = store
        self._deliver = deliver
        self._partition = store.partition(self._topic, cluster)

    async def open(self, *, create: bool = False) -> LogId:
        """As RecordLog.open."""
        if create and self._partition.end < 0:
            log_id = self._store.next_log_id(self._topic, self.cluster)
            self._partition.land(codec.encode(Genesis(log_id=log_id, cluster=self.cluster)))
        found = await read_log_id(self)
        if found is None:
            raise LogUnusable("the log has no genesis: it was never created")
        return found

    async def close(self) -> None:
        """Nothing to let go of."""

    async def abandon(self) -> None:
        """Nothing to drop: what is under way is the store's."""

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read."""
        return self._partition.read(after, limit)

    async def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """As RecordLog.follow."""
        while True:
            if batch := await self.read(after, READ_BATCH):
                after = batch[-1].offset
                yield batch
            else:
                await self._partition.grown()

    async def end(self) -> int:
        """As RecordLog.end."""
        return self._partition.end

    async def _send(self, value: bytes, land: Callable[[], int], timeout_s: float) -> int:
        """Have a record delivered; whatever goes wrong but a refusal is an unknown outcome."""
        refuse_oversize(value)
        if self._deliver is None:
            await asyncio.sleep(0)  # as with a server, others get a turn before the record is stored
            return land()
        task = self._store.send(self._deliver, Produce(self._topic, self.cluster, value, land))
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            raise UnknownOutcome(f"no answer in {timeout_s} s")
        if task.cancelled():
            raise UnknownOutcome("the delivery was cut off")
        if (error := task.exception()) is None:
            return task.result()
        if isinstance(error, AppendRefused | UnknownOutcome):
            raise error
        raise UnknownOutcome(str(error)) from error


class MemoryEventLog(_MemoryLog):
    """EventLog over a store; `mode` says which real log it behaves like."""

    _topic = Topic.EVENTS

    def __init__(
        self,
        store: MemoryStore,
        cluster: ClusterId,
        *,
        mode: Mode = Mode.KAFKA,
        deliver: Deliver | None = None,
    ) -> None:
        super().__init__(store, cluster, deliver=deliver)
        self._mode = mode
        self._dead = False

    async def append(self, value: bytes, expected: int, timeout_s: float = 15.0) -> int:
        """As EventLog.append."""
        if self._dead:
            raise UnknownOutcome("an earlier append had an unknown outcome: this writer is dead")
        try:
            return await self._send(value, lambda: self._land(value, expected), timeout_s)
        except AppendRefused:
            raise
        except BaseException:  # a writer that is cancelled here does not know the outcome either
            self._dead = True
            raise

    def _land(self, value: bytes, expected: int) -> int:
        if self._mode is Mode.POSTGRES:
            return self._partition.land_at(value, expected)
        return self._partition.land(value)


class MemoryCommandLog(_MemoryLog):
    """CommandLog over a store."""

    _topic = Topic.COMMANDS

    async def append(self, value: bytes, timeout_s: float = 5.0) -> int:
        """As CommandLog.append."""
        return await self._send(value, lambda: self._partition.land(value), timeout_s)
