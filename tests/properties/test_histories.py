"""What holds of every history: GPUs, ledgers, gangs, hints, ends, and that the log alone tells it all.

The checks after every event and after every step are in tests/scenario.py and tests/properties/histories.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from commands import snapshot
from commands.state import State
from events import codec
from events.envelope import Commit
from events.gang import GangAllocated, GangEnding, GangReleased
from events.job import ENDS, JobFinished, JobQueued
from events.node import NodeLost, NodeReturned
from events.task import ReportDropped
from tests.builders import job_id
from tests.properties.histories import History
from tests.scenario import fold_log

ROOT = Path(__file__).parents[2]
STEPS = 400


@pytest.mark.parametrize("seed", range(6))
def test_any_history_is_safe_and_comes_to_rest(seed: int) -> None:
    """All invariants hold throughout; when all is cancelled and agents obey, nothing is claimed, charged or open."""
    history = History(seed)
    history.run(STEPS)
    history.quiet()
    state = history.state
    assert dict(state.attempts.rows) == {}
    assert {key: line.charged for key, line in state.usage.rows.items() if line.charged} == {}
    assert [node.id for node in state.nodes.rows.values() if node.used or node.leases] == []
    assert history.claims == {}
    assert [name for name in history.names if state.ended[job_id(name)].state not in ENDS] == []
    assert [team.id for team in state.teams.rows.values() if team.queued] == []


@pytest.mark.parametrize("seed", range(100, 103))
def test_reports_in_any_order_are_safe(seed: int) -> None:
    """What overtakes is taken, what is overtaken is lost: no GPU is given twice, no end written twice."""
    history = History(seed, shuffled=True)
    history.run(STEPS)


@pytest.mark.parametrize("seed", range(200, 203))
def test_hot_snapshot_and_full_fold_are_one_state(seed: int) -> None:
    """The state that decided, the fold of the whole log, and any snapshot with its tail, to the byte (P-10)."""
    history = History(seed)
    snapshots = []
    for _ in range(4):
        snapshots.append(snapshot.dump(history.state))
        history.run(60)
    hot, log = snapshot.dump(history.state), history.scenario.log
    starts = [State(history.state.cluster), *map(snapshot.load, snapshots)]
    for state in starts:
        fold_log(log, state)
        assert snapshot.dump(state) == hot


def test_the_histories_are_worth_their_name() -> None:
    """They hold what they are there for: losses, late reports, faults, success and failure."""
    found: Counter[str] = Counter()
    for raw in [raw for seed in range(4, 9) for raw in _log(seed)]:
        record = codec.decode(raw)
        if isinstance(record, Commit):
            found.update(type(event).__name__ for event in record.events)
            found.update(f"{event.state}" for event in record.events if isinstance(event, JobFinished))
            found.update(f"{event.reason}" for event in record.events if isinstance(event, GangEnding | JobQueued))
    wanted = [GangAllocated, GangReleased, NodeLost, NodeReturned, ReportDropped]
    names = [*(kind.__name__ for kind in wanted), "SUCCEEDED", "FAILED", "CANCELLED"]
    names += ["node_lost", "requeued", "drained", "nonzero_exit", "start_failed", "lease_missing", "timed_out"]
    assert [name for name in names if not found[name]] == []


def _log(seed: int) -> list[bytes]:
    history = History(seed)
    history.run(STEPS)
    return history.scenario.log


def test_the_same_history_is_the_same_bytes_under_another_hash_seed() -> None:
    """No set or address has a say in what is decided (I-6)."""
    digests = {_run(hash_seed, 7) for hash_seed in ("1", "4242")}
    assert len(digests) == 1
    assert _run("1", 8) not in digests


def _run(hash_seed: str, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.properties.histories", str(seed), "250"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
