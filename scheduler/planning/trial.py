"""The ground on which a cycle tries things out: the state, the time, and the indices with what was taken so far.

Every step of a cycle works on the same Trial. Whatever it takes (GPUs from `capacity`, room from `shares`) is given
back at the end of the cycle: a plan that is not applied leaves no trace (C-70).
"""

from dataclasses import dataclass, field

from commands.entities import AttemptKey, Reservation, ReservationKey
from commands.policy import Policy
from commands.state import State
from events.ids import Instant, JobId
from scheduler.planning.capacity import Capacity
from scheduler.planning.quota import Shares


@dataclass(slots=True, kw_only=True)
class Trial:
    """One cycle at `now`.

    `reservations`: as they will be after this cycle, by key. `stopping`: attempts that this cycle stops.
    `hidden`: bitset of nodes reserved for others, by GPU type; a job may use them only if it ends in time (backfill).
    """

    state: State
    now: Instant
    capacity: Capacity
    shares: Shares
    reservations: dict[ReservationKey, Reservation] = field(default_factory=dict)
    stopping: set[AttemptKey] = field(default_factory=set)
    started: set[JobId] = field(default_factory=set)

    @property
    def policy(self) -> Policy:
        return self.state.policy
