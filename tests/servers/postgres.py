"""Postgres for the tests: a server for each worker, a fresh database for each test; or a private one to
kill.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from signalboxd.embedded_postgres import EmbeddedPostgres
from tests.servers.waiting import run_apart

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The worker's server. Not for killing, and not to be used directly: ask for `postgres_dsn`."""
    # Without fsync: what tests kill is processes, never the machine, and processes lose nothing by it.
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), settings={"fsync": "off"})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def postgres_dsn(shared_postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of an empty database of the test's own, dropped afterwards whoever is still connected."""
    name = f"test_{next(_numbers)}"
    run_apart(execute(shared_postgres.dsn, f"CREATE DATABASE {name} TEMPLATE template0"))
    yield database_dsn(shared_postgres, name)
    run_apart(execute(shared_postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def postgres_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A started server of the test's own, durable, to be killed, stopped and started at will."""
    server = EmbeddedPostgres(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


def database_dsn(server: EmbeddedPostgres, name: str) -> str:
    """The address of another database of that server."""
    return f"postgresql://postgres@127.0.0.1:{server.port}/{name}"


async def execute(dsn: str, statement: str) -> None:
    """Run one statement on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
