"""A copy of the cluster's state that follows the log: what a standby keeps, and what a new leader starts from."""

import asyncio

from commands import snapshot
from commands.evolve import fold_commit, fold_term
from commands.state import Change, State
from events.chain import START, Accepted, ChainBroken, Dropped, Head
from events.codec import Unreadable
from events.envelope import Commit, Genesis, Record, Term
from events.ids import ClusterId
from events.log import EventLog, LogUnusable, filtered, follow_accepted, verify_position
from scheduler.ports import Snapshots


class Replica:
    """State at `head`."""

    def __init__(self, state: State, head: Head) -> None:
        self.state = state
        self.head = head

    def fold(self, record: Record, head: Head) -> list[Change]:
        """One accepted record. Returns its changes, for those who keep indices."""
        match record:
            case Commit():
                fold_commit(self.state, record)
            case Term():
                fold_term(self.state, record)
            case Genesis():
                pass
        self.head = head
        return self.state.accept()

    async def catch_up(self, log: EventLog, yield_every: int = 0) -> None:
        """Fold to the end of the log as it is now. `yield_every`: after so many records other tasks have their turn; 0:
        only where the log is waited for. Raises ChainBroken, Unreadable, LogUnusable."""
        number = 0
        async for outcome in filtered(log, self.head):
            self._take(outcome)
            number += 1
            if yield_every and number % yield_every == 0:
                await asyncio.sleep(0)

    async def follow(self, log: EventLog) -> None:
        """Fold for ever."""
        async for batch in follow_accepted(log, self.head):
            for outcome in batch:
                self._take(outcome)

    def _take(self, outcome: Accepted | Dropped) -> None:
        if isinstance(outcome, Accepted):
            self.fold(outcome.record(), outcome.head)
        else:
            self.head = outcome.head


async def restore(cluster: ClusterId, log: EventLog, snapshots: Snapshots, yield_every: int = 0) -> Replica:
    """The state at the end of the log: from the newest snapshot that fits and chains, else from the start (P-10).
    `yield_every`: see catch_up."""
    for head, raw in await snapshots.newest(snapshot.fingerprint()):
        try:
            await verify_position(log, head)
            replica = Replica(snapshot.load(raw), head)
            await replica.catch_up(log, yield_every)
            return replica
        except (LogUnusable, ChainBroken, Unreadable, ValueError):
            continue
    replica = Replica(State(cluster), START)
    await replica.catch_up(log, yield_every)
    return replica
