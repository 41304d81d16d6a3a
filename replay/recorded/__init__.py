"""Recorded days: a log, or part of one, as a scenario; and whether replaying it gives the decisions that it holds.

What came and what the work really took is read out of the log; what was decided is kept apart, to compare with.
"""

from replay.recorded.again import Again, Other, again
from replay.recorded.day import Granted, NothingRecorded, Recorded, read_day

__all__ = ["Again", "Granted", "NothingRecorded", "Other", "Recorded", "again", "read_day"]
