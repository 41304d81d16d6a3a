"""bench.replay measures what it says: a trace is replayed whole, by a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from commands.policy import Preset
from tests.replay.made import HEADER


@pytest.mark.parametrize("preset", [Preset.DEFAULT, Preset.EASY])
def test_a_trace_is_replayed_and_measured(preset: Preset, tmp_path: Path) -> None:
    """Seconds of process time and MiB at the peak; its teams get quotas in proportion to what they used."""
    path = tmp_path / "philly.csv"
    rows = [f"job-{n},{'ab'[n % 2]},,{3_000_000 + 60 * n},{2 ** (n % 5)},,,{600 + n},,,,," for n in range(50)]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    command = [sys.executable, "-m", "bench.replay", str(path), preset]
    done = subprocess.run(command, capture_output=True, check=True)
    seconds, mib = orjson.loads(done.stdout)
    assert 0 < seconds < 60
    assert 10 < mib < 1024
