"""The ground on which a cycle tries things out: the state, the time, and the indices with what was taken so far.

Every step of a cycle works on the same Trial. Whatever it takes (GPUs from `capacity`, room from `shares`) is given
back at the end of the cycle: a plan that is not applied leaves no trace (C-70).
"""

from dataclasses import dataclass, field
from typing import Any

from commands.entities import AttemptKey, Job, Reservation, ReservationKey
from commands.plan import Ranks
from commands.policy import Policy
from commands.shape import least_charge
from commands.state import State
from events.ids import BlockId, GpuType, Instant, JobId, NodeIndex
from scheduler.planning.capacity import Capacity
from scheduler.planning.forecast import UNLIMITED
from scheduler.planning.pools import Pools
from scheduler.planning.quota import ShareKey, Shares

HeldBits = dict[ReservationKey, tuple[tuple[NodeIndex, ...], int]]
"""Bitset of the nodes of each reservation, with the nodes that it is of."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """One cycle at `now`.

    `reservations`: as they will be after this cycle, by key. `stopping`: attempts that this cycle stops. `taken`: what
    it gives, but for what was pledged, and until when that is used.
    """

    state: State
    now: Instant
    capacity: Capacity
    shares: Shares
    pools: Pools | None = None
    in_rows: bool = True
    """May starts that are sure be found in rows (scheduler.planning.sure), and rooms for jobs that are alike go on with
    one search? Else each turn is by itself."""
    leaves_out: bool = True
    """May lines that are without hope be left out (scheduler.planning.used_up)?"""
    reservations: dict[ReservationKey, Reservation] = field(default_factory=dict)
    stopping: set[AttemptKey] = field(default_factory=set)
    uncovers: set[ShareKey] = field(default_factory=set)
    """Teams and types of which this cycle stops what is covered: others of theirs may be covered instead."""
    reclaims: set[ShareKey] = field(default_factory=set)
    """Teams and types for which this cycle takes borrowed capacity back."""
    put_off: bool = False
    """Has somebody no room to borrow made for him just because his team takes borrowed capacity back in this cycle?"""
    taken: list[tuple[int, Ranks]] = field(default_factory=list)
    unpledged: set[GpuType] = field(default_factory=set)
    """Types on which a pledge ends without a start: who borrows there is only known with the next cycle."""
    left_over: set[GpuType] = field(default_factory=set)
    """Types on which more comes free by what this cycle stops than it was stopped for: what did not fit before may."""
    by_loss: bool = False
    """Was no room made for the present turn that there might be, were other victims the least harm? Who that is goes by
    the work that would be lost, and moves with every checkpoint."""
    held: HeldBits = field(default_factory=dict)
    held_on: dict[GpuType, Any] = field(default_factory=dict)
    """What is known of the reservations of each type (scheduler.planning.reserve)."""
    _charges: dict[JobId, int] = field(default_factory=dict)
    _busy: dict[NodeIndex, int] = field(default_factory=dict)
    _busy_with: int = 0
    """How much of what is taken is reckoned in there."""

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def eligible(self, job: Job) -> int | None:
        """Bitset of the nodes that the job may use at all; None: every one."""
        return None if self.pools is None else self.pools.eligible(job)

    def home(self, job: Job) -> tuple[str, int]:
        """(name, bitset) of the pool that is there for the job; ("", 0): none."""
        return ("", 0) if self.pools is None else self.pools.home(job)

    def pool_of(self, job: Job) -> str:
        """The declared pool that the job belongs to; "" for the rest of the fleet."""
        return self.home(job)[0]

    def soon_over(self, job: Job) -> bool:
        """Could others wait for the end of a start of it right away (R-43)? Who may shrink gives back sooner still."""
        left_s = job.left_s
        return job.spec.elastic is not None or (left_s is not None and left_s <= self.policy.await_ends_s)

    def until(self, job: Job) -> int:
        """When a start of it should end, at the earliest."""
        return UNLIMITED if job.left_s is None else self.now + job.left_s * 1000

    def charge(self, job: Job) -> int:
        """GPUs that its start is charged for at least (R-12, R-32)."""
        charge = self._charges.get(job.id)
        if charge is None:
            charge = self._charges[job.id] = least_charge(self.state, job.spec)
        return charge

    def holds(self, job_id: JobId) -> bool:
        """Are nodes held for the job?"""
        return bool(self.reservations) and any(held.job_id == job_id for held in self.reservations.values())

    def bits_of(self, reservation: Reservation) -> int:
        """Bitset of the held nodes."""
        known = self.held.get(reservation.key)
        if known is None or known[0] is not reservation.nodes:
            bits = 0
            for index in reservation.nodes:
                bits |= 1 << index
            known = self.held[reservation.key] = (reservation.nodes, bits)
        return known[1]

    def busy_until(self) -> dict[NodeIndex, int]:
        """Nodes that this cycle gives something of, until when."""
        busy = self._busy
        for until, ranks in self.taken[self._busy_with :]:
            for index, _ in ranks:
                if until > busy.get(index, 0):
                    busy[index] = until
        self._busy_with = len(self.taken)
        return busy

    def reckoned(self, blocks: dict[BlockId, list[tuple[int, NodeIndex]]]) -> None:
        """Free times of nodes, by block: what this cycle gives is reckoned in."""
        busy, rows = self.busy_until(), self.state.nodes.rows
        for block in {rows[index].block for index in busy}.intersection(blocks):
            blocks[block] = sorted((max(end, busy.get(index, end)), index) for end, index in blocks[block])
