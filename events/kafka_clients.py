"""A reader and a writer of one partition, over aiokafka 0.14 (pinned: `abandon` reaches into its producer).

Readers assign and seek, in no group, and never start anywhere by themselves. Writers never try again what
failed; what aiokafka repeats inside one append is idempotent.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, ProducerClosed

from events.kafka_topics import KafkaSite
from events.log import LogUnavailable, LogUnusable, Raw, UnknownOutcome

READ_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
FETCH_BYTES = 8 * 1024 * 1024
BATCH_BYTES = 256 * 1024
REQUEST_TIMEOUT_MS = 4000
"""Below the limit of an append: a leader that hangs is given up in time to try its successor."""
QUIET_S = 10.0
"""aiokafka's loggers say the same thing once in this time: with a broker down they say it 80 times a second."""


class Reader:
    """Reads one partition in order; not to be used by two tasks at once.

    With `eager` it asks for more while nobody does (a follower). Without, it rests between polls: a fetch that waits
    at the old place would hold up the next poll elsewhere.
    """

    def __init__(self, site: KafkaSite, partition: TopicPartition, *, eager: bool = False) -> None:
        self._site = site
        self._partition = partition
        self._eager = eager
        self._consumer: AIOKafkaConsumer | None = None
        self._next = -1

    async def poll(self, after: int, limit: int, timeout_s: float) -> list[Raw]:
        """Up to `limit` records after `after`; empty where none came in time. Raises LogUnusable, LogUnavailable."""
        records = await self._poll(after, limit, timeout_s)
        return [Raw(record.offset, record.value or b"") for record in records]

    async def header(self, offset: int, name: str) -> str | None:
        """A header of the record at `offset`; None where it has none of that name."""
        records = await self._poll(offset - 1, 1, READ_TIMEOUT_S)
        values = [value for key, value in records[0].headers if key == name] if records else []
        return values[0].decode() if values else None

    async def bounds(self) -> tuple[int, int]:
        """The offsets of the first record kept and of the last one."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                consumer = await self._started()
                first = await consumer.beginning_offsets([self._partition])
                end = await consumer.end_offsets([self._partition])
                return first[self._partition], end[self._partition] - 1
        except (KafkaError, OSError, TimeoutError) as error:
            await self.stop()
            raise LogUnavailable(f"Kafka: {error!r}") from error

    async def stop(self) -> None:
        """End the connections; also after an error, when the consumer's state is not to be trusted."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await _finish(consumer.stop())
            await _finish(consumer._client.close())  # which `stop` leaves out where one of its tasks was cancelled

    async def _poll(self, after: int, limit: int, timeout_s: float) -> Sequence[Any]:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S + timeout_s):
                consumer = await self._started()
                if self._next != after + 1:
                    consumer.seek(self._partition, after + 1)
                    self._next = after + 1
                consumer.resume(self._partition)
                found = await consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=limit)
                if not self._eager:
                    consumer.pause(self._partition)
        except OffsetOutOfRangeError as error:
            await self.stop()
            raise LogUnusable(f"offset {after + 1} is not in the log: it was truncated or made anew") from error
        except (KafkaError, OSError, TimeoutError) as error:
            await self.stop()
            raise LogUnavailable(f"Kafka: {error!r}") from error
        except BaseException:  # cancelled between a fetch and its answer: where it stands is unsure
            self._next = -1
            raise
        records: Sequence[Any] = found.get(self._partition, ())
        if records:
            self._next = records[-1].offset + 1
        return records

    async def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._site.bootstrap,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                # A fetch waits in the broker for the first byte, so a long wait costs a follower nothing.
                fetch_max_wait_ms=500 if self._eager else 10,
                max_partition_fetch_bytes=FETCH_BYTES,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                retry_backoff_ms=50,
                **self._site.options,
            )
            self._consumer = consumer  # before it starts, so that `stop` finds it
            await consumer.start()
            consumer.assign([self._partition])
            consumer.seek(self._partition, 0)
            consumer.pause(self._partition)
            self._next = 0
        return self._consumer


class Writer:
    """Appends to one partition through an idempotent producer, which is made when first needed."""

    def __init__(self, site: KafkaSite, partition: TopicPartition, key: bytes) -> None:
        self._site = site
        self._partition = partition
        self._key = key
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._pending: set[asyncio.Future[Any]] = set()

    async def send(self, value: bytes, timeout_s: float, headers: Sequence[tuple[str, bytes]] = ()) -> int:
        """Append and return the offset. Raises UnknownOutcome whatever went wrong, and drops that producer: it would
        try for ever, and land the record long after."""
        producer = None
        try:
            async with asyncio.timeout(timeout_s):
                producer = await self._started()
                delivery = await producer.send(
                    self._partition.topic,
                    value,
                    key=self._key,
                    partition=self._partition.partition,
                    headers=list(headers),
                )
                self._pending.add(delivery)
                delivery.add_done_callback(self._pending.discard)
                stored = await delivery
        except Exception as error:
            if producer is None or producer is self._producer:
                await self.abandon()  # else another append has dropped it already
            raise UnknownOutcome(f"Kafka: {error!r}") from error
        # DuplicateSequenceNumber comes as a success at -1, plus the place in the batch: 0, 1, 2 look like offsets.
        # Only the log's start, which is -1 then too, tells.
        if stored.offset is None or stored.offset < 0 or (stored.log_start_offset or 0) < 0:
            raise UnknownOutcome(f"Kafka acknowledged without an offset: {stored}")
        return int(stored.offset)

    async def close(self) -> None:
        """Let the producer finish; where it does not, drop it."""
        if self._producer is not None and await _finish(self._producer.stop()):
            self._producer = None
        await self.abandon()

    async def abandon(self) -> None:
        """Drop the producer with all that it holds: nothing more is sent, and whoever waits for it gets an error."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._closed = True
        for connection in producer.client._conns.values():
            if connection._writer is not None:
                connection._writer.transport.abort()  # close would flush
        task = producer._sender.sender_task
        for _ in range(3):  # the first only makes it wait for its requests, the next cancels these
            if task is None or task.done():
                break
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
        for delivery in self._pending:
            if not delivery.done():
                delivery.set_exception(ProducerClosed())
        await _finish(producer.client.close())

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._site.bootstrap,
                    enable_idempotence=True,
                    acks="all",
                    linger_ms=0,
                    max_batch_size=BATCH_BYTES,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                    retry_backoff_ms=50,
                    **self._site.options,
                )
                self._producer = producer
                await producer.start()
            return self._producer


async def _finish(work: Coroutine[Any, Any, None]) -> bool:
    """Let a client end by itself for a while; whether it did. In a task of its own, as aiokafka's fetcher lets the
    cancellation of its tasks out, which here would look like one of ours."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
    if not task.done():
        task.cancel()
        return False
    return not task.cancelled() and task.exception() is None


class _OnceInAWhile(logging.Filter):
    """Lets the same message of the same logger through once in QUIET_S."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, str(record.msg)), time.monotonic()
        if now - self._said.get(key, -QUIET_S) < QUIET_S:
            return False
        self._said[key] = now
        return True


_once_in_a_while = _OnceInAWhile()


def quieten() -> None:
    """Put the limit on each of aiokafka's loggers; a filter does not pass on to the loggers below."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("aiokafka"):
            logging.getLogger(name).addFilter(_once_in_a_while)
