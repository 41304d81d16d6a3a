"""Records: what the events log is made of. One record is one commit: the whole outcome of one decision."""

from dataclasses import dataclass, field
from typing import Any

from events.ids import ClusterId, Epoch, Instant, LogId, Nonce, Principal

Event = Any
"""A registered event (events.catalogue); kept open because subjects register their own."""

RECORD_BYTES_MAX = 512 * 1024
"""P-7: no record is larger; a larger cycle is split by decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """The first record of a log, commands or events: tells it from any other of its name (P-4)."""

    log_id: LogId
    cluster: ClusterId


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Begins a leadership (P-3). `n` and `prev` chain it to the last accepted record; `rules`: version of the core."""

    cluster: ClusterId
    epoch: Epoch
    nonce: Nonce
    n: int
    prev: str
    at: Instant
    rules: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a commit answers: `kind` command, reports, tick or leader; `id` unique.

    `position` and `log_id` name the place in the commands log (P-13). `body` is what is needed to decide it again
    (I-9).
    """

    kind: str
    id: str
    body: Any = None
    position: int | None = None
    log_id: LogId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The outcome of one decision. `seq` is that of the first event; the events count on from it.

    n and seq are gapless per cluster, `at` never goes back, `prev` is the hash of the record accepted before.
    `cycle`: number, within the term, of the planning cycle that made it; `planned_at_n`: the n its plan was made at
    (P-23). `cause`: in a word what led to it: the command's type, or reports, tick, cycle, leader, conflict.
    """

    cluster: ClusterId
    epoch: Epoch
    nonce: Nonce
    n: int
    at: Instant
    actor: Principal
    input: Input
    policy: int
    prev: str
    seq: int
    events: tuple[Event, ...]
    cycle: int | None = None
    planned_at_n: int | None = None
    cause: str = field(default="")


Record = Genesis | Term | Commit
