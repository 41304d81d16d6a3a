"""Schedule a scenario again: the production core in virtual time, among model agents. No policy of its own (R-92)."""

from replay.engine.models import Models
from replay.engine.run import Progress, run

__all__ = ["Models", "Progress", "run"]
