"""The logs in Kafka, for sites that have one (aiokafka, Kafka 4.x; PROTOCOL P-1, P-2, P-5, P-9).

Kafka stores whatever a deposed leader sends and acknowledges it: only the filter (events.chain) makes that
harmless. Must not use transactions, groups or key hashing.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

from aiokafka import TopicPartition

from events import codec
from events.envelope import Genesis
from events.ids import ClusterId, LogId
from events.kafka_clients import READ_TIMEOUT_S, Reader, Writer, quieten
from events.kafka_topics import KafkaSite, check_topic, create_topic
from events.log import (
    READ_BATCH,
    LogUnavailable,
    LogUnusable,
    Raw,
    UnknownOutcome,
    cut_at_gap,
    read_log_id,
    refuse_oversize,
)

RETRY_S = 0.2
FOLLOW_WAIT_S = 1.0
GENESIS_TIMEOUT_S = 15.0
_LOG_ID_HEADER = "log"

__all__ = ["KafkaCommandLog", "KafkaEventLog", "KafkaSite"]


class _KafkaLog:
    """What both logs share. Reads go through one consumer, each follower has its own."""

    _topic: str
    _keeps_all: bool

    def __init__(self, site: KafkaSite, cluster: ClusterId) -> None:
        quieten()
        self.cluster = cluster
        self._site = site
        self._partition = TopicPartition(f"{site.prefix}.{self._topic}", site.partitions[cluster])
        self._writer = Writer(site, self._partition, cluster.encode())
        self._reader = Reader(site, self._partition)
        self._reading = asyncio.Lock()
        self._known_end = -1

    async def open(self, *, create: bool = False) -> LogId:
        """As RecordLog.open."""
        if create:
            await create_topic(self._site, self._partition.topic)
        await check_topic(self._site, self._partition.topic, self.cluster, keeps_all=self._keeps_all)
        if create and await self.end() < 0:
            await self._begin()
        if (found := await self._log_id()) is None:
            raise LogUnusable(f"topic {self._partition.topic} is empty: the log was never created")
        return found

    async def close(self) -> None:
        """As RecordLog.close."""
        await self._writer.close()
        await self._reader.stop()

    async def abandon(self) -> None:
        """As RecordLog.abandon."""
        await self._writer.abandon()
        await self._reader.stop()

    async def read(self, after: int, limit: int) -> Sequence[Raw]:
        """As RecordLog.read."""
        async with self._reading:
            if after >= self._known_end and not await self._has_more(after):
                return ()
            if not (batch := await self._reader.poll(after, min(limit, READ_BATCH), READ_TIMEOUT_S)):
                raise LogUnavailable(f"record {after + 1} does not come")
            return cut_at_gap(after, batch)

    async def follow(self, after: int) -> AsyncIterator[Sequence[Raw]]:
        """As RecordLog.follow."""
        reader = Reader(self._site, self._partition, eager=True)
        try:
            while True:
                try:
                    batch = await reader.poll(after, READ_BATCH, FOLLOW_WAIT_S)
                except LogUnavailable:
                    await asyncio.sleep(RETRY_S)
                    continue
                if batch:
                    whole = cut_at_gap(after, batch)
                    after = whole[-1].offset
                    yield whole
        finally:
            await reader.stop()

    async def end(self) -> int:
        """As RecordLog.end."""
        async with self._reading:
            return (await self._reader.bounds())[1]

    async def _has_more(self, after: int) -> bool:
        """Look for the end anew; wait a while for one that has fallen behind. Raises LogUnusable."""
        deadline = asyncio.get_running_loop().time() + self._site.truncation_patience_s
        while True:
            start, self._known_end = await self._reader.bounds()
            if after + 1 < start:
                raise LogUnusable(f"the log starts at {start}, the position is {after}: records were deleted")
            if after <= self._known_end:
                return after < self._known_end
            if asyncio.get_running_loop().time() > deadline:
                raise LogUnusable(f"the log ends at {self._known_end}, the position is {after}: it was truncated")
            await asyncio.sleep(0.1)

    async def _begin(self) -> None:
        """Append a genesis. Where two do it at once the first counts, and readers drop the second."""
        genesis = codec.encode(Genesis(log_id=LogId(secrets.token_hex(8)), cluster=self.cluster))
        writer = Writer(self._site, self._partition, self.cluster.encode())
        try:
            await writer.send(genesis, GENESIS_TIMEOUT_S)
        except UnknownOutcome as error:
            raise LogUnavailable(f"the log's first record: {error}") from error
        finally:
            await writer.close()

    async def _log_id(self) -> LogId | None:
        return await read_log_id(self)


class KafkaEventLog(_KafkaLog):
    """EventLog. Stores at the end and returns where; `expected` is the caller's to compare (P-1)."""

    _topic = "events"
    _keeps_all = True
    _dead = False

    async def append(self, value: bytes, expected: int, timeout_s: float = 15.0) -> int:
        """As EventLog.append."""
        if self._dead:
            raise UnknownOutcome("an earlier append had an unknown outcome: this writer is dead")
        refuse_oversize(value)
        try:
            return await self._writer.send(value, timeout_s)
        except BaseException:  # cancelled in the middle: the outcome is as unknown
            self._dead = True
            raise

    async def close(self) -> None:
        """As RecordLog.close; what a dead writer still holds is dropped."""
        await (self.abandon() if self._dead else super().close())


class KafkaCommandLog(_KafkaLog):
    """CommandLog. Each record carries the log's id in a header, for when retention has taken the genesis away."""

    _topic = "commands"
    _keeps_all = False
    _headers: tuple[tuple[str, bytes], ...] = ()

    async def open(self, *, create: bool = False) -> LogId:
        """As RecordLog.open."""
        log_id = await super().open(create=create)
        self._headers = ((_LOG_ID_HEADER, log_id.encode()),)
        return log_id

    async def append(self, value: bytes, timeout_s: float = 5.0) -> int:
        """As CommandLog.append. After a failure the next append gets a new producer."""
        refuse_oversize(value)
        return await self._writer.send(value, timeout_s, self._headers)

    async def _log_id(self) -> LogId | None:
        async with self._reading:
            start, end = await self._reader.bounds()
            if start > 0 and end >= start:
                header = await self._reader.header(start, _LOG_ID_HEADER)
                return None if header is None else LogId(header)
        return await super()._log_id()
