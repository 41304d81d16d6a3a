"""What every events log promises: asserted on what readers accept, as the logs differ in what they acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from events import postgres
from events.chain import Accepted, ChainBroken, Dropped, DropReason
from events.envelope import RECORD_BYTES_MAX
from events.log import (
    AppendRefused,
    EventLog,
    LogUnusable,
    Raw,
    UnknownOutcome,
    accepted,
    follow_accepted,
    verify_position,
)
from tests.contract.places import Opened, Place
from tests.contract.records import (
    Leader,
    accepted_offsets,
    all_outcomes,
    commit_after,
    head_of,
    held,
    put,
    term_after,
)
from tests.servers.waiting import WITHIN_S


async def leader(opened: Opened, nonce: str, epoch: int, commits: int = 0) -> Leader:
    """A new process that leads, with some commits made."""
    made = Leader(await opened.events(), nonce)
    assert await made.lead(epoch)
    for number in range(commits):
        assert await made.commit(held(f"{nonce}{number}"))
    return made


async def drops(log: EventLog) -> list[DropReason]:
    """Why each dropped record was dropped, in log order; a second genesis by a race at the start aside."""
    outcomes = await all_outcomes(log)
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Dropped)]
    return [reason for reason in reasons if reason is not DropReason.SECOND_GENESIS]


async def try_append(log: EventLog, value: bytes, expected: int) -> bool:
    """Append as a leader does; whether it was acknowledged."""
    try:
        await log.append(value, expected)
    except AppendRefused:
        return False
    return True


async def test_a_log_that_was_never_made_does_not_open(place: Place) -> None:
    """Without `create`, a log that is not there is unusable, not empty."""
    log = place.events()
    with pytest.raises(LogUnusable):
        await log.open()
    await log.close()


async def test_processes_that_make_it_at_once_make_one_log(opened: Opened) -> None:
    """However many create the log at the same time, they open the same one, and one genesis counts."""
    logs = [opened.place.events() for _ in range(4)]
    ids = await asyncio.gather(*(log.open(create=True) for log in logs))
    assert len(set(ids)) == 1
    assert await accepted_offsets(logs[0]) == [0]
    for log in logs:
        await log.close()


async def test_records_come_back_in_order_without_a_gap(opened: Opened) -> None:
    """Offsets count from 0, and each append gets the next; reads go by their limit and end with nothing."""
    log = await opened.events()
    assert [await put(log, b"%d" % n) for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert await log.end() == 5
    assert await log.read(0, 2) == [Raw(1, b"1"), Raw(2, b"2")]
    assert [raw.offset for raw in await log.read(2, 100)] == [3, 4, 5]
    assert list(await log.read(5, 100)) == []


async def test_reading_beyond_the_end_is_an_error(opened: Opened) -> None:
    """A position past the end was read in another log, or in more of this one."""
    log = await opened.events()
    with pytest.raises(LogUnusable):
        await log.read(await log.end() + 1, 1)


async def test_a_reader_resumed_anywhere_accepts_the_rest(opened: Opened) -> None:
    """From the head after any record, accepted or dropped, the same records follow as for one who reads it all."""
    first = await leader(opened, "a", 1, commits=3)
    second = await leader(opened, "b", 2, commits=2)
    await put(first.log, commit_after(first.head, held("late")))
    await put(first.log, commit_after(await head_of(first.log), held("last")))
    outcomes = await all_outcomes(first.log)
    whole = [outcome.head.offset for outcome in outcomes if isinstance(outcome, Accepted)]
    for place in outcomes:
        rest = [offset for offset in whole if offset > place.head.offset]
        assert await accepted_offsets(second.log, place.head) == rest


async def test_followers_get_what_was_there_and_what_comes(opened: Opened) -> None:
    """Each follower sees every record once, in order, from where it asked on."""
    writer = await leader(opened, "a", 1, commits=2)
    begin = writer.head.offset
    logs = [writer.log, await opened.events(), await opened.events()]
    starts = [-1, begin, begin - 1]

    async def take(log: EventLog, after: int, until: int) -> list[int]:
        seen: list[int] = []
        async for batch in log.follow(after):
            seen += [raw.offset for raw in batch]
            if seen[-1] >= until:
                return seen
        raise AssertionError("a follower ended")

    tasks = [asyncio.create_task(take(log, after, begin + 20)) for log, after in zip(logs, starts, strict=True)]
    for number in range(20):
        assert await writer.commit(held(f"j{number}"))
    for task, after in zip(tasks, starts, strict=True):
        assert await asyncio.wait_for(task, WITHIN_S) == list(range(after + 1, begin + 21))


async def test_a_follower_hears_of_each_record_at_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is woken: ten records, each written when the one before was seen, come though its own look is hours away."""
    monkeypatch.setattr(postgres, "POLL_S", 10_000.0)
    writer = await leader(opened, "a", 1)
    follower = (await opened.events()).follow(writer.head.offset)
    assert await writer.commit(held("first"))
    await anext(follower)
    for number in range(10):
        seen = asyncio.ensure_future(anext(follower))
        assert await writer.commit(held(f"j{number}"))
        assert (await asyncio.wait_for(seen, WITHIN_S))[-1].offset == writer.head.offset
    await follower.aclose()  # type: ignore[attr-defined]


async def test_a_filtered_follower_moves_over_dropped_records(opened: Opened) -> None:
    """Its position passes what does not count, so that it resumes after it."""
    writer = await leader(opened, "a", 1, commits=1)
    await put(writer.log, b"junk")
    outcomes: list[Sequence[Accepted | Dropped]] = []
    async for batch in follow_accepted(writer.log):
        outcomes.append(batch)
        if batch[-1].head.offset == writer.head.offset + 1:
            break
    assert isinstance(outcomes[-1][-1], Dropped)
    assert outcomes[-1][-1].head == replace(writer.head, offset=writer.head.offset + 1)


async def test_a_leader_that_was_deposed_changes_nothing(opened: Opened) -> None:
    """What it appended before its successor's term counts; after it nothing does, acknowledged or not."""
    old = await leader(opened, "a", 1, commits=2)
    before = old.head.offset
    new = await leader(opened, "b", 2)
    assert await try_append(old.log, commit_after(old.head, held("zombie")), before + 1) is not opened.place.refuses
    log = await opened.events()
    assert (await head_of(log)).nonce == "b"
    assert before in await accepted_offsets(log)
    assert await drops(log) == ([] if opened.place.refuses else [DropReason.FENCED])
    successor = Leader(await opened.events(), "c")
    assert await successor.lead(3)
    assert await successor.commit(held("on"))
    assert new.head.n + 2 == successor.head.n, "dropped records consume no n"


async def test_a_deposed_append_is_refused_or_dropped(opened: Opened) -> None:
    """Postgres refuses a record whose writer does not know the head; Kafka takes it, and every reader drops it."""
    old = await leader(opened, "a", 1)
    stale = commit_after(old.head, held("zombie"))
    await leader(opened, "b", 2, commits=1)
    acknowledged = await try_append(old.log, stale, old.head.offset + 1)
    assert acknowledged is not opened.place.refuses
    assert await drops(old.log) == [DropReason.FENCED] * acknowledged


async def test_a_refused_append_is_in_no_log(opened: Opened) -> None:
    """A refusal is definite, and its writer may go on."""
    log = await opened.events()
    if opened.place.refuses:
        with pytest.raises(AppendRefused):
            await log.append(b"x", 7)
        assert await log.end() == 0
    assert await put(log, b"y") == await log.end()


@pytest.mark.parametrize(("epoch", "nonce"), [(2, "late"), (1, "late"), (2, "b")])
async def test_a_term_that_is_not_above_the_last_is_dropped(opened: Opened, epoch: int, nonce: str) -> None:
    """A term of an equal or lower epoch does not count, be it late, doubled or another's."""
    await leader(opened, "a", 1)
    new = await leader(opened, "b", 2, commits=1)
    await put(new.log, term_after(new.head, epoch, nonce))
    assert await drops(new.log) == [DropReason.STALE_TERM]
    assert (await head_of(new.log)).nonce == "b"


async def test_a_term_that_missed_a_commit_is_dropped(opened: Opened) -> None:
    """A term chains to the last accepted record: one written without knowing it has to be written again."""
    old = await leader(opened, "a", 1)
    unaware = term_after(old.head, 2, "b")
    assert await old.commit(held("unseen"))
    await put(old.log, unaware)
    assert await drops(old.log) == [DropReason.STALE_TERM]
    assert (await leader(opened, "b", 2)).leading


async def test_of_rivals_for_one_epoch_one_leads(opened: Opened) -> None:
    """When several begin the same epoch at once, readers accept one of their terms, and only its writer knows so."""
    await leader(opened, "a", 1)
    rivals = [Leader(await opened.events(), nonce) for nonce in "bcdef"]

    async def contend(rival: Leader) -> bool:
        try:
            return await rival.lead(2)
        except AppendRefused:
            return False

    won = await asyncio.gather(*(contend(rival) for rival in rivals))
    head = await head_of(rivals[0].log)
    assert [rival.nonce for rival, leads in zip(rivals, won, strict=True) if leads] in ([head.nonce], [])
    assert head.epoch == 2


async def test_a_commit_that_lands_twice_counts_once(opened: Opened) -> None:
    """The same bytes again are a duplicate, and the term goes on after them."""
    writer = await leader(opened, "a", 1)
    again = commit_after(writer.head, held("once"))
    assert await writer.commit(held("once"))
    await put(writer.log, again)
    assert await drops(writer.log) == [DropReason.DUPLICATE]
    head = await head_of(writer.log)
    await put(writer.log, commit_after(head, held("next")))
    assert (await head_of(writer.log)).n == head.n + 1


async def test_two_commits_for_one_place_in_a_term_stop_all_readers(opened: Opened) -> None:
    """What no two leaders can cause is never guessed at: every reader halts at the same record."""
    writer = await leader(opened, "a", 1)
    other = commit_after(writer.head, held("other"))
    assert await writer.commit(held("one"))
    offset = await put(writer.log, other)
    for log in (writer.log, await opened.events()):
        with pytest.raises(ChainBroken) as halt:
            await accepted_offsets(log)
        assert halt.value.offset == offset


async def test_after_an_unknown_outcome_the_writer_is_dead(opened: Opened) -> None:
    """An append without an answer in time may be in the log or not, and its writer never appends again."""
    await leader(opened, "a", 1)
    doomed = Leader(await opened.adopt(opened.place.unanswering), "b")
    head = await head_of(doomed.log)
    with pytest.raises(UnknownOutcome):
        await doomed.log.append(term_after(head, 2, "b"), head.offset + 1, timeout_s=0.0)
    with pytest.raises(UnknownOutcome):
        await doomed.log.append(b"more", head.offset + 2)
    successor = Leader(await opened.events(), "c")
    for _ in range(3):  # the unanswered term may still come in between; then this one has to be written again
        if await _leads(successor):
            break
    assert successor.leading
    assert await successor.commit(held("on"))
    terms = [
        step for step in await all_outcomes(successor.log) if isinstance(step, Accepted) and step.head.nonce == "b"
    ]
    assert len(terms) <= 1


async def _leads(candidate: Leader) -> bool:
    try:
        return await candidate.lead(3)
    except AppendRefused:
        return False


async def test_all_readers_accept_the_same_set(opened: Opened) -> None:
    """Two leaders that write through each other, stale and true records mixed: one accepted set for everybody."""
    old = await leader(opened, "a", 1, commits=1)
    new = await leader(opened, "b", 2)
    for number in range(5):
        await put(old.log, commit_after(old.head, held("stale"), text=str(number)))
        head = await head_of(new.log)
        await put(new.log, commit_after(head, held(f"true{number}")))
    await put(old.log, term_after(old.head, 9, "a"))
    sets = [await accepted_offsets(log) for log in (old.log, new.log, await opened.events())]
    assert sets[0] == sets[1] == sets[2]
    assert (await head_of(old.log)).n == new.head.n + 5


@pytest.mark.parametrize(
    "junk", [b"", b"\xff\x00", b"null", b'"term"', b'{"kind":"commit"}', b'{"kind":"term","body":[]}']
)
async def test_an_unreadable_record_is_passed_over(opened: Opened, junk: bytes) -> None:
    """Bytes that are no record of ours stop no reader (P-7)."""
    writer = await leader(opened, "a", 1, commits=1)
    await put(writer.log, junk)
    assert await drops(writer.log) == [DropReason.UNREADABLE]
    await put(writer.log, commit_after(await head_of(writer.log), held("after")))
    assert (await head_of(writer.log)).n == writer.head.n + 1


async def test_records_up_to_the_limit_are_kept_whole(opened: Opened) -> None:
    """512 KiB comes back byte for byte; one more is refused, and is not in the log."""
    log = await opened.events()
    largest = bytes(range(256)) * (RECORD_BYTES_MAX // 256)
    offset = await put(log, largest)
    with pytest.raises(AppendRefused):
        await put(log, largest + b"x")
    assert (await log.read(offset - 1, 1))[0].value == largest
    assert await log.end() == offset


async def test_many_large_records_are_read_in_pieces(opened: Opened) -> None:
    """However many records a reader asks for, all come in the end, in order and without a gap."""
    log = await opened.events()
    large = b"z" * (RECORD_BYTES_MAX // 2)
    last = [await put(log, large) for _ in range(80)][-1]
    offsets: list[int] = [0]
    while offsets[-1] < last:
        offsets += [raw.offset for raw in await log.read(offsets[-1], 2000)]
    assert offsets == list(range(last + 1))


async def test_a_good_position_is_found_again(opened: Opened) -> None:
    """A reader that comes back to an unchanged log passes the check, wherever it stood."""
    writer = await leader(opened, "a", 1, commits=2)
    await put(writer.log, b"junk")
    for outcome in await all_outcomes(writer.log):
        await verify_position(await opened.events(), outcome.head)


async def test_a_log_that_was_made_anew_is_detected(opened: Opened) -> None:
    """A position in a log that was deleted and created again is refused, though the new one has grown past it."""
    position = (await leader(opened, "a", 1, commits=2)).head
    await opened.close()
    await opened.place.empty()
    writer = await leader(opened, "a", 1, commits=9)
    with pytest.raises(LogUnusable, match="another log"):
        await verify_position(writer.log, position)


async def test_a_log_that_was_cut_off_is_detected(opened: Opened) -> None:
    """A log restored from an older copy ends before the position."""
    writer = await leader(opened, "a", 1, commits=4)
    position, older = writer.head, list(await writer.log.read(-1, 4))
    await opened.close()
    await opened.place.restore(older)
    with pytest.raises(LogUnusable):
        await verify_position(await opened.events(), position)


async def test_a_log_that_lost_only_what_was_dropped_is_detected(opened: Opened) -> None:
    """Once it grows again, a reader that stood after the lost record would skip the one in its place."""
    writer = await leader(opened, "a", 1, commits=2)
    older = list(await writer.log.read(-1, 100))
    await put(writer.log, b"junk")
    position = await head_of(writer.log)
    await opened.close()
    await opened.place.restore(older)
    with pytest.raises(LogUnusable):
        await verify_position(await opened.events(), position)


async def test_a_log_that_was_cut_off_and_grew_again_is_detected(opened: Opened) -> None:
    """Another record where one was read before is found by its hash, though log and length are right."""
    writer = await leader(opened, "a", 1, commits=4)
    position, older = writer.head, list(await writer.log.read(-1, 4))
    await opened.close()
    await opened.place.restore(older)
    await leader(opened, "b", 2, commits=9)
    with pytest.raises(LogUnusable, match="not the one"):
        await verify_position(await opened.events(), position)


async def test_readers_stop_where_they_are_told(opened: Opened) -> None:
    """Reading accepted records up to an offset reads that one and none after it."""
    writer = await leader(opened, "a", 1, commits=5)
    until = writer.head.offset - 2
    assert [step.head.offset async for step in accepted(writer.log, until=until)][-1] == until
