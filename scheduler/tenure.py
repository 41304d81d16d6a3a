"""Staying in office: the keeper renews the tenure, and ends the process when that is late or the main loop stands still.

It runs beside the main loop: in production on a thread, loop and connection of its own (signalboxd), so that a long
decision does not cost the tenure; in the simulation as a task. It never trusts another clock than this process's own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from events.chain import Head
from scheduler.ports import Exit, Leadership, Tenure, UnknownOutcome

TENURE_S = 5.0
RENEW_S = 1.5
STALLED_S = 20.0
"""A main loop that has not come round for so long stands still. Above the time limit of an append (P-9)."""


@dataclass(slots=True, kw_only=True)
class Office:
    """What keeper and main loop share. `renewed_at`: before the call that last renewed it, by our monotonic clock."""

    tenure: Tenure
    monotonic: Callable[[], float]
    renewed_at: float
    head: Callable[[], Head] = field(default=lambda: _no_head())
    progress_at: Callable[[], float] = field(default=lambda: 0.0)

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
        if office.expired():
            leave("the renewal of the tenure is late")
        stalled_s = office.monotonic() - office.progress_at()
        if stalled_s > STALLED_S:
            leave(f"the main loop has stood still for {stalled_s:.0f} s")
        await _renew(office, leadership, leave)


async def _renew(office: Office, leadership: Leadership, leave: Exit) -> None:
    """One try. An unknown outcome is harmless here: it is tried again until our own clock says it is too late."""
    begun = office.monotonic()
    try:
        ours = await asyncio.wait_for(leadership.renew(office.tenure, office.head()), TENURE_S)
    except (UnknownOutcome, TimeoutError):
        return
    if not ours:
        leave("deposed")
    office.renewed_at = begun


def _no_head() -> Head:
    raise AssertionError("the office has no head yet")
