"""Verify: an honest log comes out again byte for byte, and of any other the first bad record is named."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from commands.snapshot import RULES_VERSION
from events import codec
from events.chain import DropReason
from replay.verify import Wrong, read_bound
from replay.verify.window import Bound, Window
from tests.replay.logs import Written, chained_anew, n_of, verified, written


@pytest.fixture(scope="module")
def storm() -> Written:
    """A log with takeovers, kills, and records of deposed leaders in it."""
    return written("storm", 3)


@pytest.mark.parametrize("scenario", ["storm", "storm-postgres", "weather"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_decision_comes_out_again(scenario: str, seed: int) -> None:
    """Whatever died while it was written: each commit is decided again from the state before it, byte for byte."""
    log = written(scenario, seed)
    report = verified(log.records, log.noted)
    assert (report.whole, report.finding, report.differences) == (True, None, [])
    assert report.recomputed == report.commits > 300
    assert report.not_recomputable == []
    assert report.noted == [log.noted]
    assert report.terms > 3


def test_records_of_old_terms_are_listed_and_are_no_tampering(storm: Written) -> None:
    """What a deposed leader wrote lies in the log and counts for nobody."""
    report = verified(storm.records)
    assert report.whole
    assert report.dropped[DropReason.FENCED] == sum(r.reason is DropReason.FENCED for r in report.dropped_records) > 0
    assert report.accepted + sum(report.dropped.values()) == report.records == len(storm.records)


# Tampering


def term_of(raw: bytes) -> object:
    """The nonce of the term that it begins or belongs to."""
    parsed = codec.parse(raw)
    return (parsed if parsed["kind"] == "commit" else parsed["body"]).get("nonce")


def single(log: Written) -> list[int]:
    """Records that count, up to the noted one. Not those that were stored twice: there the second would be the true
    one, and the changed one inserted before it."""
    records = log.records
    return [o for o in log.counted() if o <= log.noted.offset and records[o : o + 1] != records[o + 1 : o + 2]]


@pytest.mark.parametrize("seed", range(40))
def test_one_changed_byte_is_found_where_it_is(storm: Written, seed: int) -> None:
    """Any bit of any byte of any record that counts, the last one too: exactly that record is named."""
    draw = Random(seed)
    offset = draw.choice(single(storm)) if seed else storm.noted.offset
    raw = bytearray(storm.records[offset])
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    report = verified([*storm.records[:offset], bytes(raw), *storm.records[offset + 1 :]], storm.noted)
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.CHANGED, offset), report.finding
    assert report.differences == []


@pytest.mark.parametrize("seed", range(8))
def test_a_missing_record_is_named(storm: Written, seed: int) -> None:
    """The log was put together again without it, so that no offset is missing: its n is."""
    offset = Random(seed).choice([o for o in single(storm) if o < storm.noted.offset])
    report = verified([*storm.records[:offset], *storm.records[offset + 1 :]])
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.n) == (Wrong.MISSING, n_of(storm.records[offset])), report.finding


def test_a_record_missing_at_the_turn_of_a_term_is_named(storm: Written) -> None:
    """The last commit of each term, its first, and the term itself: what follows is not passed off as fenced. Where a
    deposed leader wrote another record for the same place, that one may be taken for the true one, changed."""
    counted = storm.counted()
    turns = {o for o, after in pairwise(counted) if term_of(storm.records[o]) != term_of(storm.records[after])}
    turns |= {o for turn in turns for o in counted[counted.index(turn) + 1 :][:2]}
    taken = sorted(turns.intersection(single(storm)) - {storm.noted.offset, counted[-1], counted[-2]})
    assert len(taken) > 20
    for offset in taken:
        report = verified([*storm.records[:offset], *storm.records[offset + 1 :]], recompute=False)
        assert report.finding is not None, offset
        n = n_of(storm.records[offset])
        rivals = [o for o, raw in enumerate(storm.records) if o != offset and n_of(raw) == n]
        assert (report.finding.wrong, report.finding.n) == (Wrong.CHANGED if rivals else Wrong.MISSING, n) or (
            rivals and report.finding.wrong is Wrong.MISSING
        ), report.finding


def test_one_of_two_copies_may_be_missing(storm: Written) -> None:
    """A record that a retry stored twice says the same with one of them gone: nothing is lost, and nothing named."""
    twice = next(o for o in storm.counted() if o not in single(storm))
    report = verified([*storm.records[:twice], *storm.records[twice + 1 :]])
    assert report.whole
    assert report.state == verified(storm.records).state


@pytest.mark.parametrize("seed", range(8))
def test_swapped_records_are_named(storm: Written, seed: int) -> None:
    """The first place where another record stands than should."""
    first, second = sorted(Random(seed).sample(single(storm)[1:], 2))
    records = list(storm.records)
    records[first], records[second] = records[second], records[first]
    report = verified(records)
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.SWAPPED, first), report.finding


@pytest.mark.parametrize("seed", range(8))
def test_an_inserted_record_is_named(storm: Written, seed: int) -> None:
    """A copy of one that was accepted in the present term, at any later place of that term but right behind it, where
    it is only doubled."""
    draw, counted = Random(seed), storm.counted()
    inserted = None
    while inserted is None:
        place = draw.randrange(2, len(counted) - 1)
        term = codec.parse(storm.records[counted[place]]).get("nonce")
        before = [o for o in counted[: place - 1] if codec.parse(storm.records[o]).get("nonce") == term]
        if term is not None and before:
            inserted = (draw.choice(before), counted[place])
    copy, at = inserted
    report = verified([*storm.records[:at], storm.records[copy], *storm.records[at:]])
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.INSERTED, at), report.finding


@pytest.mark.parametrize("seed", range(8))
def test_a_forged_record_is_named(storm: Written, seed: int) -> None:
    """A commit that chains to the one before it, made up in the name of the leader of its term: the true ones go past
    it."""
    draw = Random(seed)
    commits = [o for o in storm.counted() if codec.parse(storm.records[o])["kind"] == "commit"]
    at = draw.choice(commits[:-1])
    true = codec.parse(storm.records[at])
    forged = codec.encode(codec.decode_parsed({**true, "input": {**true["input"], "id": "forged"}}))
    report = verified([*storm.records[:at], forged, *storm.records[at:]])
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.INSERTED, at), report.finding


def test_junk_is_named(storm: Written) -> None:
    """Readers pass over bytes that are no record; but no leader writes them."""
    report = verified([*storm.records[:100], b"junk", *storm.records[100:]])
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.INSERTED, 100)


@pytest.mark.parametrize("gone", [1, 5, 400])
def test_a_cut_tail_is_named(storm: Written, gone: int) -> None:
    """The epoch row knows what was accepted (P-5): the first record that is not there any more is named."""
    kept = storm.records[: storm.noted.offset + 1 - gone]
    report = verified(kept, storm.noted)
    assert report.finding is not None
    assert (report.finding.wrong, report.finding.offset) == (Wrong.CUT, len(kept))
    assert verified(kept).whole, "without a head to compare with a shorter log is a log"


def test_a_log_with_another_id_is_not_the_one_that_was_led(storm: Written) -> None:
    """A whole and honest log in the place of another is found by the head in the epoch row."""
    other = written("storm", 2)
    report = verified(other.records, storm.noted)
    assert report.finding is not None


# What was decided otherwise


def forged_decision(log: Written, at: int, change: str) -> list[bytes]:
    """The log as a dishonest leader would have written it: the chain is whole, but in the commit at `at` another flag
    is on a grant, or there is another cause or actor, or it is said to be about an earlier plan."""
    true = log.records[at]

    def forge(parsed: dict[str, Any]) -> None:
        if parsed["kind"] != "commit" or parsed["n"] != n_of(true):
            return
        if change == "grant":
            (grant,) = [event for event in parsed["events"] if event["type"] == "gang.allocated"][:1]
            grant["body"]["fallback"] = not grant["body"]["fallback"]
        elif change == "planned_at_n":
            parsed[change] -= 1
        else:
            parsed[change] = "somebody"

    return chained_anew(log.records, forge)


@pytest.mark.parametrize("change", ["grant", "cause", "actor"])
def test_what_was_decided_otherwise_is_shown_with_both_outcomes(change: str) -> None:
    """The chain is whole; this one decision does not come out, and what came after it does."""
    log = written("quiet", 1)
    at = next(o for o in log.counted() if b'"gang.allocated"' in log.records[o])
    report = verified(forged_decision(log, at, change))
    assert report.finding is None
    assert [difference.offset for difference in report.differences] == [at]
    (difference,) = report.differences
    assert difference.fields == ("events" if change == "grant" else change,)
    assert difference.recomputed == codec.parse(log.records[at])
    assert (difference.recorded != difference.recomputed, difference.input_kind) == (True, "cycle")
    assert not report.whole


def test_a_commit_about_a_plan_that_nobody_made_is_no_decision() -> None:
    """Or a leader could write any grant, and say of it that its plan was made long ago."""
    log = written("quiet", 1)
    at = next(o for o in log.counted() if b'"gang.allocated"' in log.records[o])
    report = verified(forged_decision(log, at, "planned_at_n"))
    assert [difference.offset for difference in report.differences] == [at]
    assert "none was made there" in report.differences[0].why
    assert (report.whole, report.not_recomputable) == (False, [])


def test_other_rules_are_no_tampering() -> None:
    """Commits of a term under other rules are folded, and not judged by this build's (R-90)."""
    log = written("quiet", 1)
    report = verified(under_rules(log, RULES_VERSION + 1))
    assert report.whole
    assert report.recomputed == 0
    (line,) = report.not_recomputable
    assert line.commits == report.commits > 50
    assert f"rules {RULES_VERSION + 1}" in line.why
    assert report.state == verified(log.records).state


def under_rules(log: Written, rules: int) -> list[bytes]:
    """The log with that version in its terms."""

    def change(parsed: dict[str, Any]) -> None:
        if parsed["kind"] == "term":
            parsed["body"]["rules"] = rules

    return chained_anew(log.records, change)


# Windows


def test_a_window_recomputes_what_lies_in_it() -> None:
    """Before it the log is folded; from a commit in the middle of it on every decision comes out again."""
    log = written("storm", 2)
    whole = verified(log.records)
    window = verified(log.records, window=Window(Bound("n", 200), Bound("n", 400)))
    assert window.whole
    assert window.head is not None
    assert window.head.n == 400
    assert 150 < window.recomputed <= 201
    assert window.accepted == 401 < whole.accepted


def test_bounds_are_days_times_commits_and_events() -> None:
    """A day as the last bound is the whole of it."""
    first, last = read_bound("2027-01-15"), read_bound("2027-01-15", last=True)
    assert last.value - first.value == 86_400_000 - 1
    assert read_bound("n:120") == Bound("n", 120)
    assert read_bound("seq:7") == Bound("seq", 7)
    with pytest.raises(ValueError, match="'tomorrow': wanted a day"):
        read_bound("tomorrow")
    with pytest.raises(ValueError, match="'9999-12-31': wanted a day"):
        read_bound("9999-12-31", last=True)


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    """Nothing lies in it, and "whole" would be said of nothing; one commit is a window."""
    with pytest.raises(ValueError, match=r"ends \(n 10\) before it begins \(n 50\)"):
        Window(Bound("n", 50), Bound("n", 10))
    assert Window(Bound("n", 50), Bound("n", 50)) == Window(Bound("n", 50), Bound("n", 50))
