"""What verify finds, as plain values: the first bad record, what was decided otherwise, and the whole report."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from events.chain import DropReason, Head
from events.ids import ClusterId, LogId
from events.log import Noted

LISTED_MAX = 100
"""Differences and dropped records beyond so many are counted, not listed."""


class Wrong(StrEnum):
    """What became of a record. Each names the first bad one."""

    CHANGED = "changed"
    MISSING = "missing"
    SWAPPED = "swapped"
    INSERTED = "inserted"
    CUT = "cut"
    UNREADABLE = "unreadable"
    """It chains, and yet this build cannot decode or fold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The first bad record: where it stands, its n where that is known, and how that is known."""

    wrong: Wrong
    offset: int
    n: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A whole record that this build would have decided otherwise. `recorded`, `recomputed`: the two outcomes, as
    parsed records; `recomputed` None: nothing would have been decided, or deciding fails. `at`: names of the fields
    that differ."""

    n: int
    offset: int
    input_kind: str
    input_id: str
    input_body: Any
    recorded: dict[str, Any]
    recomputed: dict[str, Any] | None
    fields: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRecord:
    """A record that no reader counts, and that may lie in the log: of an old term, say (P-3)."""

    offset: int
    reason: DropReason
    epoch: int | None
    n: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRecomputable:
    """Commits, first to last, whose decisions were not recomputed, and why; chain and fold were checked."""

    first_n: int
    last_n: int
    commits: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """An operator's word, on record, that the log was restored before commit n: what was lost then is lost (P-5)."""

    n: int
    operator: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Report:
    """All that one verification came to. `head`: of the last record that was found to be whole. `since_n`: 0 for the
    whole log; else the commit of the snapshot from which it was read on. `set_aside`: inputs that a leader passed over
    on its own word (P-7)."""

    cluster: ClusterId
    log_id: LogId | None = None
    since_n: int = 0
    head: Head | None = None
    records: int = 0
    accepted: int = 0
    commits: int = 0
    events: int = 0
    terms: int = 0
    recomputed: int = 0
    set_aside: int = 0
    differing: int = 0
    state: str = ""
    """Digest of the folded state."""
    finding: Finding | None = None
    differences: list[Difference] = field(default_factory=list)
    dropped: dict[DropReason, int] = field(default_factory=dict)
    dropped_records: list[DroppedRecord] = field(default_factory=list)
    not_recomputable: list[NotRecomputable] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)
    noted: list[Noted] = field(default_factory=list)
    """Heads known elsewhere that were found in the log."""

    @property
    def whole(self) -> bool:
        """Nothing was tampered with, and nothing decided otherwise."""
        return self.finding is None and not self.differing

    def differs(self, difference: Difference) -> None:
        """One more decision that comes out otherwise."""
        self.differing += 1
        if len(self.differences) < LISTED_MAX:
            self.differences.append(difference)

    def drops(self, record: DroppedRecord) -> None:
        """One more record that does not count."""
        self.dropped[record.reason] = self.dropped.get(record.reason, 0) + 1
        if len(self.dropped_records) < LISTED_MAX:
            self.dropped_records.append(record)

    def cannot_recompute(self, n: int, why: str) -> None:
        """One more commit whose decision cannot be computed again; those in a row for one reason are one line."""
        last = self.not_recomputable[-1] if self.not_recomputable else None
        if last is not None and last.why == why and last.last_n >= self._last_commit_before(n):
            self.not_recomputable[-1] = NotRecomputable(
                first_n=last.first_n, last_n=n, commits=last.commits + 1, why=why
            )
        else:
            self.not_recomputable.append(NotRecomputable(first_n=n, last_n=n, commits=1, why=why))

    @staticmethod
    def _last_commit_before(n: int) -> int:
        """A term may stand between two commits."""
        return n - 2
