"""One reading of an events log, from its start or a snapshot to its end: chain, fold, and every decision.

A record is folded only once the next one has confirmed that it is whole, so that a record which was changed is named
as that, and not as a decision that comes out otherwise. Nothing after the first bad record is judged: it rests on it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from commands import snapshot
from commands.evolve import fold_commit, fold_term
from commands.invariants import InvariantBroken, check_all
from commands.snapshot import RULES_VERSION
from commands.state import State
from events.chain import START, Accepted, Dropped, Head
from events.codec import Unreadable
from events.envelope import Commit, Term
from events.log import READ_BATCH, LogUnusable, Noted, Raw, RecordLog
from replay.collecting import collecting_rarely
from replay.verify.chain import Chain, Suspicious
from replay.verify.decisions import Decisions, OnTheWord, Unknown
from replay.verify.diagnosis import Evidence, diagnose
from replay.verify.findings import Difference, DroppedRecord, Finding, Report, Restored, Wrong
from replay.verify.seen import Seen, seen
from replay.verify.window import EVERYTHING, Window

LOOK_AHEAD = READ_BATCH


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: a snapshot's state, and the head that it is of (P-10)."""

    head: Head
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be verified. `noted`: heads known elsewhere, read before the end of the log is asked for (P-5).
    `cut`: how it is known that the log was cut off. `recompute` False: chain and fold alone.
    `progress`: told (records read, records in all) after each batch."""

    window: Window = EVERYTHING
    noted: tuple[Noted, ...] = ()
    cut: str = ""
    start: Start | None = None
    recompute: bool = True
    progress: Callable[[int, int], None] = field(default=lambda read, total: None)


async def verify(log: RecordLog, request: Request | None = None) -> Report:
    """Everything about one log, to its end as it is now. Raises LogUnavailable."""
    with collecting_rarely():
        return await _Walk(log, request or Request()).run()


class _Found(Exception):
    """The first bad record: the walk is over."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.why)
        self.finding = finding


class _Walk:
    def __init__(self, log: RecordLog, request: Request) -> None:
        start = request.start or Start(START, State(log.cluster))
        self._log = log
        self._request = request
        self._window = request.window
        self._chain = Chain(start.head)
        self._state = start.state
        self._decisions = Decisions(start.state)
        self._waiting: tuple[Head, Accepted] | None = None
        """Accepted, with the head before it, and not yet confirmed by the next."""
        self._rules: int | None = RULES_VERSION if request.start is not None else None
        begun = start.head if request.start is not None else None
        self.report = Report(cluster=log.cluster, since_n=max(0, start.head.n), head=begun)

    async def run(self) -> Report:
        """See verify."""
        report = self.report
        try:
            await self._walk()
        except _Found as found:
            report.finding = found.finding
        report.state = snapshot.digest(self._state)
        return report

    async def _walk(self) -> None:
        end = await self._log.end()
        async for batch in self._batches(end):
            for raw in batch:
                try:
                    self._take(raw)
                except Suspicious as suspicious:
                    raise _Found(await self._diagnose(suspicious)) from None
                if self._window.last is not None and self._window.over(self._chain.head):
                    return  # the record behind the window has confirmed the last one in it
            self._request.progress(batch[-1].offset + 1, end + 1)
        self._check_noted_end()
        self._confirm()
        self._check_state()

    async def _batches(self, end: int) -> AsyncIterator[Sequence[Raw]]:
        """The records up to `end`. A record that the log itself has lost is found here."""
        while (after := self._chain.head.offset) < end:
            try:
                batch = await self._log.read(after, READ_BATCH)
            except LogUnusable as lost:
                head = self._chain.head
                raise _Found(Finding(wrong=Wrong.MISSING, offset=head.offset + 1, n=None, why=str(lost))) from None
            if not batch:
                raise _Found(_lost(self._chain.head, "the log ends early"))
            yield [raw for raw in batch if raw.offset <= end]

    # One record

    def _take(self, raw: Raw) -> None:
        before = self._chain.head
        outcome = self._chain.take(raw)
        self.report.records += 1
        if isinstance(outcome, Dropped):
            self._drop(raw, outcome)
            return
        self._check_noted(outcome.head)
        self._confirm()
        self._waiting = (before, outcome)

    def _drop(self, raw: Raw, outcome: Dropped) -> None:
        record = seen(raw)
        self.report.drops(DroppedRecord(offset=raw.offset, reason=outcome.reason, epoch=record.epoch, n=record.n))

    def _confirm(self) -> None:
        """Fold the record that waits: it is whole."""
        if self._waiting is None:
            return
        (before, accepted), self._waiting = self._waiting, None
        try:
            self._fold(before, accepted)
        except (Unreadable, LookupError, TypeError, ValueError, AssertionError) as error:
            why = f"{type(error).__name__}: {error}"
            head = accepted.head
            raise _Found(Finding(wrong=Wrong.UNREADABLE, offset=head.accepted, n=head.n, why=why[:500])) from None
        self.report.head = accepted.head
        self.report.log_id = accepted.head.log_id
        self.report.accepted += 1

    def _fold(self, before: Head, accepted: Accepted) -> None:
        match accepted.parsed["kind"]:
            case "commit":
                self._fold_commit(before, accepted)
            case "term":
                self._fold_term(accepted)

    def _fold_term(self, accepted: Accepted) -> None:
        term = accepted.record()
        assert isinstance(term, Term)
        fold_term(self._state, term)
        self._decisions.fed()
        self._rules = term.rules
        self.report.terms += 1

    def _fold_commit(self, before: Head, accepted: Accepted) -> None:
        report = self.report
        report.commits += 1
        report.events += len(accepted.parsed["events"])
        if accepted.parsed["input"]["kind"] == "leader" and (word := accepted.parsed["input"]["body"].get("restored")):
            report.restored.append(Restored(n=accepted.head.n, operator=word[0], reason=word[1]))
        if not self._recomputes(accepted):
            self._decisions.forget()
            record = accepted.record()
            assert isinstance(record, Commit)
            fold_commit(self._state, record)
            self._state.settle()
            return
        match self._decisions.take(before, accepted):
            case Difference() as difference:
                report.differs(difference)
            case Unknown(why):
                report.cannot_recompute(accepted.head.n, why)
                return
            case OnTheWord():
                report.set_aside += 1
        report.recomputed += 1

    def _recomputes(self, accepted: Accepted) -> bool:
        if not self._request.recompute or not self._window.holds(accepted.head):
            return False
        if self._rules == RULES_VERSION:
            return True
        why = f"decided under rules {self._rules}, this build has {RULES_VERSION}"
        self.report.cannot_recompute(accepted.head.n, why)
        return False

    # What others know

    def _check_noted(self, head: Head) -> None:
        """A record that somebody remembers as accepted is the one that is here."""
        for noted in self._request.noted:
            if noted.offset == head.accepted and noted.hash != head.hash:
                self._confirm()
                why = f"{noted.by} has another hash of it"
                raise _Found(Finding(wrong=Wrong.CHANGED, offset=head.accepted, n=head.n, why=why))
            if noted.offset == head.accepted:
                self.report.noted.append(noted)

    def _check_noted_end(self) -> None:
        """Nothing that was accepted is beyond the end (P-5)."""
        head = self._chain.head
        for noted in sorted(self._request.noted, key=lambda noted: noted.n):
            if noted.log_id != head.log_id:
                why = f"{noted.by} knows log {noted.log_id}, this is log {head.log_id}"
                raise self._cut(_lost(head, why, offset=0, n=0))
            if noted.n > head.n:
                raise self._cut(_lost(head, f"{noted.by} knows n {noted.n} at {noted.offset}"))
            if noted.offset > self.report.since_n and noted not in self.report.noted and noted.n > self.report.since_n:
                why = f"{noted.by} knows n {noted.n} there, and no reader counts it"
                raise self._cut(Finding(wrong=Wrong.CHANGED, offset=noted.offset, n=noted.n, why=why))

        if self._request.cut:
            raise self._cut(_lost(head, self._request.cut))

    def _cut(self, finding: Finding) -> _Found:
        self._confirm()
        return _Found(finding)

    def _check_state(self) -> None:
        """The invariants of the state that it all came to (I-1, I-11)."""
        try:
            check_all(self._state)
        except InvariantBroken as broken:
            head = self._chain.head
            raise _Found(
                Finding(wrong=Wrong.UNREADABLE, offset=head.accepted, n=head.n, why=f"by then {broken}")
            ) from None

    # What went wrong

    async def _diagnose(self, suspicious: Suspicious) -> Finding:
        """The first bad record. The one before it is folded where it is not that one."""
        evidence = Evidence(
            chain=self._chain,
            after=await self._after(suspicious.raw.offset),
            noted=self._request.noted,
            last_comes_out=self._last_comes_out,
        )
        finding = diagnose(suspicious, evidence)
        if self._waiting is not None and self._waiting[1].head.accepted < finding.offset:
            self._confirm()
        return finding

    async def _after(self, offset: int) -> list[Seen]:
        try:
            return [seen(raw) for raw in await self._log.read(offset, LOOK_AHEAD)]
        except LogUnusable:
            return []

    def _last_comes_out(self) -> bool | None:
        if self._waiting is None or self._waiting[1].parsed["kind"] != "commit" or self._rules != RULES_VERSION:
            return None
        return self._decisions.comes_out(*self._waiting)


def _lost(head: Head, why: str, *, offset: int | None = None, n: int | None = None) -> Finding:
    return Finding(
        wrong=Wrong.CUT if offset is None else Wrong.CHANGED,
        offset=head.offset + 1 if offset is None else offset,
        n=head.n + 1 if n is None else n,
        why=why,
    )
