"""What the log in Kafka promises when brokers die, pause and change their roles, and which topics it refuses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import UnknownTopicOrPartitionError

from events.chain import Accepted
from events.ids import ClusterId
from events.kafka import KafkaEventLog, KafkaSite
from events.kafka_clients import QUIET_S, Writer
from events.kafka_topics import _config
from events.log import LogUnusable, Raw, UnknownOutcome, accepted
from tests.contract.faults import freeze
from tests.contract.places import KafkaPlace, Opened
from tests.contract.records import CLUSTER, Leader, held
from tests.servers.kafka import GivenKafka, KafkaBroker, KafkaCluster
from tests.servers.waiting import WITHIN_S, until_async

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def opening(place: KafkaPlace) -> AsyncIterator[Opened]:
    """Opens logs there, and closes them in the end."""
    opened = Opened(place)
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def admin_of(place: KafkaPlace) -> AsyncIterator[AIOKafkaAdminClient]:
    """An operator of that Kafka."""
    client = AIOKafkaAdminClient(bootstrap_servers=place.site.bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


class Succession:
    """Leaders one after the other who commit without a pause; each leads until an outcome is not known."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self.epoch = 0
        self.acknowledged: list[str] = []
        self.attempted: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Lead and commit until told to stop; always one more commit after that."""
        while not stop.is_set() or not self.attempted:
            self.epoch += 1
            leader = Leader(await self._opened.events(), f"nonce-{self.epoch}")
            if await leader.lead(self.epoch):
                await self._commit(leader, stop)

    async def commits(self, count: int) -> None:
        """Until so many are acknowledged in all."""

        async def reached() -> bool:
            return len(self.acknowledged) >= count

        await until_async(reached, within_s=60.0, what=f"{count} commits")

    async def _commit(self, leader: Leader, stop: asyncio.Event) -> None:
        while True:
            last = stop.is_set()
            name = f"job-{len(self.attempted)}"
            self.attempted.append(name)
            if not await leader.commit(held(name)):
                return
            self.acknowledged.append(name)
            if last:
                return


async def commit_through(opened: Opened, fault: Callable[[], None]) -> Succession:
    """Commit before, during and after a fault."""
    succession, stop = Succession(opened), asyncio.Event()
    writing = asyncio.create_task(succession.run(stop))
    await succession.commits(200)
    await asyncio.to_thread(fault)
    await succession.commits(len(succession.acknowledged) + 100)
    stop.set()
    await writing
    return succession


async def assert_nothing_lost_or_doubled(opened: Opened, succession: Succession) -> None:
    """Readers accept each acknowledged commit once, in order, and of the others at most what was attempted, once."""
    read = await opened.events()
    jobs = [event.job_id for step in await _steps(opened) for event in getattr(step.record(), "events", ())]
    assert len(set(jobs)) == len(jobs)
    acknowledged = set(succession.acknowledged)
    assert [job for job in jobs if job in acknowledged] == succession.acknowledged
    assert set(jobs) <= set(succession.attempted)
    assert [raw.offset for raw in await read.read(-1, 50)] == list(range(50))


async def _steps(opened: Opened) -> list[Accepted]:
    return [step async for step in accepted(await opened.events())]


async def test_a_broker_killed_in_the_middle_of_appends_loses_nothing(
    own_kafka_broker: KafkaBroker, kafka_prefix: str
) -> None:
    """kill -9 and restart twice under a stream of commits: what was acknowledged is there once, and in order."""

    def twice() -> None:
        for _ in range(2):
            own_kafka_broker.kill()
            own_kafka_broker.restart()

    async with opening(KafkaPlace(own_kafka_broker.bootstrap, kafka_prefix)) as opened:
        await assert_nothing_lost_or_doubled(opened, await commit_through(opened, twice))


async def test_a_partition_leader_killed_in_the_middle_of_appends_loses_nothing(
    kafka_cluster: KafkaCluster, kafka_prefix: str
) -> None:
    """Of three brokers the partition's leader dies by kill -9: the next takes over within the limit of an append."""
    place = KafkaPlace(kafka_cluster.bootstrap, kafka_prefix)
    place.site = replace(place.site, replication=3, development=False, truncation_patience_s=10.0)
    topic = f"{kafka_prefix}.events"

    def fell_the_leader() -> None:
        kafka_cluster.kill(kafka_cluster.leader_of(topic, place.site.partitions[CLUSTER]))

    async with opening(place) as opened:
        await assert_nothing_lost_or_doubled(opened, await commit_through(opened, fell_the_leader))


async def test_a_hanging_broker_is_an_unknown_outcome(own_kafka_broker: KafkaBroker, kafka_prefix: str) -> None:
    """No answer within the limit ends the writer, which sends nothing more; another goes on after the pause."""
    async with opening(KafkaPlace(own_kafka_broker.bootstrap, kafka_prefix)) as opened:
        leader = Leader(await opened.events(), "a")
        assert await leader.lead(1)
        freeze(own_kafka_broker)
        with pytest.raises(UnknownOutcome):
            await leader.log.append(b"x", leader.head.offset + 1, timeout_s=0.5)
        with pytest.raises(UnknownOutcome, match="dead"):
            await leader.log.append(b"x", leader.head.offset + 1)
        own_kafka_broker.resume()
        successor = Leader(await opened.events(), "b")
        # What was in the socket may land before the term; then this has to be written again.
        assert await successor.lead(2) or await successor.lead(3)


async def test_commands_go_on_after_a_broker_was_away(own_kafka_broker: KafkaBroker, kafka_prefix: str) -> None:
    """Those who wait when the producer is dropped learn at once that their outcome is unknown; then a new one works."""
    async with opening(KafkaPlace(own_kafka_broker.bootstrap, kafka_prefix)) as opened:
        log = await opened.commands()
        kept = {await log.append(b"before", WITHIN_S): b"before"}
        await asyncio.to_thread(own_kafka_broker.kill)
        waiting = [log.append(b"lost?", timeout_s=limit_s) for limit_s in (0.5, 60.0)]
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WITHIN_S)
        assert [type(outcome) for outcome in outcomes] == [UnknownOutcome, UnknownOutcome]
        await asyncio.to_thread(own_kafka_broker.restart)
        kept[await log.append(b"after", WITHIN_S)] = b"after"
        found = {raw.offset: raw.value for raw in await log.read(0, 100)}
        assert {offset: found[offset] for offset in kept} == kept


async def test_a_follower_outlasts_a_broker_that_is_killed(own_kafka_broker: KafkaBroker, kafka_prefix: str) -> None:
    """After kill -9 and a restart it goes on with the next record, and aiokafka has not filled the log meanwhile."""
    said: Counter[tuple[str, str]] = Counter()
    begun, handler = time.monotonic(), logging.Handler()
    handler.emit = lambda record: said.update([(record.name, str(record.msg))])  # type: ignore[method-assign]
    logging.getLogger("aiokafka").addHandler(handler)
    async with opening(KafkaPlace(own_kafka_broker.bootstrap, kafka_prefix)) as opened:
        log = await opened.commands()
        follower = (await opened.commands()).follow(0)
        assert await log.append(b"one", WITHIN_S) == 1
        assert await anext(follower) == [Raw(1, b"one")]
        following = asyncio.ensure_future(anext(follower))
        await asyncio.to_thread(own_kafka_broker.kill)
        await asyncio.to_thread(own_kafka_broker.restart)
        assert await log.append(b"two", timeout_s=WITHIN_S) == 2
        assert await asyncio.wait_for(following, WITHIN_S) == [Raw(2, b"two")]
        await follower.aclose()  # type: ignore[attr-defined]
    logging.getLogger("aiokafka").removeHandler(handler)
    assert max(said.values(), default=0) <= 1 + (time.monotonic() - begun) / QUIET_S


@pytest.mark.parametrize(
    ("topic", "config", "complaint"),
    [
        ("events", {"retention.ms": "86400000"}, "retention.ms"),
        ("events", {"retention.bytes": "1000000"}, "retention.bytes"),
        ("events", {"cleanup.policy": "compact"}, "cleanup.policy"),
        ("events", {"unclean.leader.election.enable": "true"}, "unclean"),
        ("events", {"max.message.bytes": "500000"}, "max.message.bytes"),
        ("commands", {"retention.ms": "86400000"}, "retention.ms"),
        ("commands", {"cleanup.policy": "compact"}, "cleanup.policy"),
    ],
)
async def test_a_topic_that_may_lose_records_is_refused(
    kafka_broker: GivenKafka, kafka_prefix: str, topic: str, config: dict[str, str], complaint: str
) -> None:
    """A topic whose settings may delete, rewrite or refuse records does not open, and the reason is named (P-5)."""
    place = KafkaPlace(kafka_broker.bootstrap, kafka_prefix)
    async with opening(place) as opened:
        await (opened.events() if topic == "events" else opened.commands())
    async with admin_of(place) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, f"{kafka_prefix}.{topic}", configs=config)
        await admin.alter_configs([resource])

    async def refused() -> bool:
        """A broker may say for a moment what was before."""
        log = place.events() if topic == "events" else place.commands()
        try:
            await log.open()
        except LogUnusable as error:
            return complaint in str(error)
        finally:
            await log.close()
        return False

    assert await until_async(refused)


async def test_commands_may_be_deleted_after_thirty_days(kafka_broker: GivenKafka, kafka_prefix: str) -> None:
    """A month of commands is enough; and the log is known by its id when retention has taken the first ones (P-4)."""
    place = KafkaPlace(kafka_broker.bootstrap, kafka_prefix)
    async with opening(place) as opened:
        log = await opened.commands()
        log_id = await log.open()
        for number in range(5):
            await log.append(b"%d" % number)
    async with admin_of(place) as admin:
        month = {"retention.ms": str(31 * 24 * 3600 * 1000), "cleanup.policy": "delete", "retention.bytes": "-1"}
        resource = ConfigResource(ConfigResourceType.TOPIC, f"{kafka_prefix}.commands", configs=month)
        await admin.alter_configs([resource])
        await admin.delete_records({TopicPartition(f"{kafka_prefix}.commands", 1): RecordsToDelete(3)})
    log = place.commands()
    assert await log.open() == log_id
    assert [raw.offset for raw in await log.read(2, 9)] == [3, 4, 5]
    with pytest.raises(LogUnusable):
        await log.read(1, 9)
    await log.close()


async def test_events_whose_beginning_is_gone_do_not_open(kafka_broker: GivenKafka, kafka_prefix: str) -> None:
    """An events log without its first records is no log."""
    place = KafkaPlace(kafka_broker.bootstrap, kafka_prefix)
    async with opening(place) as opened:
        leader = Leader(await opened.events(), "a")
        assert await leader.lead(1)
    async with admin_of(place) as admin:
        await admin.delete_records({TopicPartition(f"{kafka_prefix}.events", 1): RecordsToDelete(1)})
    log = place.events()
    with pytest.raises(LogUnusable):
        await log.open()
    await log.close()


async def test_a_site_without_three_copies_is_refused(kafka_broker: GivenKafka, kafka_prefix: str) -> None:
    """Replication and in-sync replicas are demanded, unless the site is one for development (P-5)."""
    place = KafkaPlace(kafka_broker.bootstrap, kafka_prefix)
    async with opening(place) as opened:
        await opened.events()
    log = KafkaEventLog(replace(place.site, development=False), CLUSTER)
    with pytest.raises(LogUnusable, match=r"replication is 1.*min\.insync\.replicas is 1"):
        await log.open()
    await log.close()


def test_two_clusters_never_share_a_partition() -> None:
    """A registry that gives one partition to two clusters is refused (P-2)."""
    with pytest.raises(ValueError, match="P-2"):
        KafkaSite(bootstrap="x", prefix="x", partitions={CLUSTER: 0, ClusterId("east"): 0})


async def test_a_topic_that_one_broker_has_yet_to_hear_of_is_asked_for_again() -> None:
    """Each question goes to any broker of the site: the next may not know what the last one has told of."""
    answers = [(UnknownTopicOrPartitionError.errno, "", 0, 0, ()), (0, "", 2, "x", (("retention.ms", "-1"),))]

    class Admin:
        """Stands in for aiokafka's: one real broker knows its topics."""

        async def describe_configs(self, _: object) -> list[object]:
            return [SimpleNamespace(resources=[answers.pop(0)])]

    assert await _config(Admin(), "x") == {"retention.ms": "-1"}
    assert answers == []


async def test_a_cluster_added_to_the_registry_gets_its_partition(kafka_broker: GivenKafka, kafka_prefix: str) -> None:
    """Making the log of one more cluster grows the topic, and leaves the others' records where they are."""
    place = KafkaPlace(kafka_broker.bootstrap, kafka_prefix)
    east = ClusterId("east")
    async with opening(place) as opened:
        west = await opened.events()
        log = KafkaEventLog(replace(place.site, partitions={CLUSTER: 1, east: 5}), east)
        assert await log.open(create=True) != await west.open()
        assert await log.append(b"e", 1) == 1
        assert await west.end() == 0
        await log.close()


@pytest.mark.parametrize(("offset", "start"), [(None, 0), (-1, 0), (-1, -1), (0, -1), (2, -1)])
async def test_an_acknowledgement_without_a_place_is_not_believed(offset: int | None, start: int) -> None:
    """aiokafka reports DuplicateSequenceNumber as a success at -1, and for later ones of a batch at 0, 1, 2 (P-1)."""

    class Producer:
        """Stands in for aiokafka's, which no real broker can be made to answer so."""

        async def send(self, *_: object, **__: object) -> asyncio.Future[object]:
            delivery: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            delivery.set_result(SimpleNamespace(offset=offset, log_start_offset=start))
            return delivery

    site = KafkaSite(bootstrap="x", prefix="x", partitions={CLUSTER: 0})
    writer = Writer(site, TopicPartition("x", 0), b"west")
    writer._producer = Producer()
    with pytest.raises(UnknownOutcome, match="without an offset"):
        await writer.send(b"x", 1.0)
