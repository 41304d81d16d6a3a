"""Replays against start times that others found: two independent simulators on a real trace (tests/data/LICENCE.md),
and a small scheduler of its own here, written from the rules alone."""

from __future__ import annotations

import csv
import gzip
from itertools import count
from pathlib import Path
from random import Random

import pytest

from commands.policy import Preset
from replay.engine import run
from replay.scenario import Arrival, Scenario
from tests.replay.fleets import comes, scenario, second

DATA = Path(__file__).parents[1] / "data"


def read(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt") as file:
        return list(csv.DictReader(file))


def exact(at_s: int, name: str, gpus: int, lasts_s: int, node_gpus: int = 8) -> Arrival:
    """A job that starts at once where it is let, and ends by itself exactly when its time is up."""
    replicas, each = (-(-gpus // node_gpus), node_gpus) if gpus >= node_gpus else (1, gpus)
    work = {"start_s": 0, "save_s": 0}
    return comes(
        at_s, name, lasts_s, work=work, replicas=replicas, gpus_per_replica=each, max_runtime_s=lasts_s, grace_s=0
    )


def starts(what: Scenario) -> dict[str, int]:
    return {job.job_id: second(job.first_start_at) for job in run(what).jobs}


@pytest.mark.parametrize("preset", [Preset.FIFO, Preset.SKIP, Preset.EASY])
def test_every_start_on_a_real_trace(preset: Preset) -> None:
    """The Kalos trace at a quarter of its time on 128 nodes of 8: each of 319 jobs starts in the very second in which
    it starts in the reference."""
    trace, reference = read("acme-kalos-completed.csv.gz"), read("kalos-x4-1024gpus-starts.csv.gz")
    arrivals = [
        exact(int(row["submit_s"]) // 4, row["job_id"], int(row["gpus"]), int(row["duration_s"])) for row in trace
    ]
    expected = {row["job_id"]: int(row[f"{preset}_start_s"]) for row in reference}
    assert len(expected) == 319
    assert starts(scenario(128, arrivals, policy={"preset": preset})) == expected


class Plain:
    """Nodes of eight GPUs, one by one; each second: ends, arrivals, one pass. A job of a node or more takes whole
    nodes; a smaller one goes on the node with the fewest free GPUs that has enough."""

    def __init__(self, nodes: int, jobs: list[tuple[int, str, int, int]], preset: Preset) -> None:
        self.free = [8] * nodes
        self.jobs = jobs
        self.preset = preset
        self.running: list[tuple[int, int, dict[int, int]]] = []
        self.queue: list[tuple[str, int, int]] = []
        self.starts: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        for now in count():
            for job in [job for job in self.running if job[0] == now]:
                self.running.remove(job)
                for node, gpus in job[2].items():
                    self.free[node] += gpus
            self.queue += [(name, gpus, lasts) for at_s, name, gpus, lasts in self.jobs if at_s == now]
            self.pass_over(now)
            if len(self.starts) == len(self.jobs):
                return self.starts
        raise AssertionError

    def pass_over(self, now: int) -> None:
        waiting, self.queue = self.queue, []
        blocked = False
        start_at, extra = 0, 0
        for name, gpus, lasts in waiting:
            late = now + lasts > start_at
            barred = blocked and (self.preset is Preset.FIFO or (self.preset is Preset.EASY and late and gpus > extra))
            place = None if barred else self.place(gpus)
            if place is None:
                self.queue.append((name, gpus, lasts))
                if not blocked and self.preset is not Preset.SKIP:
                    blocked = True
                    start_at, extra = self.hole(gpus)
                continue
            extra -= gpus if blocked and late else 0
            self.starts[name] = now
            self.running.append((now + lasts, gpus, place))
            for node, taken in place.items():
                self.free[node] -= taken

    def place(self, gpus: int) -> dict[int, int] | None:
        if gpus >= 8:
            whole = [node for node, free in enumerate(self.free) if free == 8][: gpus // 8]
            return dict.fromkeys(whole, 8) if len(whole) == gpus // 8 else None
        fitting = [(free, node) for node, free in enumerate(self.free) if free >= gpus]
        return {min(fitting)[1]: gpus} if fitting else None

    def hole(self, gpus: int) -> tuple[int, int]:
        free = sum(self.free)
        ends = sorted((end, size) for end, size, _ in self.running)
        for place, (end, size) in enumerate(ends):
            free += size
            if free >= gpus and (place + 1 == len(ends) or ends[place + 1][0] > end):
                return end, free - gpus
        raise AssertionError


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("preset", [Preset.FIFO, Preset.SKIP, Preset.EASY])
def test_small_fleets_are_as_by_hand(preset: Preset, seed: int) -> None:
    """On five nodes, packed node by node, 80 jobs of 1 to 40 GPUs start when an independent scheduler starts them."""
    draw = Random(seed)
    jobs, at_s = [], 0
    for number in range(80):
        at_s += draw.choice((0, 0, 1, 5, 20))
        gpus = draw.choice((1, 1, 2, 3, 4, 4, 8, 8, 16, 24, 40))
        jobs.append((at_s, f"j{number:03}", gpus, draw.choice((10, 30, 30, 60, 200))))
    expected = Plain(5, jobs, preset).run()
    what = scenario(5, [exact(*job) for job in jobs], in_block=5, policy={"preset": preset})
    assert starts(what) == expected
