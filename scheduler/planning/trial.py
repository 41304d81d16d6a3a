"""The ground on which a cycle tries things out: the state, the time, and the indices with what was taken so far.

Every step of a cycle works on the same Trial. Whatever it takes (GPUs from `capacity`, room from `shares`) is given
back at the end of the cycle: a plan that is not applied leaves no trace (C-70).
"""

from dataclasses import dataclass, field

from commands.entities import AttemptKey, Job, NodeState, Reservation, ReservationKey
from commands.policy import Policy
from commands.state import State
from events.ids import GpuType, Instant, JobId, NodeIndex
from scheduler.planning.capacity import Capacity
from scheduler.planning.quota import Shares


@dataclass(slots=True, kw_only=True)
class Trial:
    """One cycle at `now`.

    `reservations`: as they will be after this cycle, by key. `stopping`: attempts that this cycle stops. `started`:
    jobs that it starts; `busy_until`: nodes that they use, until when (0: no limit).
    """

    state: State
    now: Instant
    capacity: Capacity
    shares: Shares
    reservations: dict[ReservationKey, Reservation] = field(default_factory=dict)
    stopping: set[AttemptKey] = field(default_factory=set)
    started: set[JobId] = field(default_factory=set)
    busy_until: dict[NodeIndex, int] = field(default_factory=dict)
    unpledged: set[GpuType] = field(default_factory=set)
    """Types on which a pledge ends without a start: who borrows there is only known with the next cycle."""
    _bits: dict[tuple[NodeIndex, ...], int] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def pool_of(self, job: Job) -> str:
        """The declared pool that the job belongs to; "" for the rest of the fleet."""
        return ""

    def bits_of(self, reservation: Reservation) -> int:
        """Bitset of the held nodes."""
        bits = self._bits.get(reservation.nodes)
        if bits is None:
            bits = 0
            for index in reservation.nodes:
                bits |= 1 << index
            self._bits[reservation.nodes] = bits
        return bits

    def in_service(self, nodes: tuple[NodeIndex, ...]) -> bool:
        """Do all of them still take work?"""
        rows = self.state.nodes.rows
        return all(
            rows[index].drained is None
            and not rows[index].broken
            and rows[index].state in (NodeState.UP, NodeState.SUSPECT)
            for index in nodes
        )

    def reckoned(self, nodes: list[tuple[int, NodeIndex]]) -> list[tuple[int, NodeIndex]]:
        """Free times of nodes, with what this cycle has started."""
        if not any(index in self.busy_until for _, index in nodes):
            return nodes
        unlimited = 1 << 60
        return sorted((max(end, self.busy_until.get(index, end) or unlimited), index) for end, index in nodes)
