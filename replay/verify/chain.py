"""The filter's word on each record, and whether an honest log could hold what it drops.

The filter itself is events.chain, as for every reader. It drops what does not count and cannot know why; here each
dropped record has to be one that some leader could have written: in a term that was once accepted, after a record that
was accepted (a leader writes one record at a time, and only after what it knows to count). Anything else was put there.
"""

from array import array

from events.chain import Accepted, ChainBroken, Dropped, DropReason, Head, admit
from events.log import Raw
from replay.verify.seen import Seen, seen


class Suspicious(Exception):
    """The record at hand is not what has to stand here: to be diagnosed."""

    def __init__(self, raw: Raw, why: str) -> None:
        super().__init__(why)
        self.raw = raw
        self.why = why


class History:
    """Every accepted record from `since_n` on: hash and offset by n. 40 bytes a record."""

    def __init__(self, head: Head) -> None:
        self.since_n = head.n
        self._hashes = bytearray(bytes.fromhex(head.hash))
        self._offsets = array("q", [head.accepted])

    def add(self, head: Head) -> None:
        """The record that was just accepted."""
        self._hashes += bytes.fromhex(head.hash)
        self._offsets.append(head.accepted)

    def hash(self, n: int) -> str | None:
        """Of the accepted record n; None where there is none, or it came before."""
        place = n - self.since_n
        return self._hashes[place * 32 : place * 32 + 32].hex() if 0 <= place < len(self._offsets) else None

    def offset(self, n: int) -> int | None:
        """Where it stands."""
        place = n - self.since_n
        return self._offsets[place] if 0 <= place < len(self._offsets) else None


class Chain:
    """A reader's head, with what it has to remember to judge what is dropped."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.history = History(head)
        self.drops: list[Seen] = []
        """Records dropped since the last accepted one."""
        self._since_epoch = head.epoch
        self._terms = {(head.epoch, head.nonce)}

    def take(self, raw: Raw) -> Accepted | Dropped:
        """What the next record is. Raises Suspicious."""
        try:
            outcome = admit(self.head, raw.offset, raw.value)
        except ChainBroken as broken:
            raise Suspicious(raw, broken.why) from None
        if isinstance(outcome, Accepted):
            self._accept(outcome)
        else:
            self._judge(raw, outcome)
        return outcome

    def _accept(self, outcome: Accepted) -> None:
        self.head = outcome.head
        self.history.add(outcome.head)
        self._terms.add((outcome.head.epoch, outcome.head.nonce))
        self.drops.clear()

    def _judge(self, raw: Raw, outcome: Dropped) -> None:
        if outcome.reason is DropReason.UNREADABLE:
            raise Suspicious(raw, "no record of ours, and no leader writes another")
        if outcome.reason in (DropReason.FENCED, DropReason.STALE_TERM):
            record = seen(raw)
            if record.kind == "commit" and self._never_led(record):
                raise Suspicious(raw, f"a commit of epoch {record.epoch}, whose term is not in the log")
            if not self._follows_history(record):
                raise Suspicious(raw, f"a {record.kind} that follows no accepted record")
            self.drops.append(record)
        self.head = outcome.head

    def _never_led(self, record: Seen) -> bool:
        """Terms before the start of a partial reading are not known."""
        return (record.epoch, record.nonce) not in self._terms and (record.epoch or 0) >= self._since_epoch

    def _follows_history(self, record: Seen) -> bool:
        assert record.n is not None
        return record.n <= self.history.since_n or self.history.hash(record.n - 1) == record.prev
