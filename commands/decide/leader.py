"""What a leader finds out about itself: the first facts of a term, and claims that the log does not know."""

from collections.abc import Sequence

from commands.decide.attempts import Draft
from commands.reports import ClaimSeen
from events.ids import Instant
from events.leadership import ClaimConflictFound, ClockGap, LeaderElected, LogRestored

GAP_MS = 10 * 60 * 1000
QUIET_MS = 2 * 60 * 1000


def decide_leader(draft: Draft, holder: str, last_at: Instant, restored: tuple[str, str] | None = None) -> None:
    """The new leader; an operator's word on a restored log (P-5); a gap in time since the last record.

    After a gap nothing times out until agents had time to report (P-11).
    """
    state = draft.state
    draft.add(LeaderElected(epoch=state.meta.epoch, holder=holder))
    if restored is not None:
        draft.add(LogRestored(operator=restored[0], reason=restored[1]))
    gap = state.meta.at - last_at
    if last_at and gap > GAP_MS:
        draft.add(ClockGap(gap_s=gap // 1000, until_at=Instant(state.meta.at + QUIET_MS)))


def decide_conflict(draft: Draft, seen: Sequence[ClaimSeen]) -> None:
    """Each is on record; what was seen twice is quarantined (P-8)."""
    for claim in seen:
        draft.add(
            ClaimConflictFound(node_id=claim.node_id, gpu=claim.gpu, held_by=claim.held_by, quarantined=claim.again)
        )
