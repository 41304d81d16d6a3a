"""Verify of whole days: a busy cluster's log comes out again, with preemption, reservations and faults in it."""

from __future__ import annotations

import dataclasses

import pytest

from events import codec
from events.ids import Instant
from replay.engine.run import CLUSTER, Replay
from replay.generated import Fleet, day
from replay.scenario import Silence
from replay.verify import verify
from tests.replay.logs import memory_log
from tests.replay.scribe import Scribe


@pytest.mark.parametrize(("seed", "load"), [(1, 0.9), (2, 1.3)])
async def test_a_generated_day_comes_out_again(seed: int, load: float) -> None:
    """Every decision of every kind, though the leader ran many cycles that left no trace (P-23)."""
    scenario = day(seed, fleet=Fleet(nodes=64, nodes_in_block=16), jobs=1500, load=load)
    at = Instant(scenario.start_at + 6 * 3_600_000)
    silent = (Silence(node_id=node.node_id, at=at, until=Instant(at + 900_000)) for node in scenario.nodes[10:13])
    replay = Replay(dataclasses.replace(scenario, silences=tuple(silent)), lead=Scribe)
    replay.run("default")
    assert isinstance(replay.core, Scribe)
    records = replay.core.records
    report = await verify(memory_log(records, CLUSTER))
    assert (report.finding, report.differences) == (None, [])
    assert report.recomputed == report.commits > 1500
    parsed = [codec.parse(raw) for raw in records[2:]]
    assert {commit["input"]["kind"] for commit in parsed} >= {"leader", "command", "reports", "tick", "cycle"}
    names = {event["type"] for commit in parsed for event in commit["events"]}
    assert names >= {"preemption.ordered", "blocks.reserved", "node.lost", "gang.allocated"}
