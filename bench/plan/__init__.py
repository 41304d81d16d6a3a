"""The policy at 24,000 GPUs, one core: how long a decision takes.

`plan.fit` is the search for a place alone, without order, quota and the building of events. For the others `plan` is
the planner's cycle, and `decision` the whole of it: the plan, every rule checked again by the applier, every event made
and folded, and the claims that follow. All of it is arithmetic: seconds are those of the processor, whatever else the
machine is doing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

from bench.figure import Figure
from bench.plan import cycles, fits, gangs, memory, rooms
from signalboxd.collection import collect_rarely


def main() -> Iterator[Figure]:
    """All cases, with garbage collected as the scheduler has it collected."""
    collect_rarely()
    for part in (cycles, gangs, rooms, fits, memory):
        for figure in part.main():
            yield figure
            gc.collect()
