"""How to run a class of Kafka here: with the Java of this machine and libraries from Maven Central, or with
Docker.

`python -m tests.servers.kafka_java` fetches what is needed before the tests, so that none of them waits for a
download. The libraries (43 MB) are kept in .cache/kafka; Maven runs once for each version of pom.xml.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from signalboxd.child import spawn

BROKER_FILES = Path(__file__).parent / "broker"
_CACHE = Path(__file__).parents[2] / ".cache" / "kafka"
_IMAGE = "apache/kafka:4.4.0"
_JAVA_MIN = 17
# Small and quick to start. The first compiler alone is for tests: a broker that works hard wants both.
_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_numbers = itertools.count(1)


class NoKafkaError(RuntimeError):
    """Nothing on this machine can run a broker; the text says what to install."""


class Launcher(Protocol):
    """A way of running one Kafka class as a child process that dies with the tests."""

    def run(self, kafka_class: str, *arguments: str, home: Path) -> Run:
        """Start it; `home` is the directory that it reads and writes, and where `server.log` is."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """A class of Kafka that is running: the child process, and its container when Docker runs it."""

    child: subprocess.Popen[bytes]
    container: str | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself, not to what stands between."""
        if self.container is None:
            self.child.send_signal(number)
        else:
            command = ["docker", "kill", f"--signal={number.name}", self.container]
            subprocess.run(command, check=False, capture_output=True, timeout=20)


@dataclass(frozen=True, slots=True)
class Java:
    """The machine's own Java, with libraries in a folder."""

    libraries: Path

    def run(self, kafka_class: str, *arguments: str, home: Path) -> Run:
        command = ["java", *_JVM, _QUIET, "-cp", f"{self.libraries}/*", kafka_class, *arguments]
        return Run(spawn(command, log=home / "server.log", cwd=home))


@dataclass(frozen=True, slots=True)
class Docker:
    """The official image, on the machine's network, over the same directory. Its libraries bring their own
    log backend.
    """

    image: str = _IMAGE
    names: Iterator[int] = field(default_factory=lambda: _numbers)

    def run(self, kafka_class: str, *arguments: str, home: Path) -> Run:
        name = f"signalbox-test-{os.getpid()}-{next(self.names)}"
        command = ["docker", "run", "--rm", "--init", "--network=host", f"--name={name}"]
        command += [f"--user={os.geteuid()}:{os.getegid()}", f"--volume={home}:{home}", "--entrypoint=java", self.image]
        command += [*_JVM, "-cp", "/opt/kafka/libs/*", kafka_class, *arguments]
        # A container does not die with us; SIGTERM to `docker run` is passed on to it.
        return Run(spawn(command, log=home / "server.log", death_signal=signal.SIGTERM), name)


@functools.cache
def launcher() -> Launcher:
    """The first way that works: Java and Maven, then Docker. Raises NoKafkaError; tests fail by it, they
    never skip.
    """
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if not missing and (version := _java_version()) >= _JAVA_MIN:
        return Java(libraries())
    if _docker_answers():
        return Docker()
    found = f"missing: {', '.join(missing)}" if missing else f"Java {version} is older than {_JAVA_MIN}"
    raise NoKafkaError(
        f"the tests need a real Kafka broker and cannot run one here ({found}; Docker does not answer). Any of these "
        "will do: `apt-get install openjdk-17-jre-headless maven`; a running Docker; or the environment variable "
        "SIGNALBOX_TEST_KAFKA with a broker's address (enough for the tests that kill none)"
    )


def libraries() -> Path:
    """The folder with the broker's libraries, fetched when it is not there; safe with many workers at
    once.
    """
    wanted = hashlib.sha256((BROKER_FILES / "pom.xml").read_bytes()).hexdigest()[:12]
    folder = _CACHE / wanted
    _CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(_CACHE / "lock"):
        if not folder.exists():
            unfinished = _CACHE / f"{wanted}.new"
            shutil.rmtree(unfinished, ignore_errors=True)
            _fetch(unfinished)
            unfinished.rename(folder)
    return folder


def _fetch(folder: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", f"--file={BROKER_FILES / 'pom.xml'}", "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0 or not any(folder.glob("kafka_2.13-*.jar")):
        raise NoKafkaError(f"Maven could not fetch the broker's libraries:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _java_version() -> int:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    number = said.partition('"')[2].partition('"')[0].partition(".")[0].partition("-")[0]
    return int(number) if number.isdigit() else 0


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode == 0


if __name__ == "__main__":
    launcher()
