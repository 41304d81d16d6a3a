"""Verify: is the record whole, and does this build decide the same from it again? (R-82, R-90)

Reads an events log and nothing else; writes nothing. It has no rules of its own: the filter is events.chain, the fold
commands.evolve, the decisions commands.decide and scheduler.planning, as the scheduler runs them.
"""

from events.log import Noted
from replay.verify.findings import Difference, DroppedRecord, Finding, NotRecomputable, Report, Restored, Wrong
from replay.verify.walk import Request, Start, verify
from replay.verify.window import BadBound, Bound, Window, read_bound

__all__ = [
    "BadBound",
    "Bound",
    "Difference",
    "DroppedRecord",
    "Finding",
    "NotRecomputable",
    "Noted",
    "Report",
    "Request",
    "Restored",
    "Start",
    "Window",
    "Wrong",
    "read_bound",
    "verify",
]
