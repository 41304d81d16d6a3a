"""The topics of the logs in Kafka: making them, and checking that they are fit for the log (PROTOCOL P-5)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.new_partitions import NewPartitions
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from events.envelope import RECORD_BYTES_MAX
from events.ids import ClusterId
from events.log import LogUnavailable, LogUnusable

REPLICATION_MIN = 3
IN_SYNC_MIN = 2
COMMANDS_RETENTION_MIN_MS = 30 * 24 * 3600 * 1000
MESSAGE_BYTES_MIN = RECORD_BYTES_MAX + 4096
"""A record with its key, headers and batch header."""

_APPEAR_S = 2.0
_SETTLE_S = 20.0
_ADMIN_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSite:
    """Where a site keeps its logs: topics `<prefix>.events` and `<prefix>.commands`.

    `partitions`: the registry of clusters; each has one partition of its own, which never changes (P-2).
    `replication`: of topics that are made here. `development` waives the checks that need three brokers (P-5).
    `truncation_patience_s`: how long a log may end before a position that was read, while a partition changes its
    leader, before it counts as truncated. `options`: security settings for every client, as aiokafka names them.
    """

    bootstrap: str
    prefix: str
    partitions: Mapping[ClusterId, int]
    replication: int = 3
    development: bool = False
    truncation_patience_s: float = 5.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.partitions.values())) != len(self.partitions):
            raise ValueError("two clusters share a partition (P-2)")


async def create_topic(site: KafkaSite, topic: str) -> None:
    """Make the topic where it is not there, with a partition for each cluster; harmless when two do it at once."""
    count = max(site.partitions.values()) + 1
    config = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "min.insync.replicas": str(min(IN_SYNC_MIN, site.replication)),
        "unclean.leader.election.enable": "false",
        # The broker's clock: it refuses client stamps that are an hour ahead of it.
        "message.timestamp.type": "LogAppendTime",
    }
    async with _admin(site) as admin:
        answer = await admin.create_topics([NewTopic(topic, count, site.replication, topic_configs=config)])
        for name, code, *rest in answer.topic_errors:
            if code not in (0, TopicAlreadyExistsError.errno):
                raise LogUnusable(f"topic {name} cannot be made: {for_code(code).__name__} {rest}")
        # It is there: who does not know of it has yet to hear.
        if len(await _partitions(admin, topic, appears_s=_SETTLE_S)) < count:
            await admin.create_partitions({topic: NewPartitions(count)})
            await _partitions(admin, topic, at_least=count, appears_s=_SETTLE_S)


async def check_topic(site: KafkaSite, topic: str, cluster: ClusterId, *, keeps_all: bool) -> None:
    """P-5. `keeps_all`: of events, where nothing may ever be deleted. Raises LogUnusable with all that is wrong."""
    async with _admin(site) as admin:
        partitions = {p["partition"]: p for p in await _partitions(admin, topic)}
        config = await _config(admin, topic)
    partition = partitions.get(site.partitions[cluster])
    if partition is None:
        raise LogUnusable(f"topic {topic} has no partition {site.partitions[cluster]} for {cluster}")
    problems = _retention(config, keeps_all)
    if config["unclean.leader.election.enable"] != "false":
        problems.append("unclean.leader.election.enable must be false")
    if config["cleanup.policy"] != "delete":
        problems.append(f"cleanup.policy is {config['cleanup.policy']}, must be delete")
    if int(config["max.message.bytes"]) < MESSAGE_BYTES_MIN:
        problems.append(f"max.message.bytes is {config['max.message.bytes']}, must be at least {MESSAGE_BYTES_MIN}")
    if not site.development:
        if len(partition["replicas"]) < REPLICATION_MIN:
            problems.append(f"replication is {len(partition['replicas'])}, must be at least {REPLICATION_MIN}")
        if int(config["min.insync.replicas"]) < IN_SYNC_MIN:
            problems.append(f"min.insync.replicas is {config['min.insync.replicas']}, must be at least {IN_SYNC_MIN}")
    if problems:
        raise LogUnusable(f"topic {topic}: {'; '.join(problems)}")


def _retention(config: Mapping[str, str], keeps_all: bool) -> list[str]:
    problems = []
    kept_ms = int(config["retention.ms"])
    if keeps_all and kept_ms != -1:
        problems.append(f"retention.ms is {kept_ms}, must be -1")
    if not keeps_all and kept_ms != -1 and kept_ms < COMMANDS_RETENTION_MIN_MS:
        problems.append(f"retention.ms is {kept_ms}, must be -1 or at least {COMMANDS_RETENTION_MIN_MS}")
    if config["retention.bytes"] != "-1":
        problems.append(f"retention.bytes is {config['retention.bytes']}, must be -1")
    return problems


async def _partitions(
    admin: AIOKafkaAdminClient, topic: str, at_least: int = 1, *, appears_s: float = _APPEAR_S
) -> list[dict[str, Any]]:
    """The topic's partitions, once each has a leader. Raises LogUnusable where there is no such topic in time."""
    begun = asyncio.get_running_loop().time()
    while True:
        described: dict[str, Any] = (await admin.describe_topics([topic]))[0]
        partitions: list[dict[str, Any]] = described["partitions"]
        if len(partitions) >= at_least and all(p["leader"] >= 0 for p in partitions):
            return partitions
        waited_s = asyncio.get_running_loop().time() - begun
        if not partitions and waited_s > appears_s:
            raise LogUnusable(f"topic {topic}: {for_code(described['error_code']).__name__}")
        if waited_s > _SETTLE_S:
            raise LogUnavailable(f"topic {topic} has partitions without a leader")
        await asyncio.sleep(0.05)


async def _config(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    """Of a topic that some broker has told of: each question goes to any of them, and another may not know it yet."""
    begun = asyncio.get_running_loop().time()
    while True:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        code, message, _, _, entries = answers[0].resources[0][:5]
        if not code:
            return {entry[0]: entry[1] for entry in entries}
        waited_s = asyncio.get_running_loop().time() - begun
        if code != UnknownTopicOrPartitionError.errno or waited_s > _SETTLE_S:
            raise LogUnusable(f"topic {topic}: {for_code(code).__name__} {message}")
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _admin(site: KafkaSite) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=site.bootstrap, request_timeout_ms=_ADMIN_TIMEOUT_MS, **site.options)
    try:
        await client.start()
        yield client
    except (KafkaError, OSError, TimeoutError) as error:
        raise LogUnavailable(f"Kafka: {error!r}") from error
    finally:
        await client.close()
