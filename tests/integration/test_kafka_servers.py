"""The Kafka of the tests themselves: what the suites that kill brokers may rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.servers.kafka import GivenKafka, KafkaBroker, KafkaCluster
from tests.servers.waiting import until

pytestmark = pytest.mark.kafka


async def _append(kafka: GivenKafka, topic: str, value: bytes) -> int:
    """Append one record as the scheduler would, and return its offset."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, enable_idempotence=True, acks="all")
    await producer.start()
    try:
        offset: int = (await producer.send_and_wait(topic, value)).offset
    finally:
        await producer.stop()
    return offset


async def _read(kafka: GivenKafka, topic: str, count: int) -> list[bytes]:
    """The first `count` values of partition 0, read without a group."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="none")
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_the_shared_broker_takes_and_gives_records(kafka_broker: GivenKafka, kafka_prefix: str) -> None:
    """A topic made under the test's prefix takes records, at offsets from 0, and gives them back."""
    topic = f"{kafka_prefix}.events"
    kafka_broker.create_topic(topic)
    assert [await _append(kafka_broker, topic, value) for value in (b"a", b"b")] == [0, 1]
    assert await _read(kafka_broker, topic, 2) == [b"a", b"b"]


async def test_records_survive_kill_9_of_the_broker(own_kafka_broker: KafkaBroker) -> None:
    """After SIGKILL and a restart on the same port the old record is there and the next one follows it."""
    address = own_kafka_broker.bootstrap
    own_kafka_broker.create_topic("events")
    assert await _append(own_kafka_broker, "events", b"before") == 0
    own_kafka_broker.kill()
    own_kafka_broker.restart()
    assert own_kafka_broker.bootstrap == address
    assert await _append(own_kafka_broker, "events", b"after") == 1
    assert await _read(own_kafka_broker, "events", 2) == [b"before", b"after"]


def test_a_paused_broker_stands_still_and_goes_on(own_kafka_broker: KafkaBroker) -> None:
    """Between pause and resume the process is stopped, not gone."""
    process = psutil.Process(own_kafka_broker.pid)
    own_kafka_broker.pause()
    until(lambda: process.status() == psutil.STATUS_STOPPED, what="stopped")
    own_kafka_broker.resume()
    until(lambda: process.status() != psutil.STATUS_STOPPED, what="going on")
    own_kafka_broker.create_topic("events")
    assert own_kafka_broker.leader_of("events") == 1


async def test_a_cluster_elects_another_leader(kafka_cluster: KafkaCluster) -> None:
    """When a partition's leader is killed another takes over with the record; the killed one comes back in
    sync.
    """
    kafka_cluster.create_topic("events")
    assert await _append(kafka_cluster, "events", b"before") == 0
    old = kafka_cluster.leader_of("events")
    kafka_cluster.kill(old)
    until(lambda: kafka_cluster.leader_of("events") not in (old, -1), what="another leads")
    assert await _append(kafka_cluster, "events", b"after") == 1
    kafka_cluster.restart(old)
    until(lambda: kafka_cluster.in_sync("events") == [1, 2, 3], what="all in sync")
    assert await _read(kafka_cluster, "events", 2) == [b"before", b"after"]


def test_a_broker_dies_with_the_tests(tmp_path: Path) -> None:
    """When the process of the tests is killed its broker is gone a moment later."""
    program = (
        "import sys\n"
        "from tests.servers.kafka import KafkaBroker\n"
        "broker = KafkaBroker()\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        broker = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        until(lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, what="the broker is gone")
