"""Places to keep logs in: what the contract suites run over, with the faults that each can be given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from events.kafka import KafkaCommandLog, KafkaEventLog, KafkaSite
from events.kafka_topics import create_topic
from events.log import CommandLog, EventLog, Raw
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore, Mode, Produce, Topic
from events.postgres import PostgresCommandLog, PostgresEventLog
from tests.contract.records import CLUSTER
from tests.servers.waiting import until_async

Log = TypeVar("Log", EventLog, CommandLog)


class Place(Protocol):
    """Where logs are kept. `refuses`: an append that does not land where its writer expects is refused."""

    refuses: bool

    def events(self) -> EventLog:
        """A log object as another process has it: nothing shared with the ones before but the place."""
        ...

    def commands(self) -> CommandLog: ...

    def unanswering(self) -> EventLog:
        """One whose appends are not answered in time when their limit is 0; they may land or not."""
        ...

    async def empty(self) -> None:
        """Fault: the logs are gone, made anew without a record."""
        ...

    async def restore(self, records: list[Raw]) -> None:
        """Fault: the events log holds these records and no others."""
        ...


class Opened:
    """The logs that a test has opened; closed when it ends."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._stack = AsyncExitStack()

    async def events(self) -> EventLog:
        """One more process with the events log, which is made where it is not there."""
        return await self.adopt(self.place.events)

    async def commands(self) -> CommandLog:
        """One more process with the commands log."""
        return await self.adopt(self.place.commands)

    async def adopt(self, make: Callable[[], Log]) -> Log:
        """Open what `make` makes, and close it in the end."""
        log = make()
        self._stack.push_async_callback(log.close)
        await log.open(create=True)
        return log

    async def close(self) -> None:
        """Close them all."""
        await self._stack.aclose()


class MemoryPlace:
    """The logs in memory, in either mode."""

    def __init__(self, mode: Mode) -> None:
        self.refuses = mode is Mode.POSTGRES
        self._mode = mode
        self._store = MemoryStore()

    def events(self) -> EventLog:
        return MemoryEventLog(self._store, CLUSTER, mode=self._mode)

    def commands(self) -> CommandLog:
        return MemoryCommandLog(self._store, CLUSTER)

    def unanswering(self) -> EventLog:
        return MemoryEventLog(self._store, CLUSTER, mode=self._mode, deliver=_later)

    async def empty(self) -> None:
        for topic in Topic:
            self._store.recreate(topic, CLUSTER)

    async def restore(self, records: list[Raw]) -> None:
        partition = self._store.partition(Topic.EVENTS, CLUSTER)
        partition.truncate(-1)
        for raw in records:
            partition.land(raw.value)


async def _later(produce: Produce) -> int:
    for _ in range(10):  # turns of the loop, by which time the writer has given up
        await asyncio.sleep(0)
    return produce.land()


class PostgresPlace:
    """The logs in a database."""

    refuses = True

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def events(self) -> EventLog:
        return PostgresEventLog(self.dsn, CLUSTER)

    def commands(self) -> CommandLog:
        return PostgresCommandLog(self.dsn, CLUSTER)

    def unanswering(self) -> EventLog:
        return self.events()

    async def empty(self) -> None:
        await self._execute("DROP SCHEMA log CASCADE")
        for log in (self.events(), self.commands()):
            await log.open(create=True)
            await log.close()

    async def restore(self, records: list[Raw]) -> None:
        await self._execute(
            "ALTER TABLE log.events DISABLE TRIGGER USER; ALTER TABLE log.counters DISABLE TRIGGER USER"
        )
        await self._execute("DELETE FROM log.events")
        connection = await asyncpg.connect(self.dsn)
        await connection.executemany(
            "INSERT INTO log.events VALUES ($1, $2, $3)", [(CLUSTER, raw.offset, raw.value) for raw in records]
        )
        await connection.execute("UPDATE log.counters SET last = $1 WHERE topic = 'events'", records[-1].offset)
        await connection.close()

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(statement)
        await connection.close()


class KafkaPlace:
    """The logs in topics of their own on a broker."""

    refuses = False

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.site = KafkaSite(
            bootstrap=bootstrap,
            prefix=prefix,
            partitions={CLUSTER: 1},
            replication=1,
            development=True,
            truncation_patience_s=0.5,
        )

    def events(self) -> EventLog:
        return KafkaEventLog(self.site, CLUSTER)

    def commands(self) -> CommandLog:
        return KafkaCommandLog(self.site, CLUSTER)

    def unanswering(self) -> EventLog:
        return self.events()

    async def empty(self) -> None:
        await self.delete_topics()
        for log in (self.events(), self.commands()):
            await log.open(create=True)
            await log.close()

    async def restore(self, records: list[Raw]) -> None:
        await self.delete_topics()
        # As when brokers come back with an older copy: the topic as it was made, its first records in it.
        await create_topic(self.site, f"{self.site.prefix}.events")
        log = self.events()
        for raw in records:
            assert await log.append(raw.value, raw.offset) == raw.offset
        await log.close()

    async def delete_topics(self) -> None:
        """Delete both topics, and wait until the broker knows of none."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.site.bootstrap)
        await admin.start()
        topics = [f"{self.site.prefix}.{topic}" for topic in Topic]

        async def gone() -> bool:
            try:
                return not set(topics) & set(await admin.list_topics())
            except KafkaError:
                return False

        try:
            await admin.delete_topics(topics)
            await until_async(gone, what="the topics are deleted")
        finally:
            await admin.close()
