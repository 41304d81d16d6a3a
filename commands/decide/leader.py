"""The first facts of a term."""

from commands.decide.attempts import Draft
from events.ids import Instant
from events.leadership import ClockGap, LeaderElected

GAP_MS = 10 * 60 * 1000
QUIET_MS = 2 * 60 * 1000


def decide_leader(draft: Draft, holder: str, last_at: Instant) -> None:
    """The new leader, and a gap in time since the last record: then nothing times out until agents had time (P-11)."""
    state = draft.state
    draft.add(LeaderElected(epoch=state.meta.epoch, holder=holder))
    gap = state.meta.at - last_at
    if last_at and gap > GAP_MS:
        draft.add(ClockGap(gap_s=gap // 1000, until_at=Instant(state.meta.at + QUIET_MS)))
