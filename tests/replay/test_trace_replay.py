"""Importer and engine together, against start times of two independent simulators (tests/data/LICENCE.md)."""

from __future__ import annotations

import csv
import gzip
from fractions import Fraction
from pathlib import Path

import pytest

from commands.policy import Policy, Preset
from events.job import JobState
from replay.engine import run
from replay.traces.fleet import parse_fleet
from replay.traces.options import AT_ONCE, Options
from replay.traces.read import read_trace
from replay.traces.scenario import scenario

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("preset", [Preset.FIFO, Preset.SKIP, Preset.EASY])
def test_every_start_of_kalos(preset: Preset) -> None:
    """From the file to the outcome: at a quarter of its time on 1,024 GPUs each of the 319 jobs starts in the very
    second in which it starts in the reference, and all of them succeed."""
    trace = read_trace(DATA / "acme-kalos-completed.csv.gz")
    options = Options(
        fleet=parse_fleet("128x8:h100"), scale=Fraction("0.25"), running=AT_ONCE, policy=Policy(preset=preset)
    )
    made, report = scenario(trace, options)
    outcome = run(made)
    with gzip.open(DATA / "kalos-x4-1024gpus-starts.csv.gz", "rt") as file:
        expected = {line["job_id"]: int(line[f"{preset}_start_s"]) for line in csv.DictReader(file)}
    assert report.used == len(expected) == 319
    starts = {job.name: job.first_start_at - made.start_at for job in outcome.jobs if job.first_start_at is not None}
    assert starts == {name: 1000 * start_s for name, start_s in expected.items()}
    assert {job.state for job in outcome.jobs} == {JobState.SUCCEEDED}
