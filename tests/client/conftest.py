"""A scripted API on a real socket, a client for it, and the `signalbox` command as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from signalbox import Client, Profile

from tests.client.command import Command
from tests.client.scripted import ScriptedApi


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    """An API that answers what the test has scripted."""
    with ScriptedApi() as server:
        yield server


@pytest.fixture
def client(api: ScriptedApi) -> Iterator[Client]:
    """A client of that API, patient for 20 s."""
    with Client(Profile(address=api.address, token="t-1"), patience_s=20) as made:
        yield made


@pytest.fixture
def command(api: ScriptedApi, tmp_path: Path) -> Command:
    """The command line with a profile for that API."""
    profile = Profile(address=api.address, token="t-1", team="research", gpu_type="h100", max_runtime="1h")
    return Command(profile.save(tmp_path / "profile.toml"), tmp_path)
