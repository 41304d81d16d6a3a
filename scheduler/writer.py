"""The one fenced writer: makes a decision a commit of the log, or nothing at all.

Order, and what breaks if it changes: try the facts on the state (else a poisonous input is found too late, P-7);
claim (else a GPU could be granted twice, I-2); append; see that the filter accepts it (else a deposed leader acts,
P-1); only then accept the state, release what ended (else a successor could claim what still runs, P-15), and tell
the caller, who may act on it. Whatever leaves an outcome open ends the process (I-5).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from commands.decide.attempts import Draft
from commands.state import Change, State
from events import codec
from events.chain import Accepted, Dropped, Head, admit
from events.envelope import Commit, Event, Input
from events.ids import Instant, Principal
from events.log import AppendRefused, EventLog, LogUnusable, UnknownOutcome
from scheduler.claiming import all_claims, claims_of, releases_of
from scheduler.ports import Claims, Conflict, Deposed, Exit, Tenure
from scheduler.proposal import Occasion, fitting, propose


class Poison(Exception):
    """Deciding this input failed by our own fault, or its commit is too large. Definite: nothing has changed (P-7)."""


class ClaimsTaken(Exception):
    """Postgres holds claims that the log does not know: definite, nothing has changed (P-8)."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        super().__init__(f"{len(conflicts)} gpus are claimed already")
        self.conflicts = conflicts


@dataclass(frozen=True, slots=True)
class Made:
    """An accepted commit: its events, and what they changed."""

    n: int
    events: tuple[Event, ...]
    changes: tuple[Change, ...]


class Writer:
    """Writes for one tenure, one decision after another. `monotonic`: seconds, of this process."""

    def __init__(
        self,
        *,
        state: State,
        head: Head,
        tenure: Tenure,
        log: EventLog,
        claims: Claims,
        monotonic: Callable[[], float],
        leave: Exit,
    ) -> None:
        self.state = state
        self.head = head
        self.tenure = tenure
        self._log = log
        self._claims = claims
        self._monotonic = monotonic
        self._leave = leave
        self._base = (max(head.at, tenure.at), monotonic())

    def now(self) -> Instant:
        """`at` of the next commit: never before the last, whatever any clock does (P-11)."""
        at, since = self._base
        return Instant(max(self.head.at, at + int((self._monotonic() - since) * 1000)))

    async def commit(
        self,
        made_by: Input,
        actor: Principal,
        decide: Callable[[Draft], None],
        *,
        cycle: int | None = None,
        planned_at_n: int | None = None,
        when_tried: Callable[[], Awaitable[None]] | None = None,
    ) -> Made | None:
        """One decision as one commit; None where it found no facts. Raises Poison, ClaimsTaken: both definite.

        `when_tried` is awaited between the trial and anything that leaves this process.
        """
        tried = self._try(made_by, actor, decide, cycle, planned_at_n)
        if when_tried is not None:
            await when_tried()
        if tried is None:
            return None
        commit, raw = tried
        await self._claim(commit)
        self.head = await self._append(raw)
        made = Made(commit.n, commit.events, tuple(self.state.accept()))
        await self._release(commit)
        return made

    async def reconcile(self) -> None:
        """Make claims equal to the log again."""
        try:
            await self._claims.reconcile(self.tenure, all_claims(self.state))
        except (Deposed, UnknownOutcome) as error:
            self._leave(f"reconcile: {error}")

    # 1. On trial

    def _try(
        self,
        made_by: Input,
        actor: Principal,
        decide: Callable[[Draft], None],
        cycle: int | None,
        planned_at_n: int | None,
    ) -> tuple[Commit, bytes] | None:
        occasion = Occasion(made_by=made_by, actor=actor, at=self.now(), cycle=cycle, planned_at_n=planned_at_n)
        try:
            commit = propose(self.state, self.head, occasion, decide)
            return None if commit is None else (commit, _encode(commit))
        except Exception as error:
            self.state.discard()
            raise Poison(f"{type(error).__name__}: {error}") from error

    # 2. Claims

    async def _claim(self, commit: Commit) -> None:
        claims = claims_of(self.state, commit.events)
        if not claims:
            return
        try:
            conflicts = await self._claims.claim(self.tenure, claims)
        except (Deposed, UnknownOutcome) as error:
            self._leave(f"claim: {error}")
        if conflicts:
            self.state.discard()
            raise ClaimsTaken(tuple(conflicts))

    # 3. The log

    async def _append(self, raw: bytes) -> Head:
        """The head once the record is known to be accepted (P-1)."""
        try:
            offset = await self._log.append(raw, self.head.offset + 1)
            return await self._accepted(raw, offset)
        except (UnknownOutcome, AppendRefused, LogUnusable) as error:
            self._leave(f"append: {error}")

    async def _accepted(self, raw: bytes, offset: int) -> Head:
        outcome: Accepted | Dropped | None
        if offset == self.head.offset + 1:
            outcome = admit(self.head, offset, raw)
        else:
            outcome = await read_through(self._log, self.head, offset)
        if not isinstance(outcome, Accepted) or outcome.raw != raw:
            self._leave(f"append: the record at {offset} is not accepted")
        return outcome.head

    # 4. What is over

    async def _release(self, commit: Commit) -> None:
        leases = releases_of(commit.events)
        if not leases:
            return
        try:
            await self._claims.release(self.tenure, leases)
        except (Deposed, UnknownOutcome) as error:
            self._leave(f"release: {error}")


async def read_through(log: EventLog, head: Head, offset: int) -> Accepted | Dropped | None:
    """The filter's word on the record at `offset`, from the log itself; None where it was not reached."""
    while head.offset < offset:
        batch = await log.read(head.offset, 100)
        if not batch:
            return None
        for raw in batch:
            outcome = admit(head, raw.offset, raw.value)
            head = outcome.head
            if raw.offset == offset:
                return outcome
            if isinstance(outcome, Accepted):
                return None  # somebody else's record counts: we do not lead any more
    return None


def _encode(commit: Commit) -> bytes:
    """The record's bytes, which must keep to the limit and read back (P-7)."""
    raw = fitting(commit)
    codec.decode(raw)
    return raw
