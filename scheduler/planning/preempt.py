"""Whom a blocked job may displace, and the smallest set that makes room for it (R-40 to R-45)."""

from commands.entities import Job
from commands.plan import Room
from scheduler.planning.forecast import Forecast
from scheduler.planning.trial import Trial


def make_room(trial: Trial, forecast: Forecast, job: Job, covered: bool) -> Room | None:
    """Victims and the placement that their end makes possible; None where there is no legal set.

    What it takes is taken in `trial`: the free GPUs of the placement, the victims in `trial.stopping`, the shares.
    """
    return None
