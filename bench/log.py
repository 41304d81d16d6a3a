"""The logs on real servers that are started for it: appends, followers, reading, decoding; one core, one process.

Postgres is the embedded one with fsync on; Kafka is one broker, so that replication is not in its figures.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figure import Figure, Stopwatch, latency, rate
from events import codec
from events.chain import START, Accepted, Head, admit
from events.envelope import Commit, Genesis, Input, Term
from events.ids import ClusterId, Epoch, Instant, JobId, LogId, NodeIndex, Nonce, Principal
from events.kafka import KafkaCommandLog, KafkaEventLog, KafkaSite
from events.log import CommandLog, EventLog
from events.postgres import PostgresCommandLog, PostgresEventLog
from events.task import TaskEnd, TaskEnded
from signalboxd.embedded_postgres import EmbeddedPostgres
from tests.servers.kafka import KafkaBroker

CLUSTER = ClusterId("bench")
APPENDS = 3000
FOLLOWED = 2000
PACE_S = 0.002
READ = 20_000
WRITERS = 64
DECODED = 100_000
EVENTS_PER_COMMIT = 4

Logs = tuple[str, Callable[[], EventLog], Callable[[], CommandLog]]


def main() -> Iterator[Figure]:
    """Both logs, then what needs no log."""
    with postgres() as logs:
        yield from asyncio.run(of_logs(*logs))
    with kafka() as logs:
        yield from asyncio.run(of_logs(*logs))
    yield from of_codec()


@contextmanager
def postgres() -> Iterator[Logs]:
    """A durable embedded server of its own."""
    with tempfile.TemporaryDirectory(prefix="signalbox-bench-") as home:
        server = EmbeddedPostgres(Path(home) / "postgres")
        server.start()
        try:
            dsn = server.dsn
            yield "postgres", lambda: PostgresEventLog(dsn, CLUSTER), lambda: PostgresCommandLog(dsn, CLUSTER)
        finally:
            server.stop()


@contextmanager
def kafka() -> Iterator[Logs]:
    """One broker of its own."""
    broker = KafkaBroker()
    try:
        broker.start()
        site = KafkaSite(
            bootstrap=broker.bootstrap, prefix="bench", partitions={CLUSTER: 0}, replication=1, development=True
        )
        yield "kafka", lambda: KafkaEventLog(site, CLUSTER), lambda: KafkaCommandLog(site, CLUSTER)
    finally:
        broker.close()


async def of_logs(name: str, events: Callable[[], EventLog], commands: Callable[[], CommandLog]) -> list[Figure]:
    """The figures of one kind of log."""
    writer, reader, many = events(), events(), commands()
    try:
        await writer.open(create=True)
        await reader.open()
        await many.open(create=True)
        return [
            await append_latency(name, writer),
            await follow_latency(name, writer, reader),
            await command_rate(name, many),
            await read_rate(name, many),
        ]
    finally:
        for log in (writer, reader, many):
            await log.close()


async def append_latency(name: str, log: EventLog) -> Figure:
    """One commit after the other, each waited for, as a leader does."""
    raws = commits(APPENDS + 200)
    seconds: list[float] = []
    offset = await log.end()
    for raw in raws:
        watch = Stopwatch()
        offset = await log.append(raw, offset + 1)
        seconds.append(watch.s)
    size = len(raws[-1])
    return latency(name_of(name), f"append of a commit of {size} bytes", seconds[200:], target_ms=2, target_p99_ms=10)


async def follow_latency(name: str, writer: EventLog, reader: EventLog) -> Figure:
    """From before an append to the record at a follower, at a moderate pace."""
    raws = commits(FOLLOWED)
    sent: dict[int, Stopwatch] = {}
    seconds: list[float] = []
    begin = await writer.end()

    async def follow() -> None:
        async for batch in reader.follow(begin):
            seconds.extend(sent[raw.offset].s for raw in batch)
            if batch[-1].offset >= begin + FOLLOWED:
                return

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.5)  # until it listens
    for offset, raw in enumerate(raws, begin + 1):
        sent[offset] = Stopwatch()
        await writer.append(raw, offset)
        await asyncio.sleep(PACE_S)
    await following
    return latency(name_of(name), "append to follower, 250 to 400 a second", seconds, target_p99_ms=20)


async def command_rate(name: str, log: CommandLog) -> Figure:
    """Commands by many writers of one process at once, as the api has them."""
    rates: list[float] = []
    raw = commits(1)[0]

    async def write(count: int) -> None:
        for _ in range(count):
            await log.append(raw)

    await write(50)
    for _ in range(5):
        watch = Stopwatch()
        await asyncio.gather(*(write(READ // 5 // WRITERS) for _ in range(WRITERS)))
        rates.append(READ // 5 // WRITERS * WRITERS / watch.s)
    return rate(name_of(name), f"commands appended by {WRITERS} writers at once", rates, unit="records/s")


async def read_rate(name: str, log: CommandLog) -> Figure:
    """The whole log from its start, in batches, bytes only."""
    rates: list[float] = []
    await count_from(log, -1)
    for _ in range(5):
        watch = Stopwatch()
        rates.append(await count_from(log, -1) / watch.s)
    return rate(name_of(name), "reading records", rates, unit="records/s", target=100_000)


async def count_from(log: CommandLog, after: int) -> int:
    """How many records there are after `after`, all read."""
    end, count = await log.end(), 0
    while after < end:
        batch = await log.read(after, 2000)
        after = batch[-1].offset
        count += len(batch)
    return count


def of_codec() -> Iterable[Figure]:
    """What a takeover or a rebuild does with the bytes. Measured on 100,000 events; the target is that of 1,000,000
    in 15 s."""
    raws = commits(DECODED // EVENTS_PER_COMMIT)
    filtered, decoded, encoded = [], [], []
    for _ in range(5):
        watch = Stopwatch()
        accepted = list(filtered_records(raws))
        filtered.append(len(raws) / watch.s)
        records = [step.record() for step in accepted]
        decoded.append(DECODED / watch.s)
        watch = Stopwatch()
        for record in records:
            codec.encode(record)
        encoded.append(DECODED / watch.s)
    yield rate("log.codec", "records through the filter", filtered, unit="records/s")
    yield rate("log.codec", "events filtered and decoded", decoded, unit="events/s", target=1_000_000 / 15)
    yield rate("log.codec", "events encoded", encoded, unit="events/s")


def filtered_records(raws: list[bytes]) -> Iterator[Accepted]:
    """The records that the filter accepts: all of them here."""
    head = _beginning()
    for raw in raws:
        outcome = admit(head, head.offset + 1, raw)
        head = outcome.head
        assert isinstance(outcome, Accepted)
        yield outcome


def commits(count: int) -> list[bytes]:
    """A chain of commits with a few events each, as report batches make them."""
    head, raws = _beginning(), []
    for number in range(count):
        events = tuple(
            TaskEnded(
                job_id=JobId(f"j_01hzy{number:010d}"),
                attempt=1,
                rank=rank,
                node=NodeIndex(number % 3000),
                report=number,
                end=TaskEnd.EXITED,
                exit_code=0,
            )
            for rank in range(EVENTS_PER_COMMIT)
        )
        raw = codec.encode(_commit(head, number, events))
        raws.append(raw)
        head = admit(head, head.offset + 1, raw).head
    return raws


def _beginning() -> Head:
    genesis = codec.encode(Genesis(log_id=LogId("bench"), cluster=CLUSTER))
    head = admit(START, 0, genesis).head
    term = Term(
        cluster=CLUSTER,
        epoch=Epoch(1),
        nonce=Nonce("bench"),
        n=1,
        prev=head.hash,
        at=Instant(1),
        rules=1,
        holder="bench",
    )
    return admit(head, 1, codec.encode(term)).head


def _commit(head: Head, number: int, events: tuple[TaskEnded, ...]) -> Commit:
    return Commit(
        cluster=CLUSTER,
        epoch=head.epoch,
        nonce=head.nonce,
        n=head.n + 1,
        at=Instant(head.at + 1),
        actor=Principal("node:n-0412"),
        input=Input(kind="reports", id=f"reports-{number}"),
        policy=1,
        prev=head.hash,
        seq=head.seq + 1,
        events=events,
    )


def name_of(kind: str) -> str:
    """The name of a log's benchmark."""
    return f"log.{kind}"
