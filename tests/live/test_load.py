"""Fifty submissions a second against a fleet; `./dev bench stack` is the long form, with figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.live import kalos
from tests.live.checks import sound_at_rest
from tests.live.load import submit_steadily
from tests.live.stack import stack


async def test_load(home: Path) -> None:
    """With 300 agents, 50 submissions a second for 10 s are each accepted at the first try, and run to their end."""
    async with stack(home, "--nodes", "300", "--no-agent") as run:
        made = await submit_steadily(
            run, lambda number: kalos.spec(f"load-{number}", 1 + number % 4, 2.0), rate=50, seconds=10
        )
        assert made.faults == []
        states = await kalos.all_ended(run)
        assert sorted(states) == sorted(made.sent_at)
        assert Counter(states.values()) == {"SUCCEEDED": 500}
        await sound_at_rest(run)
