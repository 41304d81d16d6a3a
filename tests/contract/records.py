"""Records of an events log for tests: chained to a head, or deliberately not."""

from __future__ import annotations

from dataclasses import dataclass

from events import codec
from events.chain import START, Accepted, Dropped, Head, admit
from events.envelope import Commit, Event, Input, Term
from events.ids import ClusterId, Epoch, Instant, JobId, Nonce, Principal
from events.job import JobHeld
from events.log import EventLog, UnknownOutcome, accepted

CLUSTER = ClusterId("west")


def term_after(head: Head, epoch: int, nonce: str) -> bytes:
    """A term record that chains to `head`."""
    return codec.encode(
        Term(
            cluster=CLUSTER,
            epoch=Epoch(epoch),
            nonce=Nonce(nonce),
            n=head.n + 1,
            prev=head.hash,
            at=Instant(head.at + 1),
            rules=1,
            holder=f"holder-{nonce}",
        )
    )


def commit_after(head: Head, *events: Event, text: str = "") -> bytes:
    """A commit in the term of `head` that chains to it; `text` tells two such commits apart, and makes one large."""
    return codec.encode(
        Commit(
            cluster=CLUSTER,
            epoch=head.epoch,
            nonce=head.nonce,
            n=head.n + 1,
            at=Instant(head.at + 1),
            actor=Principal("scheduler"),
            input=Input(kind="tick", id=f"{head.nonce}-{head.n + 1}{text}"),
            policy=1,
            prev=head.hash,
            seq=head.seq + 1,
            events=events,
        )
    )


def held(name: str) -> JobHeld:
    """Some event."""
    return JobHeld(job_id=JobId(name))


@dataclass
class Leader:
    """A leader in small: what it knows of the log, and whether it still believes that it leads.

    `head` runs over what it wrote itself and must be true as long as `leading` is.
    """

    log: EventLog
    nonce: str
    head: Head = START
    leading: bool = False

    async def lead(self, epoch: int) -> bool:
        """Read to the end, begin a term; whether the filter let it through."""
        await self.read_up()
        return await self.begin(epoch)

    async def read_up(self) -> None:
        """Bring the head to the end of the log."""
        for outcome in await all_outcomes(self.log, self.head):
            self.head = outcome.head

    async def begin(self, epoch: int) -> bool:
        """Append a term record after the head as it is known."""
        self.leading = await self._append(term_after(self.head, epoch, self.nonce))
        return self.leading

    async def commit(self, *events: Event) -> bool:
        """Append a commit; whether it took effect. Where that is not known for sure this leader is done (P-1)."""
        self.leading = self.leading and await self._append(commit_after(self.head, *events))
        return self.leading

    async def _append(self, value: bytes) -> bool:
        expected = self.head.offset + 1
        try:
            offset = await self.log.append(value, expected)
        except UnknownOutcome:
            return False
        if offset != expected:
            return False
        outcome = admit(self.head, offset, value)
        self.head = outcome.head
        return isinstance(outcome, Accepted)


async def put(log: EventLog, value: bytes) -> int:
    """Append at the end, wherever that is, as no leader may: for records that readers must drop."""
    return await log.append(value, await log.end() + 1)


async def all_outcomes(log: EventLog, head: Head = START) -> list[Accepted | Dropped]:
    """What the filter says of every record after `head`, to the end as it is now."""
    outcomes: list[Accepted | Dropped] = []
    end = await log.end()
    while head.offset < end:
        for raw in await log.read(head.offset, 100):
            outcome = admit(head, raw.offset, raw.value)
            head = outcome.head
            outcomes.append(outcome)
    return outcomes


async def accepted_offsets(log: EventLog, head: Head = START) -> list[int]:
    """The offsets of the records that count."""
    return [step.head.offset async for step in accepted(log, head)]


async def head_of(log: EventLog) -> Head:
    """The position of a reader that has read all there is."""
    outcomes = await all_outcomes(log)
    return outcomes[-1].head if outcomes else START
