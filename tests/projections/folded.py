"""The rows that the log of a core scenario makes."""

from __future__ import annotations

from events.codec import decode
from events.envelope import Genesis
from events.ids import LogId
from projections.against_core import differences
from projections.fold import fold
from projections.store import Rows
from tests.scenario import Scenario


def rows_of(scenario: Scenario) -> Rows:
    """They tell what its state tells."""
    rows = Rows(scenario.state.cluster)
    fold(rows, Genesis(log_id=LogId("log"), cluster=scenario.state.cluster))
    for raw in scenario.log:
        fold(rows, decode(raw))
    assert differences(rows, scenario.state) == []
    return rows
