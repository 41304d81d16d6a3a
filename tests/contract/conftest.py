"""Each contract test runs in every place where logs are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from events.memory import Mode
from tests.contract.places import KafkaPlace, MemoryPlace, Opened, Place, PostgresPlace


@pytest.fixture(
    params=[
        "memory-as-kafka",
        "memory-as-postgres",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """An empty place; nothing is made there yet."""
    match request.param:
        case "memory-as-kafka":
            return MemoryPlace(Mode.KAFKA)
        case "memory-as-postgres":
            return MemoryPlace(Mode.POSTGRES)
        case "postgres":
            return PostgresPlace(request.getfixturevalue("postgres_dsn"))
        case _:
            broker = request.getfixturevalue("kafka_broker")
            return KafkaPlace(broker.bootstrap, request.getfixturevalue("kafka_prefix"))


@pytest_asyncio.fixture
async def opened(place: Place) -> AsyncIterator[Opened]:
    """Opens logs there, each as another process has them."""
    opened = Opened(place)
    yield opened
    await opened.close()
