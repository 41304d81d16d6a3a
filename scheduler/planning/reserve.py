"""Reservations and backfill (R-23): per GPU type and pool the first blocked job of a node or more has its nodes held."""

from commands.entities import Job
from commands.plan import Hold
from events.ids import JobId
from events.reservation import FreedBecause
from scheduler.planning.forecast import Forecast
from scheduler.planning.trial import Trial


def keep(trial: Trial) -> list[tuple[JobId, FreedBecause]]:
    """Begin the cycle: fill `trial.reservations` with those that stand; return those whose job waits no more."""
    trial.reservations.update(trial.state.reservations.rows)
    return []


def usable(trial: Trial, job: Job) -> int | None:
    """Bitset of the nodes that the job may start on now: not those reserved for another, unless it is sure to end
    before that start (backfill). None: all."""
    return None


def reserve(trial: Trial, forecast: Forecast, job: Job) -> Hold | None:
    """The reservation of a blocked job that is first of its type and pool; None where it keeps what it has."""
    return None
