"""The embedded Postgres: it comes up by itself, keeps what it was given, and leaves nothing running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import psutil
import pytest

from signalboxd import embedded_postgres
from signalboxd.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from tests.servers.waiting import until

pytestmark = pytest.mark.postgres


async def _value(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def _alive(process: psutil.Process) -> bool:
    """A zombie counts as dead: who reaps orphans is the machine's business."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_it_starts_durable_and_on_loopback_only(postgres_server: EmbeddedPostgres) -> None:
    """A new directory becomes a server with C.UTF-8, fsync and 200 connections, on loopback only."""
    settings = await _value(
        postgres_server.dsn,
        """SELECT concat_ws(' ', current_setting('fsync'), current_setting('max_connections'),
                  current_setting('listen_addresses'), datlocale, pg_encoding_to_char(encoding))
           FROM pg_database WHERE datname = current_database()""",
    )
    assert settings == "on 200 127.0.0.1 C.UTF-8 UTF8"
    sockets = psutil.Process(postgres_server.pid).net_connections("inet")
    listening = [next(iter(c.laddr)) for c in sockets if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


async def test_it_comes_back_with_its_data_after_kill_9(postgres_server: EmbeddedPostgres) -> None:
    """What was committed before SIGKILL of the postmaster is there after the next start, on the same port."""
    before = postgres_server.dsn
    connection = await asyncpg.connect(before)
    await connection.execute("CREATE TABLE kept (x int); INSERT INTO kept VALUES (42)")
    postgres_server.kill()  # with the connection open: its backend outlives the postmaster for a moment
    assert not postgres_server.running
    postgres_server.start()
    connection.terminate()
    assert postgres_server.dsn == before
    assert await _value(before, "SELECT x FROM kept") == 42


async def test_after_a_clean_stop_there_is_nothing_to_recover(
    postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """It goes on where it was: no cluster is made, and no log is replayed."""
    made = (tmp_path / "postgres" / "cluster" / "PG_VERSION").stat().st_ino
    postgres_server.stop()
    log = tmp_path / "postgres" / "server.log"
    before = log.stat().st_size
    postgres_server.start()
    assert await _value(postgres_server.dsn, "SELECT 1") == 1
    said = log.read_text()[before:]
    assert "database system was shut down at" in said
    assert "recovery" not in said
    assert (tmp_path / "postgres" / "cluster" / "PG_VERSION").stat().st_ino == made


async def test_a_pid_file_that_names_a_stranger_does_not_stop_it(
    postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """After a reboot the number in postmaster.pid may be anybody's; the server starts all the same."""
    postgres_server.kill()
    (tmp_path / "postgres" / "cluster" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    postgres_server.start()
    assert await _value(postgres_server.dsn, "SELECT 1") == 1


def test_a_directory_in_use_is_refused(postgres_server: EmbeddedPostgres, tmp_path: Path) -> None:
    """Two servers never run over one directory; the second start says which process has it."""
    second = EmbeddedPostgres(tmp_path / "postgres", start_timeout_s=0.3)
    with pytest.raises(EmbeddedPostgresError, match=f"in use by another Postgres, process {postgres_server.pid}"):
        second.start()


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    """When the process that started it is killed, the server and all its backends are gone a moment later."""
    program = (
        "import pathlib, sys\n"
        "from signalboxd.embedded_postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(pathlib.Path(sys.argv[1]))\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "postgres")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        family = psutil.Process(int(parent.stdout.readline()))
        backends = family.children(recursive=True)
        assert backends
        parent.send_signal(signal.SIGKILL)
        until(lambda: not any(map(_alive, [family, *backends])), what="the servers are gone")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to choose another account")
async def test_root_without_user_namespaces_runs_it_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a container forbids user namespaces the server runs as nobody, over a directory given to it."""
    nobody = embedded_postgres._Account(uid=65534, owner=65534)
    if not embedded_postgres._works(nobody):
        pytest.skip("the user nobody cannot reach the binaries here")
    monkeypatch.setattr(embedded_postgres, "_account", lambda: nobody)
    home = Path("/var/tmp") / f"signalbox-nobody-{os.getpid()}"
    server = EmbeddedPostgres(home)
    try:
        server.start()
        assert psutil.Process(server.pid).uids().real == 65534
        assert await _value(server.dsn, "SELECT 1") == 1
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


async def test_a_fresh_database_for_each_test(postgres_dsn: str) -> None:
    """The fixture for all other tests gives an empty database: no table outside the system's own."""
    count = await _value(postgres_dsn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    assert count == 0
