"""What the tests of the whole stack share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are live, and one worker runs them, should somebody ask for several."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.xdist_group("live"))


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory for one stack, with a short path, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="signalbox-live-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
