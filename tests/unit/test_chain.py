"""The filter: which records count, by the rules of PROTOCOL P-1 to P-4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import codec
from events.chain import START, Accepted, ChainBroken, Dropped, DropReason, Head, admit
from events.envelope import Genesis
from events.ids import Epoch, LogId, Nonce
from tests.contract.records import CLUSTER, commit_after, held, term_after

GENESIS = codec.encode(Genesis(log_id=LogId("log-1"), cluster=CLUSTER))


def read(*records: bytes, head: Head = START) -> Head:
    """The head of a reader that has read these after `head`."""
    for raw in records:
        head = admit(head, head.offset + 1, raw).head
    return head


def led(epoch: int = 1, nonce: str = "a") -> Head:
    """The head in a log where a term has begun and one commit was made."""
    head = read(GENESIS)
    head = read(term_after(head, epoch, nonce), head=head)
    return read(commit_after(head, held("j0")), head=head)


def changed(raw: bytes, **fields: Any) -> bytes:
    """The record with some of its fields overwritten: of a term those of its body."""
    parsed = orjson.loads(raw)
    (parsed["body"] if parsed["kind"] == "term" else parsed).update(fields)
    return orjson.dumps(parsed)


def dropped(head: Head, raw: bytes) -> DropReason:
    """Why the next record does not count; all but the offset of the head is as before."""
    outcome = admit(head, head.offset + 1, raw)
    assert isinstance(outcome, Dropped)
    assert outcome.head == replace(head, offset=head.offset + 1)
    return outcome.reason


def test_a_log_begins_with_its_genesis() -> None:
    """The first record names the log, and is n 0."""
    head = read(GENESIS)
    assert (head.log_id, head.offset, head.accepted, head.n, head.seq) == ("log-1", 0, 0, 0, 0)
    assert head.hash == codec.digest(GENESIS)


@pytest.mark.parametrize("first", [b"junk", term_after(START, 1, "a"), commit_after(START), b'{"kind":"genesis"}'])
def test_a_log_that_begins_otherwise_is_none(first: bytes) -> None:
    """Anything else in the first place halts the reader, be it junk."""
    with pytest.raises(ChainBroken):
        admit(START, 0, first)


def test_terms_and_commits_chain() -> None:
    """Each accepted record moves n by one and seq by its events, and its hash is what the next one names."""
    head = read(GENESIS)
    term = term_after(head, 3, "a")
    led = read(term, head=head)
    assert (led.epoch, led.nonce, led.n, led.seq, led.hash) == (3, "a", 1, 0, codec.digest(term))
    commit = commit_after(led, held("x"), held("y"))
    after = read(commit, head=led)
    assert (after.n, after.seq, after.accepted, after.hash) == (2, 2, 2, codec.digest(commit))
    assert after.at > led.at


def test_an_accepted_record_can_be_read_whole() -> None:
    """The outcome carries the record: the filter decodes only as much as it needs."""
    head = led()
    outcome = admit(head, head.offset + 1, commit_after(head, held("x")))
    assert isinstance(outcome, Accepted)
    assert outcome.record() == codec.decode(outcome.raw)


def test_a_second_genesis_is_dropped() -> None:
    """Two processes that made the log at once leave two; the first counts."""
    other = codec.encode(Genesis(log_id=LogId("log-2"), cluster=CLUSTER))
    assert dropped(read(GENESIS), other) is DropReason.SECOND_GENESIS
    assert dropped(led(), other) is DropReason.SECOND_GENESIS


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_term_has_to_be_above_the_last(epoch: int) -> None:
    """Lower and equal epochs are stale."""
    head = led(epoch=2)
    assert dropped(head, term_after(head, epoch, "b")) is DropReason.STALE_TERM


@pytest.mark.parametrize("fields", [{"n": 9}, {"n": 2}, {"prev": "0" * 64}, {"at": 0}])
def test_a_term_has_to_follow_the_head(fields: dict[str, Any]) -> None:
    """A term written without knowing the last accepted record, or before its time, is stale, not tampering."""
    head = led()
    assert dropped(head, changed(term_after(head, 9, "b"), **fields)) is DropReason.STALE_TERM


@pytest.mark.parametrize(("epoch", "nonce"), [(1, "a"), (2, "a"), (3, "b"), (1, "b")])
def test_a_commit_of_another_term_is_fenced(epoch: int, nonce: str) -> None:
    """Epoch and nonce both have to be those of the current term (epoch 2, nonce b)."""
    head = led()
    head = read(term_after(head, 2, "b"), head=head)
    other = replace(head, epoch=Epoch(epoch), nonce=Nonce(nonce))
    assert dropped(head, commit_after(other, held("zombie"))) is DropReason.FENCED


def test_a_commit_before_any_term_is_fenced() -> None:
    """Without a term nobody leads."""
    head = read(GENESIS)
    assert dropped(head, commit_after(replace(head, epoch=Epoch(1), nonce=Nonce("a")))) is DropReason.FENCED


def test_the_same_commit_again_is_a_duplicate() -> None:
    """A record that landed twice is dropped the second time, and the third."""
    head = led()
    commit = commit_after(head, held("x"))
    head = read(commit, head=head)
    assert dropped(head, commit) is DropReason.DUPLICATE
    assert dropped(replace(head, offset=head.offset + 1), commit) is DropReason.DUPLICATE


@pytest.mark.parametrize("fields", [{"n": 2}, {"n": 4}, {"prev": "0" * 64}, {"seq": 1}, {"seq": 3}, {"at": 0}])
def test_a_commit_of_the_term_that_does_not_follow_halts(fields: dict[str, Any]) -> None:
    """No deposed leader writes such a record: every reader halts rather than guess (P-3)."""
    head = led()
    with pytest.raises(ChainBroken) as halt:
        admit(head, head.offset + 1, changed(commit_after(head, held("x")), **fields))
    assert halt.value.offset == head.offset + 1


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"kind":"other"}',
        b'{"kind":"term"}',
        b'{"kind":"term","body":7}',
        b'{"kind":["term"]}',
        b'{"kind":"commit","epoch":null}',
        b'{"kind":"term","body":{"epoch":"x","n":1}}',
        b"9" * 5000,
        b"[" * 5000,
    ],
)
def test_what_is_no_record_is_passed_over(junk: bytes) -> None:
    """Bytes that are no record of ours stop no reader (P-7)."""
    assert dropped(led(), junk) in (DropReason.UNREADABLE, DropReason.FENCED)


@pytest.mark.parametrize("step", [0, 2, -1])
def test_a_record_that_was_not_read_is_missed(step: int) -> None:
    """Offsets follow one another: a gap, or the same place again, halts."""
    head = led()
    with pytest.raises(ChainBroken):
        admit(head, head.offset + step, commit_after(head))


_MOVES = st.sampled_from(["commit", "commit", "commit", "term", "again", "read on", "junk"])


class Writer:
    """A leader that writes from what it knows: its own records, and the log's when it reads on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._view = read(GENESIS)
        self._last = b"junk"
        self._count = 0

    def write(self, move: str, true: Head) -> bytes | None:
        """The record of this move, if it makes one; `true` is the head of the log."""
        self._count += 1
        match move:
            case "read on":
                self._view = true
                return None
            case "again":
                return self._last
            case "term":
                self._last = term_after(self._view, self._view.epoch + 1, f"{self._name}{self._count}")
            case "commit" if self._view.nonce.startswith(self._name):
                self._last = commit_after(self._view, held(f"{self._name}{self._count}"))
            case _:
                return b"junk"
        self._view = read(self._last, head=self._view)
        return self._last


def _log_of(moves: list[tuple[bool, str]]) -> list[bytes]:
    """What two writers leave in the log who know nothing of each other until one reads on."""
    writers = {True: Writer("a"), False: Writer("b")}
    log, true = [GENESIS], read(GENESIS)
    for who, move in moves:
        raw = writers[who].write(move, true)
        if raw is not None:
            log.append(raw)
            true = admit(true, true.offset + 1, raw).head
    return log


@given(st.lists(st.tuples(st.booleans(), _MOVES), max_size=40), st.data())
def test_all_readers_accept_the_same_records(moves: list[tuple[bool, str]], data: st.DataObject) -> None:
    """For any interleaving of two writers, one who reads it whole and one who resumes anywhere accept the same."""
    log = _log_of(moves)
    head, heads, whole = START, [START], []
    for offset, raw in enumerate(log):
        outcome = admit(head, offset, raw)
        head = outcome.head
        heads.append(head)
        whole += [offset] if isinstance(outcome, Accepted) else []
    begin = data.draw(st.integers(0, len(log)))
    resumed, rest = heads[begin], []
    for offset in range(begin, len(log)):
        outcome = admit(resumed, offset, log[offset])
        resumed = outcome.head
        rest += [offset] if isinstance(outcome, Accepted) else []
    assert resumed == head
    assert rest == [offset for offset in whole if offset >= begin]


@given(st.lists(st.tuples(st.booleans(), _MOVES), max_size=40))
def test_accepted_records_form_one_chain(moves: list[tuple[bool, str]]) -> None:
    """For any interleaving: n counts up by one, epochs never fall, and each record names the hash of the one before."""
    head, n, epoch = START, -1, 0
    for offset, raw in enumerate(_log_of(moves)):
        before = head
        outcome = admit(head, offset, raw)
        head = outcome.head
        if isinstance(outcome, Dropped):
            assert replace(head, offset=before.offset) == before
            continue
        n += 1
        assert head.n == n
        assert head.epoch >= epoch
        epoch = head.epoch
        body = outcome.parsed["body"] if outcome.parsed["kind"] == "term" else outcome.parsed
        assert offset == 0 or body["prev"] == before.hash
