"""Which record is the bad one, where the chain does not go on: what its neighbours and others say of it.

A record is vouched for by one that comes after it and has its hash, or by a head that was noted elsewhere (P-5). Where
nobody vouches for either of two, the decision is computed again: the one that comes out byte for byte is whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from events.log import Noted
from replay.verify.chain import Chain, Suspicious
from replay.verify.findings import Finding, Wrong
from replay.verify.seen import Seen, seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`after`: the records behind the suspicious one; `noted`: heads known elsewhere. `last_comes_out`: whether the
    decision of the last accepted record comes out again; None where it cannot be told."""

    chain: Chain
    after: Sequence[Seen]
    noted: Sequence[Noted]
    last_comes_out: Callable[[], bool | None]

    def vouched(self, record: Seen) -> bool:
        """Does another have its hash?"""
        return any(later.prev == record.digest for later in self.after if later.offset > record.offset) or any(
            noted.hash == record.digest for noted in self.noted
        )

    def followed(self, record: Seen, suspicious: Seen) -> bool:
        """Does the chain go on from it, and not, as for what a deposed leader wrote late, without it?"""
        return any(later.prev == record.digest for later in (suspicious, *self.after))

    def contradicted(self, record: Seen) -> bool:
        """Does another have another hash in its place?"""
        return any(
            later.n == (record.n or 0) + 1 and later.prev != record.digest and self.vouched(later)
            for later in self.after
            if later.offset > record.offset
        ) or any(noted.offset == record.offset and noted.hash != record.digest for noted in self.noted)


def diagnose(suspicious: Suspicious, evidence: Evidence) -> Finding:
    """The first bad record."""
    record, head = seen(suspicious.raw), evidence.chain.head
    if record.n is None or record.prev is None:
        return _no_record(record, suspicious, evidence)
    if record.offset != head.offset + 1:
        n = head.n + 1 if record.n > head.n + 1 else None
        return _missing(head.offset + 1, n, f"the next record is at {record.offset}")
    if evidence.chain.history.hash(record.n) == record.digest:
        return _inserted(record, f"a copy of n {record.n} at {evidence.chain.history.offset(record.n)}")
    if record.prev == head.hash:
        return _changed(record, f"it follows n {head.n}, but {suspicious.why}")
    if record.n == head.n + 1:
        return _one_of_two(record, evidence)
    return _ahead(record, evidence) if record.n > head.n else _behind(record, evidence)


def _no_record(record: Seen, suspicious: Suspicious, evidence: Evidence) -> Finding:
    head = evidence.chain.head
    if any((later.n, later.prev) == (head.n + 1, head.hash) for later in evidence.after):
        return _inserted(record, f"{suspicious.why}; the chain goes on behind it", n=None)
    return _changed(record, "it is no record of ours any more", n=head.n + 1)


def _one_of_two(record: Seen, evidence: Evidence) -> Finding:
    """It comes next and does not have the hash of the last accepted one: that one was changed, or this one was."""
    head, history = evidence.chain.head, evidence.chain.history
    last = Finding(
        wrong=Wrong.CHANGED,
        offset=head.accepted,
        n=head.n,
        why=f"n {record.n} at {record.offset} has another hash of it",
    )
    here = _changed(record, f"its prev is not the hash of n {head.n} at {head.accepted}")
    if evidence.vouched(record):
        return last
    if evidence.contradicted(record) or any(noted.hash == history.hash(head.n) for noted in evidence.noted):
        return here
    return here if evidence.last_comes_out() else last


def _ahead(record: Seen, evidence: Evidence) -> Finding:
    """Its n is too high: what should stand here stands elsewhere, or was made unrecognisable, or is gone."""
    head = evidence.chain.head
    for dropped in evidence.chain.drops:
        if dropped.kind == "term" and (dropped.epoch == record.epoch or dropped.nonce == record.nonce):
            return _changed(dropped, f"commits of its term follow, from {record.offset} on, and it does not count")
    for later in evidence.after:
        if later.digest == record.digest and later.offset > record.offset + 1:  # right behind it, it is only doubled
            return _inserted(record, f"a copy of n {record.n} at {later.offset}")
        if (later.n, later.prev) == (head.n + 1, head.hash) and evidence.followed(later, record):
            why = f"n {record.n} stands where n {head.n + 1} should, which stands at {later.offset}"
            return Finding(wrong=Wrong.SWAPPED, offset=record.offset, n=record.n, why=why)
    if not evidence.vouched(record) and any(later.prev == head.hash for later in evidence.after):
        return _inserted(record, f"the chain goes from n {head.n} on behind it")
    return _missing(record.offset, head.n + 1, f"after n {head.n} comes n {record.n}")


def _behind(record: Seen, evidence: Evidence) -> Finding:
    """Its n was taken before: one of the two was put there."""
    assert record.n is not None
    history, head = evidence.chain.history, evidence.chain.head
    rival = history.offset(record.n)
    if rival is not None and history.hash(record.n - 1) == record.prev and _is_true(record, evidence):
        why = f"the chain goes past it to n {record.n} at {record.offset}"
        return Finding(wrong=Wrong.INSERTED, offset=rival, n=record.n, why=why)
    return _inserted(record, f"n {head.n + 1} should stand here")


def _is_true(record: Seen, evidence: Evidence) -> bool:
    """Of it and the one that was accepted in its place."""
    return evidence.vouched(record) or (record.n == evidence.chain.head.n and evidence.last_comes_out() is False)


def _changed(record: Seen, why: str, n: int | None = None) -> Finding:
    return Finding(wrong=Wrong.CHANGED, offset=record.offset, n=record.n if n is None else n, why=why)


def _inserted(record: Seen, why: str, n: int | None = -1) -> Finding:
    return Finding(wrong=Wrong.INSERTED, offset=record.offset, n=record.n if n == -1 else n, why=why)


def _missing(offset: int, n: int | None, why: str) -> Finding:
    return Finding(wrong=Wrong.MISSING, offset=offset, n=n, why=why)
