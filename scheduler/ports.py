"""What the shell needs of the world: leadership, claims, snapshots, time and an end. Adapters: postgres, memory.

Every call is one autocommitted statement there (P-8); an outcome that is not known raises UnknownOutcome, and ends
the leadership (I-5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from events.chain import Head
from events.ids import Epoch, Instant, LeaseId, NodeId, Nonce
from events.log import UnknownOutcome

__all__ = [
    "TENURE_S",
    "Claim",
    "Claims",
    "Conflict",
    "Deposed",
    "Exit",
    "Leadership",
    "Snapshots",
    "Tenure",
    "UnknownOutcome",
]

TENURE_S = 5.0
"""How long a tenure lasts unless it is renewed: for the row by the database's clock, for its holder by its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """A term of office as the row granted it.

    `at`: the database's clock then. `head`: (log id, offset, n, hash) of the newest record that a leader has noted
    as accepted, None for a new cluster. `suspects`: positions (first, last) of commands whose taking may have ended
    the leadership before; `refuse`: position of a command that ended two (P-7).
    `restored`: (operator, reason) where somebody said that the log was restored on purpose (P-5).
    """

    epoch: Epoch
    nonce: Nonce
    holder: str
    at: Instant
    head: tuple[str, int, int, str] | None = None
    suspects: tuple[int, int] | None = None
    refuse: int | None = None
    restored: tuple[str, str] | None = None


class Leadership(Protocol):
    """The row that says who leads a cluster (P-8, P-12)."""

    async def acquire(self, holder: str, address: str, epoch_above: Epoch, *, stale: bool = False) -> Tenure | None:
        """Take office if nobody holds it, with an epoch above the row, its floor and `epoch_above` (the log's).
        `stale`: the row has not changed for long enough by our own clock, whatever the database's says (P-11).
        None where somebody holds it. Terminates the connections of the holder before."""
        ...

    async def renew(self, tenure: Tenure, head: Head) -> bool:
        """Stay in office and note the accepted head (P-5). False: deposed."""
        ...

    async def observe(self) -> tuple[Epoch, int, str | None]:
        """(epoch, number of renewals, address) of the row; (0, 0, None) where there is none."""
        ...

    async def raise_floor(self, epoch: Epoch) -> None:
        """An agent has heard of `epoch`: the next tenure is above it (P-12)."""
        ...

    async def mark_taking(self, tenure: Tenure, first: int | None, last: int | None, *, exact: bool) -> None:
        """Note the commands that are being taken; None: none is. `exact`: one alone, and its deciding only (P-7)."""
        ...


Claim = tuple[NodeId, int, LeaseId]
"""(node, slot, lease): exclusive ownership of one GPU. A plain tuple, as a commit may bring tens of thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A GPU that is claimed already: definite, nothing of the gang was claimed."""

    node_id: NodeId
    gpu: int
    held_by: LeaseId


class Deposed(Exception):
    """The epoch row is another's: definite, nothing was done. The leadership is over."""


class Claims(Protocol):
    """The table of claims: a superset of the live leases in the log (I-2)."""

    async def claim(self, tenure: Tenure, claims: Sequence[Claim]) -> Sequence[Conflict]:
        """All of them or none; the conflicts if none. Raises Deposed, UnknownOutcome."""
        ...

    async def release(self, tenure: Tenure, leases: Sequence[LeaseId]) -> None:
        """Free everything that these leases hold. Raises Deposed, UnknownOutcome."""
        ...

    async def reconcile(self, tenure: Tenure, claims: Sequence[Claim]) -> int:
        """Make the table equal to `claims`; how many rows had to change. Raises Deposed, UnknownOutcome."""
        ...


class Snapshots(Protocol):
    """Where snapshots of the state lie (P-10)."""

    async def save(self, head: Head, fingerprint: str, state: bytes) -> None: ...

    async def newest(self, fingerprint: str) -> Sequence[tuple[Head, bytes]]:
        """Those that fit the fingerprint, newest first."""
        ...


class Exit(Protocol):
    """The end of this process: nothing is flushed, nothing cleaned up (P-9)."""

    def __call__(self, why: str) -> NoReturn: ...
