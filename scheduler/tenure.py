"""Staying in office: the keeper renews the tenure, and ends the process when that is late or the main loop stalls.

It runs beside the main loop: in production on a thread, loop and connection of its own (signalboxd), so that a long
decision does not cost the tenure; in the simulation as a task. It never trusts another clock than this process's own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from events.chain import Head
from scheduler.ports import TENURE_S, Exit, Leadership, Tenure, UnknownOutcome

RENEW_S = 1.5
STALLED_S = 20.0
"""A main loop that has not come round for so long stands still. Above the time limit of an append (P-9)."""


class HasHead(Protocol):
    """A replica or a writer."""

    head: Head


class HasProgress(Protocol):
    """The main loop: when it last came round, in monotonic seconds."""

    progress_at: float


@dataclass(slots=True, kw_only=True)
class Office:
    """What keeper and main loop share.

    `renewed_at`: just before the call that last renewed it, by our monotonic clock. `source`: whoever has the accepted
    head; `progress`: the main loop, once there is one. `over`: given up, the keeper may end.
    """

    tenure: Tenure
    monotonic: Callable[[], float]
    renewed_at: float
    source: HasHead
    progress: HasProgress | None = None
    over: bool = False

    def expired(self) -> bool:
        """Has another the right to take over?"""
        return self.monotonic() - self.renewed_at > TENURE_S


async def keep(
    office: Office,
    leadership: Leadership,
    leave: Exit,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Renew until deposed, late or stalled; then leave."""
    while True:
        await sleep(RENEW_S)
        if office.over:
            return
        if office.expired():
            leave("the renewal of the tenure is late")
        stalled_s = office.monotonic() - office.progress.progress_at if office.progress is not None else 0.0
        if stalled_s > STALLED_S:
            leave(f"the main loop has stood still for {stalled_s:.0f} s")
        await _renew(office, leadership, leave)


async def _renew(office: Office, leadership: Leadership, leave: Exit) -> None:
    """One try. An unknown outcome is harmless here: it is tried again until our own clock says it is too late."""
    begun = office.monotonic()
    try:
        ours = await asyncio.wait_for(leadership.renew(office.tenure, office.source.head), TENURE_S)
    except (UnknownOutcome, TimeoutError):
        return
    if not ours and not office.over:
        leave("deposed")
    office.renewed_at = begun
