"""A real Kafka for the tests: one broker for each worker, or brokers of a test's own to kill, pause and
restart.

Everything here blocks; a test that keeps producing meanwhile calls it by `asyncio.to_thread`. A topic is made
by the test that uses it (brokers make none by themselves) under the prefix that the fixture `kafka_prefix`
gives.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from signalboxd.child import end, free_port
from tests.servers.kafka_java import BROKER_FILES, NoKafkaError, Run, launcher
from tests.servers.waiting import run_apart, until

_START_TIMEOUT_S = 60.0
_ATTEMPTS = 4


class GivenKafka:
    """A Kafka that somebody else runs, at an address: topics can be made on it, but nothing can be killed."""

    replicas = 1

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @property
    def bootstrap(self) -> str:
        """The address for clients, host:port."""
        return self._bootstrap

    def create_topic(self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        """Make a topic, on as many brokers as there are here, and return when each partition has a leader."""
        topic = NewTopic(name, partitions, self.replicas, topic_configs=config or {})
        run_apart(_create_topic(self.bootstrap, topic))
        until(lambda: all(self.leader_of(name, p) >= 0 for p in range(partitions)), what=f"{name} has leaders")

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The node id of the partition's leader now, as the brokers see it; -1 when it has none."""
        return int(self._partition(topic, partition)["leader"])

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """The node ids of the replicas that are in sync, sorted."""
        return sorted(self._partition(topic, partition)["isr"])

    def _partition(self, topic: str, partition: int) -> dict[str, Any]:
        described = until(lambda: run_apart(_describe_topic(self.bootstrap, topic)), what=f"{topic} is described")
        return next(p for p in described if p["partition"] == partition)


class _Node:
    """One broker process in a directory of its own. What it takes to be a cluster is its owner's business."""

    def __init__(self, home: Path, node_id: int) -> None:
        self.node_id = node_id
        self._home = home
        self._run: Run | None = None
        self.cluster_id = ""
        self.broker_port = free_port()
        self.controller_port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def running(self) -> bool:
        return self._run is not None and self._run.child.poll() is None

    @property
    def pid(self) -> int:
        assert self._run is not None, "the broker is not running"
        return self._run.child.pid

    def write_properties(self, quorum: str, *, replicas: int, in_sync_min: int) -> None:
        template = Template((BROKER_FILES / "server.properties").read_text())
        text = template.substitute(
            node_id=self.node_id,
            quorum=quorum,
            broker_port=self.broker_port,
            controller_port=self.controller_port,
            data_dir=self._home / "data",
            replicas=replicas,
            in_sync_min=in_sync_min,
        )
        shutil.rmtree(self._home / "data", ignore_errors=True)
        self._home.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(text)

    def format(self, cluster_id: str, *options: str) -> Run:
        self.cluster_id = cluster_id
        arguments = ["format", *options, "-t", cluster_id, "-c", str(self._properties)]
        return launcher().run("kafka.tools.StorageTool", *arguments, home=self._home)

    def spawn(self) -> None:
        assert not self.running, "the broker runs already"
        self._run = launcher().run("kafka.Kafka", str(self._properties), home=self._home)

    def signal(self, number: signal.Signals) -> None:
        assert self._run is not None, "the broker is not running"
        self._run.signal(number)

    def stop(self) -> None:
        if self._run is not None:
            self._run.signal(signal.SIGCONT)  # a paused one would not hear anything else
            self._run.signal(signal.SIGTERM)
            end(self._run.child, signal.SIGTERM, patience_s=10.0)
            self._run = None

    def kill(self) -> None:
        if self._run is not None:
            self._run.signal(signal.SIGKILL)
            self._run.child.wait(20)
            self._run = None

    def log_tail(self) -> str:
        log = self._home / "server.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "(no log)"

    @property
    def _properties(self) -> Path:
        return self._home / "server.properties"


class KafkaBroker(GivenKafka):
    """One broker over a temporary directory: start, kill, pause, resume, restart, stop; always on the same
    port.
    """

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="signalbox-kafka-"))
        self._node = _Node(self._home, 1)

    @property
    def bootstrap(self) -> str:
        return self._node.address

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        return self._node.pid

    def start(self) -> None:
        """Format and start; returns when clients are served. Other ports are tried when one was taken
        meanwhile.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._node = _Node(self._home, 1)
            quorum = f"controller.quorum.bootstrap.servers=127.0.0.1:{self._node.controller_port}"
            self._node.write_properties(quorum, replicas=1, in_sync_min=1)
            _format([self._node], "--standalone")
            self._node.spawn()
            if _serving([self._node]):
                return
        pytest.fail(f"the Kafka broker does not start:\n{self._node.log_tail()}")

    def kill(self) -> None:
        """SIGKILL; what was acknowledged is in the page cache and survives it."""
        self._node.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and requests wait in the sockets, to be carried out after
        `resume`.
        """
        self._node.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._node.signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start again what was killed or stopped (a running one is killed first), over the same data and
        port.
        """
        self._node.kill()
        _start_again(self._node, lambda: [self._node])

    def stop(self) -> None:
        """Clean shutdown; the data stays until `close`."""
        self._node.stop()

    def close(self) -> None:
        """The end: no process and no files are left."""
        self._node.kill()
        shutil.rmtree(self._home, ignore_errors=True)


class KafkaCluster(GivenKafka):
    """Three brokers that are controllers too: every topic on all three, two in sync needed. Node ids are 1,
    2, 3.
    """

    replicas = 3

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="signalbox-kafka-"))
        self._nodes: dict[int, _Node] = {}

    @property
    def bootstrap(self) -> str:
        """All three addresses, so that a client finds the cluster whichever of them is down."""
        return ",".join(node.address for node in self._nodes.values())

    def start(self) -> None:
        """Format and start all three; returns when each has the others in view."""
        for _ in range(_ATTEMPTS):
            self._nodes = {n: _Node(self._home / str(n), n) for n in (1, 2, 3)}
            voters = ",".join(f"{n}@127.0.0.1:{node.controller_port}" for n, node in self._nodes.items())
            for node in self._nodes.values():
                node.write_properties(f"controller.quorum.voters={voters}", replicas=3, in_sync_min=2)
            _format(list(self._nodes.values()))
            for node in self._nodes.values():
                node.spawn()
            if _serving(list(self._nodes.values())):
                return
            for node in self._nodes.values():
                node.kill()
        pytest.fail(f"the Kafka cluster does not start:\n{self._nodes[1].log_tail()}")

    def pid(self, node_id: int) -> int:
        """The process id of that running broker."""
        return self._nodes[node_id].pid

    def kill(self, node_id: int) -> None:
        """SIGKILL one broker."""
        self._nodes[node_id].kill()

    def pause(self, node_id: int) -> None:
        """SIGSTOP one broker."""
        self._nodes[node_id].signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT one broker."""
        self._nodes[node_id].signal(signal.SIGCONT)

    def restart(self, node_id: int) -> None:
        """Start one broker again (killing it first if it runs); returns when all that run have each other in
        view.
        """
        self._nodes[node_id].kill()
        _start_again(self._nodes[node_id], lambda: [node for node in self._nodes.values() if node.running])

    def close(self) -> None:
        """The end: no process and no files are left."""
        for node in self._nodes.values():
            node.kill()
        shutil.rmtree(self._home, ignore_errors=True)


Kind = TypeVar("Kind", KafkaBroker, KafkaCluster)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[GivenKafka]:
    """The worker's broker, or the one given by SIGNALBOX_TEST_KAFKA. Not for killing; topics under
    `kafka_prefix`.
    """
    if given := os.environ.get("SIGNALBOX_TEST_KAFKA"):
        yield GivenKafka(given)
    else:
        yield from _started(KafkaBroker)


@pytest.fixture
def own_kafka_broker() -> Iterator[KafkaBroker]:
    """A started broker of the test's own, to be killed and paused at will."""
    yield from _started(KafkaBroker)


@pytest.fixture
def kafka_cluster() -> Iterator[KafkaCluster]:
    """Three started brokers of the test's own. They take 600 MB and most of two cores while they start."""
    yield from _started(KafkaCluster)


@pytest.fixture
def kafka_prefix() -> str:
    """A prefix for topics that no other test, worker or run has used."""
    return f"t{uuid4().hex[:12]}"


def _started(kind: type[Kind]) -> Iterator[Kind]:
    try:
        launcher()
    except NoKafkaError as problem:
        pytest.fail(str(problem), pytrace=False)
    server = kind()
    try:
        server.start()
        yield server
    finally:
        server.close()


def _format(nodes: Sequence[_Node], *options: str) -> None:
    # 128 bits in the form of Kafka's ids; the first letter keeps the tool from taking it for an option.
    cluster_id = "A" + base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")[1:]
    for node, run in [(node, node.format(cluster_id, *options)) for node in nodes]:
        assert run.child.wait(60) == 0, f"formatting failed:\n{node.log_tail()}"


def _start_again(node: _Node, expected: Callable[[], Sequence[_Node]]) -> None:
    """Start a broker on its old port; again if it ends, as its predecessor's sockets may be a moment in its
    way.
    """
    for _ in range(_ATTEMPTS):
        node.spawn()
        if _serving(expected()):
            return
    pytest.fail(f"the Kafka broker does not start again:\n{node.log_tail()}")


def _serving(nodes: Sequence[_Node]) -> bool:
    """Wait until each of these brokers answers clients and knows of all; False when one of them ends
    instead.
    """
    wanted = {node.node_id for node in nodes}

    def settled() -> bool:
        return not all(n.running for n in nodes) or all(wanted <= run_apart(_brokers(n)) for n in nodes)

    until(settled, within_s=_START_TIMEOUT_S, what=f"brokers {sorted(wanted)} serve:\n{nodes[0].log_tail()}")
    return all(node.running for node in nodes)


async def _brokers(node: _Node) -> set[int]:
    """The node ids that one broker knows of; none when it does not answer, or another one does on its port."""
    host, _, port = node.address.partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        async with _admin(node.address) as admin:
            described = await admin.describe_cluster()
    except (OSError, KafkaError):
        return set()
    if described["cluster_id"] != node.cluster_id:
        return set()
    return {broker["node_id"] for broker in described["brokers"]}


async def _create_topic(address: str, topic: NewTopic) -> None:
    async with _admin(address) as admin:
        answer = await admin.create_topics([topic], timeout_ms=20_000)
    for name, code, *rest in answer.topic_errors:
        if code:
            raise for_code(code)(f"{name}: {rest}")


async def _describe_topic(address: str, topic: str) -> list[dict[str, Any]]:
    """The topic's partitions; empty when the broker that was asked is down, or knows no such topic yet."""
    try:
        async with _admin(address) as admin:
            described: list[dict[str, Any]] = (await admin.describe_topics([topic]))[0]["partitions"]
    except KafkaError:
        return []
    return described


@asynccontextmanager
async def _admin(address: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=address, request_timeout_ms=5_000)
    try:
        await client.start()
        yield client
    finally:
        await client.close()
